"""The manifests under deploy/: they parse, have the shape that their systems publish, and their commands work here."""

from __future__ import annotations

import importlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from bolide.cli.main import build_parser
from bolide.launch.processes import free_port

ROOT = Path(__file__).resolve().parents[1]
DEPLOY = ROOT / "deploy"
WITHIN_S = 90.0

SBATCH_OPTIONS = {
    "job-name", "nodes", "ntasks-per-node", "gpus-per-node", "cpus-per-task", "mem", "time", "signal", "requeue",
    "open-mode", "output",
}  # fmt: skip

SCRIPT = """
import sys
import bolide as pl
from tests.distributed.support import Net, batches

trainer = pl.Trainer(accelerator="cpu", max_epochs=1, enable_progress_bar=False, enable_model_summary=False)
module = Net()
trainer.fit(module, batches(16, 4), ckpt_path="auto")
with open(f"rank_{trainer.global_rank}", "a") as file:
    file.write(f"{trainer.global_rank} of {trainer.world_size} {trainer.log_dir} {sys.argv[1:]}\\n")
"""

SRUN = """
import os, subprocess, sys
words = [word for word in sys.argv[1:]]
while words and words[0].startswith("--"):
    words.pop(0)
count = int(os.environ["SLURM_NTASKS"])
place = [{"SLURM_PROCID": str(i), "SLURM_LOCALID": str(i), "SLURM_NODEID": "0"} for i in range(count)]
tasks = [subprocess.Popen(words, env={**os.environ, **own}) for own in place]
sys.exit(max(task.wait() for task in tasks))
"""


def documents(name: str) -> list[Any]:
    return list(yaml.safe_load_all((DEPLOY / name).read_text(encoding="utf-8")))


def one(name: str) -> Any:
    (found,) = documents(name)
    return found


def test_every_manifest_is_here_and_told_of() -> None:
    files = {str(path.relative_to(DEPLOY)) for path in DEPLOY.rglob("*") if path.is_file()}
    told = set(re.findall(r"\]\(([^)]+)\)", (DEPLOY / "README.md").read_text(encoding="utf-8")))
    assert files - {"README.md"} == told
    for name in files:
        if name.endswith(".yaml"):
            assert all(isinstance(document, dict) for document in documents(name))


# ---------------------------------------------------------------------- their shape


@pytest.mark.parametrize(
    ("name", "kind"), [("trainjob", "TrainerV1alpha1TrainJob"), ("training-runtime", "TrainerV1alpha1TrainingRuntime")]
)
def test_kubeflow_knows_each_entry(name: str, kind: str) -> None:
    pytest.importorskip("kubeflow_trainer_api")
    given = one(f"kubernetes/{name}.yaml")
    assert kind.endswith(given["kind"])
    read = getattr(importlib.import_module("kubeflow_trainer_api.models"), kind).from_dict(given)
    assert read.to_dict() == given  # what the types do not know they drop


def test_the_check_sees_a_wrong_entry() -> None:
    models = pytest.importorskip("kubeflow_trainer_api.models")
    given = one("kubernetes/trainjob.yaml")
    given["spec"]["trainer"]["numberOfNodes"] = 2
    assert models.TrainerV1alpha1TrainJob.from_dict(given).to_dict() != given
    given["spec"]["trainer"]["numNodes"] = "two"
    with pytest.raises(ValueError, match="numNodes"):
        models.TrainerV1alpha1TrainJob.from_dict(given)


def test_the_job_names_the_runtime_and_its_container() -> None:
    job, runtime = one("kubernetes/trainjob.yaml"), one("kubernetes/training-runtime.yaml")
    assert job["spec"]["runtimeRef"] == {
        "apiGroup": "trainer.kubeflow.org", "kind": runtime["kind"], "name": runtime["metadata"]["name"],
    }  # fmt: skip
    (replicated,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    labels = replicated["template"]["metadata"]["labels"]
    assert labels["trainer.kubeflow.org/trainjob-ancestor-step"] == "trainer"
    pod = replicated["template"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["name"] == replicated["name"] == "node"  # where Kubeflow puts the job's image and command
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}


def test_skypilot_takes_its_task() -> None:
    sky = pytest.importorskip("sky")
    task = sky.Task.from_yaml(str(DEPLOY / "skypilot/train.yaml"))
    assert list(task.storage_mounts) == ["/runs"] and all(kind.use_spot for kind in task.resources)


def test_the_batch_script_is_sound() -> None:
    path = DEPLOY / "slurm/train.sbatch"
    subprocess.run(["bash", "-n", str(path)], check=True)
    options = re.findall(r"^#SBATCH --([a-z-]+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    assert set(options) == SBATCH_OPTIONS and len(options) == len(SBATCH_OPTIONS)
    checker = shutil.which("shellcheck", path=os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]]))
    if checker is None:
        pytest.skip("shellcheck is not installed")
    done = subprocess.run([checker, str(path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def words_of(command: str) -> list[str]:
    """The words of the `bolide` command in a piece of shell, its variables standing for a number."""
    text = re.sub(r"\$\w+", "2", command[command.index("bolide launch") :])
    return shlex.split(text)[1:]


def test_each_command_is_one_that_bolide_has() -> None:
    job = one("kubernetes/trainjob.yaml")["spec"]["trainer"]
    asked = build_parser().parse_args(words_of(job["command"][2].replace('"$@"', shlex.join(job["args"]))))
    assert (asked.command, asked.nnodes, asked.nproc, asked.endpoint, asked.max_restarts) == (
        "launch", "2", "2", "2:2", 3,
    )  # fmt: skip
    asked = build_parser().parse_args(words_of(one("skypilot/train.yaml")["run"]))
    assert (asked.nproc, asked.script) == ("2", "2")
    job = one("ray/rayjob.yaml")["spec"]
    asked = build_parser().parse_args(words_of(job["entrypoint"]))
    assert (asked.ray, asked.num_workers, asked.script, asked.arguments) == (True, 16, "train.py", ["--lr=0.1"])
    (group,) = job["rayClusterSpec"]["workerGroupSpecs"]
    (container,) = group["template"]["spec"]["containers"]
    limits = container["resources"]
    assert group["replicas"] * int(limits["limits"]["nvidia.com/gpu"]) == asked.num_workers
    assert group["replicas"] * int(limits["requests"]["cpu"]) >= asked.num_workers * asked.cpus_per_worker


# ---------------------------------------------------------------------- they run


def run(folder: Path, shell: list[str], **variables: str) -> list[str]:
    """Runs a piece of a manifest in `folder`, and what the two ranks of its script say."""
    tools = folder / "bin"
    tools.mkdir()
    (tools / "srun.py").write_text(SRUN)
    python = shlex.quote(sys.executable)
    for name, words in (("bolide", "-m bolide.cli.main"), ("srun", tools / "srun.py"), ("python", "")):
        (tools / name).write_text(f'#!/bin/sh\nexec {python} {words} "$@"\n')
        (tools / name).chmod(0o755)
    (folder / "train.py").write_text(SCRIPT)
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    environment |= {
        "PATH": os.pathsep.join([str(tools), os.environ["PATH"]]), "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]), **variables,
    }  # fmt: skip
    done = subprocess.run(
        shell, cwd=folder, env=environment, capture_output=True, text=True, timeout=WITHIN_S, start_new_session=True
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return [(folder / f"rank_{rank}").read_text().strip() for rank in range(2)]


@pytest.mark.slow
def test_the_batch_script_runs(tmp_path: Path) -> None:
    said = run(
        tmp_path, ["bash", str(DEPLOY / "slurm/train.sbatch"), "train.py", "--lr=0.1"], SLURM_JOB_ID="77",
        SLURM_JOB_NAME="train", SLURM_NTASKS="2", SLURM_NTASKS_PER_NODE="2", SLURM_JOB_NODELIST="localhost",
        SLURM_CPUS_PER_TASK="1", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()),
    )  # fmt: skip
    assert said == [f"{rank} of 2 {tmp_path}/runs/77/lightning_logs/version_77 ['--lr=0.1']" for rank in range(2)]


@pytest.mark.slow
def test_the_pods_command_runs(tmp_path: Path) -> None:
    job = one("kubernetes/trainjob.yaml")["spec"]["trainer"]
    said = run(
        tmp_path, [*job["command"], *job["args"]], PET_NNODES="1", PET_NPROC_PER_NODE="2", PET_MASTER_ADDR="127.0.0.1",
        PET_MASTER_PORT=str(free_port()), JOB="train", PL_TRAINER_DEFAULT_ROOT_DIR=str(tmp_path / "runs/train"),
    )  # fmt: skip
    assert said == [f"{rank} of 2 {tmp_path}/runs/train/lightning_logs/version_0 ['--lr=0.1']" for rank in range(2)]


@pytest.mark.slow
def test_the_spot_machines_command_runs(tmp_path: Path) -> None:
    manifest = one("skypilot/train.yaml")
    said = run(
        tmp_path, ["bash", "-c", manifest["run"]], **(manifest["envs"] | {"RUNS": str(tmp_path / "runs")}),
        SKYPILOT_TASK_ID="sky-1", SKYPILOT_NUM_GPUS_PER_NODE="2",
    )  # fmt: skip
    assert said == [f"{rank} of 2 {tmp_path}/runs/sky-1/lightning_logs/version_0 []" for rank in range(2)]

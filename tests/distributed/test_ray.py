"""Training on a local Ray: by a script, by `fit`, by `run`; a worker that is killed; what is refused."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from bolide.cli.main import main
from bolide.core.errors import ConfigError, MissingPackageError
from bolide.launch import ray as on_ray
from bolide.launch.detect import detect
from bolide.launch.environments import restart_count
from bolide.launch.script import how_to_start
from tests.distributed.support import Net, batches, run_pytest, run_script, trainer

has_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed")
WITHIN_S = 280.0
"""Ray starts several processes for two workers: some 20 s on two idle cores, more on busy ones."""


# ---------------------------------------------------------------------- without a cluster


def worker(monkeypatch: Any, **more: str) -> None:
    """This process as a worker of Ray's."""
    place = {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "NODE_RANK": "1"}
    for name in ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {**place, "BOLIDE_RAY_ATTEMPT": "2", "SLURM_NTASKS": "9", **more}.items():
        monkeypatch.setenv(name, value)


def test_a_worker_knows_its_place(monkeypatch: Any) -> None:
    worker(monkeypatch)
    found = detect()
    assert found is not None and found.name == "Ray" and found.node_rank() == 1 and restart_count() == 2
    made = trainer("auto")  # type: ignore[arg-type]
    assert (made.global_rank, made.local_rank, made.world_size, made.num_nodes) == (3, 1, 4, 2)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "torchrun within a worker")
    inner = detect()
    assert inner is not None and inner.name == "torchrun"


def test_a_worker_starts_no_processes(monkeypatch: Any, tmp_path: Path) -> None:
    worker(monkeypatch, RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", LOCAL_WORLD_SIZE="1")
    with pytest.raises(ConfigError, match="num_workers=2"):
        how_to_start(None, "ddp", 2)
    with pytest.raises(ConfigError, match="num_workers=2"):
        trainer(2).fit(Net(), batches(8, 4))


def test_what_is_refused(monkeypatch: Any, capsys: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as told:
        on_ray.run(3, num_workers=0, max_failures=-2, cpus_per_worker=-1, name="../x")  # type: ignore[arg-type]
    assert [text.partition("=")[0] for text in told.value.problems] == [
        "train", "num_workers", "max_failures", "cpus_per_worker", "name",
    ]  # fmt: skip
    with pytest.raises(ConfigError) as told:
        on_ray.fit(Net(), trainer={"devices": 2, "num_nodes": 2}, num_workers=2)
    assert len(told.value.problems) == 2 and "num_workers=2" in told.value.problems[0]
    assert main(["launch", "--ray", "nothing.py"]) == 1
    assert "there is no script 'nothing.py'" in capsys.readouterr().err
    assert main(["launch", "--ray", "--nproc", "2", "--hang-timeout-s", "9", __file__]) == 1
    said = capsys.readouterr().err
    assert "--nproc" in said and "--hang-timeout-s" in said and "--num-workers" in said
    assert said.splitlines()[0] == "bolide launch: error: 2 settings cannot be used as given:"
    for words, told_of in (
        (["--local-addr", "127.0.0.1"], "--local-addr is for torch's agent"),
        (["--max-restarts", "-1"], "--max-restarts must be at least 0"),
        (["--working-dir", str(tmp_path / "gone")], "there is no such folder"),
    ):
        assert main(["launch", "--ray", *words, __file__]) == 1
        assert told_of in capsys.readouterr().err
    assert main(["launch", "--num-workers", "2", __file__]) == 1
    assert "--num-workers goes with --ray only" in capsys.readouterr().err
    monkeypatch.setattr("bolide.launch.ray_cluster.NEEDED", ("no_such_package",))
    with pytest.raises(MissingPackageError, match=r'pip install "bolide\[ray\]"'):
        on_ray.run(print)


# ---------------------------------------------------------------------- on a local Ray

SCRIPT = """
import json, socket
import ray

class Counted(Net):
    def training_step(self, batch, batch_idx):
        if "kill" in sys.argv and self.global_step == 5 and self.global_rank == 1 and not os.path.exists("killed"):
            open("killed", "w").write(str(os.getpid()))
            os.kill(os.getpid(), signal.SIGKILL)
        loss = self.loss(batch)
        self.log("loss", loss, on_step=False, on_epoch=True, sync_dist=True)
        return loss

    def on_train_start(self):
        with open(f"starts_{self.global_rank}", "a") as file:
            file.write(json.dumps([self.global_step, self.trainer.world_size, sys.argv[1:], __name__,
                                   ray.util.get_node_ip_address()]) + "\\n")

pl.seed_everything(5, verbose=False)
module = Counted()
saver = pl.callbacks.ModelCheckpoint(every_n_train_steps=1)
one = pl.Trainer(
    accelerator="cpu", max_epochs=3, enable_progress_bar=False, enable_model_summary=False, callbacks=[saver],
    logger=pl.loggers.CSVLogger("logs"), log_every_n_steps=1, resilience={"exact_resume": True},
)
one.fit(module, batches(48, 4, shuffle="shuffled" in sys.argv))
if one.is_global_zero:
    found = {"weights": module.weights.tolist(), "loss": float(one.callback_metrics["loss"]), "steps": one.global_step}
    open("done.json", "w").write(json.dumps(found))
"""
LAUNCH = [sys.executable, "-m", "bolide.cli.main", "launch", "--ray", "--num-workers", "2", "--cpus-per-worker", "0.5"]


def launched(folder: Path, *words: str, restarts: int = 0) -> dict[str, Any]:
    folder.mkdir(exist_ok=True)
    done = run_script(
        folder, SCRIPT, *words, launcher=[*LAUNCH, "--max-restarts", str(restarts)], timeout_s=WITHIN_S
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    found: dict[str, Any] = json.loads((folder / "done.json").read_text())
    found["said"] = done.stdout + done.stderr
    found["starts"] = [[json.loads(line) for line in (folder / f"starts_{rank}").read_text().splitlines()]
                       for rank in range(2)]  # fmt: skip
    return found


@has_ray
@pytest.mark.timeout(300)
def test_a_script_runs_on_ray(tmp_path: Path) -> None:
    found = launched(tmp_path, "some", "words")
    assert found["starts"] == [[[0, 2, ["some", "words"], "__main__", "127.0.0.1"]]] * 2
    assert found["steps"] == 18
    alone = Net()
    trainer(1, max_epochs=3).fit(alone, batches(48, 8))
    assert torch.allclose(torch.tensor(found["weights"]), alone.weights, atol=1e-6)
    assert [p.name for p in (tmp_path / "logs/lightning_logs").iterdir()] == ["version_0"]


@has_ray
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_killed_worker_costs_no_bit(tmp_path: Path) -> None:
    whole = launched(tmp_path / "whole", "shuffled")
    found = launched(tmp_path / "killed", "shuffled", "kill", restarts=1)
    assert (tmp_path / "killed/killed").exists()
    assert "Rank 1 failed: its process was lost" in found["said"] and "attempt 2" in found["said"]
    first, second = (start[0] for start in found["starts"][0])
    assert first == 0 and 3 <= second <= 5  # the step that was being trained, less at most the save in flight
    assert (found["weights"], found["loss"], found["steps"]) == (whole["weights"], whole["loss"], whole["steps"])
    assert [p.name for p in (tmp_path / "killed/logs/lightning_logs").iterdir()] == ["version_0"]


@has_ray
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_fit_and_run() -> None:
    # in a process of its own: one that has held Ray has threads, and should fork no more
    run_pytest(Path(__file__).with_name("ray_cases.py"), timeout_s=800)


CLUSTER = """
import json
from ray.cluster_utils import Cluster
import bolide.launch.ray
from bolide import collectives

there = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
there.add_node(num_cpus=1)

def train():
    one = trainer("auto")
    module = Net()
    one.fit(module, batches(32, 4))
    return collectives.gather_to_zero([one.global_rank, one.world_size]), module.weights.tolist()

try:
    found = bolide.launch.ray.run(train, num_workers=2, address=there.address)
finally:
    there.shutdown()
open("found.json", "w").write(json.dumps(found))
"""


@has_ray
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_cluster_that_is_there_is_joined(tmp_path: Path) -> None:
    done = run_script(tmp_path, CLUSTER, timeout_s=WITHIN_S)
    assert done.returncode == 0, done.stderr[-3000:]
    ranks, weights = json.loads((tmp_path / "found.json").read_text())
    alone = Net()
    trainer(1).fit(alone, batches(32, 8))
    assert ranks == [[0, 2], [1, 2]] and torch.allclose(torch.tensor(weights), alone.weights, atol=1e-6)
    assert "must be a folder that all machines of the cluster see" in done.stderr

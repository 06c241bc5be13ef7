"""Groups of processes for tests: forked ranks that run many checks in one group, and scripts run by themselves.

`in_ranks(count, work)` forks `count` ranks, runs `work()` in each, and returns what each returned. Within one, a
Trainer finds itself launched. `run_script` writes a program and runs it in processes of its own, as a user does.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader, TensorDataset

import bolide as pl
from bolide import collectives
from bolide.core.protocols import Optimizable
from bolide.launch.processes import run_in_processes

ROOT = Path(__file__).parents[2]
DEADLINE_S = 60.0
"""Nothing here may take so long: whoever waits longer hangs."""

QUIET: dict[str, Any] = {
    "accelerator": "cpu", "enable_progress_bar": False, "enable_model_summary": False, "logger": False,
    "enable_checkpointing": False, "num_sanity_val_steps": 0, "max_epochs": 2,
}  # fmt: skip


def in_ranks(count: int, work: Callable[[], Any]) -> list[Any]:
    """What `work()` returns on each of `count` forked ranks."""
    found: list[Any] = run_in_processes(_all_answers, (work,), count, fork=True)
    return found


def _all_answers(work: Callable[[], Any]) -> Any:
    answer = work()
    if not collectives.is_open():
        return [answer]
    return collectives.gather_to_zero(answer)


def trainer(devices: int, **options: Any) -> pl.Trainer:
    """A quiet trainer of `devices` ranks; of one process where that is 1."""
    return pl.Trainer(devices=devices, **{**QUIET, **options})


def data(samples: int, seed: int = 1) -> TensorDataset:
    """Samples of 4 features, and a target that depends on them."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, 4, generator=generator)
    return TensorDataset(x, torch.tanh(x.sum(1, keepdim=True)))


def batches(samples: int, batch_size: int, seed: int = 1, **options: Any) -> DataLoader[Any]:
    return DataLoader(data(samples, seed), batch_size=batch_size, **options)


class Net(pl.LightningModule):
    """A small network with the same weights at every start; `lr` is large enough for differences to show."""

    def __init__(self, lr: float = 0.1) -> None:
        super().__init__()
        self.lr = lr
        state = torch.get_rng_state()
        torch.manual_seed(7)
        self.net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
        torch.set_rng_state(state)

    def loss(self, batch: Any) -> Any:
        x, y = batch
        return torch.nn.functional.mse_loss(self.net(x), y)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.loss(batch)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=self.lr, momentum=0.9)

    @property
    def weights(self) -> torch.Tensor:
        """All weights in one vector."""
        return torch.cat([p.detach().reshape(-1) for p in self.parameters()]).clone()


def run_script(
    folder: Path, body: str, *arguments: str, launcher: list[str] | None = None, timeout_s: float = DEADLINE_S
) -> subprocess.CompletedProcess[str]:
    """Runs a program of its own in `folder`; its output is in `stdout` and `stderr`."""
    process = start_script(folder, body, *arguments, launcher=launcher)
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        raise AssertionError(f"the script did not end within {timeout_s} s:\n{out[-3000:]}\n{err[-3000:]}") from None
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def start_script(folder: Path, body: str, *arguments: str, launcher: list[str] | None = None) -> subprocess.Popen[str]:
    """Starts a program of its own in `folder`."""
    path = folder / "train.py"
    path.write_text(PREAMBLE + textwrap.dedent(body))
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    paths = [str(ROOT / "src"), str(ROOT), environment.get("PYTHONPATH", "")]
    environment |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    return subprocess.Popen(
        [*(launcher or [sys.executable]), str(path), *arguments], cwd=folder, env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip


def run_pytest(path: Path, timeout_s: float) -> None:
    """Runs the tests of a file in a process of their own, and fails with what it says where one of them does."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", str(path)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=timeout_s)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]


PREAMBLE = """\
import os, signal, sys, time
import torch
import bolide as pl
from tests.distributed.support import Net, batches, data, trainer
"""


def gone(pids: list[int], within_s: float) -> bool:
    """Whether all these processes are gone within so long."""
    deadline_s = time.monotonic() + within_s
    while time.monotonic() < deadline_s:
        if not any(_alive(pid) for pid in pids):
            return True
        time.sleep(0.05)
    return False


def _alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def bytes_held(module: nn.Module, optimizers: Iterable[Optimizable]) -> dict[str, int]:
    """The bytes that this process holds of a module's parameters, their gradients, and the optimizers' states."""

    def size(item: Any) -> int:
        if not isinstance(item, Tensor):
            return 0
        local = item.to_local() if isinstance(item, DTensor) else item
        return local.numel() * local.element_size()

    states = [value for optimizer in optimizers for entry in optimizer.state.values() for value in entry.values()]
    return {
        "parameters": sum(size(p.detach()) for p in module.parameters()),
        "gradients": sum(size(p.grad) for p in module.parameters()),
        "optimizer": sum(size(value) for value in states),
    }

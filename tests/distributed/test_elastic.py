"""Machines that come and go: two agents on this one, of which one is killed and comes back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bolide.launch.processes import free_port
from tests.distributed.support import start_script

SCRIPT = """
folder = sys.argv[1]
attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0))

class Noting(Net):
    # each step's samples, by the number of the step: a step that is done again overwrites what was noted
    def training_step(self, batch, batch_idx):
        time.sleep(0.25 / self.trainer.accumulate_grad_batches)
        x, y = batch[0], batch[1]
        step = self.global_step
        with open(f"{folder}/seen_{self.global_rank}", "a") as file:
            numbers = " ".join(str(int(v)) for v in batch[2])
            file.write(f"{time.time()} {self.trainer.world_size} {self.current_epoch} {step} {numbers}\\n")
        return torch.nn.functional.mse_loss(self.net(x), y)

base = data(160)
numbered = torch.utils.data.TensorDataset(*base.tensors, torch.arange(160))
saved = pl.callbacks.ModelCheckpoint(f"{folder}/saved", every_n_train_steps=1, save_last=True)
one = trainer("auto", strategy="ddp", max_epochs=4, enable_checkpointing=True, callbacks=[saved], num_nodes=1)
one.fit(Noting(), torch.utils.data.DataLoader(numbered, batch_size=4, shuffle=True), ckpt_path="auto")
print("done", one.global_step, flush=True)
"""


def _agent(folder: Path, port: int, rank: int) -> subprocess.Popen[str]:
    own = folder / f"agent_{rank}_{time.time()}"
    own.mkdir()
    command = [sys.executable, "-m", "bolide.cli.main", "launch", "--nproc", "1", "--nnodes", "1:2", "--endpoint",
               f"127.0.0.1:{port}", "--run-id", "elastic", "--max-restarts", "5"]  # fmt: skip
    process = start_script(own, SCRIPT, str(folder), launcher=command)
    return process


def _sizes(folder: Path) -> list[tuple[float, int]]:
    """(when, number of ranks) of each batch of rank 0."""
    path = folder / "seen_0"
    lines = path.read_text().splitlines() if path.exists() else []
    return [(float(line.split()[0]), int(line.split()[1])) for line in lines]


def _until(folder: Path, size: int, after_s: float, batches: int) -> None:
    deadline_s = time.monotonic() + 90
    while time.monotonic() < deadline_s:
        if sum(1 for when, ranks in _sizes(folder) if ranks == size and when > after_s) >= batches:
            return
        time.sleep(0.1)
    raise AssertionError(f"no {size} ranks within 90 s: {_sizes(folder)[-3:]}")


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_an_agent_that_dies_and_returns(tmp_path: Path) -> None:
    port = free_port()
    first = _agent(tmp_path, port, 0)
    time.sleep(1.0)  # it hosts the rendezvous
    second = _agent(tmp_path, port, 1)
    try:
        _until(tmp_path, 2, 0.0, 5)
        second.send_signal(signal.SIGKILL)
        _until(tmp_path, 1, time.time(), 6)
        back_s = time.time()
        third = _agent(tmp_path, port, 1)
        try:
            _until(tmp_path, 2, back_s, 4)
            out, errors = first.communicate(timeout=150)
            assert first.returncode == 0, errors[-3000:]
            third.communicate(timeout=30)
        finally:
            third.kill()
    finally:
        for process in (first, second):
            process.kill()
            process.communicate()
    # what the run is made of: of each step the last time it was done, by as many ranks as there were then
    done: dict[tuple[int, int], dict[int, list[tuple[float, int, list[int]]]]] = {}
    for rank in range(2):
        for line in (tmp_path / f"seen_{rank}").read_text().splitlines():
            when, size, epoch, step, *numbers = line.split()
            key = (int(epoch), int(step))
            done.setdefault(key, {}).setdefault(rank, []).append((float(when), int(size), [int(n) for n in numbers]))
    epochs: dict[int, list[int]] = {}
    for (epoch, _), by_rank in sorted(done.items()):
        last_size = by_rank[0][-1][1]
        for rank in range(last_size):
            # with one rank a step is made of two batches, one after the other
            per_step = 2 // last_size
            epochs.setdefault(epoch, []).extend(n for _, _, numbers in by_rank[rank][-per_step:] for n in numbers)
    assert sorted(epochs) == [0, 1, 2, 3]
    for epoch, numbers in epochs.items():
        assert sorted(numbers) == list(range(160)), f"epoch {epoch}: {len(numbers)} samples"
    assert os.path.exists(tmp_path / "saved" / "last.ckpt")

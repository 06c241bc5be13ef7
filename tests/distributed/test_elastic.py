"""Machines that come and go: agents on this one, of which one joins late, is killed, and comes back."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from bolide.launch.processes import free_port
from tests.distributed.support import gone, run_script, start_script

EPOCHS, SAMPLES, BATCH, GLOBAL_BATCH = 5, 160, 4, 8
WITHIN_S = 90.0
"""Nothing here takes so long but what hangs."""

SCRIPT = f"""
folder, ranks, accumulate, ckpt_path = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]

class Noting(Net):
    # each step's samples, by the number of the step: a step that is done again is noted again
    def training_step(self, batch, batch_idx):
        try:
            with open(f"{{folder}}/pace_s") as file:
                time.sleep(float(file.read()) / self.trainer.accumulate_grad_batches)
        except (OSError, ValueError):
            pass
        place = [time.time(), self.trainer.world_size, self.current_epoch, self.global_step, os.getpid()]
        with open(f"{{folder}}/seen_{{self.global_rank}}", "a") as file:
            print(*place, *map(int, batch[2]), file=file)
        return torch.nn.functional.mse_loss(self.net(batch[0]), batch[1])

pl.seed_everything(5, verbose=False)
numbered = torch.utils.data.TensorDataset(*data({SAMPLES}).tensors, torch.arange({SAMPLES}))
saved = pl.callbacks.ModelCheckpoint(f"{{folder}}/saved", every_n_train_steps=1, save_last=True)
module = Noting(lr=0.01)
one = trainer(
    ranks, strategy="ddp", max_epochs={EPOCHS}, accumulate_grad_batches=accumulate, enable_checkpointing=True,
    callbacks=[saved],
)
loader = torch.utils.data.DataLoader(numbered, batch_size={BATCH}, shuffle=True)
one.fit(module, loader, ckpt_path=None if ckpt_path == "none" else ckpt_path)
if one.global_rank == 0:
    torch.save(module.weights, f"{{folder}}/weights")
"""

Notes = list[tuple[float, int, int, int, int, list[int]]]
"""(when, ranks, epoch, step, process, samples) of each batch of a rank, in the order they were done."""


def notes(folder: Path, rank: int) -> Notes:
    path = folder / f"seen_{rank}"
    lines = path.read_text().splitlines() if path.exists() else []
    split = [line.split() for line in lines]
    return [(float(w[0]), int(w[1]), int(w[2]), int(w[3]), int(w[4]), [int(n) for n in w[5:]]) for w in split]


def until(folder: Path, ranks: int, after_s: float, batches: int, agents: list[subprocess.Popen[str]]) -> None:
    """Waits until so many ranks have done so many batches since then."""
    deadline_s = time.monotonic() + WITHIN_S
    while time.monotonic() < deadline_s:
        if sum(1 for when, size, *_ in notes(folder, 0) if size == ranks and when > after_s) >= batches:
            return
        time.sleep(0.1)
    for agent in agents:
        agent.kill()
    told = "\n".join(agent.communicate()[1][-1500:] for agent in agents)
    raise AssertionError(f"no {ranks} rank(s) within {WITHIN_S} s: {notes(folder, 0)[-1:]}\n{told}")


def samples_of_steps(folder: Path) -> dict[tuple[int, int], list[int]]:
    """The samples of each (epoch, step), sorted, as it was done last: by one rank in two batches, or by two ranks."""
    by_rank: list[dict[tuple[int, int], Notes]] = [{}, {}]
    for rank, found in enumerate(by_rank):
        for note in notes(folder, rank):
            found.setdefault((note[2], note[3]), []).append(note)
    steps: dict[tuple[int, int], list[int]] = {}
    for key, first in by_rank[0].items():
        ranks = first[-1][1]
        batches = GLOBAL_BATCH // BATCH // ranks
        parts = [by_rank[rank][key][-batches:] for rank in range(ranks)]
        steps[key] = sorted(sample for part in parts for note in part for sample in note[5])
    return steps


def agent_command(launcher: str, port: int) -> list[str]:
    if launcher == "bolide":
        return [sys.executable, "-m", "bolide.cli.main", "launch", "--nproc", "1", "--nnodes", "1:2", "--endpoint",
                f"127.0.0.1:{port}", "--run-id", "elastic"]  # fmt: skip
    return [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=1", "--nnodes=1:2", "--max-restarts=3",
            "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=elastic", "--monitor-interval=0.5",
            "--rdzv-conf=keep_alive_interval=1,keep_alive_max_attempt=3,last_call_timeout=3"]  # fmt: skip


@contextmanager
def agents_of(folder: Path) -> Iterator[list[subprocess.Popen[str]]]:
    """Agents that were started, the first of which has the meeting place; none is left behind."""
    started: list[subprocess.Popen[str]] = []
    try:
        yield started
    finally:
        for agent in started:
            agent.kill()
            agent.communicate()
        assert gone([note[4] for rank in range(2) for note in notes(folder, rank)], within_s=5)


def one_more(started: list[subprocess.Popen[str]], folder: Path, command: list[str]) -> subprocess.Popen[str]:
    own = folder / f"agent_{len(started)}"
    own.mkdir()
    auto = "none" if "launch" in command else "auto"  # `bolide launch` goes on by itself
    started.append(start_script(own, SCRIPT, str(folder), "auto", "2", auto, launcher=command))
    return started[-1]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("launcher", ["bolide", "torchrun"])
def test_an_agent_that_joins_dies_and_returns(launcher: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")  # `bolide launch` sets it by itself
    undisturbed = tmp_path / "undisturbed"
    undisturbed.mkdir()
    done = run_script(undisturbed, SCRIPT, str(undisturbed), "1", "2", "none")
    assert done.returncode == 0, done.stderr[-2000:]

    elastic = tmp_path / "elastic"
    elastic.mkdir()
    pace = elastic / "pace_s"
    pace.write_text("0.6")
    command = agent_command(launcher, free_port())
    with agents_of(elastic) as agents:
        first = one_more(agents, elastic, command)
        until(elastic, 1, 0.0, 2, agents)
        second = one_more(agents, elastic, command)
        until(elastic, 2, 0.0, 3, agents)
        rank = notes(elastic, 1)[-1][4]
        second.send_signal(signal.SIGKILL)
        assert gone([rank], within_s=5)
        until(elastic, 1, time.time(), 4, agents)
        back_s = time.time()
        third = one_more(agents, elastic, command)
        until(elastic, 2, back_s, 3, agents)
        pace.write_text("0.01")
        for agent in (first, third):
            out, errors = agent.communicate(timeout=WITHIN_S)
            assert agent.returncode == 0, errors[-3000:]

    found, right = samples_of_steps(elastic), samples_of_steps(undisturbed)
    for epoch in range(EPOCHS):
        seen = [sample for (of, _), samples in found.items() if of == epoch for sample in samples]
        assert sorted(seen) == list(range(SAMPLES)), f"epoch {epoch}: {len(seen)} samples"
    assert found == right
    weights = [torch.load(folder / "weights") for folder in (elastic, undisturbed)]
    assert torch.allclose(*weights, atol=1e-6)

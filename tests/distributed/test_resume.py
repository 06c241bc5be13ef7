"""A killed run that the agent starts again ends with the bits of an undisturbed one; on other numbers of ranks, with
its samples."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import bolide as pl
from tests.distributed import resumed
from tests.distributed.support import Net, batches, in_ranks, run_script, trainer


def test_a_killed_rank_and_a_killed_group_end_with_the_same_bits(tmp_path: Path) -> None:
    right = resumed.run(tmp_path / "right", ranks=2)
    kills = [(0, 1, 0.5), (1, -1, 0.6), (2, 0, 0.3)]
    found = resumed.run(tmp_path / "killed", ranks=2, kills=kills, pause_s=0.06, restarts=2)
    assert found == right
    made = resumed.attempts(tmp_path / "killed")
    assert [attempt for attempt, *_ in made] == sorted({attempt for attempt, *_ in made})
    assert len(made) >= 3 and any(step > 0 for _, step, *_ in made[1:])


class Bits(Net):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[list[float]] = []

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.seen.append([round(float(v), 6) for v in batch[0][:, 0]])
        return self.loss(batch)


def saved_in_the_midst(folder: Path, ranks: int) -> Any:
    """Trains 3 epochs of 12 global batches, saving in the midst of the second; what it ends with."""
    module = Bits()
    keep = pl.callbacks.ModelCheckpoint(folder, every_n_train_steps=16, save_top_k=-1, filename="{step}")
    pl.seed_everything(11, verbose=False)
    one = trainer(ranks, strategy="ddp", max_epochs=3, enable_checkpointing=True, callbacks=[keep])
    one.fit(module, batches(96, 8 // ranks, shuffle=True))
    return module.weights, module.seen[16:]


def gone_on(folder: Path, ranks: int) -> Any:
    module = Bits()
    pl.seed_everything(77, verbose=False)
    one = trainer(ranks, strategy="ddp" if ranks > 1 else "auto", max_epochs=3)
    one.fit(module, batches(96, 8 // ranks if ranks < 4 else 2, shuffle=True), ckpt_path=folder / "step=16.ckpt")
    return module.weights, module.seen, one.global_step, one.accumulate_grad_batches


def test_the_same_number_of_ranks_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    def work() -> Any:
        return saved_in_the_midst(tmp_path, 2), gone_on(tmp_path, 2)

    for (weights, rest), (found, seen, step, _) in in_ranks(2, work):
        assert torch.equal(weights, found) and rest == seen and step == 36


@pytest.mark.parametrize("ranks", [1, 4])
def test_another_number_of_ranks_goes_on_with_the_same_samples(tmp_path: Path, ranks: int) -> None:
    def first() -> Any:
        return saved_in_the_midst(tmp_path, 2)

    right = in_ranks(2, first)

    def second() -> Any:
        module = Bits()
        pl.seed_everything(77, verbose=False)
        one = trainer(ranks, strategy="ddp" if ranks > 1 else "auto", max_epochs=3)
        # batches of one rank keep their size: with fewer ranks a step accumulates more of them
        options: dict[str, Any] = {"accumulate_grad_batches": 2} if ranks == 1 else {}
        one.fit(module, batches(96, 4, shuffle=True), ckpt_path=tmp_path / "step=16.ckpt")
        return module.weights, module.seen, one.global_step, one.accumulate_grad_batches, options

    if ranks == 4:
        from bolide.launch.processes import RankError

        with pytest.raises(RankError, match="which makes 8 to a step; 32 were done in its epoch. 4 process"):
            in_ranks(4, second)
        return
    weights, seen, step, accumulate, _ = second()
    assert step == 36 and accumulate == 2
    assert torch.allclose(weights, right[0][0], atol=1e-6)
    consumed = [sorted(first + second) for first, second in zip(right[0][1], right[1][1], strict=True)]
    assert [sorted(a + b) for a, b in zip(seen[::2], seen[1::2], strict=True)] == consumed


def test_a_single_process_is_watched_and_started_again_too(tmp_path: Path) -> None:
    body = """
    folder = sys.argv[1]
    attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0))

    class Dying(Net):
        def on_train_batch_end(self, *args):
            if attempt == 0 and self.global_step == 6:
                os.kill(os.getpid(), signal.SIGKILL)

    saved = pl.callbacks.ModelCheckpoint(folder, every_n_train_steps=2, save_last=True)
    one = trainer(1, enable_checkpointing=True, callbacks=[saved], resilience={"max_restarts": 1})
    one.fit(Dying(), batches(32, 4))
    print("attempt", attempt, "step", one.global_step, one.ckpt_path)
    """
    done = run_script(tmp_path, body, str(tmp_path))
    assert done.returncode == 0, done.stderr[-2000:]
    assert "attempt 1 step 16" in done.stdout and "last.ckpt" in done.stdout


def test_one_process_that_starts_again_goes_on_in_its_folder(tmp_path: Path) -> None:
    body = """
    class Fails(Net):
        def training_step(self, batch, batch_idx):
            if self.global_step == 4 and not os.path.exists("failed"):
                open("failed", "w").close()
                raise RuntimeError("once")
            return self.loss(batch)

    saved = pl.callbacks.ModelCheckpoint(every_n_train_steps=1, save_top_k=-1)
    logger = pl.loggers.TensorBoardLogger("logs", sub_dir="events")
    one = trainer(1, logger=logger, enable_checkpointing=True, callbacks=[saved],
                  log_every_n_steps=1, resilience={"max_restarts": 1})
    one.fit(Fails(), batches(32, 4))
    print("step", one.global_step, one.run_dir, len(os.listdir(saved.dirpath)))
    """
    done = run_script(tmp_path, body)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "step 16 logs/lightning_logs/version_0 17" in done.stdout  # each save, and the mark of the end
    assert os.listdir(tmp_path / "logs" / "lightning_logs") == ["version_0"]


def test_a_launch_that_starts_again_goes_on_in_its_folder(tmp_path: Path) -> None:
    body = """
    class Killed(Net):
        def training_step(self, batch, batch_idx):
            if self.global_step == 4 and self.global_rank == 1 and not os.path.exists("killed"):
                open("killed", "w").close()
                os.kill(os.getpid(), signal.SIGKILL)
            return self.loss(batch)

        def on_train_start(self):
            with open(f"starts_{self.global_rank}", "a") as file:
                file.write(f"{self.global_step} {self.trainer.log_dir}\\n")

    saved = pl.callbacks.ModelCheckpoint(every_n_train_steps=1)
    one = trainer("auto", logger=pl.loggers.CSVLogger("logs"), enable_checkpointing=True, callbacks=[saved],
                  log_every_n_steps=1, checkpointing={"async": False})
    one.fit(Killed(), batches(32, 4))
    """
    command = [sys.executable, "-m", "bolide.cli.main", "launch", "--nproc", "2", "--max-restarts", "1"]
    done = run_script(tmp_path, body, launcher=command)
    assert done.returncode == 0, done.stderr[-3000:]
    for rank in range(2):
        starts = (tmp_path / f"starts_{rank}").read_text().splitlines()
        assert starts == [f"{step} logs/lightning_logs/version_0" for step in (0, 4)]

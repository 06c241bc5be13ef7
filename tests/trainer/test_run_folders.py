"""One run, one folder: a second run is refused before it writes anything, and several under one root do not meet."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from bolide.callbacks import ModelCheckpoint
from bolide.checkpoint.lock import FolderInUseError
from bolide.loggers import CSVLogger, TensorBoardLogger
from tests.callbacks.support import Scored, fit, rows, saved, trainer


def begun(made):
    """A fit that is in the midst of training; keep it."""
    steps = made.steps(Scored(log_train=True), rows(5))
    next(steps)
    return steps


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("kind", [CSVLogger, TensorBoardLogger])
def test_a_version_that_a_run_is_writing_is_refused(tmp_path, kind):
    steps = begun(trainer(logger=kind(tmp_path, version=3), log_every_n_steps=1))
    before = files(tmp_path)
    second = trainer(logger=kind(tmp_path, version=3))
    with pytest.raises(FolderInUseError, match=r"version_3.*another Trainer of this very process"):
        second.fit(Scored(), rows(5))
    assert files(tmp_path) == before
    list(steps)
    second.fit(Scored(), rows(5))
    assert not list(tmp_path.rglob(".lock"))


@pytest.mark.parametrize("kind", [CSVLogger, TensorBoardLogger])
def test_runs_that_number_themselves_do_not_meet(tmp_path, kind):
    loggers = [kind(tmp_path), kind(tmp_path)]
    assert [logger.version for logger in loggers] == [0, 0]  # both looked before either began
    savers = [ModelCheckpoint(), ModelCheckpoint()]
    runs = [begun(trainer(saver, logger=logger)) for saver, logger in zip(savers, loggers, strict=True)]
    assert [logger.version for logger in loggers] == [0, 1]
    assert [Path(saver.dirpath).parent.name for saver in savers] == ["version_0", "version_1"]
    for run in runs:
        list(run)
    assert len(saved(tmp_path)) == 2


def test_a_checkpoint_folder_that_a_run_is_writing_is_refused(tmp_path):
    steps = begun(trainer(ModelCheckpoint(dirpath=tmp_path)))
    with pytest.raises(FolderInUseError, match="folder of its own"):
        fit(ModelCheckpoint(dirpath=tmp_path), max_epochs=1)
    list(steps)
    fit(ModelCheckpoint(dirpath=tmp_path), max_epochs=1)
    assert list(saved(tmp_path)) == ["epoch=0-step=5.ckpt", "epoch=2-step=15.ckpt"]


def test_two_callbacks_of_one_run_may_share_a_folder(tmp_path):
    fit(
        ModelCheckpoint(dirpath=tmp_path, filename="a"),
        ModelCheckpoint(dirpath=tmp_path, filename="b", every_n_train_steps=2),
        max_epochs=1,
    )
    assert set(saved(tmp_path)) == {"a.ckpt", "b.ckpt"}


def test_evaluations_and_dry_runs_need_no_folder(tmp_path):
    steps = begun(trainer(ModelCheckpoint(dirpath=tmp_path)))
    fit(ModelCheckpoint(dirpath=tmp_path), fast_dev_run=True)
    trainer(ModelCheckpoint(dirpath=tmp_path)).validate(Scored(), rows(2), verbose=False)
    list(steps)


def test_a_fit_that_fails_leaves_no_empty_folder(tmp_path):
    class NoOptimizer(Scored):
        def configure_optimizers(self):
            return "adam"

    with pytest.raises(Exception, match="configure_optimizers"):
        fit(ModelCheckpoint(dirpath=tmp_path / "a" / "b"), module=NoOptimizer())
    assert not (tmp_path / "a" / "b").exists()


def test_what_a_killed_writer_left_is_removed(tmp_path):
    part = tmp_path / ".epoch=0-step=5.ckpt.0123456789ab.part"
    other = tmp_path / "notes.part"
    for path in (part, other):
        path.write_bytes(b"half")
    fit(ModelCheckpoint(dirpath=tmp_path), max_epochs=1)
    assert not part.exists() and other.exists()


def test_what_a_run_that_was_killed_held_is_free(tmp_path):
    code = f"""
        import os, signal
        from bolide.callbacks import ModelCheckpoint
        from tests.callbacks.support import Scored, rows, trainer
        for _ in trainer(ModelCheckpoint(dirpath={str(tmp_path)!r}, every_n_train_steps=1)).steps(Scored(), rows(5)):
            os.kill(os.getpid(), signal.SIGKILL)
    """
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], cwd=root, timeout=100, check=False)
    assert done.returncode == -signal.SIGKILL and (tmp_path / ".lock").exists()
    fit(ModelCheckpoint(dirpath=tmp_path), max_epochs=1)
    assert not os.path.exists(tmp_path / ".lock")


def test_what_a_finished_run_logged_stays_when_auto_starts_another(tmp_path):
    for runs in (1, 2):
        logger = CSVLogger(tmp_path, name="", version="")
        made = trainer(ModelCheckpoint(dirpath=tmp_path), logger=logger, max_epochs=1, log_every_n_steps=1)
        made.fit(Scored(log_train=True), rows(5), ckpt_path="auto")
        assert made.global_step == 5
        assert len((tmp_path / "metrics.csv").read_text().splitlines()) == 1 + 5 * runs


def test_what_an_attempt_logged_that_left_no_checkpoint_is_logged_anew(tmp_path):
    for _ in range(2):
        logger = CSVLogger(tmp_path, name="", version="")
        made = trainer(ModelCheckpoint(dirpath=tmp_path), logger=logger, max_epochs=1, log_every_n_steps=1)
        for progress in made.steps(Scored(log_train=True), rows(5), ckpt_path="auto"):
            if progress.step == 3:
                break
        assert len((tmp_path / "metrics.csv").read_text().splitlines()) == 1 + 3

"""One run, one folder: a second run is refused before it writes anything, and several under one root do not meet."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from bolide.callbacks import ModelCheckpoint, OnExceptionCheckpoint
from bolide.checkpoint.lock import FolderInUseError
from bolide.core.errors import CheckpointNotFoundError
from bolide.loggers import CSVLogger, TensorBoardLogger
from bolide.monitor import GoodputMonitor
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
    after = files(tmp_path)  # a logger of the first run may have written what it kept
    assert after.keys() == before.keys() and all(after[name].startswith(before[name]) for name in before)
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


def test_the_folder_within_a_run_folder_is_refused_too(tmp_path):
    steps = begun(trainer(ModelCheckpoint(), logger=CSVLogger(tmp_path, name="n", version=0)))
    with pytest.raises(FolderInUseError):
        fit(ModelCheckpoint(dirpath=tmp_path / "n" / "version_0" / "checkpoints"), max_epochs=1)
    list(steps)


def test_a_run_is_refused_before_it_looks_for_a_checkpoint_or_calls_the_user(tmp_path):
    class Prepares(Scored):
        def prepare_data(self):
            raise AssertionError("the run went on")

    (tmp_path / "damaged.ckpt").write_bytes(b"PK no zip")
    steps = begun(trainer(ModelCheckpoint(dirpath=tmp_path)))
    second = trainer(ModelCheckpoint(dirpath=tmp_path, save_on_exception=True), OnExceptionCheckpoint(tmp_path))
    with pytest.raises(FolderInUseError):
        second.fit(Prepares(), rows(5), ckpt_path="auto")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "damaged.ckpt"]
    list(steps)


def test_a_folder_that_is_reached_by_a_link_is_the_runs_own(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    fit(ModelCheckpoint(dirpath=tmp_path / "link"), max_epochs=1, logger=CSVLogger(tmp_path / "link", "", version=""))
    assert (tmp_path / "real" / "metrics.csv").exists() or list(saved(tmp_path / "real"))


def test_steps_that_nobody_began_hold_no_folder(tmp_path):
    made = trainer(ModelCheckpoint(dirpath=tmp_path), max_epochs=1)
    made.steps(Scored(), rows(5))
    made.fit(Scored(), rows(5))
    assert list(saved(tmp_path)) == ["epoch=0-step=5.ckpt"]


def test_a_wrong_path_to_go_on_from_leaves_no_lock(tmp_path):
    made = trainer(ModelCheckpoint(dirpath=tmp_path), max_epochs=1)
    with pytest.raises(CheckpointNotFoundError):
        made.fit(Scored(), rows(5), ckpt_path=tmp_path / "missing.ckpt")
    fit(ModelCheckpoint(dirpath=tmp_path), max_epochs=1)


def test_parts_are_removed_as_deep_as_names_go(tmp_path):
    for folder in (tmp_path / "s", tmp_path / "s" / "t", tmp_path / "other" / "s"):
        folder.mkdir(parents=True)
        (folder / ".x.ckpt.0123456789ab.part").write_bytes(b"half")
    fit(ModelCheckpoint(dirpath=tmp_path, filename="s/{step}"), max_epochs=1)
    left = [str(path.relative_to(tmp_path)) for path in sorted(tmp_path.rglob("*.part"))]
    assert left == ["other/s/.x.ckpt.0123456789ab.part", "s/t/.x.ckpt.0123456789ab.part"]


@pytest.mark.parametrize("prefix", ["~", "$PLACE", "file://~"])
@pytest.mark.parametrize("kind", [CSVLogger, TensorBoardLogger])
def test_a_run_is_in_one_folder_however_it_is_named(tmp_path, monkeypatch, kind, prefix):
    for name in ("HOME", "PLACE"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    for number, folder in enumerate(("first", "second")):  # the number is not found by what lies in the current folder
        (tmp_path / folder).mkdir()
        monkeypatch.chdir(tmp_path / folder)
        saver = ModelCheckpoint()
        made = trainer(saver, logger=kind(f"{prefix}/logs", name="$PLACES"), log_every_n_steps=1)
        made.fit(Scored(log_train=True), rows(2))
        run = tmp_path / "home" / "logs" / "$PLACES" / f"version_{number}"
        assert made.log_dir == str(run) and saver.dirpath == str(run / "checkpoints")
        assert Path(saver.best_model_path).parent == run / "checkpoints" and len(files(run)) >= 3
        assert not files(tmp_path / folder)


@pytest.mark.parametrize("prefix", ["~", "file://~"])
def test_a_home_in_the_paths_of_a_trainer(tmp_path, monkeypatch, prefix):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for logger in (True, False):
        saver = ModelCheckpoint(save_last=True)
        made = trainer(
            saver, OnExceptionCheckpoint(f"{prefix}/failed"), GoodputMonitor(f"{prefix}/goodput"),
            default_root_dir=f"{prefix}/root", logger=logger,
        )  # fmt: skip
        made.fit(Scored(), rows(2))
        assert made.default_root_dir == str(tmp_path / "home" / "root")
        assert Path(saver.dirpath).is_relative_to(tmp_path / "home" / "root")
    made.save_checkpoint(f"{prefix}/mine.ckpt")
    trainer(max_epochs=2).fit(Scored(), rows(2), ckpt_path=f"{prefix}/mine.ckpt")
    Scored.load_from_checkpoint(f"{prefix}/mine.ckpt")
    assert (tmp_path / "home" / "goodput" / "goodput.jsonl").exists() and not files(tmp_path / "here")

"""What ckpt_path="auto", "last" and paths mean, on first runs, after kills, after damage, after the end."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import pytest

import bolide
from bolide.callbacks import ModelCheckpoint
from bolide.checkpoint import store
from bolide.checkpoint.file import manifest_at
from bolide.checkpoint.lock import FolderInUseError, RunLock
from bolide.core.errors import CheckpointError, CheckpointNotFoundError
from bolide.demos.boring_classes import BoringModel
from bolide.loggers import CSVLogger, TensorBoardLogger
from bolide.trainer.paths import resolve_ckpt_path


def trainer(root: Path, max_steps: int, *callbacks: Any, logger: Any = None, **kwargs: Any) -> bolide.Trainer:
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "limit_val_batches": 0, "accelerator": "cpu"}
    return bolide.Trainer(
        max_steps=max_steps, default_root_dir=root, callbacks=list(callbacks),
        logger=CSVLogger(root) if logger is None else logger, **{**quiet, **kwargs},
    )  # fmt: skip


def keeper(**kwargs: Any) -> ModelCheckpoint:
    return ModelCheckpoint(**{"every_n_train_steps": 1, "save_top_k": -1, "save_last": True, **kwargs})


def fitted(root: Path, max_steps: int, *callbacks: Any, ckpt_path: Any = None, **kwargs: Any) -> bolide.Trainer:
    made = trainer(root, max_steps, *(callbacks or (keeper(),)), **kwargs)
    made.fit(BoringModel(), ckpt_path=ckpt_path)
    return made


def where(root: Path, ckpt_path: str, *callbacks: Any, fn: str = "fit", **kwargs: Any) -> str | None:
    return resolve_ckpt_path(trainer(root, 9, *(callbacks or (keeper(),)), **kwargs), fn, ckpt_path, True)


def unfinished(root: Path) -> None:
    """As if the run had been killed after its last save."""
    for mark in root.rglob(store.FINISHED):
        mark.unlink()


def damage(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


# ---- "auto"


def test_auto_on_a_first_run_starts_and_says_where_it_looked(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "bolide"):
        assert where(tmp_path, "auto") is None
    assert "starts from the beginning" in caplog.text and "lightning_logs" in caplog.text


@pytest.mark.parametrize("logger", [None, False])
def test_auto_goes_on_where_the_newest_run_was(tmp_path: Path, logger: Any, caplog: Any) -> None:
    first = fitted(tmp_path, 3, logger=logger)
    unfinished(tmp_path)
    with caplog.at_level(logging.INFO, "bolide"):
        second = fitted(tmp_path, 5, ckpt_path="auto", logger=logger)
    assert second.global_step == 5 and "(epoch 0, step 3)" in caplog.text
    assert second.checkpoint_callback.dirpath == first.checkpoint_callback.dirpath
    if logger is None:  # the logger goes on in the same folder
        assert second.log_dir == first.log_dir and os.listdir(tmp_path / "lightning_logs") == ["version_0"]


def test_auto_takes_the_newest_of_several_runs(tmp_path: Path) -> None:
    fitted(tmp_path, 3)
    fitted(tmp_path, 2)
    unfinished(tmp_path)
    assert where(tmp_path, "auto") == str(tmp_path / "lightning_logs/version_1/checkpoints/last.ckpt")


def test_auto_passes_over_a_run_that_is_alive(tmp_path: Path) -> None:
    fitted(tmp_path, 3)
    fitted(tmp_path, 2)
    unfinished(tmp_path)
    with RunLock(tmp_path / "lightning_logs" / "version_1"):
        assert where(tmp_path, "auto") == str(tmp_path / "lightning_logs/version_0/checkpoints/last.ckpt")


def test_auto_looks_in_the_folders_that_callbacks_were_given(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    fitted(tmp_path / "one", 3, keeper(dirpath=folder))
    unfinished(tmp_path)
    assert where(tmp_path / "two", "auto", keeper(dirpath=folder)) == str(folder / "last.ckpt")


def test_auto_looks_in_the_folder_of_the_launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = fitted(tmp_path / "one", 3).log_dir
    unfinished(tmp_path)
    monkeypatch.setenv("BOLIDE_RUN_DIR", str(run))
    assert where(tmp_path / "two", "auto") == f"{run}/checkpoints/last.ckpt"


def test_auto_looks_in_the_run_of_a_given_version(tmp_path: Path) -> None:
    fitted(tmp_path, 3, logger=CSVLogger(tmp_path, version="fixed"))
    fitted(tmp_path, 2)
    unfinished(tmp_path)
    found = where(tmp_path, "auto", logger=CSVLogger(tmp_path, version="fixed"))
    assert found == str(tmp_path / "lightning_logs/fixed/checkpoints/last.ckpt")


def test_auto_does_not_go_on_from_a_run_that_has_ended(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    ended = fitted(tmp_path, 3)
    folder = ended.checkpoint_callback.dirpath
    manifest = manifest_at(os.path.join(folder, "last.ckpt"))
    store.mark_finished(folder, manifest.about)
    with caplog.at_level(logging.INFO, "bolide"):
        assert where(tmp_path, "auto") is None
    assert "has come to its end" in caplog.text and folder in caplog.text
    assert where(tmp_path, "auto", fn="validate") is not None  # its weights may be looked at
    assert where(tmp_path, f"{folder}/last.ckpt") == f"{folder}/last.ckpt"


def test_auto_uses_the_newest_valid_one_and_sets_damaged_ones_aside(tmp_path: Path) -> None:
    folder = Path(fitted(tmp_path, 3).checkpoint_callback.dirpath)
    unfinished(tmp_path)
    names = sorted(path.name for path in folder.glob("*.ckpt"))
    assert names == ["epoch=0-step=1.ckpt", "epoch=0-step=2.ckpt", "epoch=0-step=3.ckpt", "last.ckpt"]
    for name in ("last.ckpt", "epoch=0-step=3.ckpt"):
        damage(folder / name)
    with pytest.warns(UserWarning, match="passed over 2 checkpoint") as caught:
        assert where(tmp_path, "auto") == str(folder / "epoch=0-step=2.ckpt")
    assert "last.ckpt" in str(caught[0].message) and "cut short" in str(caught[0].message)
    assert {"last.ckpt", "epoch=0-step=3.ckpt"} <= {path.name for path in (folder / "quarantine").iterdir()}


def test_auto_starts_anew_where_nothing_is_valid(tmp_path: Path) -> None:
    folder = Path(fitted(tmp_path, 1).checkpoint_callback.dirpath)
    unfinished(tmp_path)
    for path in folder.glob("*.ckpt"):
        path.write_bytes(b"")
    with pytest.warns(UserWarning, match="there is no valid one"):
        assert where(tmp_path, "auto") is None


def test_auto_in_a_dry_run_starts(tmp_path: Path) -> None:
    assert where(tmp_path, "auto", fast_dev_run=True) is None


# ---- "last"


def test_last_is_the_newest_valid_one(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    fitted(tmp_path, 3, keeper(dirpath=folder))
    callback = keeper(dirpath=folder)
    assert where(tmp_path, "last", callback) == str(folder / "last.ckpt")
    damage(folder / "last.ckpt")
    with pytest.warns(UserWarning, match="the newest valid one is used instead: .*step=3.ckpt"):
        assert where(tmp_path, "last", callback) == str(folder / "epoch=0-step=3.ckpt")
    assert (folder / "quarantine" / "last.ckpt").exists()


def test_last_on_a_first_run_warns_and_starts(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="found no last checkpoint"):
        assert where(tmp_path, "last", keeper(dirpath=tmp_path / "none")) is None


# ---- what the user named


def test_a_named_path_is_an_error_and_stays(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    fitted(tmp_path, 2, keeper(dirpath=folder))
    damage(folder / "last.ckpt")
    with pytest.raises(CheckpointError, match=r"last\.ckpt.*cut short"):
        fitted(tmp_path, 5, ckpt_path=folder / "last.ckpt")
    assert (folder / "last.ckpt").exists() and not (folder / "quarantine").exists()
    with pytest.raises(CheckpointNotFoundError, match=r"lost\.ckpt.*There is"):
        where(tmp_path, str(folder / "lost.ckpt"))


# ---- loggers that write below the run's folder


@pytest.mark.parametrize("version", [None, 3, "mine"])
@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_logger_with_a_sub_dir_has_its_checkpoints_found(tmp_path: Path, version: Any, elsewhere: bool) -> None:
    def made() -> tuple[TensorBoardLogger, ModelCheckpoint]:
        saver = keeper(dirpath=tmp_path / "elsewhere") if elsewhere else keeper()
        return TensorBoardLogger(tmp_path, version=version, sub_dir="events"), saver

    for steps in (2, 5):
        logger, saver = made()
        went_on = fitted(tmp_path, steps, saver, logger=logger, ckpt_path="auto")
        assert went_on.log_dir == os.path.join(str(went_on.run_dir), "events")
        assert Path(str(went_on.run_dir)).name == {None: "version_0", 3: "version_3"}.get(version, version)
        unfinished(tmp_path)
    assert went_on.global_step == 5 and len(list(tmp_path.rglob("*step=2.ckpt"))) == 1


def test_a_run_with_a_sub_dir_is_locked_as_a_whole(tmp_path: Path) -> None:
    steps = trainer(tmp_path, 9, keeper(), logger=TensorBoardLogger(tmp_path, version=3, sub_dir="a")).steps(
        BoringModel()
    )
    next(steps)
    with pytest.raises(FolderInUseError, match="version_3"):
        fitted(tmp_path, 9, keeper(dirpath=tmp_path / "x"), logger=TensorBoardLogger(tmp_path, version=3, sub_dir="b"))
    steps.close()

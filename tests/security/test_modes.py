"""What a run writes has the modes that the umask allows, and no wider ones."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

import bolide
from bolide.callbacks import ModelCheckpoint
from bolide.checkpoint import store
from bolide.checkpoint.digest import About
from bolide.demos.boring_classes import BoringModel
from bolide.loggers import CSVLogger


@pytest.mark.parametrize("umask", [0o022, 0o027, 0o077])
def test_files_and_folders_obey_the_umask(umask: int, tmp_path: Path) -> None:
    before = os.umask(umask)
    try:
        root = tmp_path / "run"
        trainer = bolide.Trainer(
            max_steps=2, limit_val_batches=0, logger=CSVLogger(root), callbacks=ModelCheckpoint(save_last=True),
            enable_progress_bar=False, enable_model_summary=False, accelerator="cpu", log_every_n_steps=1,
        )  # fmt: skip
        trainer.fit(BoringModel())
        assert trainer.logger is not None
        trainer.logger.log_hyperparams({"lr": 0.1})
        trainer.logger.log_metrics({"loss": 1.0}, step=0)
        trainer.logger.save()
        assert trainer.checkpoint_callback is not None
        folder = str(trainer.checkpoint_callback.dirpath)
        store.mark_finished(folder, About(step=2))
        (Path(folder) / "bad.ckpt").touch()
        store.newest_valid([str(Path(folder) / "bad.ckpt")])
    finally:
        os.umask(before)
    found = [root, *root.rglob("*")]
    names = {path.name for path in found}
    assert {"last.ckpt", "finished.json", "bad.ckpt.reason.txt", "metrics.csv", "hparams.yaml"} <= names
    wide = {
        str(path): oct(path.stat().st_mode)
        for path in found
        if stat.S_IMODE(path.stat().st_mode) != (0o777 if path.is_dir() else 0o666) & ~umask
    }
    assert wide == {}

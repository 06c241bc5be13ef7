"""Plugins: precisions by class, and checkpoint formats."""

from __future__ import annotations

import pytest
import torch

import bolide as pl
from bolide.core.errors import CheckpointNotFoundError, ConfigError
from bolide.demos.boring_classes import BoringModel
from bolide.plugins import CheckpointIO, DoublePrecision, HalfPrecision, MixedPrecision, Precision, TorchCheckpointIO

QUIET = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}


def test_precisions_are_rows_of_the_table():
    assert DoublePrecision().precision == "64-true"
    assert HalfPrecision().precision == "16-true"
    assert HalfPrecision("bf16-true").precision == "bf16-true"
    assert MixedPrecision("bf16-mixed", "cpu").precision == "bf16-mixed"
    for precision in (DoublePrecision(), HalfPrecision(), MixedPrecision("bf16-mixed", "cpu")):
        assert isinstance(precision, Precision)


def test_what_is_no_such_precision():
    with pytest.raises(ConfigError, match="'16-mixed' or 'bf16-mixed'"):
        MixedPrecision("16", "cpu")
    with pytest.raises(ConfigError, match="'16-true' or 'bf16-true'"):
        HalfPrecision("half")
    with pytest.raises(ConfigError, match="needs no scaler"):
        MixedPrecision("bf16-mixed", "cpu", scaler=torch.amp.GradScaler("cpu"))
    scaler = torch.amp.GradScaler("cuda", enabled=False)
    assert MixedPrecision("16-mixed", "cuda", scaler=scaler).scaler is scaler


def test_a_precision_plugin_in_a_trainer():
    class Double(BoringModel):
        def training_step(self, batch, batch_idx):
            assert batch.dtype is torch.float64
            return super().training_step(batch, batch_idx)

    trainer = pl.Trainer(
        **QUIET, max_steps=2, limit_val_batches=0, enable_checkpointing=False, plugins=DoublePrecision()
    )
    trainer.fit(Double())
    assert trainer.precision == "64-true"


def test_torch_checkpoint_io(tmp_path):
    io, path = TorchCheckpointIO(), tmp_path / "a.ckpt"
    io.save_checkpoint({"a": torch.ones(2)}, path)
    assert io.load_checkpoint(path)["a"].tolist() == [1, 1]
    with pytest.raises(ConfigError, match="takes no storage_options"):
        io.save_checkpoint({}, path, storage_options={"a": 1})
    io.remove_checkpoint(path)
    io.remove_checkpoint(path)
    with pytest.raises(CheckpointNotFoundError):
        io.load_checkpoint(path)


def test_a_format_of_ones_own_in_a_trainer(tmp_path):
    class InMemory(CheckpointIO):
        def __init__(self):
            self.saved = {}

        def save_checkpoint(self, checkpoint, path, storage_options=None):
            self.saved[str(path)] = checkpoint

        def load_checkpoint(self, path, map_location=None, weights_only=None):
            return self.saved[str(path)]

        def remove_checkpoint(self, path):
            self.saved.pop(str(path), None)

    io = InMemory()
    trainer = pl.Trainer(
        **QUIET, max_steps=2, limit_val_batches=0, enable_checkpointing=False, plugins=[io], default_root_dir=tmp_path
    )
    trainer.fit(BoringModel())
    trainer.save_checkpoint(tmp_path / "mine")
    assert [path.rsplit("/", 1)[-1] for path in io.saved] == ["mine"]
    assert not (tmp_path / "mine").exists()

"""Damaged checkpoints: every one is refused, before anything live has changed."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
import torch

import bolide
from bolide.checkpoint.digest import DamagedCheckpointError
from bolide.checkpoint.file import read_checkpoint, verify_checkpoint
from bolide.core.errors import CheckpointError
from bolide.demos.boring_classes import BoringModel

from .mutants import mutants


class Watched(BoringModel):
    """Says when somebody begins to restore it."""

    touched = False

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.touched = True

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters())


def trainer(**kwargs: Any) -> bolide.Trainer:
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    return bolide.Trainer(**{**quiet, "enable_checkpointing": False, "limit_val_batches": 0, **kwargs})


@pytest.fixture(scope="module")
def two_files(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, bytes]:
    """A checkpoint after three steps, and one of the same run after two."""
    folder = tmp_path_factory.mktemp("written")
    found = []
    for steps in (3, 2):
        fitted = trainer(max_steps=steps)
        torch.manual_seed(1)
        fitted.fit(Watched())
        fitted.save_checkpoint(folder / f"{steps}.ckpt")
        found.append((folder / f"{steps}.ckpt").read_bytes())
    return found[0], found[1]


def weights(module: torch.nn.Module) -> str:
    return hashlib.sha256(b"".join(value.numpy().tobytes() for value in module.state_dict().values())).hexdigest()


def test_three_hundred_damaged_files_are_refused(two_files: tuple[bytes, bytes], tmp_path: Path) -> None:
    good, other = two_files
    path = tmp_path / "a.ckpt"
    path.write_bytes(good)
    accepted = []
    for name, data in mutants(good, other, 300, seed=2):
        path.write_bytes(data)
        if verify_checkpoint(path).whole:
            accepted.append(name)
        try:
            read_checkpoint(path)
            accepted.append(name)
        except DamagedCheckpointError as error:
            assert "a.ckpt" in str(error)
    assert accepted == []


def test_a_fit_that_is_given_a_damaged_file_changes_nothing(two_files: tuple[bytes, bytes], tmp_path: Path) -> None:
    good, other = two_files
    path = tmp_path / "named by the user.ckpt"
    module = Watched()
    before = weights(module)
    for _, data in mutants(good, other, 10, seed=3):
        path.write_bytes(data)
        with pytest.raises(CheckpointError):
            trainer(max_steps=5).fit(module, ckpt_path=path)
        assert weights(module) == before and not module.touched
        assert path.read_bytes() == data  # what the user named is never moved
    path.write_bytes(good)
    trainer(max_steps=5).fit(module, ckpt_path=path)
    assert module.touched

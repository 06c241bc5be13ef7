from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from bolide.checkpoint.file import read_checkpoint, write_checkpoint
from bolide.core.errors import CheckpointError, CheckpointNotFoundError

STATE = {"state_dict": {"w": torch.arange(4.0)}, "epoch": 3, "callbacks": {"a": {"best": None}}}


class Evil:
    def __reduce__(self) -> Any:
        return os.system, ("touch pwned",)


def test_round_trip(tmp_path: Path) -> None:
    write_checkpoint(STATE, tmp_path / "a.ckpt")
    loaded = read_checkpoint(tmp_path / "a.ckpt")
    assert torch.equal(loaded.pop("state_dict")["w"], torch.arange(4.0))
    assert loaded == {"epoch": 3, "callbacks": {"a": {"best": None}}}
    assert torch.load(tmp_path / "a.ckpt", weights_only=True)["epoch"] == 3


@pytest.mark.parametrize("keep", [0.0, 0.05, 0.5, 0.95, 0.999])
def test_a_truncated_file_is_named_as_such(tmp_path: Path, keep: float) -> None:
    write_checkpoint(STATE, tmp_path / "a.ckpt")
    whole = (tmp_path / "a.ckpt").read_bytes()
    (tmp_path / "a.ckpt").write_bytes(whole[: int(len(whole) * keep)])
    with pytest.raises(CheckpointError, match="a.ckpt.*(damaged|empty|cut short)"):
        read_checkpoint(tmp_path / "a.ckpt")


def test_a_foreign_file(tmp_path: Path) -> None:
    (tmp_path / "a.ckpt").write_text("hello, I am no checkpoint at all")
    with pytest.raises(CheckpointError, match="no checkpoint"):
        read_checkpoint(tmp_path / "a.ckpt")


def test_a_missing_file_names_its_neighbour(tmp_path: Path) -> None:
    write_checkpoint(STATE, tmp_path / "epoch=1.ckpt")
    with pytest.raises(CheckpointNotFoundError, match="epoch=1.ckpt"):
        read_checkpoint(tmp_path / "epoch=2.ckpt")
    with pytest.raises(CheckpointError, match="folder"):
        read_checkpoint(tmp_path)


def test_code_in_a_file_is_never_run(tmp_path: Path) -> None:
    torch.save({"state_dict": {}, "x": Evil()}, tmp_path / "a.ckpt")
    with pytest.raises(CheckpointError, match="neither tensors nor plain data"):
        read_checkpoint(tmp_path / "a.ckpt")
    assert not Path("pwned").exists()


def test_a_dictionary_is_expected(tmp_path: Path) -> None:
    torch.save([1, 2], tmp_path / "a.ckpt")
    with pytest.raises(CheckpointError, match="list"):
        read_checkpoint(tmp_path / "a.ckpt")

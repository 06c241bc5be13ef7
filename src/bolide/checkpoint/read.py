"""Reads a checkpoint of either kind: one file, or a folder of shards.

Decides by what is there, and leaves the rest to checkpoint/file.py and checkpoint/stored.py. Who calls: whoever has a
path, and does not know what lies there.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from bolide.checkpoint import file, io, sharded, stored
from bolide.checkpoint.digest import About, DamagedCheckpointError, NewerFormatError
from bolide.checkpoint.file import Report, about_of


def read_checkpoint(path: str | os.PathLike[str], map_location: Any = "cpu", mmap: bool = False) -> dict[str, Any]:
    """Reads a checkpoint with whole tensors, after every byte of it was checked.

    Args:
        path: a file or folder, local or a URL for fsspec.
        map_location: where the tensors go, as for `torch.load`.
        mmap: leaves the tensors of a local file on the disk until they are used; the file must stay as it is.

    Raises:
        CheckpointNotFoundError: there is nothing at `path`.
        DamagedCheckpointError: cut short, changed after it was written, or no checkpoint at all.
        NewerFormatError: a later version of Bolide wrote it.
        CheckpointError: it holds objects that only unpickling could make, or cannot be read.
    """
    text = os.fspath(path)
    if not sharded.is_sharded(text):
        return file.read_checkpoint(text, map_location, mmap)
    checkpoint = stored.open_folder(text, together=False)
    stored.make_whole(checkpoint)
    placed: dict[str, Any] = _placed(checkpoint, map_location)
    return placed


def open_checkpoint(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The same for ranks that all read: of a folder, tensors of weights and optimizers are Stored, and not read yet."""
    text = os.fspath(path)
    return stored.open_folder(text) if sharded.is_sharded(text) else file.read_checkpoint(text)


def verify_checkpoint(path: str | os.PathLike[str]) -> Report:
    """Checks whether a checkpoint is what was written.

    Raises:
        CheckpointNotFoundError: there is nothing at `path`.
        NewerFormatError: a later version of Bolide wrote it.
        OSError: it could not be read.
    """
    text = os.fspath(path)
    return sharded.verify_folder(text) if sharded.is_sharded(text) else file.verify_checkpoint(text)


def about_at(path: str | os.PathLike[str]) -> About | None:
    """What a checkpoint's manifest says of it, read without checking the rest; None where it has none.

    Raises:
        CheckpointNotFoundError, DamagedCheckpointError, NewerFormatError: as `read_checkpoint`.
    """
    text = os.fspath(path)
    if sharded.is_sharded(text):
        try:
            return sharded.contents_of(text).about
        except (DamagedCheckpointError, NewerFormatError) as error:
            raise type(error)(f"The checkpoint {text!r} cannot be used: {error}") from error
    manifest = file.manifest_at(text)
    return manifest.about if manifest is not None else None


def modified_s(path: str) -> float:
    """When a checkpoint was committed, in seconds since 1970."""
    return io.modified_s(io.join(path, sharded.MANIFEST) if sharded.is_sharded(path) else path)


def _placed(value: Any, where: Any) -> Any:
    """`value` with its tensors, which are on the CPU, where `map_location` says."""
    if isinstance(value, Tensor):
        if callable(where):
            storage = where(value.untyped_storage(), "cpu")
            return value if storage is None else value.to(storage.device)
        device = where.get("cpu", "cpu") if isinstance(where, Mapping) else where
        return value if device is None else value.to(torch.device(device))
    if isinstance(value, dict):
        return {key: _placed(member, where) for key, member in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_placed(member, where) for member in value)
    return value


__all__ = ["about_at", "about_of", "modified_s", "open_checkpoint", "read_checkpoint", "verify_checkpoint"]

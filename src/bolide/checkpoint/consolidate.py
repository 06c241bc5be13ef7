"""Makes one file of a sharded checkpoint, for programs that read nothing else.

Whole tensors lie in a scratch file, mapped into memory, so that a checkpoint may be larger than the machine's memory.
Who calls: `bolide checkpoint consolidate`.
"""

from __future__ import annotations

import math
import mmap
import os
import tempfile
from typing import Any

import torch
from torch import Tensor

from bolide.checkpoint import io
from bolide.checkpoint.file import write_checkpoint
from bolide.checkpoint.sharded import is_sharded
from bolide.checkpoint.stored import Stored, map_stored, open_folder
from bolide.core.errors import CheckpointError, CheckpointNotFoundError, ConfigError

_ALIGNMENT_BYTES = 64


def consolidated_name(path: str) -> str:
    """Where the file goes if nobody says: "step=3.ckpt" becomes "step=3.consolidated.ckpt"."""
    return f"{path.rstrip('/').removesuffix('.ckpt')}.consolidated.ckpt"


def consolidate(path: str, out: str | None = None) -> str:
    """Writes the sharded checkpoint `path` as one file, which torch, Lightning and every strategy read.

    Every byte of the folder is checked first. The disk of `out` must take the weights and optimizer states twice over
    meanwhile, and memory the largest part of a tensor.

    Args:
        path: a folder, local or a URL for fsspec.
        out: the file; by default beside the folder, see `consolidated_name`.

    Returns:
        The file's path.

    Raises:
        ConfigError: there is something at `out`.
        CheckpointError: `path` is no sharded checkpoint, or damaged.
    """
    target = consolidated_name(path) if out is None else out
    if not io.exists(path):
        raise CheckpointNotFoundError(f"There is no checkpoint at {path!r}.")
    if not is_sharded(path):
        kind = "a folder without a manifest, and so no checkpoint" if io.is_dir(path) else "one file already"
        raise CheckpointError(f"{path!r} is {kind}; consolidate makes one file of the folder of a sharded checkpoint")
    if io.exists(target) or io.is_link(target):
        raise ConfigError(f"{target!r} is there already; give another path")
    checkpoint = open_folder(path, together=False)
    folder = None
    if not io.is_remote(target):
        folder = io.parent(io.local_path(target))
        io.make_dirs(folder)
    write_checkpoint(_on_disk(checkpoint, folder), target)
    return target


def _on_disk(checkpoint: dict[str, Any], folder: str | None) -> dict[str, Any]:
    """The checkpoint with its tensors whole, in a file without a name that is gone when they are."""
    offsets: dict[int, int] = {}
    used = 0

    def lay(stored: Stored) -> Stored:
        nonlocal used
        if id(stored) not in offsets:
            offsets[id(stored)] = used
            nbytes = math.prod(stored.shape) * stored.dtype.itemsize
            used += -(-nbytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
        return stored

    map_stored(checkpoint, lay)
    with tempfile.TemporaryFile(dir=folder) as file:
        os.ftruncate(file.fileno(), max(used, 1))
        memory = mmap.mmap(file.fileno(), max(used, 1))
    made: dict[int, Tensor] = {}

    def fill(stored: Stored) -> Tensor:
        if id(stored) not in made:
            count = math.prod(stored.shape)
            flat = torch.empty(0, dtype=stored.dtype)
            if count:  # a storage of its own for each: a file of it holds its bytes alone
                flat = torch.frombuffer(memory, dtype=stored.dtype, count=count, offset=offsets[id(stored)])
            target = flat.view(stored.shape)
            stored.read_into(target)
            made[id(stored)] = target
        return made[id(stored)]

    whole: dict[str, Any] = map_stored(checkpoint, fill)
    return whole

"""The tensors of a sharded checkpoint as they lie on the disk, to be read by range or whole.

`open_folder` checks every byte, the ranks one part of the files each, and gives the checkpoint with a Stored in the
place of each tensor of weights and optimizers; nothing is read before somebody asks for it. Who calls: checkpoint/read
and checkpoint/consolidate; strategies/sharded.py reads from it what a rank holds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bolide import collectives
from bolide.checkpoint import io
from bolide.checkpoint.digest import DamagedCheckpointError, NewerFormatError
from bolide.checkpoint.file import read_checkpoint
from bolide.checkpoint.parts import TENSORS_OF, Box, put_together, whole_box
from bolide.checkpoint.sharded import Contents, TensorAt, contents_of, damage
from bolide.checkpoint.shards import DTYPES, Shards
from bolide.core.errors import CheckpointError


class Stored:
    """A tensor on the disk: its name, shape and dtype."""

    __slots__ = ("_at", "_shards", "dtype", "name", "shape")

    def __init__(self, name: str, at: TensorAt, shards: Shards) -> None:
        self.name, self.shape, self.dtype = name, torch.Size(at.shape), DTYPES[at.dtype]
        self._at, self._shards = at, shards

    def read(self, box: Box) -> Tensor:
        """A part of it, on the CPU; only that is read.

        Raises:
            DamagedCheckpointError: the files were changed after they had been checked.
        """
        parts = [(part, common) for part in self._at.parts if (common := part.box.common(box)) is not None]
        if len(parts) == 1 and parts[0][1] == box:
            part, common = parts[0]
            return self._shards.read(part.file, part.key, part.box, common, self.dtype)
        found = torch.empty(box.shape, dtype=self.dtype)
        self._fill(found, box)
        return found

    def whole(self) -> Tensor:
        """All of it, on the CPU."""
        return self.read(whole_box(tuple(self.shape)))

    def read_into(self, target: Tensor) -> None:
        """Writes all of it to `target`, of the same shape and dtype, part by part."""
        self._fill(target, whole_box(tuple(self.shape)))

    def _fill(self, target: Tensor, box: Box) -> None:
        for part in self._at.parts:
            common = part.box.common(box)
            if common is not None:
                read = self._shards.read(part.file, part.key, part.box, common, self.dtype)
                target[common.within(box)] = read


def open_folder(path: str, together: bool = True) -> dict[str, Any]:
    """A sharded checkpoint, whose files are all checked, with a Stored in the place of each tensor of weights and
    optimizers.

    Args:
        path: the folder.
        together: the ranks share the checking; all must call this then. Otherwise this process checks all.

    Raises:
        CheckpointNotFoundError, DamagedCheckpointError, NewerFormatError, CheckpointError: as `read_checkpoint`.
    """
    try:
        contents = contents_of(path)
    except (DamagedCheckpointError, NewerFormatError) as error:
        raise type(error)(f"The checkpoint {path!r} cannot be used: {error}") from error
    rank, size = (collectives.rank(), collectives.size()) if together else (0, 1)
    names = sorted(contents.files)[rank::size]
    try:
        problem = damage(path, contents, names)
    except OSError as error:
        problem = f"it could not be read: {error}"
    problems = collectives.gather_objects(problem) if together else [problem]
    for found in problems:
        if found:
            raise DamagedCheckpointError(f"The checkpoint {path!r} cannot be used: {found}")
    return opened(path, contents)


def opened(path: str, contents: Contents) -> dict[str, Any]:
    """The same of a folder whose files were checked."""
    rest = read_checkpoint(io.join(path, contents.rest))
    shards = Shards(path)
    tensors = {name: Stored(name, at, shards) for name, at in contents.tensors.items()}

    def tensor_of(name: str) -> Stored:
        if name not in tensors:
            raise CheckpointError(f"The checkpoint {path!r} cannot be used: it lacks the tensor {name!r}")
        return tensors[name]

    checkpoint: dict[str, Any] = put_together(rest, tensor_of)
    make_whole(checkpoint, but=TENSORS_OF)
    return checkpoint


def map_stored(value: Any, made: Callable[[Stored], Any]) -> Any:
    """`value`, any nesting of dictionaries and lists, with what `made` gives in the place of each Stored."""
    if isinstance(value, Stored):
        return made(value)
    if isinstance(value, dict):
        return {key: map_stored(member, made) for key, member in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map_stored(member, made) for member in value)
    return value


def whole(value: Any) -> Any:
    """`value` with whole tensors, on the CPU; each is read once."""
    read: dict[int, Tensor] = {}

    def made(stored: Stored) -> Tensor:
        if id(stored) not in read:
            read[id(stored)] = stored.whole()
        return read[id(stored)]

    return map_stored(value, made)


def make_whole(checkpoint: dict[str, Any], but: tuple[str, ...] = ()) -> None:
    """Reads all tensors of a checkpoint that was opened, in place, but those under some keys."""
    for key in checkpoint:
        if key not in but:
            checkpoint[key] = whole(checkpoint[key])

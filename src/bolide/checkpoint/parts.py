"""A checkpoint taken apart: tensors that may be spread over ranks on one side, all the rest on the other.

Says which part of a tensor a rank holds, and which rank writes it; knows no files. Who calls: engine/session before a
sharded save, checkpoint/sharded_write.py, and strategies/sharded.py for the part that a rank wants to read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.distributed.tensor import DTensor

from bolide import collectives

TENSORS_OF = ("state_dict", "optimizer_states")
"""The entries of a checkpoint whose tensors are all taken out; elsewhere, those that are spread over ranks."""

PLACE = "bolide.tensor"
"""In the place of a tensor stands {PLACE: its name}."""


@dataclass(frozen=True)
class Box:
    """A part of a tensor: where it begins in each dimension, and how long it is there."""

    offset: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def count(self) -> int:
        """How many elements."""
        return math.prod(self.shape)

    def common(self, other: Box) -> Box | None:
        """What both have in common, or None."""
        start = tuple(map(max, self.offset, other.offset))
        ends = [
            min(a + n, b + m) for a, n, b, m in zip(self.offset, self.shape, other.offset, other.shape, strict=True)
        ]
        if any(end <= begin for begin, end in zip(start, ends, strict=True)):
            return None
        return Box(start, tuple(end - begin for begin, end in zip(start, ends, strict=True)))

    def within(self, outer: Box) -> tuple[slice, ...]:
        """The place of this part within `outer`, which holds it."""
        starts = [a - b for a, b in zip(self.offset, outer.offset, strict=True)]
        return tuple(slice(start, start + n) for start, n in zip(starts, self.shape, strict=True))


def whole_box(shape: tuple[int, ...]) -> Box:
    """All of a tensor."""
    return Box((0,) * len(shape), tuple(shape))


def box_of(tensor: Tensor) -> Box | None:
    """The part of `tensor` that this rank holds: all of a plain one; None where that is nothing."""
    if not isinstance(tensor, DTensor):
        return whole_box(tuple(tensor.shape))
    chunk = tensor.__create_chunk_list__()[0]
    box = Box(tuple(chunk.offsets), tuple(chunk.sizes))
    return box if box.count and len(box.offset) == tensor.dim() else None


def take_apart(checkpoint: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """A checkpoint without its tensors, and these by name, as "optimizer_states/0/state/3/exp_avg".

    Ranks that hold the same kind of state get the same names. Small tensors of anything but weights and optimizers stay
    where they are.
    """
    tensors: dict[str, Tensor] = {}

    def visit(value: Any, path: str, all_of_it: bool) -> Any:
        if isinstance(value, Tensor):
            if not all_of_it and not isinstance(value, DTensor):
                return value
            while path in tensors:
                path += "'"
            tensors[path] = value.detach()
            return {PLACE: path}
        if isinstance(value, dict):
            return {key: visit(member, f"{path}/{key}", all_of_it) for key, member in value.items()}
        if type(value) in (list, tuple):
            return type(value)(visit(member, f"{path}/{i}", all_of_it) for i, member in enumerate(value))
        return value

    rest = {key: visit(value, key, key in TENSORS_OF) for key, value in checkpoint.items()}
    return rest, tensors


def tensors_here(state: Any) -> list[Tensor]:
    """All tensors of a state as this rank holds them: of those that are spread over ranks, its parts."""
    return [_local(tensor) for tensor in take_apart({TENSORS_OF[0]: state})[1].values()]


def put_together(rest: Any, tensor_of: Callable[[str], Any]) -> Any:
    """The opposite of `take_apart`: `rest` with what `tensor_of` gives for a name in each place."""
    if isinstance(rest, dict):
        if len(rest) == 1 and isinstance(rest.get(PLACE), str):
            return tensor_of(rest[PLACE])
        return {key: put_together(member, tensor_of) for key, member in rest.items()}
    if type(rest) in (list, tuple):
        return type(rest)(put_together(member, tensor_of) for member in rest)
    return rest


def share_of_this_rank(checkpoint: Mapping[str, Any]) -> dict[str, Any]:
    """What this rank has to write of a checkpoint, so that each part is written once. All ranks must call it.

    Returns:
        "rest": the checkpoint without its tensors, on the first rank; "parts": local tensors by name; "layout": by the
        same names, the whole tensor's dtype and shape, and the part's offset.
    """
    rest, tensors = take_apart(checkpoint)
    held = {name: box for name, tensor in tensors.items() if (box := box_of(tensor)) is not None}
    mine = dict(_written_here(tensors, held))
    return {
        "rest": rest if collectives.rank() == 0 else None,
        "parts": {name: _local(tensors[name]) for name in mine},
        "layout": {
            name: [str(tensors[name].dtype).removeprefix("torch."), list(tensors[name].shape), list(box.offset)]
            for name, box in mine.items()
        },
    }


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _written_here(tensors: Mapping[str, Tensor], held: Mapping[str, Box]) -> Iterator[tuple[str, Box]]:
    """The parts that fall to this rank: of those that several hold, the first rank's; plain tensors are the first's."""
    if collectives.size() == 1:
        yield from held.items()
        return
    spread = {name: box.offset for name, box in held.items() if isinstance(tensors[name], DTensor)}
    everyone, me = collectives.gather_objects(spread), collectives.rank()
    for name, box in held.items():
        if name in spread:
            first = next(rank for rank, theirs in enumerate(everyone) if theirs.get(name) == box.offset)
            if first == me:
                yield name, box
        elif me == 0:
            yield name, box

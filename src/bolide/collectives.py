"""What ranks tell each other: functions over the process group, identities where there is none.

Owns the small exchanges of decisions and objects, which go through CPU memory, and the reductions of tensors. It opens
no group: launch/group does. All ranks must call each function here, in the same order.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._pytree import tree_map

from bolide.core.errors import UserCodeError

T = TypeVar("T")

OPERATIONS: dict[str, Any] = {"sum": dist.ReduceOp.SUM, "min": dist.ReduceOp.MIN, "max": dist.ReduceOp.MAX}
"""Reductions by their names in `self.log` and `strategy.reduce`; "mean" is a sum that is then divided."""


class RankDisagreement(UserCodeError):
    """Ranks that must do the same were about to do different things."""


class FailedOnRankZero(RuntimeError):
    """What the first rank did for all failed there; its own error says why."""


def is_open() -> bool:
    """Whether there is a process group of this process."""
    return dist.is_available() and dist.is_initialized()


def size(group: Any = None) -> int:
    """How many ranks there are; 1 without a group."""
    return dist.get_world_size(group) if is_open() else 1


def rank(group: Any = None) -> int:
    """This rank's number; 0 without a group."""
    return dist.get_rank(group) if is_open() else 0


def barrier(group: Any = None, timeout_s: float | None = None) -> None:
    """Waits until all ranks are here."""
    if size(group) == 1:
        return
    if timeout_s is not None:
        dist.monitored_barrier(group, timeout=timedelta(seconds=timeout_s))
        return
    # an all-reduce of a CPU tensor serves every backend, and needs no device to be named
    dist.all_reduce(torch.zeros(1), group=group)


def gather_numbers(where: str, numbers: Sequence[float], group: Any = None) -> list[list[float]]:
    """The numbers of all ranks, by rank; as many on each.

    Args:
        where: what the ranks are about to do; the error tells it.
        numbers: what this rank has to say.
        group: the ranks that take part; all by default.

    Raises:
        RankDisagreement: ranks called this from different places.
    """
    count = size(group)
    if count == 1:
        return [[float(number) for number in numbers]]
    mine = torch.tensor([float(zlib.crc32(where.encode())), *numbers], dtype=torch.float64)
    everyone = [torch.empty_like(mine) for _ in range(count)]
    dist.all_gather(everyone, mine, group=group)
    rows = [row.tolist() for row in everyone]
    if any(row[0] != rows[0][0] for row in rows):
        places = gather_objects(where, group)
        raise RankDisagreement(
            "The ranks are not at the same place: "
            + ", ".join(f"rank {i} at {place}" for i, place in enumerate(places))
            + ". Each rank must run the same hooks: look for code that only some of them run."
        )
    return [row[1:] for row in rows]


def any_rank(where: str, flag: bool, group: Any = None) -> bool:
    """Whether any rank says yes."""
    return any(row[0] for row in gather_numbers(where, [float(flag)], group))


def all_ranks(where: str, flag: bool, group: Any = None) -> bool:
    """Whether all ranks say yes."""
    return all(row[0] for row in gather_numbers(where, [float(flag)], group))


def gather_objects(item: T, group: Any = None) -> list[T]:
    """The objects of all ranks, by rank. They are serialized, so keep them small."""
    count = size(group)
    if count == 1:
        return [item]
    everyone: list[Any] = [None] * count
    dist.all_gather_object(everyone, item, group=group)
    return everyone


def gather_to_zero(item: T, group: Any = None) -> list[T] | None:
    """The objects of all ranks on the first rank, None on the others."""
    if size(group) == 1:
        return [item]
    everyone: list[Any] | None = [None] * size(group) if rank(group) == 0 else None
    dist.gather_object(item, everyone, dst=0, group=group)
    return everyone


def broadcast(item: T, source: int = 0, group: Any = None) -> T:
    """The object of rank `source`."""
    if size(group) == 1:
        return item
    held = [item]
    dist.broadcast_object_list(held, src=source, group=group)
    return held[0]


def on_rank_zero(fn: Callable[[], T], group: Any = None) -> T:
    """Calls `fn` on the first rank only; all ranks get what it returned, and hear whether it failed.

    Raises:
        FailedOnRankZero: on the other ranks, where `fn` raised on the first one, which raises that itself.
    """
    if size(group) == 1:
        return fn()
    answer: tuple[bool, Any] = (True, None)
    failure: BaseException | None = None
    if rank(group) == 0:
        try:
            answer = (True, fn())
        except BaseException as error:  # noqa: BLE001  # raised below, once the others have word of it
            failure, answer = error, (False, f"{type(error).__name__}: {error}")
    done, value = broadcast(answer, group=group)
    if failure is not None:
        raise failure
    if not done:
        raise FailedOnRankZero(f"Rank 0 failed: {value}")
    return value


def reduce(tensor: Tensor, operation: str = "mean", group: Any = None) -> Tensor:
    """`tensor` reduced over all ranks, as a new tensor on every rank: "mean", "sum", "min" or "max"."""
    count = size(group)
    if count == 1:
        return tensor
    name = operation.lower()
    result = tensor.detach().clone()
    if name in ("mean", "avg"):
        if not result.is_floating_point():
            result = result.float()
        dist.all_reduce(result, OPERATIONS["sum"], group=group)
        return result / count
    dist.all_reduce(result, OPERATIONS[name], group=group)
    return result


def all_gather(data: Any, group: Any = None, sync_grads: bool = False) -> Any:
    """The tensors of `data` (any nesting; numbers become tensors) of all ranks, stacked in a new first dimension.

    With `sync_grads` gradients flow back to the ranks that the tensors came from.
    """
    count = size(group)

    def gathered(item: Any) -> Any:
        if isinstance(item, (int, float)) and not isinstance(item, bool):
            item = torch.tensor(item)
        if not isinstance(item, Tensor):
            return item
        if sync_grads and item.requires_grad:
            from torch.distributed.nn.functional import all_gather as with_gradient

            parts = with_gradient(item.contiguous(), group) if group is not None else with_gradient(item.contiguous())
            return torch.stack(tuple(parts))
        buffers = [torch.empty_like(item) for _ in range(count)]
        dist.all_gather(buffers, item.detach().contiguous(), group=group)
        return torch.stack(buffers)

    return data if count == 1 else tree_map(gathered, data)


class SideGroup:
    """A second group of all ranks, for a thread that writes while the first is in use by the one that trains."""

    def __init__(self) -> None:
        self._beside: Any = None
        self._group: Any = None

    def get(self) -> Any:
        """The group, None where there is one rank; made at the first call, so all must make it at the same place."""
        if size() == 1:
            return None
        if self._beside is not default_group():
            # no limit: ranks that write large files are through at different times, and a rank that dies shows at once
            self._group = dist.new_group(backend="gloo", timeout=timedelta(days=7))
            self._beside = default_group()
        return self._group


side_group = SideGroup()


def default_group() -> Any:
    """The group of all ranks, for functions of torch that want it named."""
    return dist.group.WORLD

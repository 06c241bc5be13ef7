"""How the ranks of a group share what a loader reads: by index, in the user's order, each sample once.

A global batch is as many batches of the user's size as there are ranks; rank r takes every W-th of its indices from the
r-th on. A last one that does not divide is split as evenly as can be; in training each rank then has a share, by which
its loss is weighted, so that the sum over ranks is the mean over samples. All ranks draw the same order. Who calls: the
engine, when loaders are opened.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, IterableDataset, SequentialSampler

from bolide import collectives
from bolide.core.errors import UserCodeError
from bolide.data.combined import CombinedLoader
from bolide.data.keyed import keyed_random
from bolide.data.loaders import is_collection
from bolide.data.position import Behind, generator_states, set_generator_states
from bolide.seed import rng_state, set_rng_state

Draw = Callable[[Iterable[Any]], Iterator[Any]]


@dataclass(frozen=True)
class Part:
    """Which part of each global batch is this rank's. `training` keeps all ranks at the same number of batches."""

    rank: int
    size: int
    training: bool


class Indices(list[Any]):
    """The indices of one batch of a rank, with where they stand in the order of all ranks together."""

    positions: list[int]


class RankBatches:
    """The batches of one rank, in the place of torch's BatchSampler.

    Attributes:
        sampler: the user's sampler, which all ranks draw alike.
        shares: of this pass, the batches whose loss counts for more or less than 1, by their number.
        begin: where the next pass begins; those after it begin at the beginning.
    """

    def __init__(self, sampler: Any, batch_size: int, drop_last: bool, part: Part, draw: Draw) -> None:
        self.sampler, self.batch_size, self.drop_last = sampler, batch_size, drop_last
        self.part, self.draw = part, draw
        self.shares: dict[int, float] = {}
        self.begin: Behind = (0, 0)

    def count_behind(self, count: float, behind: Behind) -> float:
        """How many batches an epoch of `count` has that goes on there: those done, as it counts them, and the rest."""
        span = self.batch_size * self.part.size
        rest = max(min(count * span, len(self.sampler)) - behind[0], 0)
        return behind[1] + (rest // span if self.drop_last else -(-rest // span))

    def __len__(self) -> int:
        part = self.part
        full, rest = divmod(len(self.sampler), self.batch_size * part.size)
        if self.drop_last or rest == 0:
            return full
        return full + 1 if part.training or part.rank < rest else full

    def __iter__(self) -> Iterator[Any]:
        part, span = self.part, self.batch_size * self.part.size
        self.shares = shares = {}
        (position, number), self.begin = self.begin, (0, 0)
        order = islice(self.draw(self.sampler), position, None)
        while batch := list(islice(order, span)):
            if len(batch) < span and self.drop_last:
                return
            mine = Indices(batch[part.rank :: part.size])
            mine.positions = list(range(position + part.rank, position + len(batch), part.size))
            position += len(batch)
            if len(batch) < span:
                if not mine and not part.training:
                    return
                shares[number] = len(mine) * part.size / len(batch)
                if not mine:  # another rank's sample, which counts for nothing: the steps of all stay together
                    mine.append(batch[0])
                    mine.positions = [position - len(batch)]
            yield mine
            number += 1


class RankTurns:
    """Every W-th batch, or sample, of a sampler of the user's own; a last round that is short is filled in training."""

    def __init__(self, sampler: Any, part: Part, draw: Draw) -> None:
        self.sampler, self.part, self.draw = sampler, part, draw
        self.shares: dict[int, float] = {}
        self.begin: Behind = (0, 0)

    def count_behind(self, count: float, behind: Behind) -> float:
        """As of `RankBatches`, in batches, or samples, of the sampler."""
        rest = max(min(count * self.part.size, len(self.sampler)) - behind[0], 0)
        return behind[1] + -(-rest // self.part.size)

    def __len__(self) -> int:
        full, rest = divmod(len(self.sampler), self.part.size)
        return full + (1 if rest and (self.part.training or self.part.rank < rest) else 0)

    def __iter__(self) -> Iterator[Any]:
        part = self.part
        self.shares = shares = {}
        (behind, number), self.begin = self.begin, (0, 0)
        order = islice(self.draw(self.sampler), behind, None)
        while turn := list(islice(order, part.size)):
            sizes = [len(entry) if isinstance(entry, (list, tuple)) else 1 for entry in turn]
            total = sum(sizes)
            if part.rank < len(turn):
                if len(set(sizes)) > 1 or len(turn) < part.size:
                    shares[number] = sizes[part.rank] * part.size / total
                yield turn[part.rank]
            elif part.training:
                shares[number] = 0.0
                yield turn[0]
            else:
                return
            number += 1


# ---------------------------------------------------------------------- one order for all ranks


def drawn_alike(loader: Any) -> Draw:
    """Draws an order on every rank from the first rank's random states, at each pass. All ranks must draw.

    A generator that stood alike on a rank moves with the draw, as in a single process; one that stood elsewhere is put
    back, so that what a rank draws for itself stays its own.
    """

    def draw(sampler: Iterable[Any]) -> Iterator[Any]:
        if isinstance(sampler, SequentialSampler) or collectives.size() == 1:
            return iter(sampler)
        mine = _states(loader)
        theirs = collectives.broadcast(mine)
        _put(loader, theirs)
        if not hasattr(sampler, "__len__"):
            raise UserCodeError(
                f"{type(sampler).__name__} has no __len__, so its order cannot be split over ranks; give it one, or "
                "write Trainer(use_distributed_sampler=False) and split it yourself"
            )
        order = list(sampler)  # all of it: a sampler that draws as it goes must not meet this rank's own states
        after = _states(loader)
        _put(loader, [new if _same(a, b) else a for a, b, new in zip(mine, theirs, after, strict=True)])
        return iter(order)

    return draw


def drawn_by_seed(seed: int) -> Draw:
    """Draws an order by a seed that all ranks have, and the number of the pass: without a word to the others."""
    passes = iter(range(1 << 62))

    def draw(sampler: Iterable[Any]) -> Iterator[Any]:
        if isinstance(sampler, SequentialSampler):
            return iter(sampler)
        with keyed_random(seed, next(passes)):
            return iter(list(sampler))

    return draw


def _states(loader: Any) -> list[Any]:
    own = rng_state()
    return [own["python"], own["numpy"], own["torch"], *generator_states(loader)]


def _put(loader: Any, states: list[Any]) -> None:
    set_rng_state(dict(zip(("python", "numpy", "torch"), states, strict=False)))
    set_generator_states(loader, states[3:])


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(_same(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b)


# ---------------------------------------------------------------------- loaders


def over_ranks(loaders: Any, part: Part) -> Any:
    """The same loaders, each reading this rank's part. What cannot be split by index stays as it is."""
    if isinstance(loaders, CombinedLoader):
        combined = CombinedLoader(loaders.iterables, loaders.mode)
        combined.flattened = [over_ranks(one, part) for one in loaders.flattened]
        combined.limits = loaders.limits
        return combined
    if isinstance(loaders, Mapping):
        return {key: over_ranks(one, part) for key, one in loaders.items()}
    if is_collection(loaders):
        made = [over_ranks(one, part) for one in loaders]
        return type(loaders)(*made) if hasattr(loaders, "_fields") else type(loaders)(made)
    return _split(loaders, part) if splits(loaders) else loaders


def splits(loader: Any) -> bool:
    """Whether a loader reads by index, with a sampler that does not split over ranks already."""
    if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
        return False
    samplers = (loader.sampler, loader.batch_sampler, getattr(loader.batch_sampler, "sampler", None))
    return not any(isinstance(one, (DistributedSampler, RankBatches, RankTurns)) for one in samplers)


def _split(loader: DataLoader[Any], part: Part) -> DataLoader[Any]:
    draw = drawn_alike(loader) if part.training else drawn_by_seed(_common_seed())
    clone = copy.copy(loader)
    batches = loader.batch_sampler
    # a DataLoader refuses that these are set after construction, and constructing a subclass anew may not be possible
    if batches is None:
        object.__setattr__(clone, "sampler", RankTurns(loader.sampler, part, draw))
    elif type(batches) is BatchSampler:
        made = RankBatches(batches.sampler, batches.batch_size, batches.drop_last, part, draw)
        object.__setattr__(clone, "batch_sampler", made)
    else:
        object.__setattr__(clone, "batch_sampler", RankTurns(batches, part, draw))
    object.__setattr__(clone, "_iterator", None)
    return clone


def _common_seed() -> int:
    """A number that all ranks share, drawn without moving any generator."""
    return int(collectives.broadcast(torch.initial_seed())) % (1 << 31)


def sharer_of(loader: Any) -> Any:
    """Who knows the `shares` of a loader's running pass; None where all are 1, or several loaders are read together."""
    if isinstance(loader, CombinedLoader):
        return sharer_of(loader.flattened[0]) if len(loader.flattened) == 1 else None
    for name in ("batch_sampler", "sampler"):
        found = getattr(loader, name, None)
        for one in (found, getattr(found, "sampler", None)):
            if getattr(one, "shares", None) is not None:
                return one
    return None

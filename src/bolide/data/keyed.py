"""Randomness of samples by key: a sample's random numbers depend on (seed, epoch, position) alone.

So the number of workers, prefetching, and where a run was interrupted cannot change a sample. On where
`seed_everything(..., workers=True)` or `exact_resume=True` was asked; sixty microseconds a sample. The training stream
of random numbers is not moved by it. Who calls: data/loaders, when it makes the source of a fit.
"""

from __future__ import annotations

import copy
import hashlib
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset

from bolide.data.tensors import is_plain
from bolide.seed import generators, set_generators

SAMPLER, ITERATOR = -2, -1
"""Places of an epoch, beside those of its samples, from 0."""

_END: Any = object()


class Key(NamedTuple):
    """A sample by its index in the dataset, with its place in the run."""

    epoch: int
    position: int
    index: Any


class Keyed(NamedTuple):
    """A sample, still with its key."""

    key: Key
    sample: Any


@contextmanager
def keyed_random(seed: int, *key: int) -> Iterator[None]:
    """python, numpy and torch (CPU) draw what belongs to `key`; afterwards they stand where they stood."""
    raw = hashlib.blake2b(repr((seed, *key)).encode(), digest_size=8).digest()
    number = int.from_bytes(raw, "little")
    states = generators(include_cuda=False)
    random.seed(number)
    np.random.seed(number & 0xFFFFFFFF)
    torch.default_generator.manual_seed(number)
    try:
        yield
    finally:
        set_generators(states)


class KeyedDataset:
    """A map-style dataset that is asked by `Key` and draws its random numbers by it."""

    def __init__(self, dataset: Any, seed: int) -> None:
        self.dataset, self.seed = dataset, seed

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, key: Key) -> Keyed:
        with keyed_random(self.seed, key.epoch, key.position):
            return Keyed(key, self.dataset[key.index])


class KeyedCollate:
    """A collate function that draws its random numbers by the key of its batch's first sample."""

    def __init__(self, collate: Callable[[Any], Any], seed: int) -> None:
        self.collate, self.seed = collate, seed

    def __call__(self, samples: Any) -> Any:
        if isinstance(samples, Keyed):  # a loader without batches
            return self.collate(samples.sample)
        first = samples[0].key
        with keyed_random(self.seed, first.epoch, first.position, 1):
            return self.collate([keyed.sample for keyed in samples])


class Keys:
    """A sampler, of samples or of batches, that gives keys in the place of indices, and draws by key itself.

    `epoch` is set by the engine.
    """

    def __init__(self, sampler: Iterable[Any], batches: bool, seed: int) -> None:
        self.sampler, self.batches, self.seed, self.epoch = sampler, batches, seed, 0

    def __len__(self) -> int:
        return len(self.sampler)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        epoch, position, count = self.epoch, 0, 0
        iterator: Iterator[Any] | None = None
        while True:
            with keyed_random(self.seed, epoch, SAMPLER, count):
                iterator = iter(self.sampler) if iterator is None else iterator
                entry = next(iterator, _END)
            if entry is _END:
                return
            count += 1
            if not self.batches:
                yield Key(epoch, position, entry)
                position += 1
                continue
            # a batch of one rank of several says where its samples stand in the order of all of them
            places = getattr(entry, "positions", None) or range(position, position + len(entry))
            yield [Key(epoch, place, index) for place, index in zip(places, entry)]
            position += len(entry)

    def opening(self) -> AbstractContextManager[None]:
        """The scope in which an iterator of this epoch is made: what that draws moves nothing else."""
        return keyed_random(self.seed, self.epoch, ITERATOR)


def keyed(loader: Any, seed: int) -> tuple[Any, Keys | None]:
    """`loader` reading by keys, and the sampler to be told the epoch; what reads no dataset by index stays as it is."""
    if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset) or is_plain(loader):
        return loader, None
    clone = copy.copy(loader)
    name = "batch_sampler" if loader.batch_sampler is not None else "sampler"
    keys = Keys(getattr(loader, name), batches=name == "batch_sampler", seed=seed)
    # a DataLoader refuses that these are set after construction; the copy is nobody else's
    object.__setattr__(clone, name, keys)
    object.__setattr__(clone, "dataset", KeyedDataset(loader.dataset, seed))
    object.__setattr__(clone, "collate_fn", KeyedCollate(loader.collate_fn, seed))
    object.__setattr__(clone, "_iterator", None)
    return clone, keys

"""What a user gave as loaders, made into sources that the engine reads.

Owns lengths, limits and the removal of shuffling for `overfit_batches`. It reads no batch: data/batches does.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, SequentialSampler

from bolide.core.errors import UserCodeError
from bolide.core.messages import PossibleUserWarning, warn_once
from bolide.core.schedule import limited
from bolide.data.combined import CombinedLoader
from bolide.data.keyed import Keys, keyed
from bolide.data.position import Reader, dealer_of, open_iterator

INFINITE = math.inf


def made(thing: Any) -> Any:
    """What a function without arguments makes of loaders or a data module; anything else as it is."""
    is_function = callable(thing) and not hasattr(thing, "__iter__") and not hasattr(thing, "setup")
    return thing() if is_function else thing


@dataclass
class Source:
    """One loader as the engine reads it.

    `count` is how many batches an epoch has (infinite where nobody knows); `sized` tells whether it is known before
    reading, so that nothing need be read ahead to find the last one. `readers` remember where a pass stands, one for
    each loader that is read side by side; an evaluation, which is never gone on with, has none.
    """

    loader: Any
    count: float
    sized: bool
    readers: list[Reader] = field(default_factory=list)
    keys: list[Keys] = field(default_factory=list)
    together: CombinedLoader | None = None
    own_count: float = 0.0
    """What this rank's loader has, where the ranks agreed on another `count`."""
    rank_counts: list[float] = field(default_factory=list)
    """What the loaders of all ranks have, where they differ."""
    ahead: Any = None
    """The iterator that reads ahead, where the length is unknown: it knows what stood before it did."""

    def remember(self, seed: int | None) -> Source:
        """The same source, remembering where each pass stands; with `seed`, its samples' randomness goes by key."""
        combined = isinstance(self.loader, CombinedLoader)
        loaders = self.loader.flattened if combined else [self.loader]
        pairs = [(loader, None) if seed is None else keyed(loader, seed) for loader in loaders]
        self.readers = [Reader(loader, keys.opening if keys is not None else nullcontext) for loader, keys in pairs]
        self.keys = [keys for _, keys in pairs if keys is not None]
        if combined:
            self.together = CombinedLoader(self.loader.iterables, self.loader.mode)
            self.together.flattened = self.readers
            self.together.limits = self.loader.limits
        return self

    def relimit(self, limit: float | None, resumed: bool = False) -> None:
        """Takes over a limit that was changed since; `resumed` tells that the pass of an epoch goes on."""
        self.count = limited(length_of(self.loader), limit)
        if resumed and self.readers and self.readers[0].behind != (0, 0):
            dealer = dealer_of(self.readers[0].loader)
            assert dealer is not None, "the pass has begun there"
            self.count = dealer.count_behind(self.count, self.readers[0].behind)

    def open_epoch(self, epoch: int) -> None:
        """The next pass is that of `epoch`."""
        for keys in self.keys:
            keys.epoch = epoch

    def iterate(self) -> Iterator[Any]:
        """A new pass over the batches. Draws from the random generators just as `iter(loader)` does."""
        if isinstance(self.loader, CombinedLoader) and self.loader.mode != "sequential":
            return _side_by_side(iter(self.together if self.together is not None else self.loader))
        return iter(self.readers[0]) if self.readers else open_iterator(self.loader)

    def position(self) -> dict[str, Any]:
        """Where the running pass stands; what `go_on` needs to come back there."""
        together = self.together.position() if self.together is not None else None
        return {"readers": [reader.position() for reader in self.readers], "together": together}

    def go_on(self, saved: dict[str, Any] | None, skip: int) -> None:
        """The next `iterate` goes on behind `skip` batches of the pass that `saved` describes (None: of a new one)."""
        states = saved["readers"] if saved is not None else [None] * len(self.readers)
        if len(states) != len(self.readers):
            raise UserCodeError(
                f"The checkpoint was saved with {len(states)} training loader(s), and there are {len(self.readers)} "
                "now; give the loaders that it was saved with"
            )
        together = saved["together"] if saved is not None else None
        if together is None:
            self.readers[0].go_on(states[0], skip)
            for reader in self.readers[1:]:
                reader.go_on(None, skip)
        else:
            for reader, state, taken in zip(self.readers, states, together["taken"], strict=True):
                reader.go_on(state, taken)
        if self.together is not None and together is not None:
            self.together.go_on(together)

    @property
    def counts(self) -> list[float]:
        """How many batches each loader has: one number, or one for each of those that are read side by side."""
        if isinstance(self.loader, CombinedLoader):
            return [min(length_of(loader), self.count) for loader in self.loader.flattened]
        return [self.count]


def _side_by_side(triples: Iterator[Any]) -> Iterator[Any]:
    # not a `for`, which would begin the pass, and its draws, a second time
    while True:
        try:
            batch, _, _ = next(triples)
        except StopIteration:
            return
        yield batch


def length_of(loader: Any) -> float:
    """How many batches `loader` has; infinite where it has no length.

    Raises:
        UserCodeError: its `__len__` gives no number.
    """
    if isinstance(loader, CombinedLoader):
        return _combined_length(loader)
    if not hasattr(type(loader), "__len__"):
        return INFINITE
    try:
        return len(loader)
    except (TypeError, NotImplementedError):  # a DataLoader over a dataset without a length
        return INFINITE


def _combined_length(combined: CombinedLoader) -> float:
    lengths = [length_of(loader) for loader in combined.flattened]
    if combined.limits is not None:
        lengths = [limited(n, limit) for n, limit in zip(lengths, combined.limits, strict=True)]
    if not lengths:
        return 0
    if combined.mode == "sequential":
        return sum(lengths)
    return min(lengths) if combined.mode == "min_size" else max(lengths)


def source_of(loader: Any, limit: float | None, argument: str, limit_name: str) -> Source:
    """A source of `loader`, of which `limit` leaves so many batches.

    Raises:
        UserCodeError: `loader` is not iterable, or the limit is a share of an unknown length.
    """
    if not isinstance(loader, (Iterable, CombinedLoader)) and not hasattr(loader, "__getitem__"):
        raise UserCodeError(
            f"{argument} gave a {type(loader).__name__}, which cannot be iterated; return a DataLoader or any iterable "
            "of batches"
        )
    length = length_of(loader)
    try:
        count = limited(length, limit)
    except ValueError as error:
        raise UserCodeError(f"{limit_name}={error}") from error
    if 0 < length < INFINITE and count == 0 and isinstance(limit, float) and limit > 0:
        raise UserCodeError(
            f"{limit_name}={limit} of {length:g} batches is less than one batch; write at least {1 / length:.3g}, or a "
            "whole number of batches"
        )
    # a count from a limit alone is a bound, not a length: the loader may end before it
    return Source(loader, count, sized=length < INFINITE)


def is_collection(loaders: Any) -> bool:
    """Whether `loaders` is a list, tuple or dictionary of loaders."""
    return isinstance(loaders, (list, tuple, Mapping)) and not isinstance(loaders, str)


def train_source(loaders: Any, limit: float | None, seed: int | None = None) -> Source:
    """The one source of a fit; a collection is read side by side, its shorter loaders again and again.

    With `seed`, each sample's randomness depends on it, the epoch and the sample's position alone.

    Raises:
        UserCodeError: not iterable, an unknown length with a share, or a sequential CombinedLoader.
    """
    if is_collection(loaders):
        loaders = CombinedLoader(loaders, "max_size_cycle")
    if isinstance(loaders, CombinedLoader) and loaders.mode == "sequential":
        raise UserCodeError(
            'CombinedLoader(mode="sequential") cannot be trained on; write mode="max_size_cycle", "min_size" or '
            '"max_size"'
        )
    return source_of(loaders, limit, "train_dataloader", "limit_train_batches").remember(seed)


def eval_sources(loaders: Any, limit: float | None, stage: str) -> list[Source]:
    """The sources of an evaluation, one after the other; a CombinedLoader of another mode is one source.

    Raises:
        UserCodeError: not iterable, an unknown length with a share, or a mode that `predict` cannot give back.
    """
    prefix = "val" if stage == "validate" else stage
    argument, limit_name = f"{prefix}_dataloader", f"limit_{prefix}_batches"
    if isinstance(loaders, CombinedLoader):
        if loaders.mode != "sequential":
            if stage == "predict":
                raise UserCodeError(
                    f'predict reads CombinedLoader(mode="sequential") only, not mode={loaders.mode!r}: predictions of '
                    "loaders side by side have no order"
                )
            return [source_of(loaders, limit, argument, limit_name)]
        flat = loaders.flattened
        limits = loaders.limits or [limit] * len(flat)
        return [source_of(x, _tighter(limit, own), argument, limit_name) for x, own in zip(flat, limits, strict=True)]
    flat = CombinedLoader(loaders, "sequential").flattened if is_collection(loaders) else [loaders]
    sources = [source_of(x, limit, argument, limit_name) for x in flat]
    for source in sources:
        _warn_shuffled(source.loader, argument)
    return sources


def _tighter(limit: float | None, own: float | None) -> float | None:
    return limit if own is None or own == limit else own


def _warn_shuffled(loader: Any, argument: str) -> None:
    if isinstance(getattr(loader, "sampler", None), RandomSampler):
        warn_once(
            f"{argument} shuffles; evaluation gives the same numbers in any order, so leave shuffle=True out.",
            PossibleUserWarning,
        )


def without_shuffling(loaders: Any, kind: str) -> Any:
    """The same loaders reading in order: what `overfit_batches` trains on, the same batches each epoch."""
    if isinstance(loaders, CombinedLoader):
        combined = CombinedLoader(loaders.iterables, loaders.mode)
        combined.flattened = [without_shuffling(x, kind) for x in loaders.flattened]
        return combined
    if isinstance(loaders, Mapping):
        return {key: without_shuffling(x, kind) for key, x in loaders.items()}
    if isinstance(loaders, (list, tuple)):
        return type(loaders)(without_shuffling(x, kind) for x in loaders)
    if not isinstance(loaders, DataLoader) or isinstance(loaders.dataset, IterableDataset):
        return loaders
    if isinstance(loaders.sampler, SequentialSampler) or not isinstance(loaders.sampler, RandomSampler):
        return loaders
    warn_once(f"overfit_batches takes the same batches each epoch: shuffling of the {kind} loader is turned off.")
    clone = copy.copy(loaders)
    sampler = SequentialSampler(loaders.dataset)  # type: ignore[arg-type]
    # a DataLoader refuses that these are set after construction, and constructing a subclass anew may not be possible
    object.__setattr__(clone, "sampler", sampler)
    if loaders.batch_size is not None:
        object.__setattr__(clone, "batch_sampler", BatchSampler(sampler, loaders.batch_size, loaders.drop_last))
    return clone


def set_epoch(loader: Any, epoch: int) -> None:
    """Tells the samplers and datasets that ask for it which epoch begins."""
    loaders = loader.flattened if isinstance(loader, CombinedLoader) else [loader]
    for item in loaders:
        sampler: Any = getattr(item, "sampler", None)
        batch_sampler: Any = getattr(item, "batch_sampler", None)
        told: list[Any] = []
        inner: Any = getattr(batch_sampler, "sampler", None)
        targets: list[Any] = [sampler, batch_sampler, inner, getattr(item, "dataset", None)]
        for target in targets:
            if callable(getattr(target, "set_epoch", None)) and all(target is not t for t in told):
                target.set_epoch(epoch)
                told.append(target)

"""Where a pass over a loader stands, and how to come back there without reading what was read.

A pass is determined by the random states at which its iterator was made and first asked, and by how many batches were
taken since. `Reader` remembers them; `Reader.go_on` makes the same iterator again, advanced in index space: samplers
are asked, no sample is fetched. What has no index space is read again, and one warning says so. Who calls: the engine.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import chain, islice
from typing import Any, Protocol, runtime_checkable

import torch
from torch.utils.data import DataLoader, IterableDataset

from bolide.core.errors import UserCodeError
from bolide.core.messages import warn_once
from bolide.data.tensors import batches_of, is_plain
from bolide.seed import rng_state, set_rng_state

State = dict[str, Any]
Behind = tuple[int, int]
"""Where a pass begins that goes on from one of other ranks or batch size: behind so many samples, as that batch."""


@runtime_checkable
class Dealer(Protocol):
    """A sampler that deals batches out to ranks: its next pass may begin within the order; data/samplers has them."""

    begin: Behind

    def count_behind(self, count: float, behind: Behind) -> float: ...


def generators_of(loader: Any) -> list[torch.Generator]:
    """The generators that a loader and its samplers draw from, apart from the global ones; each once."""
    batch_sampler = getattr(loader, "batch_sampler", None)
    owners = (loader, getattr(loader, "sampler", None), batch_sampler, getattr(batch_sampler, "sampler", None))
    found: list[torch.Generator] = []
    for owner in owners:
        generator = getattr(owner, "generator", None)
        if isinstance(generator, torch.Generator) and all(generator is not g for g in found):
            found.append(generator)
    return found


def generator_states(loader: Any) -> list[torch.Tensor]:
    """The states of `generators_of(loader)`."""
    return [generator.get_state() for generator in generators_of(loader)]


def set_generator_states(loader: Any, states: Sequence[torch.Tensor]) -> None:
    """Puts the generators of a loader at saved states; where there are others than were saved, leaves them."""
    generators = generators_of(loader)
    if len(generators) == len(states):
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)


def snapshot(loader: Any) -> State:
    """All random states that making or reading an iterator of `loader` may move."""
    return {"global": rng_state(), "own": generator_states(loader)}


def go_to(loader: Any, state: State) -> None:
    """Brings all random states of `snapshot` back."""
    set_rng_state(state["global"])
    set_generator_states(loader, state["own"])


def is_stateful(loader: Any) -> bool:
    """Whether a loader keeps its own position, in `state_dict` and `load_state_dict`."""
    return callable(getattr(loader, "state_dict", None)) and callable(getattr(loader, "load_state_dict", None))


class Reader:
    """One loader, iterable again and again, with a memory of where the running pass began and how far it is.

    Its iterators are made within `opening()`, which shields the random states where samples draw by key.
    """

    def __init__(self, loader: Any, opening: Callable[[], AbstractContextManager[Any]] = nullcontext) -> None:
        self.loader, self.opening = loader, opening
        self.at_iter: State | None = None
        self.at_first: State | None = None
        self.taken = 0
        self.pooled = False
        self.expects_pool = False
        self.behind: Behind = (0, 0)
        self._going_on: tuple[State | None, int] | None = None

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        if self._going_on is not None:
            (saved, skip), self._going_on = self._going_on, None
            return self._continued(saved, skip)
        self.at_iter = snapshot(self.loader)
        self.at_first = None
        self.taken = 0
        self.behind = (0, 0)
        self.pooled = self.expects_pool or has_pool(self.loader)
        self.expects_pool = False
        make = pooled_iterator if self.pooled and not has_pool(self.loader) else open_iterator
        with self.opening():
            iterator = make(self.loader)
        return self._counted(iterator)

    def _counted(self, iterator: Iterator[Any]) -> Iterator[Any]:
        if self.at_first is None:
            self.at_first = snapshot(self.loader)
        for batch in iterator:
            self.taken += 1
            yield batch

    def position(self) -> State:
        """What `go_on` needs to come back to where this pass stands."""
        state: State = {"at_iter": self.at_iter, "at_first": self.at_first, "taken": self.taken, "pooled": self.pooled}
        if self.behind != (0, 0):
            state["behind"] = list(self.behind)
        if is_stateful(self.loader):
            state["loader"] = self.loader.state_dict()
        return state

    def go_on(self, saved: State | None, skip: int) -> None:
        """The next `iter()` goes on behind `skip` batches of the pass that `saved` describes (None: of a new one)."""
        self._going_on = (saved, skip)

    def _continued(self, saved: State | None, skip: int) -> Iterator[Any]:
        self.taken = skip
        if saved is None or saved.get("at_iter") is None:
            self.at_iter = self.at_first = snapshot(self.loader)
        else:
            self.at_iter, self.at_first = saved["at_iter"], saved["at_first"] or saved["at_iter"]
            self.pooled = saved["pooled"]
            go_to(self.loader, saved["at_iter"])
        if saved is not None and saved.get("loader") is not None and is_stateful(self.loader):
            self.loader.load_state_dict(saved["loader"])
            return self._counted(open_iterator(self.loader))
        self.expects_pool = False
        if saved is not None and saved.get("behind"):
            self.behind = (int(saved["behind"][0]), int(saved["behind"][1]))
            skip -= self.behind[1]
            dealer = dealer_of(self.loader)
            if dealer is None:
                raise UserCodeError(
                    f"The checkpoint stands behind {self.behind[0]} samples of its epoch, where "
                    f"{type(self.loader).__name__} has no beginning: give the loader that it was saved with"
                )
            dealer.begin = self.behind
        with self.opening():
            iterator = advanced(self.loader, self.at_first, skip, self.pooled)
        return self._counted(iterator)


def dealer_of(loader: Any) -> Dealer | None:
    """What deals a loader's batches out to the ranks, where that is done by index."""
    batches = getattr(loader, "batch_sampler", None)
    for one in (batches, getattr(batches, "sampler", None), getattr(loader, "sampler", None)):
        if isinstance(one, Dealer):
            return one
    return None


def open_iterator(loader: Any) -> Iterator[Any]:
    """A new iterator of `loader`, by the quick path where nothing could tell the difference."""
    return batches_of(loader) if is_plain(loader) else iter(loader)


class Passed:
    """A sampler of batches, or of samples, that begins behind its first `skip` entries.

    They are drawn from the random states at which they were drawn the first time. Without workers that was at the first
    batch, so the states of then are put in place meanwhile; with workers it was when the iterator was made, which comes
    by itself.
    """

    def __init__(self, sampler: Iterable[Any], loader: Any, at_first: State, skip: int) -> None:
        self.sampler, self.loader, self.at_first, self.skip = sampler, loader, at_first, skip
        self.after: list[torch.Tensor] | None = None

    def __len__(self) -> int:
        return max(len(self.sampler) - self.skip, 0)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        if self.loader.num_workers:
            return islice(iter(self.sampler), self.skip, None)
        now = snapshot(self.loader)
        go_to(self.loader, self.at_first)
        iterator = iter(self.sampler)
        for _ in islice(iterator, self.skip):
            pass
        if not self.skip:  # a pass that begins within the order has its order drawn now
            iterator = chain(list(islice(iterator, 1)), iterator)
        self.after = generator_states(self.loader)
        go_to(self.loader, now)
        return iterator


def has_pool(loader: Any) -> bool:
    """Whether a loader keeps worker processes from an earlier pass: its next iterator then draws no base seed."""
    return bool(getattr(loader, "persistent_workers", False)) and getattr(loader, "_iterator", None) is not None


def pooled_iterator(loader: Any) -> Iterator[Any]:
    """An iterator of a loader whose workers a former process had: new ones, and no draw for their base seed."""
    generator = loader.generator
    loader.generator = torch.Generator()
    try:
        return iter(loader)
    finally:
        loader.generator = generator


def advanced(loader: Any, at_first: State, skip: int, pooled: bool = False) -> Iterator[Any]:
    """An iterator of `loader` behind its first `skip` batches, none of which is fetched where there is a way."""
    if isinstance(loader, DataLoader) and not isinstance(loader.dataset, IterableDataset):
        if loader.persistent_workers:
            return _advanced_with_its_workers(loader, at_first, skip, pooled)
        return _advanced_in_index_space(loader, at_first, skip)
    if isinstance(loader, (list, tuple)) or (isinstance(loader, Sequence) and not isinstance(loader, str)):
        return islice(iter(loader), skip, None)
    if skip:
        dataset = getattr(loader, "dataset", None)
        what = type(dataset if dataset is not None else loader).__name__
        warn_once(
            f"{what} has no position to go on from: its first {skip} batches are read again and dropped. If it draws "
            "random numbers, what follows is not the same as in an undisturbed run. Give it state_dict() and "
            "load_state_dict(), or use a map-style dataset."
        )
    go_to(loader, at_first)
    iterator = open_iterator(loader)
    read = sum(1 for _ in islice(iterator, skip))
    if read < skip:
        raise UserCodeError(
            f"The loader gave {read} batches, and the checkpoint is behind its {skip}th: it is another one"
        )
    return iterator


def _advanced_in_index_space(loader: DataLoader[Any], at_first: State, skip: int) -> Iterator[Any]:
    # a DataLoader refuses that samplers are exchanged after construction; a copy of its own is changed underneath
    clone = copy.copy(loader)
    name = "batch_sampler" if loader.batch_sampler is not None else "sampler"
    passed = Passed(getattr(loader, name), loader, at_first, skip)
    object.__setattr__(clone, name, passed)
    iterator = open_iterator(clone)
    if passed.after is not None:
        set_generator_states(loader, passed.after)
    return iterator


def _advanced_with_its_workers(loader: DataLoader[Any], at_first: State, skip: int, pooled: bool) -> Iterator[Any]:
    # the worker processes stay with the loader for the next epochs, so it is the loader itself that makes them
    name = "batch_sampler" if loader.batch_sampler is not None else "sampler"
    sampler = getattr(loader, name)
    object.__setattr__(loader, name, Passed(sampler, loader, at_first, skip))
    try:
        iterator: Any = pooled_iterator(loader) if pooled else iter(loader)
    finally:
        object.__setattr__(loader, name, sampler)
    iterator._index_sampler = sampler  # which the next epoch begins anew
    return iterator

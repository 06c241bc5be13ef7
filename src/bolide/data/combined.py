"""Several loaders read as one: `CombinedLoader` and its four modes.

Owns the order in which the loaders of a collection are read. It moves no batch to a device and knows no epoch.
Who calls: the engine, for every list, tuple or dictionary of loaders, and users who choose the mode.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, cast

from torch.utils._pytree import tree_flatten, tree_unflatten

from bolide.core.errors import ConfigError, UserCodeError

Mode = Literal["min_size", "max_size_cycle", "max_size", "sequential"]
Item = tuple[Any, int, int]
Limits = int | float | Sequence[int | float | None] | None


class CombinedLoader:
    """Reads a collection of iterables, nested at will, as one iterable.

    Iterating yields triples `(batch, batch_idx, dataloader_idx)`. In the first three modes `batch` has the structure
    of the collection, with one batch of each iterable in it, and `dataloader_idx` is 0:

    - `"min_size"`: ends with the shortest;
    - `"max_size"`: ends with the longest, the others give None when they are exhausted;
    - `"max_size_cycle"`: ends with the longest, the others begin again;
    - `"sequential"`: one iterable after another; `batch` is a batch of one, `batch_idx` starts at 0 in each,
      `dataloader_idx` counts them.

    Args:
        iterables: any iterable, or lists, tuples and dictionaries of them.
        mode: one of the four above.

    Raises:
        ConfigError: an unknown mode.

    Example::

        loader = CombinedLoader({"a": range(2), "b": range(3)}, "max_size")
        for batch, batch_idx, dataloader_idx in loader:
            print(batch)  # {'a': 0, 'b': 0}, {'a': 1, 'b': 1}, {'a': None, 'b': 2}
    """

    def __init__(self, iterables: Any, mode: str = "min_size") -> None:
        if mode not in _LENGTHS:
            raise ConfigError(f"CombinedLoader(mode={mode!r}): expected one of {', '.join(map(repr, _LENGTHS))}.")
        self._iterables = iterables
        self._flattened, self._spec = tree_flatten(iterables)
        self._mode = cast(Mode, mode)
        self._limits: list[int | float | None] | None = None
        self._iterator: Iterator[Item] | None = None
        self._running: list[Any] = []
        self._loaded_states: list[dict[str, Any]] = []
        self._exhausted: list[bool] = []
        self._taken: list[int] = []
        self._behind: dict[str, Any] | None = None

    @property
    def iterables(self) -> Any:
        """The collection, as given."""
        return self._iterables

    @property
    def mode(self) -> str:
        """How the iterables are combined."""
        return self._mode

    @property
    def flattened(self) -> list[Any]:
        """All iterables as a flat list. Assigning a list of the same length exchanges them within the structure."""
        return self._flattened

    @flattened.setter
    def flattened(self, flattened: list[Any]) -> None:
        if len(flattened) != len(self._flattened):
            raise ValueError(
                f"CombinedLoader.flattened was given {len(flattened)} iterables; "
                f"the collection has {len(self._flattened)}."
            )
        self._flattened = list(flattened)
        self._iterables = tree_unflatten(self._flattened, self._spec)

    @property
    def limits(self) -> list[int | float | None] | None:
        """The most batches taken of each iterable, or None. One number stands for all of them."""
        return self._limits

    @limits.setter
    def limits(self, limits: Limits) -> None:
        if limits is None:
            self._limits = None
        elif isinstance(limits, (int, float)):
            self._limits = [limits] * len(self._flattened)
        elif len(limits) != len(self._flattened):
            raise ValueError(
                f"CombinedLoader.limits was given {len(limits)} numbers; "
                f"the collection has {len(self._flattened)} iterables."
            )
        else:
            self._limits = list(limits)

    @property
    def sampler(self) -> Any:
        """The `sampler` of each iterable, or None, in the structure of the collection."""
        return self._map(lambda iterable: getattr(iterable, "sampler", None))

    @property
    def batch_sampler(self) -> Any:
        """The `batch_sampler` of each iterable, or None, in the structure of the collection."""
        return self._map(lambda iterable: getattr(iterable, "batch_sampler", None))

    def _map(self, fn: Callable[[Any], Any]) -> Any:
        return tree_unflatten([fn(iterable) for iterable in self._flattened], self._spec)

    def __iter__(self) -> CombinedLoader:
        self._load_pending_states()
        read = {"sequential": self._sequential, "max_size_cycle": self._cycle}.get(self._mode, self._side_by_side)
        self._running = [] if self._mode == "sequential" else [self._iter(iterable) for iterable in self._flattened]
        behind, self._behind = self._behind, None
        count = len(self._flattened)
        self._exhausted = list(behind["exhausted"]) if behind else [False] * count
        self._taken = list(behind["taken"]) if behind else [0] * count
        self._iterator = read()
        if self._mode == "sequential" and self._flattened:
            # The first iterator draws its seed here, as those of the other modes do, not at the first batch.
            self._running = [self._iter(self._flattened[0])]
        return self

    def __next__(self) -> Item:
        if self._iterator is None:
            raise RuntimeError("CombinedLoader: call iter(loader) before next(loader).")
        return next(self._iterator)

    def __len__(self) -> int:
        """How many triples one pass yields.

        Raises:
            RuntimeError: before `iter()`, since loaders may settle their length there.
            TypeError: the length depends on an iterable that has none.
        """
        if self._iterator is None:
            raise RuntimeError("CombinedLoader: call iter(loader) before len(loader).")
        length = self._length()
        if length is None:
            raise TypeError("CombinedLoader: the length is unknown, because an iterable in it has no length.")
        return length

    def _length(self) -> int | None:
        sizes = [_size(iterable) for iterable in self._flattened]
        if self._limits is not None:
            caps = [_cap(limit) for limit in self._limits]
            sizes = [_smaller(size, cap) for size, cap in zip(sizes, caps, strict=True)]
        return _LENGTHS[self._mode](sizes)

    def reset(self) -> None:
        """Ends the current pass: the iterators go, and with them their worker processes."""
        self._iterator = None
        self._running = []

    def state_dicts(self) -> list[dict[str, Any]]:
        """The state of each iterable that has `state_dict` and `load_state_dict`, in order."""
        return [iterable.state_dict() for iterable in self._flattened if _is_stateful(iterable)]

    def load_state_dicts(self, states: list[dict[str, Any]]) -> None:
        """Gives back what `state_dicts` returned; each iterable takes its state at the next `iter()`.

        Raises:
            UserCodeError: at that `iter()`, when the number of stateful iterables is another one.
        """
        self._loaded_states = list(states)

    def position(self) -> dict[str, Any]:
        """How far the running pass is: which iterables are exhausted, and how many batches each gave since it began."""
        return {"exhausted": list(self._exhausted), "taken": list(self._taken)}

    def go_on(self, position: dict[str, Any]) -> None:
        """The next `iter()` goes on from `position`; its iterables must do so, too."""
        self._behind = position

    def _load_pending_states(self) -> None:
        states, self._loaded_states = self._loaded_states, []
        stateful = [iterable for iterable in self._flattened if _is_stateful(iterable)]
        if states and len(states) != len(stateful):
            raise UserCodeError(
                f"CombinedLoader has {len(stateful)} stateful iterables, the checkpoint {len(states)} states. "
                "Give the loaders that the checkpoint was saved with."
            )
        for iterable, state in zip(stateful, states, strict=False):
            iterable.load_state_dict(state)

    @staticmethod
    def _iter(iterable: Any) -> Iterator[Any]:
        try:
            return iter(iterable)
        except TypeError as error:
            given = type(getattr(iterable, "loader", iterable)).__name__
            raise UserCodeError(
                f"CombinedLoader: expected loaders or other iterables, got {given} in the collection."
            ) from error

    def _limit(self, index: int) -> int | float | None:
        return None if self._limits is None else self._limits[index]

    def _side_by_side(self) -> Iterator[Item]:
        """min_size and max_size."""
        fill = self._mode == "max_size"
        done, taken = self._exhausted, self._taken
        batch_idx = max(taken, default=0)
        while self._running:
            batches: list[Any] = []
            for index, iterator in enumerate(self._running):
                batch: Any = None
                if not done[index]:
                    limit = self._limit(index)
                    batch = _END if limit is not None and batch_idx >= limit else next(iterator, _END)
                if batch is _END:
                    if not fill:
                        return
                    done[index], batch = True, None
                elif not done[index]:
                    taken[index] += 1
                batches.append(batch)
            if all(done):
                return
            yield tree_unflatten(batches, self._spec), batch_idx, 0
            batch_idx += 1

    def _cycle(self) -> Iterator[Item]:
        count = len(self._running)
        taken, done = self._taken, self._exhausted
        batch_idx = 0
        while count:
            batches: list[Any] = []
            for index in range(count):
                limit = self._limit(index)
                at_limit = limit is not None and taken[index] >= limit
                batch = _END if at_limit else next(self._running[index], _END)
                if batch is _END:
                    done[index] = True
                    if all(done) or limit == 0:
                        return
                    self._running[index] = self._iter(self._flattened[index])
                    taken[index] = 0
                    batch = next(self._running[index], _END)
                    if batch is _END:  # an empty iterable cannot be cycled
                        return
                taken[index] += 1
                batches.append(batch)
            yield tree_unflatten(batches, self._spec), batch_idx, 0
            batch_idx += 1

    def _sequential(self) -> Iterator[Item]:
        for index, iterable in enumerate(self._flattened):
            if index:
                self._running = [self._iter(iterable)]
            iterator = self._running[0]
            limit = self._limit(index)
            batch_idx = 0
            while limit is None or batch_idx < limit:
                batch = next(iterator, _END)
                if batch is _END:
                    break
                yield batch, batch_idx, index
                batch_idx += 1
        self._running = []


_END: Any = object()
Sizes = list[int | None]


def _is_stateful(iterable: Any) -> bool:
    return callable(getattr(iterable, "state_dict", None)) and callable(getattr(iterable, "load_state_dict", None))


def _size(iterable: Any) -> int | None:
    try:
        return len(iterable)
    except (TypeError, NotImplementedError):  # no length: `IterableDataset`s and generators
        return None


def _cap(limit: int | float | None) -> int | None:
    return None if limit is None or limit == float("inf") else int(limit)


def _smaller(size: int | None, cap: int | None) -> int | None:
    known = [number for number in (size, cap) if number is not None]
    # A limit alone says only how many there are at most: without a size the number stays unknown.
    return min(known) if size is not None and known else None


def _shortest(sizes: Sizes) -> int | None:
    known = [size for size in sizes if size is not None]
    return min(known) if known else (0 if not sizes else None)


def _longest(sizes: Sizes) -> int | None:
    known = [size for size in sizes if size is not None]
    return max(known, default=0) if len(known) == len(sizes) else None


def _total(sizes: Sizes) -> int | None:
    known = [size for size in sizes if size is not None]
    return sum(known) if len(known) == len(sizes) else None


_LENGTHS: dict[str, Callable[[Sizes], int | None]] = {
    "min_size": _shortest,
    "max_size_cycle": _longest,
    "max_size": _longest,
    "sequential": _total,
}

"""The one generator that batches come through: limits, the last one known, the device.

A sized source is never read ahead: its last batch is known by counting. An unsized one is read ahead by one batch, for
the last one must be known while it trains. Who calls: engine/fit, engine/evaluate, engine/predict.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

from bolide.data.loaders import Source
from bolide.seed import generators


def batches(
    source: Source, iterator: Iterator[Any], start: int = 0, look_ahead: bool = True
) -> Iterator[tuple[Any, bool]]:
    """Pairs (batch, is_last) of one pass, from `iterator`, whose first batch is number `start` of the epoch.

    Ends after `source.count` batches, fetching none beyond. A sized source may end early, when its length was wrong:
    no batch was then called the last, and the caller sees it by counting. Without `look_ahead`, where nobody needs to
    know the last one, no source is read ahead.
    """
    position, count = start, source.count
    if position >= count:
        return
    if source.sized or not look_ahead:
        for batch in iterator:
            position += 1
            last = position >= count
            yield batch, last
            if last:
                return
        return
    ahead = next(iterator, _END)
    while ahead is not _END:
        batch, position = ahead, position + 1
        last = position >= count
        if not last:
            ahead = next(iterator, _END)
            last = ahead is _END
        yield batch, last
        if last:
            return


class Ahead:
    """An iterator that knows the random state in which its last batch was fetched, for a checkpoint taken meanwhile."""

    def __init__(self, source: Source, iterator: Iterator[Any]) -> None:
        self.source, self.iterator = source, iterator
        self.before: tuple[Any, ...] | None = None  # as `seed.generators` gives it
        self.position: dict[str, Any] | None = None

    def __iter__(self) -> Ahead:
        return self

    def __next__(self) -> Any:
        self.before = generators()
        self.position = self.source.position()
        return next(self.iterator)


def started(source: Source, iterator: Iterator[Any]) -> Iterator[Any]:
    """`iterator`, with the first batch of an unsized source fetched now: reading ahead begins with it."""
    if source.sized or source.count <= 0:
        return iterator
    if source.readers:
        iterator = source.ahead = Ahead(source, iterator)
    first = next(iterator, _END)
    return iter(()) if first is _END else chain([first], iterator)


_END = object()

"""Trainer attributes that users change in the midst of a fit, and the list of callbacks that notices changes.

Both tell the trainer, which bumps the version by which the loop sees that its plan is out of date.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Generic, SupportsIndex, TypeVar

T = TypeVar("T")


class Setting(Generic[T]):
    """An attribute that is a field of the trainer's frozen config: reading reads it, setting replaces the config."""

    def __init__(self, doc: str = "") -> None:
        self.__doc__ = doc

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, trainer: Any, owner: type | None = None) -> Any:
        return self if trainer is None else getattr(trainer.config, self.name)

    def __set__(self, trainer: Any, value: T) -> None:
        trainer._change(self.name, value)


class WatchedList(list[T]):
    """A list that calls `changed` after each change of its content."""

    def __init__(self, items: Iterable[T], changed: Callable[[], None]) -> None:
        super().__init__(items)
        self._changed = changed

    def append(self, item: T) -> None:
        """As of a list."""
        super().append(item)
        self._changed()

    def extend(self, items: Iterable[T]) -> None:
        """As of a list."""
        super().extend(items)
        self._changed()

    def insert(self, index: SupportsIndex, item: T) -> None:
        """As of a list."""
        super().insert(index, item)
        self._changed()

    def remove(self, item: T) -> None:
        """As of a list."""
        super().remove(item)
        self._changed()

    def pop(self, index: SupportsIndex = -1) -> T:
        """As of a list."""
        item = super().pop(index)
        self._changed()
        return item

    def clear(self) -> None:
        """As of a list."""
        super().clear()
        self._changed()

    def reverse(self) -> None:
        """As of a list."""
        super().reverse()
        self._changed()

    def __setitem__(self, index: Any, item: Any) -> None:
        super().__setitem__(index, item)
        self._changed()

    def __delitem__(self, index: Any) -> None:
        super().__delitem__(index)
        self._changed()

    def __iadd__(self, items: Iterable[T]) -> WatchedList[T]:  # type: ignore[override,misc]
        self.extend(items)
        return self

    def __reduce__(self) -> Any:  # a copy is an ordinary list: nobody listens to it
        return list, (list(self),)

"""What Bolide says: warnings and notes, once and on rank zero.

Owns the "bolide" logger and the record of what was already said. It decides nothing: callers know what to say.
"""

from __future__ import annotations

import functools
import logging
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from bolide.core import env

log = logging.getLogger("bolide")
T = TypeVar("T")


class StandardError(logging.StreamHandler[Any]):
    """Writes to what `sys.stderr` is when a note is written, not to what it was when the handler was made."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> Any:
        """The standard error of now."""
        return sys.stderr


class PossibleUserWarning(UserWarning):
    """A warning about what may be a mistake and may be meant."""


class Said:
    """Texts that were said already, so that each is said once a process."""

    def __init__(self) -> None:
        self._seen: set[str] = set()

    def first(self, text: str) -> bool:
        """Whether `text` is new; remembers it."""
        new = text not in self._seen
        self._seen.add(text)
        return new

    def clear(self) -> None:
        """Forgets everything, so that each text may be said again."""
        self._seen.clear()


said = Said()


def rank_zero_only(fn: Callable[..., T]) -> Callable[..., T | None]:
    """Makes `fn` do nothing, and return None, on all ranks but the first."""

    @functools.wraps(fn)
    def on_rank_zero(*args: Any, **kwargs: Any) -> T | None:
        return fn(*args, **kwargs) if env.rank() == 0 else None

    return on_rank_zero


def warn(text: str, category: type[Warning] = UserWarning, stacklevel: int = 2) -> None:
    """Warns on rank zero, at the line of the user's code that led here.

    `stacklevel` counts from the caller, as in `warnings.warn`, where no code outside of Bolide is on the stack.
    """
    if env.rank() == 0:
        if category is PossibleUserWarning and env.get("POSSIBLE_USER_WARNINGS") in ("off", "0"):
            return
        warnings.warn(text, category, stacklevel=_level_outside() or stacklevel + 1)


def _level_outside() -> int | None:
    """How many frames above `warn` the nearest one is that is neither Bolide's nor torch's."""
    level, frame = 1, sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__", "").partition(".")[0] not in ("bolide", "torch", "contextlib"):
            return level
        frame = frame.f_back  # type: ignore[assignment]
        level += 1
    return None


def warn_once(text: str, category: type[Warning] = UserWarning, stacklevel: int = 2) -> None:
    """Warns on rank zero, once a process for each text."""
    if said.first(text):
        warn(text, category, stacklevel + 1)


@contextmanager
def notes_silenced() -> Iterator[None]:
    """Within the block notes are left out, where nobody configured the "bolide" logger; warnings are not."""
    configured = log.level != logging.NOTSET and log.level != logging.INFO
    before = log.level
    if not configured:
        log.setLevel(logging.WARNING)
    try:
        yield
    finally:
        if not configured:
            log.setLevel(before)


def info(text: str) -> None:
    """A note on rank zero, through the "bolide" logger; on standard error where nobody configured logging."""
    if env.rank() == 0:
        if log.level == logging.NOTSET:
            log.setLevel(logging.INFO)
        if not log.hasHandlers():
            log.addHandler(StandardError())
        log.info(text)

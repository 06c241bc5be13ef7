"""Doing and saying things on rank zero only; core/messages.py owns the saying."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from bolide.core import env
from bolide.core.messages import info, log, warn

T = TypeVar("T")


class LightningDeprecationWarning(DeprecationWarning):
    """What `rank_zero_deprecation` warns with."""


class RankZeroOnly:
    """The decorator `rank_zero_only`: on all other ranks the function does nothing and gives `default`."""

    @property
    def rank(self) -> int:
        """This process's global rank."""
        return env.rank()

    def __call__(self, fn: Callable[..., T], default: T | None = None) -> Callable[..., T | None]:
        """`fn`, doing nothing on all ranks but the first."""

        @functools.wraps(fn)
        def on_rank_zero(*args: Any, **kwargs: Any) -> T | None:
            return fn(*args, **kwargs) if env.rank() == 0 else default

        return on_rank_zero


rank_zero_only = RankZeroOnly()


def rank_zero_info(*args: Any, **kwargs: Any) -> None:
    """A note on rank zero; further arguments are formatted into the text as by `logging`."""
    text, *values = args
    info(str(text) % tuple(values) if values else str(text))


def rank_zero_debug(*args: Any, **kwargs: Any) -> None:
    """A note for debugging, on rank zero."""
    if env.rank() == 0:
        log.debug(*args)


def rank_zero_warn(
    message: str | Warning, stacklevel: int = 4, category: type[Warning] = UserWarning, **kwargs: Any
) -> None:
    """A warning on rank zero. With a `stacklevel` of 4 it points at the line of this call, with 5 at its caller."""
    category = type(message) if isinstance(message, Warning) else category
    warn(str(message), category, stacklevel=max(stacklevel - 2, 1))


def rank_zero_deprecation(message: str | Warning, stacklevel: int = 5, **kwargs: Any) -> None:
    """A warning on rank zero that something goes."""
    rank_zero_warn(message, stacklevel, category=LightningDeprecationWarning)

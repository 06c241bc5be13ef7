"""The base class of profilers: what is told when an action starts and stops."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from bolide.core.errors import NotBuiltError


class Profiler(ABC):
    """Records how long named actions take.

    Args:
        dirpath: the folder of the report; the run's own where it is None.
        filename: the report's name without its ending; printed where it is None.
    """

    def __init__(self, dirpath: Any | None = None, filename: str | None = None) -> None:
        self.dirpath, self.filename = dirpath, filename

    @abstractmethod
    def start(self, action_name: str) -> None:
        """An action begins."""

    @abstractmethod
    def stop(self, action_name: str) -> None:
        """An action ends."""

    def summary(self) -> str:
        """The report."""
        return ""

    @contextmanager
    def profile(self, action_name: str) -> Iterator[str]:
        """The block is an action.

        Example::

            with profiler.profile("load"):
                batch = next(loader)
        """
        self.start(action_name)
        try:
            yield action_name
        finally:
            self.stop(action_name)

    def describe(self) -> None:
        """Shows the report, where there is one."""
        text = self.summary()
        if text:
            print(text)

    def setup(self, stage: str, local_rank: int | None = None, log_dir: str | None = None) -> None:
        """A run begins."""

    def teardown(self, stage: str | None) -> None:
        """A run ends."""


class PassThroughProfiler(Profiler):
    """Records nothing."""

    def start(self, action_name: str) -> None:
        """Records nothing."""

    def stop(self, action_name: str) -> None:
        """Records nothing."""


def not_built(profiler: Profiler, instead: str) -> NotBuiltError:
    """The error of a profiler that is there by name only."""
    return NotBuiltError(f"{type(profiler).__name__} is not built in this version of Bolide. {instead}")

"""Which phase a run is in, and how long it was in each: the phases add up to the time that went by.

Owns the account; it knows nothing of what happens in a phase. The engine says when a phase begins, monitor/goodput
reads. A phase is entered a few times an epoch, never once a batch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

STARTUP, TRAINING, VALIDATION, SAVING, RESTORING, IDLE = (
    "startup", "training", "validation", "saving", "restoring", "idle",
)  # fmt: skip


class Phases:
    """The phases of one run, which begins in "startup"."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        self.phase = STARTUP
        self.began_s = self._since_s = clock()
        self._seconds: dict[str, float] = {}

    def switch(self, phase: str) -> str:
        """Ends the running phase and begins `phase`; returns the one that ended."""
        now_s = self.clock()
        before, self.phase = self.phase, phase
        self._seconds[before] = self._seconds.get(before, 0.0) + now_s - self._since_s
        self._since_s = now_s
        return before

    @contextmanager
    def within(self, phase: str) -> Iterator[None]:
        """The block belongs to `phase`, and to no other; afterwards the phase around it goes on."""
        before = self.switch(phase)
        try:
            yield
        finally:
            self.switch(before)

    def seconds(self) -> dict[str, float]:
        """How long the run was in each phase up to now, in seconds."""
        return self._seconds | {self.phase: self._seconds.get(self.phase, 0.0) + self.clock() - self._since_s}

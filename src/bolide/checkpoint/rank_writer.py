"""Saves of several processes: the first one writes, and all hear at the same moments how it went.

Owns nothing but that agreement; the writing is checkpoint/writer's. Who calls: the run, in the place of a Writer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bolide import collectives
from bolide.checkpoint.writer import Saving, Writer, _save_error, in_flight


class RankWriter(Writer):
    """A Writer of one of several processes. All must call each of its methods but `join` and `poll`, in one order.

    Whether a save in flight has ended is a matter of the first process's clock, so its end is told at moments that all
    reach: the next save, the next question (`drain`), the end of the run.
    """

    def poll(self) -> None:
        """Tells nothing: the other processes would not hear it now."""

    def drain(self, timeout_s: float | None = None) -> bool:
        """Waits for the save in flight, and tells its end on all processes."""
        self._wait()
        self._settle()
        self._tell()
        return True

    def join(self, timeout_s: float | None = None) -> bool:
        """Waits for the save in flight and no more: the other processes may be elsewhere."""
        return self._wait(timeout_s)

    def reserve(self, nbytes: int) -> None:
        """Makes memory ready where something is written."""
        if collectives.rank() == 0 and self._saving is None:
            super().reserve(nbytes)

    def let_go(self, then: Callable[[], Any], finish: bool = True) -> None:
        """As `Writer.let_go`; the end of a save that nobody was told of is not told any more."""
        super().let_go(then, finish)
        if not self._has_thread:
            in_flight.discard(self)
            self._saving = self._untold = None

    def _hand_over(self, saving: Saving, checkpoint: dict[str, Any], wait: bool) -> None:
        if collectives.rank() == 0:
            super()._hand_over(saving, checkpoint, wait)
        else:
            self._saving = saving

    def _conclude(self, wait: bool) -> None:
        if not self.asynchronous or wait:  # the end of an asynchronous save is told at the next common moment
            self.drain()

    def _settle(self) -> None:
        saving = self._saving
        if saving is None:  # on all processes: they save together
            return
        error = saving.error
        told = (saving.committed, None if error is None else f"{type(error).__name__}: {error}")
        committed, text = collectives.broadcast(told)
        if collectives.rank() != 0:
            saving.committed = committed
            saving.error = OSError(text) if text is not None else None
            saving.ended.set()
        super()._settle()

    def _tell(self) -> None:
        saving = self._untold
        if collectives.rank() != 0 and self.on_error == "raise" and saving is not None and saving.error is not None:
            self._untold = None  # the first process raises the error itself, and is told of first
            raise collectives.FailedOnRankZero(str(_save_error(saving, saving.error)))
        super()._tell()

"""Saves of several processes: the first one writes, or each its part, and all hear at the same moments how it went.

Owns nothing but that agreement; the writing is checkpoint/writer's. Who calls: the run, in the place of a Writer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bolide import collectives
from bolide.checkpoint.sharded_write import write_folder
from bolide.checkpoint.writer import OnError, Saving, Writer, _save_error, in_flight
from bolide.core.errors import CheckpointError


class RankWriter(Writer):
    """A Writer of one of several processes. All must call each of its methods but `join` and `poll`, in one order.

    Whether a save in flight has ended is a matter of the first process's clock, so its end is told at moments that all
    reach: the step boundary after the first one has said so in an exchange of gradients, the next save, the next
    question (`drain`), the end of the run.
    """

    _known = False

    @property
    def has_ended(self) -> bool:
        """On the first process: whether a save has come to its end that the others have not heard of."""
        saving = self._saving
        return saving is not None and not self._known and saving.done and collectives.rank() == 0

    def all_know(self) -> None:
        """All processes have heard, in the step that runs, that the first one's save has come to its end."""
        self._known = self._saving is not None

    def poll(self) -> None:
        """Tells the end of a save that all know of."""
        if self._known:
            self.drain()

    def drain(self, timeout_s: float | None = None) -> bool:
        """Waits for the save in flight, and tells its end on all processes."""
        self._known = False
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


class PartsWriter(RankWriter):
    """A Writer of one of several processes that each write their part of a sharded checkpoint.

    The threads that write agree among themselves, over a group of their own, so that the checkpoint is committed as
    soon as all parts are on the disk.
    """

    def __init__(self, on_error: OnError = "raise", asynchronous: bool = True) -> None:
        super().__init__(self._write_part, on_error, asynchronous)
        self._group: Any = None

    def reserve(self, nbytes: int) -> None:
        """Makes memory ready, as each process writes."""
        if self._saving is None:
            Writer.reserve(self, nbytes)

    def _write_part(self, state: dict[str, Any], path: str) -> None:
        write_folder(state, path, self._group)

    def _hand_over(self, saving: Saving, checkpoint: dict[str, Any], wait: bool) -> None:
        self._group = collectives.side_group.get()
        if collectives.rank() != 0:
            saving.after_commit = None  # files are deleted and linked once
        Writer._hand_over(self, saving, checkpoint, wait)

    def _begin(self, saving: Saving, checkpoint: dict[str, Any]) -> bool:
        begun = super()._begin(saving, checkpoint)
        if saving.error is not None:  # there is no copy: the others wait for this process's part, and must hear of it
            try:
                write_folder({}, saving.paths[0], self._group, failure=saving.error)
            except (CheckpointError, collectives.FailedOnRankZero):
                pass  # `saving.error` is told at the next common moment
            except type(saving.error) as error:
                if error is not saving.error:
                    raise
        return begun

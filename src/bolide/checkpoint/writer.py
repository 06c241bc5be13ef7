"""Saves while training goes on: a snapshot, then one thread that writes it.

Owns the memory of the snapshot, the thread, and what follows a commit; what a checkpoint holds, what its file is
called and which files are deleted is decided by who calls: the Trainer and ModelCheckpoint. One save is in flight at
a time. All methods are for the thread that trains.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from queue import SimpleQueue
from typing import Any, Literal

from bolide.checkpoint.file import write_checkpoint
from bolide.checkpoint.snapshot import Snapshot, Snapshots
from bolide.core.errors import CheckpointError, ConfigError
from bolide.core.messages import warn, warn_once

OnError = Literal["raise", "warn"]
YIELD_S = 0.005
"""How long the thread leaves the interpreter to its caller before it begins to write."""


class SaveError(CheckpointError, OSError):
    """A checkpoint could not be written. The one before it is as it was."""


class Saving:
    """One save, and how it goes.

    `committed`: every file is whole and on disk. `error`: what it failed with; with `committed` it is of what follows.
    `written`: the paths that are on disk. `waited_s`, `blocked_s`: how long `save` waited for the save before it, and
    how long it took in all, in seconds. The caller's next steps are in `then` and `otherwise`.
    """

    def __init__(
        self,
        paths: tuple[str, ...],
        then: Callable[[], Any] | None,
        otherwise: Callable[[BaseException], Any] | None,
        after_commit: Callable[[], Any] | None,
    ) -> None:
        self.paths = paths
        self.written: list[str] = []
        self.committed = False
        self.ended = threading.Event()
        self.error: BaseException | None = None
        self.waited_s = self.blocked_s = 0.0
        self.at_end: Callable[[], Any] | None = None
        self.then, self.otherwise, self.after_commit = then, otherwise, after_commit

    @property
    def done(self) -> bool:
        """Whether the writing has come to its end, good or bad."""
        return self.ended.is_set()


class InFlight:
    """The writers with a save in flight, so that the interpreter waits for them when it ends."""

    def __init__(self) -> None:
        self._writers: list[Writer] = []
        self._registered = False

    def add(self, writer: Writer) -> None:
        """`writer` begins a save."""
        if not self._registered:
            # atexit's callbacks come when thread pools take no work any more, and hashing or an upload may need one.
            # Pools themselves are told by a private function of threading; this goes when there is a public one.
            register = getattr(threading, "_register_atexit", atexit.register)
            try:
                register(self.finish)
            except RuntimeError:  # the interpreter is ending
                atexit.register(self.finish)
            self._registered = True
        self._writers.append(writer)

    def discard(self, writer: Writer) -> None:
        """`writer` has told the end of its save."""
        if writer in self._writers:
            self._writers.remove(writer)

    def finish(self) -> None:
        """Waits for all, each for as long as it allows."""
        for writer in list(self._writers):
            writer.finish()


class Writer:
    """Writes checkpoints, by a thread or at once.

    Args:
        write: writes a checkpoint under a path, wholly or not at all; called with one file at a time.
        on_error: what a failed save does: "raise" at the next call of any method, or "warn" there and go on.
        asynchronous: whether a thread writes. If not, `save` returns when all is done, and no snapshot is taken.
        exit_timeout_s: how long the interpreter waits for a save in flight when it ends, in seconds.

    The thread is made for one save and ends with it. It is a daemon: a disk that hangs cannot keep the process from
    ending, and what is in flight when the interpreter ends is waited for, for `exit_timeout_s`. A process that is
    forked meanwhile has neither the thread nor the snapshot, and starts without a save in flight.

    Example::

        writer = Writer(on_error="warn")
        saving = writer.save({"step": 3, "weights": model.state_dict()}, "step=3.ckpt", then=lambda: print("saved"))
        ...                # training goes on, and calls writer.poll() between two steps
        writer.drain()     # waits; prints "saved"
        assert saving.committed
    """

    def __init__(
        self,
        write: Callable[[dict[str, Any], str], Any] = write_checkpoint,
        on_error: OnError = "raise",
        asynchronous: bool = True,
        exit_timeout_s: float = 60.0,
    ) -> None:
        if on_error not in ("raise", "warn"):
            raise ConfigError(f"on_save_error={on_error!r}: expected 'raise' or 'warn'")
        self.on_error = on_error
        self.asynchronous = asynchronous
        self.exit_timeout_s = exit_timeout_s
        self._write = write
        self._snapshots = Snapshots()
        self._has_thread = False
        self._saving: Saving | None = None
        self._untold: Saving | None = None  # failed, and nobody was told
        self.last_failed = False
        self._pid = os.getpid()

    @property
    def busy(self) -> bool:
        """Whether a save is in flight, or its end was not told yet."""
        return self._saving is not None or self._untold is not None

    @property
    def has_ended(self) -> bool:
        """Whether this process is the one to tell others that the save in flight has come to its end."""
        return False

    def all_know(self) -> None:
        """All processes have heard that it has, in the step that runs."""

    def save(
        self,
        checkpoint: dict[str, Any],
        path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        then: Callable[[], Any] | None = None,
        *,
        otherwise: Callable[[BaseException], Any] | None = None,
        after_commit: Callable[[], Any] | None = None,
        wait: bool = False,
    ) -> Saving:
        """Saves `checkpoint` as it is now, under one path or several.

        Waits for the save before, if it is in flight, and copies the state; then a thread writes. After the commit
        of all files it calls `after_commit`; `then` (or `otherwise`, with the error) is called by the next method of
        the writer that finds the save at its end.

        Args:
            checkpoint: tensors and plain data.
            path: where to; several get the same state.
            then: called after the commit, by the thread that trains.
            otherwise: called instead, when not all files could be written.
            after_commit: called after the commit, by the writing thread: deletes and links files, touches nothing else.
            wait: returns when all is done, and `then` was called.

        Returns:
            The save: whether it is committed, or how it failed.

        Raises:
            SaveError: on_error is "raise", and the save before this one failed, or this one did before returning.
        """
        start_s = time.perf_counter()
        self.drain()
        waited_s = time.perf_counter() - start_s
        given = (path,) if isinstance(path, (str, os.PathLike)) else path
        saving = Saving(tuple(os.fspath(one) for one in given), then, otherwise, after_commit)
        saving.waited_s = waited_s
        self._hand_over(saving, checkpoint, wait)
        saving.blocked_s = time.perf_counter() - start_s
        self._conclude(wait)
        return saving

    def poll(self) -> None:
        """Tells the end of a save, where one has ended: `then` or `otherwise`, and the error. Costs nothing else.

        Raises:
            SaveError: on_error is "raise", and the save failed.
        """
        saving = self._saving
        if self._untold is not None or (saving is not None and saving.done):
            self.drain()

    def drain(self, timeout_s: float | None = None) -> bool:
        """Waits for the save in flight and tells its end.

        Args:
            timeout_s: how long to wait, in seconds; default: as long as it takes.

        Returns:
            Whether nothing is in flight any more.

        Raises:
            SaveError: on_error is "raise", and the save failed.
        """
        ended = self.join(timeout_s)
        self._tell()
        return ended

    def join(self, timeout_s: float | None = None) -> bool:
        """Waits for the save in flight as `drain` does; an error is left to a later call to tell."""
        if not self._wait(timeout_s):
            return False
        self._settle()
        return True

    def _wait(self, timeout_s: float | None = None) -> bool:
        """Waits for the thread; whether it has ended."""
        if self._pid != os.getpid():
            self._forget()
        # not Thread.join: an exception that a signal's handler raises within it makes a running thread pass for ended
        if self._has_thread and self._saving is not None and not self._saving.ended.wait(timeout_s):
            return False
        self._has_thread = False
        return True

    def reserve(self, nbytes: int) -> None:
        """Makes ready the memory for states of `nbytes`, in a thread, so that the first save is as quick as others.

        Does nothing where saves are synchronous, or where there is room already.
        """
        if self.asynchronous and nbytes > self._snapshots.arena.nbytes:
            self.drain()
            try:
                self._snapshots.reserve(nbytes)
            except (OSError, MemoryError):
                return  # the first save finds out, and says so
            self._snapshots.arena.touch()

    def close(self) -> None:
        """Waits for the save in flight and gives the memory back. The writer may be used again.

        Raises:
            SaveError: on_error is "raise", and the save failed.
        """
        try:
            self.drain()
        finally:
            self.let_go(lambda: None)

    def let_go(self, then: Callable[[], Any], finish: bool = True) -> None:
        """Gives the memory back and calls `then`: now, or when the write in flight has ended. Waits for nothing.

        Args:
            then: what waits for that.
            finish: whether the interpreter, when it ends, waits for that write.
        """
        if not finish:
            in_flight.discard(self)
        saving = self._saving if self._has_thread and self._pid == os.getpid() else None
        if saving is None:
            self._snapshots.free()
            then()
            return
        saving.at_end = then
        if saving.done:
            then()

    # ------------------------------------------------------------------ the parts of a save

    def _hand_over(self, saving: Saving, checkpoint: dict[str, Any], wait: bool) -> None:
        """Lets a thread write, or writes."""
        if not self.asynchronous or wait or not self._begin(saving, checkpoint):
            self._saving = saving
            self._run(saving, checkpoint)

    def _conclude(self, wait: bool) -> None:
        """Tells the end of a save that has come to it already."""
        if not self._has_thread:
            self._settle()
            self._tell()

    def _begin(self, saving: Saving, checkpoint: dict[str, Any]) -> bool:
        """Copies the state and hands it to a thread; False where there is no thread or no memory for that."""
        # The thread is there before the copy is made: handing over is all that is left then. A thread that starts
        # with the writing would take the interpreter from its caller at once, for some milliseconds.
        copies: SimpleQueue[Snapshot | None] = SimpleQueue()
        thread = threading.Thread(target=self._run_copy, args=(saving, copies), name="bolide-writer", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # no thread can be had, or the interpreter is ending
            return False
        snapshot = None
        try:
            snapshot = self._snapshots.take(checkpoint)
            self._saving, self._has_thread = saving, True
            in_flight.add(self)
        except (OSError, MemoryError) as error:
            self._snapshots.free()
            warn_once(
                f"There is no memory for a copy of the state ({error}), so checkpoints are written while training "
                "waits. Write Trainer(checkpointing={'async': False}) if that is meant."
            )
        except Exception as error:  # noqa: BLE001  # what cannot be copied cannot be written: a failed save
            saving.error, self._saving = error, saving
            saving.ended.set()
            return True
        finally:
            copies.put(snapshot if self._has_thread else None)  # None: the thread ends
        return snapshot is not None

    def _run_copy(self, saving: Saving, copies: SimpleQueue[Snapshot | None]) -> None:
        snapshot = copies.get()
        if snapshot is not None:
            # Writing begins with some milliseconds of Python. They pass beside the next batch's arithmetic, which
            # needs no interpreter; while the caller still frees what it gave us, they would hold it up.
            time.sleep(YIELD_S)
            self._run(saving, snapshot.state, snapshot)

    def _run(self, saving: Saving, checkpoint: dict[str, Any], snapshot: Snapshot | None = None) -> None:
        """Writes, and notes how it went: the caller tells it, from the thread that trains."""
        try:
            if snapshot is not None:
                snapshot.wait()
            for path in saving.paths:
                self._write(checkpoint, path)
                saving.written.append(path)
            saving.committed = True
            if saving.after_commit is not None:
                saving.after_commit()
        except BaseException as error:  # noqa: BLE001  # raised again by _settle
            saving.error = error
        finally:
            saving.ended.set()
            if saving.at_end is not None:
                saving.at_end()

    def _settle(self) -> None:
        """What follows the end of the last save, once."""
        saving, self._saving = self._saving, None
        if saving is None:
            return
        in_flight.discard(self)
        self.last_failed = not saving.committed
        if saving.error is not None:
            self._untold = saving
        if saving.committed:
            if saving.then is not None:
                saving.then()
        elif saving.otherwise is not None and saving.error is not None:
            saving.otherwise(saving.error)

    def _tell(self) -> None:
        """Tells how a save failed, once."""
        saving, self._untold = self._untold, None
        if saving is None or saving.error is None:
            return
        error = saving.error
        if not isinstance(error, Exception):
            raise error
        if self.on_error == "raise":
            raise _save_error(saving, error) from error
        warn(f"{_failure(saving, error)} Training goes on (on_save_error='warn').")

    def _forget(self) -> None:
        """This process was forked: the thread and the snapshot are its parent's."""
        in_flight.discard(self)
        self._pid, self._has_thread, self._snapshots = os.getpid(), False, Snapshots()
        self._saving = self._untold = None

    def finish(self) -> None:
        """The interpreter ends with a save in flight: waits for it, but not for ever."""
        if self._pid != os.getpid() or not self._has_thread or self._saving is None:
            return
        saving = self._saving
        if not saving.ended.wait(self.exit_timeout_s):
            warn(
                f"The checkpoint {_names(saving)} was not on disk {self.exit_timeout_s:g} s after the program's end, "
                "and is given up. The one before it stays valid."
            )
        elif saving.error is not None:
            warn(_failure(saving, saving.error))


in_flight = InFlight()


def _save_error(saving: Saving, error: BaseException) -> SaveError:
    made = SaveError(_failure(saving, error))
    made.errno = next((cause.errno for cause in _causes(error) if isinstance(cause, OSError)), None)
    return made


def _failure(saving: Saving, error: BaseException) -> str:
    """What went wrong, in a sentence or two."""
    causes = list(_causes(error))
    # torch's writer reports a full disk as a position that it did not expect; the system's own word comes before it
    root = next((cause for cause in causes if isinstance(cause, OSError)), error)
    reason = f"{type(root).__name__}: {root}" if str(root) else type(root).__name__
    if saving.committed:
        return f"The checkpoint {_names(saving)} was saved, but what follows a save failed ({reason})."
    text = f"The checkpoint {_names(saving)} could not be saved ({reason}). The one before it stays valid."
    if saving.written:
        text += f" {', '.join(map(repr, saving.written))} is on disk."
    return text


def _names(saving: Saving) -> str:
    return ", ".join(map(repr, saving.paths))


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """The error, and those it came of."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__

"""Signals: heard at once, answered at the next step boundary by a save and an end that everybody hears of.

`SignalWatch` owns the handlers, which set a number and do no more; `act` is the answer: save, put back into the queue,
raise. Who calls: the trainer installs the watch around each call, engine/fit asks it after each batch,
engine/evaluate between the batches of a validation, engine/session where a run fails.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeVar

import torch

from bolide.collectives import any_rank
from bolide.core.errors import CheckpointError, SIGTERMException
from bolide.core.messages import info, warn
from bolide.core.states import RunningStage
from bolide.launch.environments import RayEnvironment

if TYPE_CHECKING:
    from bolide.engine.run import Run

T = TypeVar("T")
E = TypeVar("E", bound=BaseException)
Handler = Callable[[int, FrameType | None], Any] | int | None

ECHO_S = 0.1
"""A SIGTERM that comes so soon after another is the same one: a launcher hands on what its whole group was sent."""


class Queue(Protocol):
    """A cluster's queue, into which a job can be put back: `plugins.environments.SLURMEnvironment`."""

    auto_requeue: bool
    requeue_signal: int | None

    def requeue(self) -> bool: ...


class StopAsked(BaseException):
    """Raised between two batches of a validation within a fit, which then is as if it had not begun."""


class SignalWatch:
    """Hears SIGTERM and SIGINT, and the signal of a cluster's queue, while it is installed.

    The handlers set `received` and count. They raise in two cases only. While `at_once` is set nothing can be lost, as
    before training and in validate, test and predict, so the process ends there and then. And the second time: SIGINT
    raises KeyboardInterrupt wherever the program is; SIGTERM ends a save that is running, else the next boundary
    skips it.

    A handler that the user installed for SIGTERM is called too; one for SIGINT, and signals that are ignored, are left
    to whoever arranged them so. A child process that was forked meanwhile answers as if nothing had been installed.
    In another thread than the main one Python allows no handlers: nothing is installed then, and a note says so.

    Args:
        queue: the cluster's queue, where there is one.

    Attributes:
        received: the signal that is to be answered, or None.
        heard: the signal that this process has heard, or None.
        shared: whether other ranks run with this one: what is heard is answered once all have agreed.
        count: how many signals came.
        reason: why the run was asked to stop, where a part of the program did; else None.
        at_once: whether a signal need not wait for a boundary.
        saving: whether the save that answers a signal is running.
        paused: whether the caller of `Trainer.steps` has control: a signal does what it would without the watch.
    """

    def __init__(self, queue: Queue | None = None) -> None:
        wanted = queue is not None and queue.auto_requeue and queue.requeue_signal is not None
        self.queue = queue if wanted else None
        self.requeue_signal = int(queue.requeue_signal) if wanted else None  # type: ignore[union-attr, arg-type]
        self.received: int | None = None
        self.heard: int | None = None
        self.shared = False
        self.count = 0
        self.reason: str | None = None
        self.at_once = True
        self.saving = False
        self.paused = False
        self.answered = False
        self._times: dict[int, int] = {}
        self._heard_s = 0.0
        self._old: dict[int, Handler] = {}
        self._outer: SignalWatch | None = None  # of a run in one of whose hooks this one runs
        self._pid = 0

    @property
    def skips_save(self) -> bool:
        """Whether SIGTERM came twice: whoever sent it does not wait."""
        return self._times.get(signal.SIGTERM, 0) > 1

    @property
    def insisted(self) -> bool:
        """Whether a signal came twice: nothing more is waited for."""
        return any(times > 1 for times in self._times.values())

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Within the block, which waits for a disk, a second signal ends the wait."""
        before, self.saving = self.saving, True
        try:
            yield
        finally:
            self.saving = before

    # ------------------------------------------------------------------ handlers

    def install(self) -> None:
        """Puts the handlers in place of those that are there, which `restore` brings back."""
        if threading.current_thread() is not threading.main_thread():
            if RayEnvironment.detect():
                return  # Ray Train calls its workers' functions so
            info(
                "This runs in a thread that is not the main one, where Python lets nobody hear signals: SIGTERM and "
                "Ctrl-C will not save a checkpoint. Call the trainer in the main thread for that."
            )
            return
        self._pid = os.getpid()
        wanted = [int(signal.SIGTERM), int(signal.SIGINT)]
        wanted += [self.requeue_signal] if self.requeue_signal is not None else []
        for signum in wanted:
            old = signal.getsignal(signum)
            if _may_replace(signum, old):
                around = _watch_of(_beneath(signum, old))
                self._outer = around or self._outer
                self._old[signum] = signal.signal(signum, self._hear)

    def restore(self) -> None:
        """Brings back the handlers that were there before `install`, where nobody put others in place since."""
        if threading.current_thread() is not threading.main_thread():
            return  # the watch is paused, and hands on what it hears
        for signum in list(self._old):
            if signal.getsignal(signum) in (self._hear, _nothing):
                signal.signal(signum, self._old.pop(signum))

    def __enter__(self) -> SignalWatch:
        self.install()
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: Any) -> None:
        self.restore()
        if kind is None:
            self.finish()

    def finish(self) -> None:
        """Answers what was received after the last boundary: the run is done and saved, and the program ends still.

        Raises:
            SIGTERMException: for SIGTERM.
            KeyboardInterrupt: for SIGINT.
        """
        if self._outer is not None or self.answered:
            return  # the run around this one has heard it too, and answers
        if self.received is None:
            self.received = self.heard
        if self.received is not None and self.received != self.requeue_signal:
            self.answered = True
            raise self.error()

    def _hear(self, signum: int, frame: FrameType | None) -> None:
        if os.getpid() != self._pid:
            self._hear_in_child(signum, frame)
            return
        if self.paused:
            self._hand_on(signum, frame)
            return
        now_s = time.monotonic()
        echo = signum == signal.SIGTERM and self._times.get(signum, 0) and now_s - self._heard_s < ECHO_S
        self._heard_s = now_s
        if echo:
            return
        self.count += 1
        self._times[signum] = self._times.get(signum, 0) + 1
        if self.heard is None or (self.heard == signal.SIGINT and signum == signal.SIGTERM):
            self.heard = signum
            if not self.shared:
                self.received = signum
        self._hush_workers()
        old = _beneath(signum, self._old.get(signum))
        if callable(old) and old is not signal.default_int_handler:
            old(signum, frame)
        if signum == self.requeue_signal:
            return
        protected = self._outer is not None and not self._outer.at_once
        if (self.at_once and not protected) or (self._times[signum] > 1 and (signum == signal.SIGINT or self.saving)):
            self.answered = True
            raise settled(KeyboardInterrupt() if signum == signal.SIGINT else SIGTERMException())

    def _hear_in_child(self, signum: int, frame: FrameType | None) -> None:
        """A forked child has the handlers of its parent; it does what it would do without them."""
        if signum == signal.SIGINT and torch.utils.data.get_worker_info() is not None:
            return  # Ctrl-C reaches the whole group; a loader's worker goes on until its parent is done
        old = self._old.get(signum)
        signal.signal(signum, signal.SIG_DFL if old is None else old)
        os.kill(os.getpid(), signum)

    def _hand_on(self, signum: int, frame: FrameType | None) -> None:
        """What the signal does without this watch."""
        old = _beneath(signum, self._old.get(signum))
        if callable(old):
            old(signum, frame)
        else:
            signal.signal(signum, signal.SIG_DFL)
            os.kill(os.getpid(), signum)

    def _hush_workers(self) -> None:
        """Loader workers that the same signal ends must not break off the step: torch raises where it hears of it."""
        if signal.SIGCHLD in self._old:
            return
        old = signal.getsignal(signal.SIGCHLD)
        if callable(old) and str(getattr(old, "__module__", "")).startswith("torch."):
            self._old[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, _nothing)

    # ------------------------------------------------------------------ asking

    def ask(self, reason: str) -> None:
        """Ends the run at the next boundary as SIGTERM does. May be called from any thread."""
        if self.reason is None:
            self.reason = reason
        if self.heard is None:
            self.heard = int(signal.SIGTERM)
            if not self.shared:
                self.received = self.heard

    def error(self) -> BaseException:
        """The exception that a run ends with because of what was received."""
        return KeyboardInterrupt() if self.received == signal.SIGINT else SIGTERMException()


def _nothing(signum: int, frame: FrameType | None) -> None:
    pass


def _may_replace(signum: int, old: Handler) -> bool:
    """Whether a handler may be put in the place of `old`: not of one that ignores, nor of a user's for Ctrl-C."""
    if old is None or old == signal.SIG_IGN:  # None: installed by something that is not Python, and could not come back
        return False
    if signum != signal.SIGINT:
        return True
    return old is signal.default_int_handler or _watch_of(old) is not None


def _watch_of(handler: Handler) -> SignalWatch | None:
    owner = getattr(handler, "__self__", None)
    return owner if isinstance(owner, SignalWatch) else None


def _beneath(signum: int, handler: Handler) -> Handler:
    """The handler that answers in the end: beneath the watches that are paused."""
    while (watch := _watch_of(handler)) is not None and watch.paused:
        handler = watch._old.get(signum)
    return handler


def watched(steps: Generator[T, None, None], watch: SignalWatch) -> Iterator[T]:
    """`steps`, with `watch` listening while they run, and paused while the caller has control.

    The handlers stay in place until the end: to put them there for each step would cost more than Bolide's own share
    of one.
    """
    watch.install()
    try:
        for item in steps:
            watch.paused = True
            yield item
            watch.paused = False
    finally:
        try:
            steps.close()
        finally:
            watch.paused = True
            watch.restore()
    watch.finish()


# ---------------------------------------------------------------------- the answer


def act(run: Run, watch: SignalWatch) -> NoReturn:
    """Answers the signal that was received. Called at a step boundary: all of a batch is done, the next one not begun.

    Saves by the first checkpoint callback that can (none: nothing is saved), puts the job back into the queue where
    that was the signal and the save is committed, and raises. What follows is that of any exception: `on_exception`,
    and the loggers hear "interrupted".

    Args:
        run: the fit.
        watch: its watch, with a signal received.

    Raises:
        SIGTERMException: for SIGTERM, for the queue's signal, and where a part of the program asked: exit code 143.
        KeyboardInterrupt: for SIGINT.
    """
    watch.answered = True
    error, signum = watch.error(), watch.received
    trainer = run.trainer
    trainer.received_sigterm = signum == signal.SIGTERM and watch.reason is None
    trainer.stop_reason = watch.reason or _name(signum)
    skips = any_rank("a second SIGTERM", watch.skips_save) if watch.shared else watch.skips_save
    if skips:
        info("SIGTERM came again: the run ends without a save.")
        raise settled(error)
    path = None
    try:
        with watch.waiting():
            finish_saves_quietly(run, watch, error)
            path = save(run)
    except Exception as failure:
        # not settled: other callbacks may still save elsewhere
        warn(f"{_why(watch)}, and saving failed: {type(failure).__name__}: {failure}")
        raise error from failure
    able = any(callable(getattr(callback, "save_on_stop", None)) for callback in trainer.checkpoint_callbacks)
    where = f"saved to {path}" if path else "nothing was saved" + ("" if able else ", as no callback saves checkpoints")
    info(f"{_why(watch)}: the run ends at step {run.progress.step}; {where}.")
    if watch.queue is not None and signum == watch.requeue_signal:
        if path is None:
            warn(
                "The job goes back into the queue without a checkpoint of this moment: it will go on from an earlier "
                "one, or start from the beginning."
            )
        watch.queue.requeue()
    raise settled(error)


def finish_saves_quietly(run: Run, watch: SignalWatch, error: BaseException) -> None:
    """Waits for the save in flight: a failure of it is said, and `error` stays what the run ends with."""
    if watch.insisted:
        return
    if watch.shared and not watch.answered:
        run.writer.join()  # the other processes are elsewhere: they are not asked
        return
    try:
        run.trainer.finish_saves()
    except CheckpointError as failure:
        if failure is not error:
            warn(f"{failure} The run ends with {type(error).__name__} all the same.", stacklevel=3)


def save(run: Run) -> str | None:
    """Writes the newest state where the checkpoint callbacks keep theirs; returns its path once it is committed.

    A callback says how by a method `save_on_stop(trainer)`, which returns the path, or None to leave it to the next.
    """
    trainer = run.trainer
    if trainer.fast_dev_run:
        return None
    for callback in trainer.checkpoint_callbacks:
        save_on_stop = getattr(callback, "save_on_stop", None)
        path = save_on_stop(trainer) if callable(save_on_stop) else None
        if path:
            return str(path)
    return None


def error_of(run: Run, error: BaseException) -> BaseException:
    """What a run that failed with `error` ends with: that, or the answer to the signal that brought it about.

    A SIGTERM to the whole group ends the loader's workers, and that shows where the next batch is waited for: torch
    says so, or a connection to one of them ends. The state is that of a step boundary then, and is saved as at any
    other.
    """
    watch = run.signals
    torch_says_so = isinstance(error, RuntimeError) and "DataLoader worker" in str(error)
    workers_died = torch_says_so or isinstance(error, (EOFError, OSError))
    between_batches = run.state.stage == RunningStage.TRAINING and run.log.batch is None
    if watch.shared or watch.received is None or watch.answered or not (workers_died and between_batches):
        return error
    try:
        act(run, watch)
    except (SIGTERMException, KeyboardInterrupt) as answer:
        return answer


def settled(error: E) -> E:
    """Marks that nobody need save because of `error`: the state was saved, or the save was declined."""
    error.checkpoint_settled = True  # type: ignore[attr-defined]
    return error


def _name(signum: int | None) -> str:
    return signal.Signals(signum).name if signum is not None else ""


def _why(watch: SignalWatch) -> str:
    return f"Asked to stop ({watch.reason})" if watch.reason else f"{_name(watch.received)} was received"

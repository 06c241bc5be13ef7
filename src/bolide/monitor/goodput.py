"""GoodputMonitor: writes down where the time of a run goes, and says it at the end.

Owns what is measured and when it is written; the format and the sums are monitor/ledger's, the phases are the
engine's. What it costs a batch is two readings of the clock around the fetch of the batch.
"""

from __future__ import annotations

import os
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from bolide.callbacks.callback import Callback
from bolide.checkpoint import io
from bolide.core import env
from bolide.core.errors import ConfigError
from bolide.core.messages import info, said, warn_once
from bolide.core.phases import IDLE, RESTORING, SAVING, STARTUP, TRAINING, VALIDATION, Phases
from bolide.monitor import ledger

if TYPE_CHECKING:
    from bolide.module import LightningModule
    from bolide.trainer.trainer import Trainer

T = TypeVar("T")


class GoodputMonitor(Callback):
    """Keeps a ledger of where the time of a fit goes, over all attempts of the run.

    Categories: start-up (from the start of the process), training, data wait, validation, saving (what the loop waits
    for), restoring, recomputed (training that an earlier attempt had done and lost), idle (between the attempts, and
    when nothing of these). They add up to the time that went by. A line is appended to `goodput.jsonl` every
    `interval_s` seconds and at the end, by which a later attempt, in the same folder, knows what was done; the table is
    shown at the end, and by `bolide goodput FOLDER`.

    Args:
        dirpath: the folder of the ledger; default: the run's (BOLIDE_RUN_DIR), else the first logger's, else the
            trainer's `default_root_dir`.
        interval_s: how many seconds lie between two lines, at least.
        verbose: whether the table is shown at the end.

    Raises:
        ConfigError: an interval that is none.

    Example::

        Trainer(callbacks=[GoodputMonitor()]).fit(model)
    """

    def __init__(self, dirpath: str | Path | None = None, interval_s: float = 10.0, verbose: bool = True) -> None:
        super().__init__()
        if not interval_s > 0:
            raise ConfigError(f"GoodputMonitor(interval_s={interval_s!r}) must be more than 0 seconds")
        self.dirpath = None if dirpath is None else os.fspath(dirpath)
        self.interval_s = float(interval_s)
        self.verbose = verbose
        self.path: str | None = None
        self.earlier: list[ledger.Attempt] = []
        self.name = ""
        self._clock: Callable[[], float] = time.perf_counter
        self._phases: Phases | None = None
        self._trainer: Trainer | None = None
        self._before_s = 0.0  # from the start of the process to the start of the phases
        self._began_s = 0.0  # in seconds since 1970
        self._began_clock_s = 0.0
        self._data_wait_s = 0.0
        self._recomputed_s = 0.0
        self._left_to_recompute = 0
        self._first_batch: int | None = None
        self._next_line_s = float("inf")

    # ------------------------------------------------------------------ moments

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """A fit begins: a new attempt."""
        self._phases = None
        if stage != "fit" or trainer.fast_dev_run or not trainer.is_global_zero:
            return
        self._trainer, self._phases = trainer, trainer.phases
        self._clock = self._phases.clock
        # a second fit of a process begins when it begins, not when the process did
        first = said.first(f"GoodputMonitor counted the start of process {os.getpid()}")
        self._before_s = process_age_s() - (self._clock() - self._phases.began_s) if first else 0.0
        self._before_s = max(0.0, self._before_s)
        self._began_clock_s = self._phases.began_s - self._before_s
        self._began_s = time.time() - (self._clock() - self._began_clock_s)
        self._data_wait_s = self._recomputed_s = 0.0
        self._left_to_recompute, self._first_batch = 0, None
        self.name = uuid.uuid4().hex[:12]
        folder = self.dirpath or env.get("BOLIDE_RUN_DIR") or trainer.run_dir or trainer.default_root_dir
        self.path, self.earlier = None, []
        if io.is_remote(folder):
            warn_once(f"GoodputMonitor writes to local folders only, not to {folder}; give dirpath.")
            return
        self.path = os.path.join(io.local_path(folder), ledger.FILE_NAME)
        try:
            os.makedirs(io.local_path(folder), exist_ok=True)
            self.earlier = ledger.read(self.path)
        except OSError as error:
            self._give_up(error)
        self.write("running")

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """What earlier attempts had done already is known now."""
        if self._phases is None:
            return
        done = trainer.progress.total_batches
        self._first_batch = done
        reached = [a.batches for a in self.earlier if a.first_batch is not None]
        self._left_to_recompute = max(0, max(reached) - done) if reached and done > 0 else 0
        self._next_line_s = self._clock() + self.interval_s

    def wrap_fetches(self, batches: Iterator[T]) -> Iterator[T]:
        """The same batches; how long each took to come is added up. Asked for by the engine, once an epoch."""
        if self._phases is None:
            yield from batches
            return
        clock = self._clock
        while True:
            asked_s = clock()
            try:
                batch = next(batches)
            except StopIteration:
                self._data_wait_s += clock() - asked_s
                return
            now_s = clock()
            self._data_wait_s += now_s - asked_s
            if now_s >= self._next_line_s:
                self._next_line_s = now_s + self.interval_s
                self.write("running")
            yield batch
            if self._left_to_recompute:
                self._left_to_recompute -= 1
                if not self._left_to_recompute:
                    self._recomputed_s = self._trained_s()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """The fit came to its end."""
        self._close("success")

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """The fit was ended."""
        self._close("interrupted" if isinstance(exception, (KeyboardInterrupt, SystemExit)) else "failed")

    def _close(self, status: str) -> None:
        if self._phases is None:
            return
        self.write(status)
        if self.verbose:
            info(ledger.table([*self.earlier, self.attempt(status)]))
        self._phases = self._trainer = None

    # ------------------------------------------------------------------ the account

    def _trained_s(self) -> float:
        """Seconds in the training loop without the wait for data, recomputing included."""
        assert self._phases is not None
        return self._phases.seconds().get(TRAINING, 0.0) - self._data_wait_s

    def seconds(self) -> dict[str, float]:
        """Where the time of this attempt went up to now, by category."""
        assert self._phases is not None
        phases = self._phases.seconds()
        trained_s = phases.get(TRAINING, 0.0) - self._data_wait_s
        recomputed_s = trained_s if self._left_to_recompute else self._recomputed_s
        return {
            "startup": phases.get(STARTUP, 0.0) + self._before_s,
            "training": trained_s - recomputed_s,
            "data_wait": self._data_wait_s,
            "validation": phases.get(VALIDATION, 0.0),
            "saving": phases.get(SAVING, 0.0),
            "restoring": phases.get(RESTORING, 0.0),
            "recomputed": recomputed_s,
            "idle": phases.get(IDLE, 0.0),
        }

    def attempt(self, status: str) -> ledger.Attempt:
        """This attempt as it stands."""
        assert self._trainer is not None
        seconds = self.seconds()
        return ledger.Attempt(
            self.name, self._began_s, self._began_s + sum(seconds.values()), self._first_batch,
            self._trainer.progress.total_batches, status, seconds,
        )  # fmt: skip

    def write(self, status: str) -> None:
        """Appends a line. A ledger that cannot be written is no reason to end a run."""
        if self.path is None:
            return
        try:
            ledger.append(self.path, ledger.line_of(self.attempt(status)))
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        warn_once(f"The goodput ledger {self.path} cannot be written ({error}); the run goes on without it.")
        self.path = None


def process_age_s() -> float:
    """How long this process has run, in seconds; 0 where that says nothing: in a shell or a notebook, or unknown."""
    if hasattr(sys, "ps1") or "ipykernel" in sys.modules:
        return 0.0
    try:
        with open("/proc/self/stat", "rb") as file:
            started_ticks = int(file.read().rpartition(b")")[2].split()[19])
        with open("/proc/uptime", "rb") as file:
            up_s = float(file.read().split()[0])
        return max(0.0, up_s - started_ticks / os.sysconf("SC_CLK_TCK"))
    except (OSError, ValueError, IndexError):
        return 0.0

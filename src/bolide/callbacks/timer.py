"""Timer: how long the stages of a run take, and an end to training when its time is up.

Owns the clocks and the limit; the loop ends training when it is asked to. Who calls: `Trainer(max_time=...)` adds one.
"""

from __future__ import annotations

import time
from datetime import timedelta
from enum import Enum
from typing import TYPE_CHECKING, Any

from bolide.callbacks.callback import Callback
from bolide.callbacks.monitored import switched
from bolide.core.errors import ConfigError
from bolide.core.hooks import internal
from bolide.core.messages import info
from bolide.core.schedule import parse_duration
from bolide.core.states import RunningStage

if TYPE_CHECKING:
    from bolide.module import LightningModule
    from bolide.trainer.trainer import Trainer


class Interval(str, Enum):
    """After what the time is looked at."""

    step = "step"
    epoch = "epoch"


class Timer(Callback):
    """Measures training, validation and testing; ends training after `duration`.

    `duration` is the time of this run: a run that goes on from a checkpoint has all of it again. With `total=True` the
    training time of the runs that it goes on from counts too, as it always does with compat="lightning".

    Args:
        duration: "DD:HH:MM:SS", text such as "15 min", a timedelta, a dictionary of its arguments, or None: no limit.
        interval: "step" looks after each batch, "epoch" after each epoch.
        verbose: says that the time is up.
        total: whether `duration` is the time of all runs together.

    Raises:
        ConfigError: a duration or interval that is none of these.

    Example::

        timer = Timer(duration="00:12:00:00")
        Trainer(callbacks=[timer]).fit(model)
        print(timer.time_elapsed("train"), timer.time_remaining())
    """

    def __init__(
        self,
        duration: str | timedelta | dict[str, int] | None = None,
        interval: str = Interval.step,
        verbose: bool = True,
        total: bool = False,
    ) -> None:
        super().__init__()
        try:
            self._duration = None if duration is None else parse_duration(duration).total_seconds()
        except (ValueError, TypeError) as error:
            raise ConfigError(
                f'Timer(duration={duration!r}) is no length of time; write "DD:HH:MM:SS", "15 min", a timedelta, or '
                "dict(minutes=15)"
            ) from error
        if interval not in set(Interval):
            raise ConfigError(f"Timer(interval={interval!r}) must be 'step' or 'epoch'")
        self._interval = Interval(interval)
        self._verbose = verbose
        self._start_time: dict[RunningStage, float | None] = dict.fromkeys(RunningStage)
        self._end_time: dict[RunningStage, float | None] = dict.fromkeys(RunningStage)
        self._total = total
        self._offset: float = 0  # the training time of the runs that this one goes on from
        self._by_batch = self._duration is not None and self._interval == Interval.step
        self._deadline_s = float("inf")

    def start_anew(self) -> None:
        """No earlier run is gone on from."""
        self._offset = 0

    def start_time(self, stage: str = RunningStage.TRAINING) -> float | None:
        """When a stage began, in seconds of the monotonic clock; None before it does."""
        return self._start_time[RunningStage(stage)]

    def end_time(self, stage: str = RunningStage.TRAINING) -> float | None:
        """When a stage ended, in seconds of the monotonic clock; None before it does."""
        return self._end_time[RunningStage(stage)]

    def time_elapsed(self, stage: str = RunningStage.TRAINING) -> float:
        """The seconds a stage has taken; for training, those of the runs it was resumed from as well."""
        start_s, end_s = self.start_time(stage), self.end_time(stage)
        offset_s = self._offset if stage == RunningStage.TRAINING else 0
        if start_s is None:
            return offset_s
        return (time.monotonic() if end_s is None else end_s) - start_s + offset_s

    def time_remaining(self, stage: str = RunningStage.TRAINING) -> float | None:
        """The seconds that are left, or None without a limit."""
        if self._duration is None:
            return None
        uncounted_s = self._offset - self._counted_offset() if stage == RunningStage.TRAINING else 0
        return self._duration - self.time_elapsed(stage) + uncounted_s

    def _counted_offset(self) -> float:
        return self._offset if self._total else 0.0

    def on_fit_start(self, trainer: Trainer, *args: Any, **kwargs: Any) -> None:
        """With `total`: does not even begin when an earlier run has used up the time."""
        if self._duration is not None:
            self._total = self._total or switched(trainer, "max_time_is_total")
            self._deadline_s = time.monotonic() + self._duration - self._counted_offset()
            self._check_time_remaining(trainer)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Training begins."""
        self._begin(RunningStage.TRAINING)
        if self._duration is not None:
            self._deadline_s = time.monotonic() + self._duration - self._counted_offset()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Training ends."""
        self._finish(RunningStage.TRAINING)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Validation begins."""
        self._begin(RunningStage.VALIDATING)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Validation ends."""
        self._finish(RunningStage.VALIDATING)

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Testing begins."""
        self._begin(RunningStage.TESTING)

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Testing ends."""
        self._finish(RunningStage.TESTING)

    @internal
    def on_train_batch_end(self, trainer: Trainer, *args: Any, **kwargs: Any) -> None:
        """Looks at the clock."""
        if self._by_batch and time.monotonic() >= self._deadline_s:
            # no question to the others in each batch: the stop of one process reaches all with the next gradients
            self._check_time_remaining(trainer, ask=trainer.world_size == 1)

    def on_train_epoch_end(self, trainer: Trainer, *args: Any, **kwargs: Any) -> None:
        """Looks at the clock."""
        if self._duration is not None and self._interval == Interval.epoch:
            self._check_time_remaining(trainer)

    def state_dict(self) -> dict[str, Any]:
        """The seconds that each stage has taken."""
        return {"time_elapsed": {str(stage.value): self.time_elapsed(stage) for stage in RunningStage}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Remembers the seconds of the training that this run goes on from."""
        self._offset = state_dict.get("time_elapsed", {}).get(RunningStage.TRAINING.value, 0)

    def _begin(self, stage: RunningStage) -> None:
        self._start_time[stage] = time.monotonic()
        self._end_time[stage] = None

    def _finish(self, stage: RunningStage) -> None:
        self._end_time[stage] = time.monotonic()

    def _check_time_remaining(self, trainer: Trainer, ask: bool = True) -> None:
        """Ends training if the first process's time is up; without `ask`, if this one's is."""
        up = time.monotonic() >= self._deadline_s
        if not (trainer.strategy.broadcast(up) if ask else up) or trainer.should_stop:
            return
        text = f"The time of {timedelta(seconds=self._duration or 0)} is up"
        if self._verbose:
            info(f"{text}; training has taken {timedelta(seconds=int(self.time_elapsed()))}.")
        trainer.request_stop(text)

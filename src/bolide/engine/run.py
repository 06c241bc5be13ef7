"""The mutable record of a run: everything that changes, in one place.

Made by the trainer for each fit, validate, test and predict, read by the loops, gone when they end. Decisions are in
Plan; this holds the objects that decisions are about.
"""

from __future__ import annotations

import math
import time
import uuid
from typing import TYPE_CHECKING, Any

from bolide.checkpoint.lock import RunLock
from bolide.checkpoint.rank_writer import PartsWriter, RankWriter
from bolide.checkpoint.sharded_write import write_folder
from bolide.checkpoint.writer import Writer
from bolide.core.hooks import Receivers
from bolide.core.messages import info
from bolide.core.phases import Phases
from bolide.core.progress import Progress
from bolide.core.schedule import Every
from bolide.core.states import TrainerState
from bolide.engine.signals import SignalWatch
from bolide.log import Log

if TYPE_CHECKING:
    from bolide.core.config import RunConfig
    from bolide.data.loaders import Source
    from bolide.engine.elastic import Elastic
    from bolide.engine.optimizers import LightningOptimizer, LRSchedulerConfig
    from bolide.engine.plan import Plan
    from bolide.precision import Precision
    from bolide.strategies.strategy import Strategy


class EvalData:
    """The loaders of one kind of evaluation, as the user gave them and as sources; `steps_logged` is by loader."""

    def __init__(self) -> None:
        self.given: Any = None
        self.loaders: Any = None
        self.read: Any = None  # the loaders, or this process's part of them
        self.limit: float | None = None  # what the sources were made with
        self.sources: list[Source] = []
        self.steps_logged: dict[int, int] = {}
        self.loaded_epoch = -1
        self.saved_place: dict[str, Any] | None = None

    @property
    def counts(self) -> list[float]:
        """How many batches each loader has."""
        return [count for source in self.sources for count in source.counts]


class Run:
    """What a fit, validate, test or predict works on."""

    __slots__ = (
        "trainer", "module", "datamodule", "config", "strategy", "precision", "log", "progress", "state", "plan",
        "version", "optimizers", "proxies", "schedulers", "train_given", "train_loaders", "train", "val", "evals",
        "validation_enabled", "validated_this_epoch", "validation_names", "stepped_in_batch",
        "val_timer_s", "val_every", "started_s", "restored", "loops_state", "predictions", "results", "said_min",
        "train_loaded_epoch", "saved", "boundary", "saver", "signals", "owes_validation", "phases",
        "starts_over", "live", "run_id", "writer", "memory_is_ready", "locks", "stop_agreed", "first_batch_checked",
        "elastic", "rate_hooks",
    )  # fmt: skip

    def __init__(self, trainer: Any, module: Any, datamodule: Any, progress: Progress, log: Log) -> None:
        self.trainer = trainer
        self.module = module
        self.datamodule = datamodule
        self.config: RunConfig = trainer.config
        self.strategy: Strategy = trainer.strategy
        self.precision: Precision = trainer.precision_plugin
        self.log = log
        self.progress = progress
        self.state: TrainerState = trainer.state
        self.plan: Plan
        self.version = 0
        self.optimizers: list[Any] = []
        self.proxies: list[LightningOptimizer] = []
        self.schedulers: list[LRSchedulerConfig] = []
        self.train_given: Any = None
        self.train_loaders: Any = None
        self.train: Source | None = None
        self.train_loaded_epoch = -1
        self.val = EvalData()
        self.evals = EvalData()
        self.validation_enabled = False
        self.validated_this_epoch = False
        self.validation_names: set[str] = set()
        self.stepped_in_batch = False
        self.val_timer_s = time.monotonic()
        self.val_every = Every(1.0, "share")
        self.started_s = time.monotonic()
        self.restored = False
        self.saved: dict[str, Any] | None = None
        self.boundary: tuple[str, bool] | None = None
        self.saver: Any = None
        self.owes_validation = False
        self.phases = Phases()
        self.signals = SignalWatch(trainer.queue)
        self.signals.shared = trainer.strategy.world_size > 1
        self.stop_agreed = False
        self.first_batch_checked = False
        self.elastic: Elastic | None = None
        self.rate_hooks: list[Any] = []
        self.writer = self._new_writer()
        self.memory_is_ready = False
        self.locks: list[RunLock] = []
        self.starts_over = False
        self.live = False
        self.run_id = uuid.uuid4().hex
        self.predictions: list[list[Any]] = []
        self.results: list[dict[str, float]] = []
        self.said_min = False

    def receivers(self) -> Receivers:
        """Who listens to hooks."""
        apart = self.state.fn == "fit" and not self.config.switches.saves_within_hooks
        return Receivers(self.trainer, self.module, self.datamodule, list(self.trainer.callbacks), apart)

    @property
    def saves_parts(self) -> bool:
        """Whether a checkpoint is a folder to which each rank writes its part."""
        return self.strategy.saves_parts and self.config.checkpointing.format != "file"

    def _new_writer(self) -> Writer:
        settings = self.config.checkpointing
        aside = settings.async_ and self.strategy.checkpoint_io is None and not self.config.switches.saves_within_hooks
        if self.saves_parts and self.signals.shared:
            return PartsWriter(settings.on_save_error, aside)
        write = write_folder if self.saves_parts else self.trainer.write_checkpoint
        return (RankWriter if self.signals.shared else Writer)(write, settings.on_save_error, aside)

    # ------------------------------------------------------------------ counts

    def count_manual_step(self) -> None:
        """An optimizer stepped in manual optimization: batches that stepped are counted, or every step (compat)."""
        progress = self.progress
        progress.optimizer_steps += 1
        if self.config.switches.step_per_optimizer or not self.stepped_in_batch:
            progress.step += 1
        self.stepped_in_batch = True

    @property
    def count(self) -> float:
        """How many batches a training epoch has; infinite where nobody knows."""
        return self.train.count if self.train is not None else 0

    @property
    def batch_stepped(self) -> bool:
        """Whether the batch that was committed last ended in a step, as far as the loggers' axis goes."""
        return self.stepped_in_batch or not self.module.automatic_optimization

    # ------------------------------------------------------------------ when to stop

    def limits_reached(self) -> str | None:
        """Which of max_steps and max_epochs is reached, if any."""
        trainer, progress = self.trainer, self.progress
        if trainer.max_steps != -1 and progress.step >= trainer.max_steps:
            return f"`Trainer.fit` stopped: `max_steps={trainer.max_steps}` reached."
        max_epochs = trainer.max_epochs
        if max_epochs is not None and max_epochs != -1 and progress.epochs_completed >= max_epochs:
            return f"`Trainer.fit` stopped: `max_epochs={max_epochs}` reached."
        return None

    @property
    def stop_is_common(self) -> bool:
        """Whether a stop that this process was asked for has reached all others: at once where there are none."""
        return self.stop_agreed or not self.signals.shared

    def may_stop_early(self) -> bool:
        """Whether min_epochs and min_steps are met; with other ranks, whether they have heard of the stop, too."""
        trainer, progress = self.trainer, self.progress
        if not self.stop_is_common:
            return False
        enough_epochs = progress.epochs_completed >= (trainer.min_epochs or 0)
        enough_steps = progress.step >= (trainer.min_steps or 0)
        if not (enough_epochs and enough_steps) and not self.said_min:
            self.said_min = True
            info(
                f"The trainer was told to stop; it goes on until min_epochs={trainer.min_epochs} and "
                f"min_steps={trainer.min_steps} are met."
            )
        return enough_epochs and enough_steps

    def stops_now(self) -> bool:
        """Whether somebody asked to stop and the minimum is met."""
        return bool(self.trainer.should_stop) and self.may_stop_early()

    # ------------------------------------------------------------------ when to validate

    def from_validation(self, name: str) -> bool:
        """Whether the metric `name` is one that validation logs."""
        return name in self.validation_names

    def epoch_validates(self) -> bool:
        """Whether the running epoch is one of those that validate."""
        per_epoch = self.config.check_val_every_n_epoch
        return per_epoch is None or (self.progress.epoch + 1) % per_epoch == 0

    def validation_due(self, last: bool) -> bool:
        """Whether validation runs after the batch that was just committed."""
        config, progress, every = self.config, self.progress, self.val_every
        if not self.validation_enabled or config.limit_val_batches == 0:
            return False
        per_epoch = config.check_val_every_n_epoch
        if not self.epoch_validates():
            return False
        if self.stops_now():
            return True
        if every.unit == "seconds":
            return bool(self.strategy.broadcast(time.monotonic() - self.val_timer_s >= every.count))
        if every.unit == "steps":
            return self.stepped_in_batch and progress.step % int(every.count) == 0
        if every.unit == "epochs":
            return last and (progress.epoch + 1) % int(every.count) == 0
        if every.unit == "share" and math.isinf(self.count):
            return last
        batches = self.val_check_batch
        done = progress.batch if per_epoch is not None else progress.total_batches
        if math.isinf(batches):
            return last
        return done % int(batches) == 0 or (last and every.unit == "share" and every.count == 1.0)

    @property
    def val_check_batch(self) -> float:
        """After how many batches validation is due; infinite where only the epoch's end tells."""
        every = self.val_every
        if every.unit == "batches":
            return every.count
        if every.unit == "share":
            return max(1, int(self.count * every.count)) if not math.isinf(self.count) else math.inf
        return math.inf

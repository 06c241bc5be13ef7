"""Views of a run under the names of Lightning's loops: `trainer.fit_loop.epoch_loop.batch_progress` and so on.

Every number is computed from the trainer's own when it is read; nothing is kept here, and no loop is run. Settings
that user code changes there (`fit_loop.max_epochs = 5`) are passed on to the trainer. Who calls: Trainer's properties.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bolide.core.errors import MisconfigurationException
from bolide.core.progress import Progress
from bolide.core.states import RunningStage, TrainerFn
from bolide.data.combined import CombinedLoader

BATCH_HOOKS = frozenset(
    {
        "on_train_batch_start", "training_step", "on_before_zero_grad", "optimizer_zero_grad", "on_before_backward",
        "backward", "on_after_backward", "on_before_optimizer_step", "configure_gradient_clipping", "clip_gradients",
        "optimizer_step", "lr_scheduler_step",
    }
)  # fmt: skip
"""Hooks within a batch, before it is counted."""


@dataclass(frozen=True)
class Counts:
    """How many began and how many are done."""

    ready: int
    started: int
    processed: int
    completed: int


@dataclass(frozen=True)
class StepCounts:
    """How many steps began and how many are done."""

    ready: int
    completed: int


@dataclass(frozen=True)
class ProgressView:
    """Counts of the whole run, and of the running epoch."""

    total: Any
    current: Any

    def state_dict(self) -> dict[str, Any]:
        """The counts as plain numbers."""
        return asdict(self)


@dataclass(frozen=True)
class BatchProgressView(ProgressView):
    """As ProgressView, with whether the batch is the epoch's last."""

    is_last_batch: bool


@dataclass(frozen=True)
class OptimizerProgressView:
    """Steps of the optimizer; what clears gradients counts the same."""

    step: ProgressView
    zero_grad: ProgressView


@dataclass(frozen=True)
class OptimizationProgressView:
    """Steps of automatic optimization."""

    optimizer: OptimizerProgressView

    @property
    def optimizer_steps(self) -> int:
        """All steps so far."""
        return int(self.optimizer.step.total.completed)

    def state_dict(self) -> dict[str, Any]:
        """The counts as plain numbers."""
        return asdict(self)


@dataclass(frozen=True)
class AutomaticOptimizationView:
    """`epoch_loop.automatic_optimization`."""

    optim_progress: OptimizationProgressView


@dataclass(frozen=True)
class ManualOptimizationView:
    """`epoch_loop.manual_optimization`."""

    optim_step_progress: ProgressView


@dataclass(frozen=True)
class DataSourceView:
    """Who gave the loaders: a module, a datamodule, or the loaders themselves."""

    instance: Any
    name: str = "train_dataloader"

    def is_defined(self) -> bool:
        """Whether there are any."""
        return self.instance is not None


def _counts(number: int) -> Counts:
    return Counts(number, number, number, number)


class _View:
    """Something that reads a trainer."""

    restarting = False

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer

    @property
    def _progress(self) -> Progress:
        progress: Progress = self.trainer.progress
        return progress

    @property
    def _hook(self) -> str:
        """The hook that runs, or an empty text."""
        log = getattr(self.trainer, "_log", None)
        scope = log.scope if log is not None else None
        return scope.name if scope is not None else ""

    @property
    def _fitting(self) -> bool:
        state = self.trainer.state
        return state.fn is TrainerFn.FITTING and not state.stopped

    @property
    def _in_batch(self) -> bool:
        """Whether a batch runs that is not counted yet."""
        return self._fitting and self._hook in BATCH_HOOKS

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Not to be called.

        Raises:
            MisconfigurationException: always; the loop is not customized by replacing parts of it.
        """
        raise MisconfigurationException(
            "The loops are views of counters; nothing runs in them. Write your own loop around "
            "trainer.steps(module, loader), which yields after each batch."
        )


class EpochLoopView(_View):
    """`fit_loop.epoch_loop`: the batches of the running epoch."""

    @property
    def batch_idx(self) -> int:
        """The number of the running batch, or of the last one; -1 before the first."""
        return self._progress.batch - (0 if self._in_batch else 1)

    @property
    def total_batch_idx(self) -> int:
        """As `batch_idx`, counted over all epochs."""
        return self._progress.total_batches - (0 if self._in_batch else 1)

    @property
    def global_step(self) -> int:
        """Optimizer steps."""
        return int(self.trainer.global_step)

    @property
    def max_steps(self) -> int:
        """The trainer's."""
        return int(self.trainer.max_steps)

    @max_steps.setter
    def max_steps(self, value: int) -> None:
        self.trainer.max_steps = value

    @property
    def min_steps(self) -> int | None:
        """The trainer's."""
        steps: int | None = self.trainer.min_steps
        return steps

    @property
    def _batches_that_stepped(self) -> int:
        """The loggers' axis: it moves on when the batch's hooks, and validation after it, are done."""
        progress = self._progress
        run = getattr(self.trainer, "_run", None)
        stepped = bool(run is not None and run.stepped_in_batch)
        validating = self._fitting and self.trainer.state.stage is RunningStage.VALIDATING
        behind = stepped and progress.batch > 0 and (self._hook == "on_train_batch_end" or validating)
        return progress.stepped_batches - int(behind)

    @property
    def batch_progress(self) -> BatchProgressView:
        """Batches begun and done; in `on_train_batch_end` the batch counts as processed, not as completed."""
        ending = self._fitting and self._hook == "on_train_batch_end"
        total = self._batches(self._progress.total_batches, ending)
        current = self._batches(self._progress.batch, ending)
        return BatchProgressView(total, current, bool(self.trainer.is_last_batch))

    def _batches(self, done: int, ending: bool) -> Counts:
        if self._in_batch:
            begun = done + (0 if self._hook == "on_train_batch_start" else 1)
            return Counts(done + 1, begun, done, done)
        return Counts(done, done, done, done - int(ending))

    @property
    def automatic_optimization(self) -> AutomaticOptimizationView:
        """Steps of automatic optimization; none in manual."""
        progress = self._progress
        total = progress.step if self._automatic else 0
        steps = self._steps(total)
        zeroed = ProgressView(_counts(total), _counts(steps.current.completed))
        return AutomaticOptimizationView(OptimizationProgressView(OptimizerProgressView(steps, zeroed)))

    @property
    def manual_optimization(self) -> ManualOptimizationView:
        """Steps of manual optimization, of all optimizers; none in automatic."""
        return ManualOptimizationView(self._steps(0 if self._automatic else self._progress.optimizer_steps))

    @property
    def _automatic(self) -> bool:
        module = self.trainer.lightning_module
        return bool(getattr(module, "automatic_optimization", True))

    def _steps(self, total: int) -> ProgressView:
        run = getattr(self.trainer, "_run", None)
        stepped = bool(self._in_batch and run is not None and run.stepped_in_batch)
        current = min(total, self._progress.batch + int(stepped))  # without accumulation: a step a batch
        return ProgressView(StepCounts(total, total), StepCounts(current, current))

    @property
    def val_loop(self) -> EvaluationLoopView:
        """Validation within the fit."""
        return EvaluationLoopView(self.trainer, "num_val_batches")


class FitLoopView(_View):
    """`trainer.fit_loop`: the epochs."""

    @property
    def epoch_loop(self) -> EpochLoopView:
        """The batches of the running epoch."""
        return EpochLoopView(self.trainer)

    @property
    def epoch_progress(self) -> ProgressView:
        """Epochs begun and done; in an epoch's end hooks it counts as processed, not as completed."""
        progress = self._progress
        completed = int(self.trainer.current_epoch)
        begun = progress.batch > 0 or progress.epoch_done or self._in_batch or self._hook == "on_train_epoch_start"
        open_epochs = int(self._fitting and begun)
        counts = Counts(
            completed + open_epochs, completed + open_epochs, max(progress.epochs_completed, completed), completed
        )
        return ProgressView(counts, counts)

    @property
    def batch_idx(self) -> int:
        """The number of the running batch, or of the last one."""
        return self.epoch_loop.batch_idx

    @property
    def total_batch_idx(self) -> int:
        """As `batch_idx`, counted over all epochs."""
        return self.epoch_loop.total_batch_idx

    @property
    def max_batches(self) -> int | float:
        """Batches of an epoch; infinite where nobody knows."""
        count: int | float = self.trainer.num_training_batches
        return count

    @property
    def max_epochs(self) -> int | None:
        """The trainer's."""
        epochs: int | None = self.trainer.max_epochs
        return epochs

    @max_epochs.setter
    def max_epochs(self, value: int | None) -> None:
        self.trainer.max_epochs = value

    @property
    def min_epochs(self) -> int | None:
        """The trainer's."""
        epochs: int | None = self.trainer.min_epochs
        return epochs

    @min_epochs.setter
    def min_epochs(self, value: int | None) -> None:
        self.trainer.min_epochs = value

    @property
    def max_steps(self) -> int:
        """The trainer's."""
        return self.epoch_loop.max_steps

    @max_steps.setter
    def max_steps(self, value: int) -> None:
        self.trainer.max_steps = value

    @property
    def min_steps(self) -> int | None:
        """The trainer's."""
        return self.epoch_loop.min_steps

    @property
    def done(self) -> bool:
        """Whether max_epochs or max_steps is reached, or a stop was asked for and may be followed."""
        run = getattr(self.trainer, "_run", None)
        if run is not None:
            return run.limits_reached() is not None or bool(run.stops_now())
        progress, trainer = self._progress, self.trainer
        epochs_done = trainer.max_epochs not in (None, -1) and progress.epochs_completed >= trainer.max_epochs
        return bool(epochs_done or (trainer.max_steps != -1 and progress.step >= trainer.max_steps))

    @property
    def skip(self) -> bool:
        """Whether there is nothing to train."""
        return self.done or self.trainer.limit_train_batches == 0

    @property
    def _combined_loader(self) -> CombinedLoader | None:
        loaders = self.trainer.train_dataloader
        if loaders is None or isinstance(loaders, CombinedLoader):
            return loaders
        return CombinedLoader(loaders, "max_size_cycle")

    @property
    def _data_source(self) -> DataSourceView:
        run = getattr(self.trainer, "_run", None)
        given = run.train_given if run is not None else None
        if given is None:
            given = self.trainer.datamodule or self.trainer.lightning_module
        return DataSourceView(given)


class EvaluationLoopView(_View):
    """`trainer.validate_loop` and `test_loop`, and `fit_loop.epoch_loop.val_loop`."""

    def __init__(self, trainer: Any, counts: str) -> None:
        super().__init__(trainer)
        self._count_name = counts

    @property
    def max_batches(self) -> list[int | float]:
        """Batches of each loader."""
        return list(getattr(self.trainer, self._count_name))

    @property
    def num_dataloaders(self) -> int:
        """How many loaders there are."""
        return len(self.max_batches)

    @property
    def batch_progress(self) -> BatchProgressView:
        """Batches of a whole pass."""
        total = int(sum(count for count in self.max_batches if count != float("inf")))
        return BatchProgressView(_counts(total), _counts(total), is_last_batch=bool(self.trainer.is_last_batch))

    @property
    def skip(self) -> bool:
        """Whether there is nothing to read."""
        return sum(self.max_batches) == 0


class PredictionLoopView(EvaluationLoopView):
    """`trainer.predict_loop`."""

    @property
    def predictions(self) -> Sequence[Any]:
        """What `predict_step` returned: a list for one loader, a list of lists for several."""
        run = getattr(self.trainer, "_run", None)
        found: list[list[Any]] = run.predictions if run is not None else []
        return found[0] if len(found) == 1 else found


class LoggerConnectorView(_View):
    """`trainer._logger_connector`: the metrics."""

    @property
    def callback_metrics(self) -> Any:
        """The trainer's."""
        return self.trainer.callback_metrics

    @property
    def logged_metrics(self) -> Any:
        """The trainer's."""
        return self.trainer.logged_metrics

    @property
    def progress_bar_metrics(self) -> Any:
        """The trainer's."""
        return self.trainer.progress_bar_metrics


class AcceleratorConnectorView(_View):
    """`trainer._accelerator_connector`: what the run runs on."""

    @property
    def strategy(self) -> Any:
        """The trainer's."""
        return self.trainer.strategy

    @property
    def accelerator(self) -> Any:
        """The trainer's."""
        return self.trainer.accelerator

    @property
    def precision_plugin(self) -> Any:
        """The trainer's."""
        return self.trainer.precision_plugin

    @property
    def is_distributed(self) -> bool:
        """Whether there are several processes."""
        return int(self.trainer.world_size) > 1


class CheckpointConnectorView(_View):
    """`trainer._checkpoint_connector`: what would be saved now."""

    def dump_checkpoint(self, weights_only: bool = False) -> dict[str, Any]:
        """The dictionary of a checkpoint.

        Raises:
            MisconfigurationException: no run is open.
        """
        from bolide.engine.session import checkpoint_of

        run = getattr(self.trainer, "_run", None)
        if run is None:
            raise MisconfigurationException("A checkpoint can be made of a running Trainer only.")
        return checkpoint_of(run, weights_only)


class Views:
    """All views of one trainer."""

    def __init__(self, trainer: Any) -> None:
        self.fit_loop = FitLoopView(trainer)
        self.validate_loop = EvaluationLoopView(trainer, "num_val_batches")
        self.test_loop = EvaluationLoopView(trainer, "num_test_batches")
        self.predict_loop = PredictionLoopView(trainer, "num_predict_batches")
        self._logger_connector = LoggerConnectorView(trainer)
        self._accelerator_connector = AcceleratorConnectorView(trainer)
        self._checkpoint_connector = CheckpointConnectorView(trainer)

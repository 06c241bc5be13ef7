"""What a Trainer shows: settings that may change during a fit, and one-line properties over what runs.

The base of `Trainer`, apart from it so that each reads on its own. Nothing here starts anything.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from bolide.checkpoint import io
from bolide.core.config import Compat, RunConfig, problems
from bolide.core.errors import ConfigError, MisconfigurationException
from bolide.core.progress import Progress
from bolide.core.states import RunningStage, TrainerFn, TrainerState, TrainerStatus
from bolide.engine import session
from bolide.engine.run import Run
from bolide.log import Log, to_numbers
from bolide.trainer.build import merged_callbacks, replace
from bolide.trainer.settings import Setting, WatchedList

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from bolide.callbacks.callback import Callback
    from bolide.callbacks.checkpoint import Checkpoint
    from bolide.callbacks.early_stopping import EarlyStopping
    from bolide.callbacks.progress.progress_bar import ProgressBar
    from bolide.datamodule import LightningDataModule
    from bolide.engine.optimizers import LRSchedulerConfig
    from bolide.loggers.logger import Logger
    from bolide.module import LightningModule
    from bolide.precision import Precision
    from bolide.profilers.profiler import Profiler
    from bolide.strategies.strategy import Strategy
    from bolide.world import World


class RemovedNames(type):
    """Answers names that the Trainer class had once: argparse helpers and the like, asked of the class itself."""

    def __getattr__(cls, name: str) -> Any:
        raise AttributeError(unknown_attribute(name, cls))


class TrainerProperties(metaclass=RemovedNames):
    """The attributes of a Trainer."""

    config: RunConfig
    state: TrainerState
    progress: Progress
    should_stop: bool
    stop_reason: str | None
    ckpt_path: str | None
    ckpt_is_users: bool
    received_sigterm: bool
    datamodule: LightningDataModule | None
    _world: World
    _strategy: Strategy
    _precision: Precision
    _run: Run | None
    _fitted: weakref.ReferenceType[Any] | None
    _log: Log
    _loggers: list[Logger]
    _callbacks: WatchedList[Callback]
    _counts: dict[str, Any]
    _default_root_dir: str

    # ------------------------------------------------------------------ settings that may change during a fit

    max_epochs: Setting[int] = Setting()
    min_epochs: Setting[int] = Setting()
    max_steps: Setting[int] = Setting()
    min_steps: Setting[int | None] = Setting()
    limit_train_batches: Setting[float] = Setting()
    limit_val_batches: Setting[float] = Setting()
    limit_test_batches: Setting[float] = Setting()
    limit_predict_batches: Setting[float] = Setting()
    overfit_batches: Setting[float] = Setting()
    val_check_interval: Setting[Any] = Setting()
    check_val_every_n_epoch: Setting[int | None] = Setting()
    num_sanity_val_steps: Setting[int] = Setting()
    log_every_n_steps: Setting[int] = Setting()
    accumulate_grad_batches: Setting[int] = Setting()
    gradient_clip_val: Setting[float | None] = Setting()
    gradient_clip_algorithm: Setting[str | None] = Setting()
    reload_dataloaders_every_n_epochs: Setting[int] = Setting()
    fast_dev_run: Setting[int | bool] = Setting()
    barebones: Setting[bool] = Setting()
    enable_autolog_hparams: Setting[bool] = Setting()

    @property
    def callbacks(self) -> list[Callback]:
        """All callbacks, in the order in which they are called; changing the list takes effect at the next batch."""
        return self._callbacks

    @callbacks.setter
    def callbacks(self, callbacks: list[Callback]) -> None:
        self._callbacks = WatchedList(callbacks, self._bump)
        self._bump()

    @property
    def loggers(self) -> list[Logger]:
        """All loggers."""
        return self._loggers

    @loggers.setter
    def loggers(self, loggers: list[Logger] | None) -> None:
        self._loggers = loggers or []
        self._log.loggers = list(self._loggers)

    @property
    def logger(self) -> Logger | None:
        """The first logger."""
        return self._loggers[0] if self._loggers else None

    @logger.setter
    def logger(self, logger: Logger | None) -> None:
        self.loggers = [logger] if logger is not None else []

    # ------------------------------------------------------------------ where it stands

    @property
    def global_step(self) -> int:
        """Optimizer steps done. In manual optimization, batches that stepped."""
        return self.progress.step

    @property
    def current_epoch(self) -> int:
        """The running epoch, from 0; after training, the epochs done."""
        return self.progress.visible_epoch

    @property
    def is_last_batch(self) -> bool:
        """Whether the running batch is the last of its epoch."""
        return self.progress.is_last_batch

    @property
    def callback_metrics(self) -> dict[str, Tensor]:
        """What was logged, by name, as 0-dim tensors: epoch values at an epoch's end, the last step's in between."""
        self._log.publish()
        return self._log.callback_metrics

    @property
    def logged_metrics(self) -> dict[str, Tensor]:
        """What the loggers are told."""
        self._log.publish()
        return self._log.logged_metrics

    @property
    def progress_bar_metrics(self) -> dict[str, float]:
        """What the bar shows, as plain numbers; reading it waits for the device."""
        self._log.publish()
        return to_numbers(self._log.progress_bar_metrics)

    @property
    def logged_names(self) -> list[str]:
        """The names of all metrics logged so far."""
        return self._log.names()

    @property
    def compat(self) -> Compat:
        """Which of Lightning's values this trainer gives where they differ from the right ones."""
        return self.config.switches

    @property
    def interrupted(self) -> bool:
        """Whether the last run ended by an exception or a stop from outside."""
        return self.state.status is TrainerStatus.INTERRUPTED

    def _stage(self, stage: RunningStage) -> bool:
        return self.state.stage is stage

    def _set_stage(self, stage: RunningStage, on: bool) -> None:
        if on:
            self.state.stage = stage
        elif self.state.stage is stage:
            self.state.stage = None

    training = property(
        lambda self: self._stage(RunningStage.TRAINING), lambda self, on: self._set_stage(RunningStage.TRAINING, on)
    )
    validating = property(
        lambda self: self._stage(RunningStage.VALIDATING), lambda self, on: self._set_stage(RunningStage.VALIDATING, on)
    )
    testing = property(
        lambda self: self._stage(RunningStage.TESTING), lambda self, on: self._set_stage(RunningStage.TESTING, on)
    )
    predicting = property(
        lambda self: self._stage(RunningStage.PREDICTING), lambda self, on: self._set_stage(RunningStage.PREDICTING, on)
    )
    sanity_checking = property(
        lambda self: self._stage(RunningStage.SANITY_CHECKING),
        lambda self, on: self._set_stage(RunningStage.SANITY_CHECKING, on),
    )

    @property
    def evaluating(self) -> bool:
        """Whether a validation or test loop runs."""
        return self.state.stage is not None and self.state.stage.evaluating

    @property
    def enable_validation(self) -> bool:
        """Whether this fit validates."""
        return self._run.validation_enabled and self.limit_val_batches != 0 if self._run is not None else True

    # ------------------------------------------------------------------ what it works with

    @property
    def strategy(self) -> Strategy:
        """How the module is placed and stepped."""
        return self._strategy

    @property
    def accelerator(self) -> Any:
        """The kind of device, as an Accelerator."""
        from bolide.accelerators import accelerator_of

        return accelerator_of(self._world.kind)

    @property
    def precision_plugin(self) -> Any:
        """The precision as an object."""
        return self._precision

    @property
    def precision(self) -> str:
        """The precision's name."""
        return str(self._precision.precision)

    @property
    def scaler(self) -> Any:
        """The loss scaler of 16-mixed, or None."""
        return self._precision.scaler

    @property
    def profiler(self) -> Profiler:
        """What times named actions: `with trainer.profiler.profile("load"):`. It records nothing in this version."""
        from bolide.profilers.profiler import PassThroughProfiler

        return PassThroughProfiler()

    @property
    def world_size(self) -> int:
        """How many processes there are."""
        return self._strategy.world_size

    @property
    def global_rank(self) -> int:
        """This process's number among all."""
        return self._strategy.global_rank

    @property
    def local_rank(self) -> int:
        """This process's number on its machine."""
        return self._strategy.local_rank

    @property
    def node_rank(self) -> int:
        """This machine's number."""
        return self._world.node_rank

    @property
    def num_nodes(self) -> int:
        """How many machines there are."""
        return max(self._world.num_nodes, self.config.num_nodes)

    @property
    def num_devices(self) -> int:
        """How many devices this process's machine uses."""
        return self._world.local_world_size

    @property
    def device_ids(self) -> list[int]:
        """The indices of the devices on this machine."""
        if self._world.local_world_size > 1:
            return list(range(self._world.local_world_size)) if self._world.kind == "cpu" else list(self._world.indices)
        return [self._strategy.root_device.index or 0]

    @property
    def is_global_zero(self) -> bool:
        """Whether this is the first process."""
        return self._strategy.is_global_zero

    @property
    def distributed_sampler_kwargs(self) -> dict[str, int] | None:
        """Arguments of a distributed sampler; None on one device."""
        return getattr(self._strategy, "distributed_sampler_kwargs", None)

    @property
    def lightning_module(self) -> LightningModule | None:
        """The module that runs, or ran last."""
        return self._run.module if self._run is not None else None

    @property
    def model(self) -> torch.nn.Module | None:
        """The module as the strategy placed it."""
        return self._strategy.model

    @property
    def optimizers(self) -> list[Any]:
        """The optimizers of the fit."""
        return self._run.optimizers if self._run is not None else []

    @optimizers.setter
    def optimizers(self, optimizers: list[Any]) -> None:
        if self._run is None:
            raise MisconfigurationException("trainer.optimizers can be set while a fit runs only")
        self._run.optimizers = list(optimizers)
        self._run.proxies = session.proxies_of(self._run)
        self._bump()

    @property
    def lr_scheduler_configs(self) -> list[LRSchedulerConfig]:
        """The schedulers, each with when it steps and on what."""
        return self._run.schedulers if self._run is not None else []

    @property
    def default_root_dir(self) -> str:
        """Where files go."""
        root = self._default_root_dir
        return root if io.is_remote(root) else os.path.normpath(io.local_path(root))

    @property
    def log_dir(self) -> str | None:
        """The folder of this run's logs."""
        logger = self.logger
        if logger is None:
            return self.default_root_dir
        return logger.log_dir if logger.log_dir is not None else logger.save_dir

    @property
    def run_dir(self) -> str | None:
        """The folder of this run, in which its checkpoints have theirs; a logger may write to one below it."""
        return getattr(self.logger, "run_dir", None) or self.log_dir

    # ------------------------------------------------------------------ callbacks by kind

    def _callbacks_of(self, kind: type[Any]) -> list[Any]:
        return [callback for callback in self._callbacks if isinstance(callback, kind)]

    @property
    def early_stopping_callbacks(self) -> list[EarlyStopping]:
        """All EarlyStopping callbacks."""
        from bolide.callbacks.early_stopping import EarlyStopping

        return self._callbacks_of(EarlyStopping)

    @property
    def early_stopping_callback(self) -> EarlyStopping | None:
        """The first EarlyStopping callback."""
        return next(iter(self.early_stopping_callbacks), None)

    @property
    def checkpoint_callbacks(self) -> list[Checkpoint]:
        """All callbacks that save checkpoints."""
        from bolide.callbacks.checkpoint import Checkpoint

        return self._callbacks_of(Checkpoint)

    @property
    def checkpoint_callback(self) -> Any:
        """The first callback that saves checkpoints."""
        return next(iter(self.checkpoint_callbacks), None)

    @property
    def progress_bar_callback(self) -> ProgressBar | None:
        """The progress bar."""
        from bolide.callbacks.progress.progress_bar import ProgressBar

        return next(iter(self._callbacks_of(ProgressBar)), None)

    # ------------------------------------------------------------------ loaders and their sizes

    @property
    def train_dataloader(self) -> Any:
        """The training loaders, as they were given."""
        return self._run.train_loaders if self._run is not None else None

    @property
    def val_dataloaders(self) -> Any:
        """The validation loaders, as they were given."""
        return self._loaders_of("validate")

    @property
    def test_dataloaders(self) -> Any:
        """The test loaders, as they were given."""
        return self._loaders_of("test")

    @property
    def predict_dataloaders(self) -> Any:
        """The prediction loaders, as they were given."""
        return self._loaders_of("predict")

    def _loaders_of(self, fn: str) -> Any:
        run = self._run
        if run is None:
            return None
        if fn == "validate" and self.state.fn is TrainerFn.FITTING:
            return run.val.loaders
        return run.evals.loaders if self.state.fn == fn else None

    def _all_counts(self) -> dict[str, Any]:
        """Batches of each kind of loader, as last known."""
        run, counts = self._run, dict(self._counts)
        if run is not None and run.train is not None and self.limit_train_batches:
            counts["fit"] = run.count
        if run is not None and run.val.loaders is not None:
            counts["validate"] = run.val.counts
            asked = self.num_sanity_val_steps
            counts["sanity"] = [n if asked == -1 else min(n, asked) for n in run.val.counts]
        if run is not None and run.evals.loaders is not None and self.state.fn in ("test", "predict"):
            counts[str(self.state.fn)] = run.evals.counts
        return counts

    @property
    def num_training_batches(self) -> float:
        """Batches of a training epoch; infinite where nobody knows, or before the loader is there."""
        count: float = self._all_counts()["fit"]
        return count

    @property
    def num_sanity_val_batches(self) -> list[float]:
        """Batches of each loader in the sanity check."""
        return list(self._all_counts()["sanity"])

    @property
    def num_val_batches(self) -> list[float]:
        """Batches of each validation loader, of the fit where no validation runs by itself."""
        if self._run is not None and self.state.fn is TrainerFn.VALIDATING:
            return list(self._run.evals.counts)
        return list(self._all_counts()["validate"])

    @property
    def num_test_batches(self) -> list[float]:
        """Batches of each test loader."""
        return list(self._all_counts()["test"])

    @property
    def num_predict_batches(self) -> list[float]:
        """Batches of each prediction loader."""
        return list(self._all_counts()["predict"])

    @property
    def val_check_batch(self) -> float | None:
        """After how many batches validation is due; infinite where only the epoch's end tells."""
        return self._run.val_check_batch if self._run is not None and self._run.train is not None else None

    @property
    def estimated_stepping_batches(self) -> int | float:
        """Optimizer steps that the whole fit will take; infinite without a limit. Opens the training loader."""
        if self._run is None:
            raise MisconfigurationException("trainer.estimated_stepping_batches is known while a fit runs only")
        return session.estimated_steps(self._run)

    @property
    def _views(self) -> Any:
        from bolide.compat.views import Views

        return Views(self)

    @property
    def fit_loop(self) -> Any:
        """A view of the counters under the names of Lightning's loops."""
        return self._views.fit_loop

    @property
    def validate_loop(self) -> Any:
        """As `fit_loop`, of `validate`."""
        return self._views.validate_loop

    @property
    def test_loop(self) -> Any:
        """As `fit_loop`, of `test`."""
        return self._views.test_loop

    @property
    def predict_loop(self) -> Any:
        """As `fit_loop`, of `predict`; holds the predictions."""
        return self._views.predict_loop

    @property
    def _logger_connector(self) -> Any:
        return self._views._logger_connector

    @property
    def _accelerator_connector(self) -> Any:
        return self._views._accelerator_connector

    @property
    def _checkpoint_connector(self) -> Any:
        return self._views._checkpoint_connector

    def _merge_callbacks(self, more: list[Any]) -> None:
        if more:
            self.callbacks = merged_callbacks(list(self._callbacks), more)

    def _callback_problems(self) -> Iterator[str]:
        for callback in self._callbacks:
            check = getattr(callback, "check_trainer", None)
            if callable(check):
                yield from check(self)

    def _bump(self) -> None:
        if self._run is not None:
            self._run.version += 1

    def _change(self, name: str, value: Any) -> None:
        config = replace(self.config, **{name: value})
        wrong = [text for text in problems(config) if text.startswith(name)]
        if wrong:
            raise ConfigError(wrong)
        self.config = config
        if self._run is not None:
            self._run.config = config
            self._bump()

    def __getattr__(self, name: str) -> Any:  # reached by unknown names only
        raise AttributeError(unknown_attribute(name, type(self)))


def unknown_attribute(name: str, owner: type) -> str:
    """What is said of a name that a Trainer does not have: what became of it, or the nearest there is."""
    from bolide.compat.hooks_args import REMOVED_TRAINER_ATTRIBUTES
    from bolide.core.errors import did_you_mean

    if name in REMOVED_TRAINER_ATTRIBUTES:
        return f"Trainer.{name} is no longer there: {REMOVED_TRAINER_ATTRIBUTES[name]}"
    return f"Trainer has no attribute {name!r}." + did_you_mean(name, dir(owner))

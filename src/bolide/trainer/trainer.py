"""`Trainer`: the arguments, the four functions, and one-line properties over what runs.

Owns nothing that happens within a run: that is the engine's. It checks what it is given, opens a Run, and shows its
state under the names that user code knows.
"""

from __future__ import annotations

import math
import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

from bolide.checkpoint.file import write_checkpoint
from bolide.checkpoint.sharded_write import write_folder
from bolide.collectives import on_rank_zero, side_group
from bolide.compat.lightning_args import method_arguments
from bolide.core import env
from bolide.core.config import Checkpointing, Performance, Resilience, RunConfig, Watch
from bolide.core.errors import ConfigError, MisconfigurationException
from bolide.core.messages import warn, warn_once
from bolide.core.phases import SAVING, Phases
from bolide.core.progress import Progress
from bolide.core.states import TrainerFn, TrainerState, TrainerStatus
from bolide.engine import session
from bolide.engine.folders import lock_known, unlock
from bolide.engine.run import Run
from bolide.engine.signals import watched
from bolide.log import Log
from bolide.module import LightningModule, refuse_unpickling
from bolide.trainer import build, launching
from bolide.trainer.checks import checked_module, split_data
from bolide.trainer.paths import follows_a_finished_run
from bolide.trainer.properties import TrainerProperties
from bolide.trainer.settings import WatchedList
from bolide.trainer.tables import results_table

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from bolide.callbacks.callback import Callback
    from bolide.checkpoint.writer import Saving
    from bolide.datamodule import LightningDataModule
    from bolide.strategies.strategy import Strategy
    from bolide.trainer.replay import Replay


class Trainer(TrainerProperties):
    """Trains, validates, tests and predicts with a LightningModule.

    Example::

        trainer = Trainer(max_epochs=3)
        trainer.fit(module, train_loader, val_loader)
        print(trainer.callback_metrics)
    """

    def __init__(
        self,
        *,
        accelerator: Any = "auto",
        strategy: str | Strategy = "auto",
        devices: list[int] | str | int = "auto",
        num_nodes: int = 1,
        precision: int | str | None = None,
        logger: Any = None,
        callbacks: list[Callback] | Callback | None = None,
        fast_dev_run: int | bool = False,
        max_epochs: int | None = None,
        min_epochs: int | None = None,
        max_steps: int = -1,
        min_steps: int | None = None,
        max_time: str | timedelta | Mapping[str, int] | None = None,
        limit_train_batches: int | float | None = None,
        limit_val_batches: int | float | None = None,
        limit_test_batches: int | float | None = None,
        limit_predict_batches: int | float | None = None,
        overfit_batches: int | float = 0.0,
        val_check_interval: int | float | str | timedelta | Mapping[str, int] | None = None,
        check_val_every_n_epoch: int | None = 1,
        num_sanity_val_steps: int | None = None,
        log_every_n_steps: int | None = None,
        enable_checkpointing: bool | None = None,
        enable_progress_bar: bool | None = None,
        enable_model_summary: bool | None = None,
        accumulate_grad_batches: int = 1,
        gradient_clip_val: int | float | None = None,
        gradient_clip_algorithm: str | None = None,
        deterministic: bool | Literal["warn"] | None = None,
        benchmark: bool | None = None,
        inference_mode: bool = True,
        use_distributed_sampler: bool = True,
        profiler: Any = None,
        detect_anomaly: bool = False,
        barebones: bool = False,
        plugins: Any = None,
        sync_batchnorm: bool = False,
        reload_dataloaders_every_n_epochs: int = 0,
        default_root_dir: str | Path | None = None,
        enable_autolog_hparams: bool = True,
        model_registry: str | None = None,
        suggest_integrations: bool = True,
        compat: Literal["lightning"] | None = None,
        checkpointing: Checkpointing | Mapping[str, Any] | None = None,
        resilience: Resilience | Mapping[str, Any] | None = None,
        performance: Performance | Mapping[str, Any] | None = None,
        watch: Watch | Mapping[str, Any] | None = None,
        **old: Any,
    ) -> None:
        """Checks all arguments at once; one that is not given can come from `PL_TRAINER_<NAME>` in the environment.

        Args:
            accelerator: "auto", "cpu", "gpu", "cuda", "mps", or an Accelerator.
            strategy: "auto", "ddp" and others by name (docs/distributed.md), or a Strategy.
            devices: how many devices, or which; several run a process each.
            num_nodes: how many machines, each started by a launcher.
            precision: "32-true", "64-true", "16-true", "bf16-true", "16-mixed", "bf16-mixed", or 16, 32, 64, "bf16".
            logger: True (TensorBoard where it is installed, else CSV), False, a Logger or several.
            callbacks: a Callback or several.
            fast_dev_run: a dry run over one batch (True) or so many of each loader, writing nothing.
            max_epochs: stop after so many epochs; -1: without end; 1000 where no limit is given.
            min_epochs: do not stop early before so many epochs.
            max_steps: stop after so many optimizer steps; -1: no such limit.
            min_steps: do not stop early before so many optimizer steps.
            max_time: stop after "DD:HH:MM:SS", "15 min", a timedelta or a dictionary of its arguments.
            limit_train_batches: at most so many batches an epoch (int), or this share of them (float).
            limit_val_batches: as above, for validation.
            limit_test_batches: as above, for testing.
            limit_predict_batches: as above, for prediction.
            overfit_batches: train and validate on the same so many batches, or this share, unshuffled.
            val_check_interval: validate every share of an epoch (float), so many batches (int), or a quantity with its
                unit ("500 steps", "15 min", "2 epochs").
            check_val_every_n_epoch: validate in every so many epochs; None: count across epochs.
            num_sanity_val_steps: validation batches before training; -1: all.
            log_every_n_steps: step metrics go to the loggers every so many steps; 0: never.
            enable_checkpointing: whether a ModelCheckpoint is there by default.
            enable_progress_bar: whether there is a progress bar.
            enable_model_summary: whether the layers are listed.
            accumulate_grad_batches: batches to one optimizer step; the last window of an epoch may be shorter.
            gradient_clip_val: clips gradients to this norm or value.
            gradient_clip_algorithm: "norm" or "value".
            deterministic: True, "warn" or False: whether torch uses deterministic algorithms only.
            benchmark: cuDNN's benchmark mode.
            inference_mode: inference_mode (True) or no_grad in validate, test and predict.
            use_distributed_sampler: whether the processes share what a loader reads, each sample once.
            profiler: not built yet.
            detect_anomaly: autograd's anomaly detection in training.
            barebones: everything off but the loop.
            plugins: a Precision, a CheckpointIO or a ClusterEnvironment.
            sync_batchnorm: whether batch norm is over the batches of all processes.
            reload_dataloaders_every_n_epochs: ask the hooks for loaders again every so many epochs.
            default_root_dir: where files go; the working directory where not given.
            enable_autolog_hparams: whether hyperparameters go to the loggers.
            model_registry: not built yet.
            suggest_integrations: accepted; Bolide suggests none.
            compat: "lightning" gives Lightning's value wherever it differs from the right one.
            checkpointing: how checkpoints are written.
            resilience: what is done against failure.
            performance: what is done for speed and memory.
            watch: who looks on.
            old: spellings of earlier releases, each accepted with a warning or refused with the line to write.

        Raises:
            ConfigError: lists everything that is wrong or contradicts itself.
        """
        arguments = {name: value for name, value in locals().items() if name not in ("self", "old")}
        parts = build.build(arguments, old)
        self.config: RunConfig = parts.config
        self._world = parts.world
        self._strategy = parts.strategy
        self._precision = parts.precision
        self._strategy.checkpoint_io = parts.checkpoint_io
        self._resume_from = parts.resume_from
        self.queue = parts.queue
        self._run: Run | None = None
        self._counts: dict[str, Any] = {"fit": math.inf, "validate": [], "sanity": [], "test": [], "predict": []}
        self._fitted: weakref.ReferenceType[Any] | None = None
        self.state = TrainerState()
        self.progress = Progress()
        self.should_stop = False
        self.stop_reason: str | None = None
        self.ckpt_path: str | None = None
        self.ckpt_is_users = False  # ckpt_path was named by the user, not found by "auto", "last" or "best"
        self.received_sigterm = False
        self.datamodule: LightningDataModule | None = None
        self._default_root_dir = os.fspath(self.config.default_root_dir or os.getcwd())
        build.set_process_flags(self.config)
        self._loggers = build.make_loggers(self.config, self.default_root_dir)
        self._log = self._new_log()
        self._callbacks: WatchedList[Callback] = WatchedList([], self._bump)
        self.callbacks = build.make_callbacks(self.config, parts.added_callbacks)
        for text in self._callback_problems():
            raise ConfigError(text)
        self._endless = self.config.max_epochs is None
        if self._endless:
            self.config = build.replace(self.config, max_epochs=1000)
        self.state.status = TrainerStatus.INITIALIZING

    # ------------------------------------------------------------------ the functions

    def fit(
        self,
        model: LightningModule,
        train_dataloaders: Any = None,
        val_dataloaders: Any = None,
        datamodule: LightningDataModule | None = None,
        ckpt_path: str | Path | None = None,
        weights_only: bool | None = None,
        **old: Any,
    ) -> None:
        """Trains `model`.

        Args:
            model: a LightningModule.
            train_dataloaders: any iterable of batches, a collection of them, or a datamodule.
            val_dataloaders: any iterable of batches, or a collection of them.
            datamodule: in the place of loaders.
            ckpt_path: a path or URL to go on from, "best", "last", or "auto": what there is to go on from, else a
                start.
            weights_only: accepted as None or True; Bolide never unpickles code.
            old: spellings of earlier releases, with a warning.

        Raises:
            MisconfigurationException: the module, loaders or checkpoint cannot be used; the text says what to write.
        """
        if old:
            given = {"train_dataloaders": train_dataloaders, "val_dataloaders": val_dataloaders}
            found = method_arguments("fit", old, given)
            return self.fit(model, datamodule=datamodule, ckpt_path=ckpt_path, weights_only=weights_only, **found)
        if env.get("BOLIDE_ESTIMATE") is not None:
            module = checked_module(self, model, "fit", ("training_step",))
            launching.estimate_instead(module, *split_data("fit", train_dataloaders, datamodule, "train_dataloaders"))
        if launching.starts_ranks(self):
            launching.run_as_ranks(
                self, "fit", model=model, train_dataloaders=train_dataloaders, val_dataloaders=val_dataloaders,
                datamodule=datamodule, ckpt_path=ckpt_path, weights_only=weights_only,
            )  # fmt: skip
            return
        run, path = self._open_fit(model, train_dataloaders, val_dataloaders, datamodule, ckpt_path, weights_only)
        with run.signals:
            for _ in session.stepwise(run, path):
                pass

    def steps(
        self,
        model: LightningModule,
        train_dataloaders: Any = None,
        val_dataloaders: Any = None,
        datamodule: LightningDataModule | None = None,
        ckpt_path: str | Path | None = None,
    ) -> Iterator[Progress]:
        """`fit` as a generator: yields the counters after each batch, so that a loop of one's own decides what follows.

        Closing it early runs the end hooks, and the loggers hear "interrupted". Arguments are those of `fit`.

        Example::

            for progress in trainer.steps(module, loader):
                if progress.step == 100:
                    break
        """
        if self._world.starts_ranks:
            raise MisconfigurationException(
                f"trainer.steps with {self._world.world_size} processes needs them started before: write torchrun "
                f"--nproc-per-node={self._world.local_world_size} SCRIPT (or bolide launch), or use trainer.fit"
            )
        run, path = self._open_fit(model, train_dataloaders, val_dataloaders, datamodule, ckpt_path, None)
        return watched(session.stepwise(run, path), run.signals)

    def validate(
        self,
        model: LightningModule | None = None,
        dataloaders: Any = None,
        ckpt_path: str | Path | None = None,
        verbose: bool = True,
        datamodule: LightningDataModule | None = None,
        weights_only: bool | None = None,
        **old: Any,
    ) -> list[dict[str, float]]:
        """Validates; returns one dictionary of metrics for each loader.

        Args:
            model: a LightningModule; the last one where not given, with the best checkpoint's weights.
            dataloaders: any iterable of batches, a collection of them, or a datamodule.
            ckpt_path: weights to load first: a path or URL, "best" or "last".
            verbose: whether the results are printed.
            datamodule: in the place of loaders.
            weights_only: accepted as None or True; Bolide never unpickles code.
            old: spellings of earlier releases, with a warning.
        """
        if old:
            dataloaders = method_arguments("validate", old, {"dataloaders": dataloaders})["dataloaders"]
        return self._evaluate("validate", model, dataloaders, ckpt_path, verbose, datamodule, weights_only)

    def test(
        self,
        model: LightningModule | None = None,
        dataloaders: Any = None,
        ckpt_path: str | Path | None = None,
        verbose: bool = True,
        datamodule: LightningDataModule | None = None,
        weights_only: bool | None = None,
        **old: Any,
    ) -> list[dict[str, float]]:
        """Tests; returns one dictionary of metrics for each loader. Arguments are those of `validate`."""
        if old:
            dataloaders = method_arguments("test", old, {"dataloaders": dataloaders})["dataloaders"]
        return self._evaluate("test", model, dataloaders, ckpt_path, verbose, datamodule, weights_only)

    def predict(
        self,
        model: LightningModule | None = None,
        dataloaders: Any = None,
        datamodule: LightningDataModule | None = None,
        return_predictions: bool | Literal["ordered"] | None = None,
        ckpt_path: str | Path | None = None,
        weights_only: bool | None = None,
    ) -> Any:
        """Predicts; returns what `predict_step` returned, a list for one loader, a list of lists for several.

        Args:
            model: a LightningModule; the last one where not given, with the best checkpoint's weights.
            dataloaders: any iterable of batches, a collection of them, or a datamodule.
            datamodule: in the place of loaders.
            return_predictions: False keeps nothing and returns None; "ordered" puts what all processes predicted
                together, in the order of the samples, on the first one (the others return an empty list). By default
                each process returns what it predicted itself.
            ckpt_path: weights to load first: a path or URL, "best" or "last".
            weights_only: accepted as None or True; Bolide never unpickles code.
        """
        if return_predictions not in (None, True, False, "ordered"):
            raise ConfigError(f"return_predictions={return_predictions!r} must be True, False or 'ordered'")
        if launching.starts_ranks(self):
            return launching.run_as_ranks(
                self, "predict", model=model, dataloaders=dataloaders, datamodule=datamodule,
                return_predictions=return_predictions, ckpt_path=ckpt_path, weights_only=weights_only,
            )  # fmt: skip
        keep = return_predictions if return_predictions == "ordered" else return_predictions is not False
        with self._aside():
            run, path = self._open("predict", model, dataloaders, datamodule, ckpt_path, weights_only)
            with run.signals:
                return session.run_prediction(run, self.config.limit_predict_batches, path, keep)

    def _open_fit(
        self, model: Any, train: Any, val: Any, datamodule: Any, ckpt_path: Any, weights_only: bool | None
    ) -> tuple[Run, str | None]:
        refuse_unpickling(weights_only, "fit")
        module = checked_module(self, model, "fit", ("training_step",))
        train, datamodule = split_data("fit", train, datamodule, "train_dataloaders", val)
        if self._run is not None and self._run.live:
            raise MisconfigurationException(
                "trainer.fit was called while this trainer runs already (trainer.steps that is not ended, or a hook of "
                "a run); end that first, or make another Trainer"
            )
        another = self._fitted is not None and self._fitted() is not module
        if another and not self.config.switches.refit_continues_counters:
            self._start_anew()
        self._start_ranks()
        if self._endless and self.max_epochs == 1000:
            warn_once("max_epochs was not given: training ends after 1000 epochs. Write Trainer(max_epochs=...).")
        self.progress.abandon_epoch()
        self._fitted = weakref.ref(module)
        self.should_stop, self.stop_reason = False, None
        if ckpt_path is None and self._resume_from is not None:
            ckpt_path, self._resume_from = self._resume_from, None
        run = self._new_run("fit", module, datamodule)
        run.train_given, run.val.given = train, val
        if not another and self.progress.total_batches and run.limits_reached():
            warn(
                "This module was trained to the limit already, so this fit does nothing; set trainer.max_epochs or "
                "trainer.max_steps higher, or make a new Trainer."
            )
        if ckpt_path is None and launching.is_restart():
            ckpt_path = "auto"  # the agent has started this group again: it goes on from what there is
        lock_known(run)
        try:
            self.ckpt_path = launching.agreed_path(self, "fit", ckpt_path, model_given=True)
        except BaseException:
            unlock(run)
            raise
        launching.share_run_folder(self)  # now that it is known whether an earlier run goes on, in its folder
        self.ckpt_is_users = self.ckpt_path is not None and str(ckpt_path) not in ("auto", "last", "best")
        found_nothing = ckpt_path is not None and self.ckpt_path is None
        run.starts_over = found_nothing and not follows_a_finished_run(self)
        return run, self.ckpt_path

    def _start_anew(self) -> None:
        """Another module is trained: from the start, and nothing that callbacks know of the one before is its own."""
        self.progress = Progress()
        for callback in self._callbacks:
            start_anew = getattr(callback, "start_anew", None)  # callbacks of Lightning have none
            if start_anew is not None:
                start_anew()

    def _open(
        self, fn: str, model: Any, loaders: Any, datamodule: Any, ckpt_path: Any, weights_only: bool | None
    ) -> tuple[Run, str | None]:
        refuse_unpickling(weights_only, fn)
        previous = self.lightning_module
        if model is None and previous is None:
            raise MisconfigurationException(f"trainer.{fn}() needs a module: write trainer.{fn}(module, loaders)")
        needed = {"validate": ("validation_step",), "test": ("test_step",)}.get(fn, ())
        module = checked_module(self, previous if model is None else model, fn, needed)
        loaders, datamodule = split_data(fn, loaders, datamodule, "dataloaders")
        self._start_ranks()
        launching.share_run_folder(self)
        run = self._new_run(fn, module, datamodule)
        run.evals.given = loaders
        self.ckpt_path = launching.agreed_path(self, fn, ckpt_path, model_given=model is not None)
        return run, self.ckpt_path

    def _evaluate(
        self,
        fn: str,
        model: Any,
        loaders: Any,
        ckpt_path: Any,
        verbose: bool,
        datamodule: Any,
        weights_only: bool | None,
    ) -> list[dict[str, float]]:
        if launching.starts_ranks(self):
            return launching.run_as_ranks(
                self, fn, model=model, dataloaders=loaders, datamodule=datamodule, ckpt_path=ckpt_path,
                weights_only=weights_only, verbose=verbose,
            )  # fmt: skip
        with self._aside():
            run, path = self._open(fn, model, loaders, datamodule, ckpt_path, weights_only)
            limit = self.config.limit_val_batches if fn == "validate" else self.config.limit_test_batches
            with run.signals:
                results = session.run_evaluation(run, fn, limit, path)
        if verbose and self.is_global_zero:
            table = results_table(results, fn)
            if table:
                print(table)
        return results

    @contextmanager
    def _aside(self) -> Iterator[None]:
        """What is run within goes beside a run that is open (`steps`, or a hook that evaluates), which then goes on."""
        outer = self._run if self._run is not None and self._run.live else None
        self.finish_saves()  # "best" and "last" are then on the disk
        kept = (self._log, self.datamodule, self.ckpt_path, replace(self.state))
        try:
            yield
        finally:
            if outer is not None:
                self._log, self.datamodule, self.ckpt_path, state = kept
                self._run = outer
                self.state.status, self.state.fn, self.state.stage = state.status, state.fn, state.stage
                outer.module._attach(self, outer)
                session.attach_callbacks(outer)

    def __getstate__(self) -> dict[str, Any]:
        state = {key: value for key, value in self.__dict__.items() if key not in ("_run", "_fitted", "_log")}
        return {**state, "_run": None, "_fitted": None, "_log": Log()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state
        self._callbacks = WatchedList(self._callbacks, self._bump)  # a list that tells this trainer of its changes

    def _start_ranks(self) -> None:
        """Opens the group of processes, where there are several."""
        self._strategy.start(self.config.resilience.exact_resume)
        launching.take_launch_folder(self)

    def _new_log(self) -> Log:
        saves = {"save_every_s": -1.0} if self.config.switches.loggers_save_each_time else {}
        return Log(self._loggers, self.config.barebones, **saves)

    def _new_run(self, fn: str, module: LightningModule, datamodule: Any) -> Run:
        self._counts = self._all_counts()
        if self._run is not None and not self._run.live:
            unlock(self._run)  # of `steps` that nobody began
        self._run = None  # what the last run held is free before the next one starts
        self.datamodule = datamodule
        self._log = self._new_log()
        self._log.epoch = self.progress.epoch
        self.state.fn = TrainerFn(fn)
        self._run = Run(self, module, datamodule, self.progress, self._log)
        return self._run

    # ------------------------------------------------------------------ what users call within a run

    def save_checkpoint(
        self,
        filepath: str | Path,
        weights_only: bool | None = None,
        storage_options: Any = None,
        sharded: bool | None = None,
    ) -> None:
        """Writes a checkpoint of the run as it stands; returns when it is on the disk. All processes must call it.

        Args:
            filepath: a path or a URL for fsspec.
            weights_only: without optimizers, schedulers and callbacks.
            storage_options: handed to a CheckpointIO of one's own.
            sharded: False writes one file with whole tensors, gathered on the first process; True a folder to which
                each process writes its part; by default as the strategy says.

        Raises:
            MisconfigurationException: nothing was run yet.
            ConfigError: `sharded`, and a CheckpointIO.
        """
        run = self._run
        if run is None:
            raise MisconfigurationException(
                "trainer.save_checkpoint needs a module: call trainer.fit (or validate, test, predict) first"
            )
        with run.phases.within(SAVING):
            run.writer.join()
            in_parts = run.saves_parts if sharded is None else sharded
            if in_parts and (storage_options is not None or self._strategy.checkpoint_io is not None):
                raise ConfigError(
                    "A sharded checkpoint has a format of its own: a CheckpointIO and storage_options are for files. "
                    "Write sharded=False"
                )
            checkpoint = session.checkpoint_of(run, bool(weights_only), in_parts)
            if in_parts:
                write_folder(checkpoint, os.fspath(filepath), side_group.get())
            else:
                on_rank_zero(lambda: self.write_checkpoint(checkpoint, filepath, storage_options))

    def begin_save(
        self,
        paths: Sequence[str],
        weights_only: bool = False,
        *,
        then: Callable[[], Any] | None = None,
        otherwise: Callable[[BaseException], Any] | None = None,
        after_commit: Callable[[], Any] | None = None,
        wait: bool = False,
    ) -> Saving:
        """Saves the run as it stands under `paths`; files are written while training goes on, where that is set.

        For callbacks that save. `checkpointing={"on_save_error": ...}` says what a failed save does.

        Args:
            paths: where to; all get the same state.
            weights_only: without optimizers, schedulers and callbacks.
            then: called at a later step boundary, once all files are on the disk.
            otherwise: called instead, with the error, where one could not be written.
            after_commit: called after the commit, by the thread that writes: deletes and links files, nothing else.
            wait: returns when all is done.

        Returns:
            The save; with `wait`, it says whether it is committed.

        Raises:
            SaveError: a save failed, and on_save_error is "raise".
        """
        run = self._run
        assert run is not None, "only a run saves"
        with run.phases.within(SAVING):
            return run.writer.save(
                session.checkpoint_of(run, weights_only, run.saves_parts), paths, then,
                otherwise=otherwise, after_commit=after_commit, wait=wait,
            )  # fmt: skip

    def finish_saves(self) -> None:
        """Waits until everything that was handed over to be written is on the disk, and tells how that went.

        A second signal ends the wait.

        Raises:
            SaveError: a save failed, and on_save_error is "raise".
        """
        if self._run is not None and self._run.writer.busy:
            with self._run.phases.within(SAVING), self._run.signals.waiting():
                self._run.writer.drain()

    def write_checkpoint(self, checkpoint: dict[str, Any], filepath: str | Path, storage_options: Any = None) -> None:
        """Writes one file, by the CheckpointIO that was given where there is one."""
        own = self._strategy.checkpoint_io
        if own is not None:
            own.save_checkpoint(checkpoint, os.fspath(filepath), storage_options=storage_options)
        else:
            write_checkpoint(checkpoint, filepath)

    def replay_step(
        self,
        step: int,
        model: LightningModule | None = None,
        train_dataloaders: Any = None,
        val_dataloaders: Any = None,
        datamodule: LightningDataModule | None = None,
        ckpt_path: str | Path | None = None,
    ) -> Replay:
        """Computes an optimizer step again, from the checkpoint before it, and says whether the bits are the same.

        It is computed twice. Other bits the second time mean that an operation is not deterministic or that the
        hardware is broken; the same bits as in the run mean that the machine did as it was told, so that the model or
        its data are at fault. The run's own bits are those of a checkpoint of that very step, or the losses that
        `resilience={"replay": True}` records. Nothing is logged or saved, and neither the module nor the random
        states are changed.

        Args:
            step: the optimizer step, counted from 1.
            model: a LightningModule; that of the last fit where not given, with its loaders.
            train_dataloaders: as in `fit`.
            val_dataloaders: as in `fit`.
            datamodule: as in `fit`.
            ckpt_path: the checkpoint to start from; the newest before the step where not given.

        Raises:
            MisconfigurationException: no module, no checkpoint before the step, or a step that the run does not reach.

        Example::

            saver = ModelCheckpoint(every_n_train_steps=100, save_top_k=-1)
            trainer = Trainer(resilience={"replay": True}, callbacks=saver)
            trainer.fit(module, loader)
            print(trainer.replay_step(250))
        """
        from bolide.trainer.replay import replay_step

        return replay_step(self, step, model, train_dataloaders, val_dataloaders, datamodule, ckpt_path)

    def request_stop(self, reason: str) -> None:
        """Ends training after the running batch, once min_epochs and min_steps are met; says why."""
        self.should_stop, self.stop_reason = True, reason

    @property
    def phases(self) -> Phases:
        """How long the run was in each of its phases."""
        return self._run.phases if self._run is not None else Phases()

    def save_and_stop(self, reason: str) -> None:
        """Ends the running fit at its next step boundary as SIGTERM does: it is saved, and SIGTERMException is raised.

        May be called from any thread.
        """
        if self._run is not None:
            self._run.signals.ask(reason)

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Prints on the first process, above the bar where there is one."""
        if self.local_rank == 0:
            bar = self.progress_bar_callback
            if bar is not None and bar.is_enabled:
                bar.print(*args, **kwargs)
            else:
                print(*args, **kwargs)

    def init_module(self, empty_init: bool | None = None) -> AbstractContextManager[Any]:
        """The context in which a module is made on the device and in the precision of this trainer.

        Args:
            empty_init: without initial values, on the meta device, where a checkpoint follows.
        """
        stack = ExitStack()
        stack.enter_context(self._strategy.init_context(empty_init))
        stack.enter_context(self._precision.init_context())
        return stack

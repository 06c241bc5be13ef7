"""ModelCheckpoint: saves while a fit runs, keeps the best files and the newest one.

Owns the state (which files are kept, with which score) and the moments at which it looks; every decision is a
function of checkpoint/policy.py. The files of a moment are written by `trainer.begin_save`, while training goes on.
"""

from __future__ import annotations

import os
import time
import weakref
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
import yaml
from torch import Tensor

from bolide.callbacks.checkpoint import Checkpoint
from bolide.callbacks.monitored import at_train_epoch_end, missing_metric, switched, validates
from bolide.checkpoint import io, policy, store
from bolide.core.errors import ConfigError, UserCodeError
from bolide.core.hooks import internal
from bolide.core.messages import info, warn
from bolide.core.schedule import parse_duration

if TYPE_CHECKING:
    from bolide.module import LightningModule
    from bolide.trainer.trainer import Trainer


KEPT_FIELDS = (
    "current_score", "best_k_models", "kth_best_model_path", "kth_value", "best_model_score", "best_model_path",
    "last_model_path", "_last_global_step_saved", "_last_checkpoint_saved",
)  # fmt: skip
"""What a ModelCheckpoint knows of its files."""


@dataclass
class Moment:
    """What a moment of saving comes to. `before` is the callback's state, which a failed save brings back."""

    before: dict[str, Any]
    paths: list[str] = field(default_factory=list)
    link: str | None = None  # becomes a symbolic link to the first of the paths
    superseded: list[str] = field(default_factory=list)  # go once the paths are committed


class ModelCheckpoint(Checkpoint):
    """Saves checkpoints by epoch, by step or by time, and keeps the best `save_top_k` by a metric.

    Without `monitor` the newest file is kept (`save_top_k=1`), or all (-1). The best file is `best_model_path`.

    Args:
        dirpath: the folder; default: `checkpoints` below the first logger's run, else below `default_root_dir`.
        filename: a template such as "{epoch}-{val_loss:.2f}"; default "{epoch}-{step}". A slash makes a subfolder.
        monitor: the logged metric to rank by.
        verbose: says what was saved and why.
        save_last: True: `last.ckpt` is rewritten at each due moment, whether the metric was among the best or not, and
            at the end; "link": a symbolic link to the file that was just saved, where there is one.
        save_top_k: how many to keep; -1 all, 0 none. NaN counts as the worst score.
        save_on_exception: saves when the fit is ended by an exception.
        save_weights_only: leaves out what resuming needs.
        mode: "min" or "max": which score is better.
        auto_insert_metric_name: `{acc:.2f}` becomes "acc=0.93", not "0.93".
        every_n_train_steps: a save is due at every n-th optimizer step; 0 never.
        train_time_interval: a save is due so long after the last one: a timedelta, or text such as "15 min".
        every_n_epochs: a save is due in every n-th epoch (default 1 where nothing else is asked for); 0 never.
        save_on_train_epoch_end: whether epoch saves happen at the end of the training epoch, or of validation;
            default: of validation where it does not run exactly once an epoch.
        enable_version_counter: a name that is taken gets "-v1", "-v2"; False overwrites it.

    Raises:
        ConfigError: settings that are wrong or exclude each other, all in one.

    Example::

        best = ModelCheckpoint(monitor="val_loss", filename="{epoch}-{val_loss:.2f}", save_top_k=3, save_last=True)
        Trainer(callbacks=[best]).fit(model)
        print(best.best_model_path)
    """

    CHECKPOINT_JOIN_CHAR = "-"
    CHECKPOINT_EQUALS_CHAR = "="
    CHECKPOINT_NAME_LAST = "last"
    FILE_EXTENSION = ".ckpt"
    STARTING_VERSION = 1

    def __init__(
        self,
        dirpath: str | Path | None = None,
        filename: str | None = None,
        monitor: str | None = None,
        verbose: bool = False,
        save_last: bool | Literal["link"] | None = None,
        save_top_k: int = 1,
        save_on_exception: bool = False,
        save_weights_only: bool = False,
        mode: str = "min",
        auto_insert_metric_name: bool = True,
        every_n_train_steps: int | None = None,
        train_time_interval: timedelta | str | None = None,
        every_n_epochs: int | None = None,
        save_on_train_epoch_end: bool | None = None,
        enable_version_counter: bool = True,
    ) -> None:
        super().__init__()
        wrong = policy.problems(
            monitor=monitor, mode=mode, save_top_k=save_top_k, save_last=save_last, filename=filename,
            every_n_train_steps=every_n_train_steps, every_n_epochs=every_n_epochs,
            has_interval=train_time_interval is not None,
        )  # fmt: skip
        found = [f"ModelCheckpoint: {text}" for text in wrong]
        try:
            self._train_time_interval = None if train_time_interval is None else parse_duration(train_time_interval)
        except (ValueError, TypeError) as error:
            found.append(
                f"ModelCheckpoint: train_time_interval={train_time_interval!r} is no length of time; write "
                f'"15 min", or a timedelta ({error})'
            )
        if found:
            raise ConfigError(found)
        self.monitor = monitor
        self.verbose = verbose
        self.save_last = save_last
        self.save_top_k = save_top_k
        self.save_on_exception = save_on_exception
        self.save_weights_only = save_weights_only
        self.mode = mode
        self.auto_insert_metric_name = auto_insert_metric_name
        self.filename = filename
        self.dirpath = _absolute(dirpath)
        self._save_on_train_epoch_end = save_on_train_epoch_end
        self._enable_version_counter = enable_version_counter
        interval_s = None if self._train_time_interval is None else self._train_time_interval.total_seconds()
        self._rhythm = policy.rhythm(every_n_train_steps, every_n_epochs, interval_s)
        self._by_batch = self._rhythm.by_batch

        self._last_time_checked: float | None = None
        self._seen_step = 0
        self._exact_steps = False  # a multiple that several steps of one batch pass over is not due
        self._moment = Moment({})
        self._defer_save_until_validation = False
        self._missed = False  # a save was due and the metric was not there
        self._validated = False  # validation has run since training began
        self._resumed_from: str | None = None
        self.start_anew()

    def start_anew(self) -> None:
        """No file is known: those of earlier fits stay, and equal names get a version."""
        self.current_score: Tensor | None = None
        self.best_k_models: dict[str, Tensor] = {}
        self.kth_best_model_path = ""
        self.kth_value = policy.worst_possible(self.mode)
        self.best_model_score: Tensor | None = None
        self.best_model_path = ""
        self.last_model_path = ""
        self._last_global_step_saved = 0
        self._last_checkpoint_saved = ""

    # ------------------------------------------------------------------ names

    @property
    def state_key(self) -> str:
        """The settings that tell checkpoint callbacks apart."""
        return self._generate_state_key(
            monitor=self.monitor,
            mode=self.mode,
            every_n_train_steps=self._rhythm.every_n_train_steps,
            every_n_epochs=self._rhythm.every_n_epochs,
            train_time_interval=self._train_time_interval,
        )

    @property
    def every_n_epochs(self) -> int | None:
        """How many epochs lie between two saves; 0 where epochs do not decide."""
        return self._rhythm.every_n_epochs

    def format_checkpoint_name(
        self, metrics: dict[str, Any], filename: str | None = None, ver: int | None = None, prefix: str | None = None
    ) -> str:
        """The path of a checkpoint: the template filled from `metrics`, below `dirpath` where that is known.

        Raises:
            ConfigError: the name would lead out of `dirpath`, or a format does not fit its metric.

        Example::

            ModelCheckpoint(filename="{epoch}-{acc:.2f}").format_checkpoint_name({"epoch": 3, "acc": 0.931})
            # 'epoch=3-acc=0.93.ckpt'
        """
        join = self.CHECKPOINT_JOIN_CHAR
        style = policy.NameStyle(join, self.CHECKPOINT_EQUALS_CHAR, self.auto_insert_metric_name)
        template = filename or self.filename
        if not template:
            template, style = f"{{epoch}}{join}{{step}}", policy.NameStyle(join, self.CHECKPOINT_EQUALS_CHAR)
        name = policy.file_name(template, metrics, style, prefix)
        if ver is not None:
            name = f"{name}{join}v{ver}"
        name += self.FILE_EXTENSION
        return io.join(self.dirpath, name) if self.dirpath else name

    def file_exists(self, filepath: str | Path, trainer: Trainer) -> bool:
        """Whether there is a file, as the first process sees it; all processes get the same answer."""
        return bool(trainer.strategy.broadcast(io.exists(str(filepath))))

    def _free_path(self, trainer: Trainer, metrics: dict[str, Tensor], filename: str | None, own: str = "") -> str:
        """The path to write: with a version where the name is taken by another file than `own`."""

        def taken(path: str) -> bool:
            if path in self._moment.paths:
                return True  # not on the disk yet
            return self._enable_version_counter and path != own and self.file_exists(path, trainer)

        return policy.first_free(
            lambda version: self.format_checkpoint_name(metrics, filename, version), taken, self.STARTING_VERSION
        )

    def last_candidates(self, trainer: Trainer) -> list[str]:
        """The paths of what was written as the last checkpoint, by this run or an earlier one; for ckpt_path="last"."""
        folder, end = self.dirpath or self._resolve_ckpt_dir(trainer), self.FILE_EXTENSION
        last, join = self.CHECKPOINT_NAME_LAST, self.CHECKPOINT_JOIN_CHAR
        return [
            io.join(folder, name)
            for name in io.list_dir(folder)
            if name.endswith(end) and policy.matches_template(name.removesuffix(end), last, join)
        ]

    # ------------------------------------------------------------------ moments

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Settles the folder."""
        self.dirpath = trainer.strategy.broadcast(self._resolve_ckpt_dir(trainer))
        if stage != "fit" or trainer.fast_dev_run:
            return
        ckpt_path = trainer.ckpt_path
        self._resumed_from = None if ckpt_path is None else str(ckpt_path)
        if trainer.is_global_zero and self.save_top_k != 0 and self._resumed_from is None:
            self._warn_if_dir_not_empty(self.dirpath)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The clock and the step count start here."""
        self._last_time_checked = time.monotonic()
        self._seen_step = trainer.global_step
        self._exact_steps = switched(trainer, "step_per_optimizer")
        self._defer_save_until_validation = self._missed = self._validated = False
        if trainer.ckpt_path is not None:
            self._resumed_from = str(trainer.ckpt_path)
            if self._resumed_from in {self.best_model_path, self.last_model_path, *self.best_k_models}:
                self._last_global_step_saved = trainer.global_step  # that file is this step's save

    @internal
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Saves where a step or a time is due."""
        if not self._by_batch:
            return
        step = trainer.global_step
        due = policy.step_due(step, self._seen_step, self._rhythm.every_n_train_steps, self._exact_steps)
        self._seen_step = step
        if self._rhythm.interval_s is not None:
            now_s = time.monotonic()
            due = policy.time_due(now_s, self._last_time_checked, self._rhythm.interval_s)
            due = bool(trainer.strategy.broadcast(due))
            if due:
                self._last_time_checked = now_s
        if due and not self._should_skip_saving_checkpoint(trainer):
            self._save(trainer, by_batch=True, may_wait=True)

    def catch_up(self, trainer: Trainer, pl_module: LightningModule, kind: str, validated: bool) -> None:
        """Saves what was due at the moment that the run goes on from."""
        self._seen_step = trainer.global_step - 1
        super().catch_up(trainer, pl_module, kind, validated)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Saves where epoch saves belong to validation, or where one waited for its metric."""
        if trainer.sanity_checking or trainer.state.fn != "fit" or trainer.fast_dev_run:
            return
        self._validated = True
        at_epoch_end = self._should_save_on_train_epoch_end(trainer)
        waited = self._defer_save_until_validation
        if waited and at_epoch_end and switched(trainer, "deferred_save_is_dropped"):
            waited = self._defer_save_until_validation = False
        due = not at_epoch_end and policy.epoch_due(trainer.current_epoch, self._rhythm.every_n_epochs)
        if waited:
            if self.monitor in trainer.callback_metrics:
                self._save(trainer, by_batch=True, may_wait=True)
        elif due and not self._should_skip_saving_checkpoint(trainer):
            self._save(trainer, by_batch=False, may_wait=False)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Saves where epoch saves belong to the training epoch, or where one waited for its metric."""
        may_wait = self._validation_may_come(trainer)
        if self._defer_save_until_validation:
            if not may_wait or self.monitor in trainer.callback_metrics:
                self._save(trainer, by_batch=True, may_wait=False)
            return
        due = self._should_save_on_train_epoch_end(trainer) and policy.epoch_due(
            trainer.current_epoch, self._rhythm.every_n_epochs
        )
        if due and not self._should_skip_saving_checkpoint(trainer):
            self._save(trainer, by_batch=False, may_wait=may_wait)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Makes the last checkpoint the final state; says when a metric never came."""
        if trainer.fast_dev_run or trainer.state.fn != "fit":
            return
        if self._missed and not self.best_model_path:
            warn(missing_metric(trainer, self) + " No checkpoint was ranked.")
        if not self.save_last or trainer.global_step == self._last_global_step_saved:
            return
        if self._last_checkpoint_saved and switched(trainer, "last_is_last_saved"):
            return
        self._open_moment(trainer)
        self._save_last_checkpoint(trainer, self._monitor_candidates(trainer))
        self._commit(trainer, wait=True)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Saves what there is, where that was asked for. The ranking stays as it is."""
        if getattr(exception, "checkpoint_settled", False) or getattr(exception, "weights_are_spoiled", False):
            return
        if not self._should_save_on_exception(trainer):
            return
        if trainer.world_size > 1:
            warn(
                "save_on_exception saves nothing with several processes: one that failed cannot wait for the others. "
                "What was saved last is what the run goes on from."
            )
            return
        moment, candidates = self._open_moment(trainer), self._monitor_candidates(trainer)
        path = self._free_path(trainer, candidates, None)
        moment.paths.append(path)
        if self.save_last:
            self._save_last_checkpoint(trainer, candidates)
        if self._commit(trainer, wait=True):
            info(f"{type(exception).__name__}: the state at step {trainer.global_step} was saved to {path}")

    def save_on_stop(self, trainer: Trainer) -> str | None:
        """Writes the newest state as the last checkpoint, because the run is asked to stop; returns its path."""
        if self.save_weights_only or trainer.fast_dev_run:
            return None
        self._open_moment(trainer)
        self._save_last_checkpoint(trainer, self._monitor_candidates(trainer))
        return self.last_model_path if self._commit(trainer, wait=True) else None

    # ------------------------------------------------------------------ decisions, asked of the policy

    def _should_skip_saving_checkpoint(self, trainer: Trainer) -> bool:
        """Whether this is no moment to save: a dry run, no fit, the sanity check, or a step that was saved."""
        return bool(
            trainer.fast_dev_run
            or trainer.state.fn != "fit"
            or trainer.sanity_checking
            or self._last_global_step_saved == trainer.global_step
        )

    def _should_save_on_train_epoch_end(self, trainer: Trainer) -> bool:
        """Whether epoch saves belong to the end of the training epoch."""
        return at_train_epoch_end(trainer, self._save_on_train_epoch_end)

    def _should_save_on_exception(self, trainer: Trainer) -> bool:
        """Whether an exception is a moment to save."""
        return self.save_on_exception and not self._should_skip_saving_checkpoint(trainer)

    def _validation_may_come(self, trainer: Trainer) -> bool:
        """Whether the metric may still be logged by a validation that has not run yet."""
        return not self._validated and validates(trainer)

    def check_monitor_top_k(self, trainer: Trainer, current: Tensor | None = None) -> bool:
        """Whether `current` is among the best; all processes get the same answer."""
        if current is None:
            return False
        inside = policy.enters(current, self.best_k_models, self.save_top_k, self.mode)
        return bool(trainer.strategy.reduce_boolean_decision(inside))

    def _monitor_candidates(self, trainer: Trainer) -> dict[str, Tensor]:
        """What names and ranks can be made of: the logged metrics, `epoch` and `step`."""
        found = dict(trainer.callback_metrics)
        for name, own in (("epoch", trainer.current_epoch), ("step", trainer.global_step)):
            logged = found.get(name)
            found[name] = logged.int() if isinstance(logged, Tensor) else torch.tensor(own)
        if trainer.world_size > 1:  # names and ranks must be the same on all processes, whatever each has logged
            found = trainer.strategy.broadcast({name: value.cpu() for name, value in found.items()})
        return found

    # ------------------------------------------------------------------ saving

    def _save(self, trainer: Trainer, *, by_batch: bool, may_wait: bool) -> None:
        """A save is due: the ranked file, then the last one, then what they supersede goes."""
        moment, candidates = self._open_moment(trainer), self._monitor_candidates(trainer)
        self._defer_save_until_validation = False
        if self.monitor is not None and self.save_top_k != 0 and candidates.get(self.monitor) is None:
            if not may_wait:
                raise UserCodeError(missing_metric(trainer, self))
            self._missed = True
            self._defer_save_until_validation = by_batch
        else:
            self._save_topk_checkpoint(trainer, candidates)
        only_after_ranked = not by_batch and switched(trainer, "last_is_last_saved")
        if self.save_last and (moment.paths or not only_after_ranked):
            self._save_last_checkpoint(trainer, candidates)
        self._commit(trainer)

    def _save_topk_checkpoint(self, trainer: Trainer, monitor_candidates: dict[str, Tensor]) -> None:
        """Saves by rank, or the newest where nothing is monitored."""
        if self.save_top_k == 0:
            return
        if self.monitor is None:
            self._save_none_monitor_checkpoint(trainer, monitor_candidates)
        else:
            self._save_monitor_checkpoint(trainer, monitor_candidates)

    def _save_monitor_checkpoint(self, trainer: Trainer, monitor_candidates: dict[str, Tensor]) -> None:
        """Saves if the metric is among the best."""
        assert self.monitor is not None
        current = monitor_candidates[self.monitor]
        if self.check_monitor_top_k(trainer, current):
            self._update_best_and_save(current, trainer, monitor_candidates)
        elif self.verbose:
            info(
                f"Epoch {trainer.current_epoch}, step {trainer.global_step}: {self.monitor}={float(current):.5f} is "
                f"not among the best {self.save_top_k}"
            )

    def _save_none_monitor_checkpoint(self, trainer: Trainer, monitor_candidates: dict[str, Tensor]) -> None:
        """Saves the newest state; the one before goes unless all are kept."""
        previous = self.best_model_path
        keeps_all = self.save_top_k == -1 and not switched(trainer, "same_name_is_overwritten")
        path = self._free_path(trainer, monitor_candidates, None, own="" if keeps_all else previous)
        self.best_model_path = path
        if self.verbose:
            info(f"Epoch {trainer.current_epoch}, step {trainer.global_step}: a save is due, saved as {path}")
        self._moment.paths.append(path)
        if self.save_top_k == 1:
            self._moment.superseded.append(previous)

    def _update_best_and_save(self, current: Tensor, trainer: Trainer, monitor_candidates: dict[str, Tensor]) -> None:
        """Takes `current` into the ranking and saves. The file holds the ranking with itself in it."""
        score = policy.comparable(current, self.mode)
        lost = policy.losing_places(self.best_k_models, self.save_top_k, self.mode)
        path = self._free_path(trainer, monitor_candidates, None, own=lost[0] if lost else "")
        scores = {kept: value for kept, value in self.best_k_models.items() if kept not in lost}
        self.current_score = score
        self._take(policy.ranked({**scores, path: score}, self.save_top_k, self.mode))
        if self.verbose:
            info(
                f"Epoch {trainer.current_epoch}, step {trainer.global_step}: {self.monitor}={float(current):.5f} is "
                f"among the best {self.save_top_k}, saved as {path}"
            )
        self._moment.paths.append(path)
        self._moment.superseded += lost

    def _take(self, ranking: policy.Ranking) -> None:
        self.best_k_models = ranking.scores
        self.best_model_path, self.best_model_score = ranking.best_path, ranking.best_score
        self.kth_best_model_path, self.kth_value = ranking.worst_path, ranking.worst_score

    def _save_last_checkpoint(self, trainer: Trainer, monitor_candidates: dict[str, Tensor]) -> None:
        """Writes the newest state as the last checkpoint, or links it to the file that is saved at this moment."""
        previous = self.last_model_path
        path = self._free_path(trainer, monitor_candidates, self.CHECKPOINT_NAME_LAST, own=previous)
        self.last_model_path = path
        if self.save_last == "link" and self._moment.paths and not io.is_remote(path):
            self._moment.link = path
        else:
            self._moment.paths.append(path)
        self._moment.superseded.append(previous)

    def _open_moment(self, trainer: Trainer) -> Moment:
        """A moment of saving begins. What became of the save before it is known first, as it decides this one."""
        trainer.finish_saves()
        self._moment = Moment({name: getattr(self, name) for name in KEPT_FIELDS})
        return self._moment

    def _commit(self, trainer: Trainer, wait: bool = False) -> bool:
        """Hands the moment's files over to be written. Once they are committed what they supersede goes, and the
        loggers hear of it; where they could not be written nothing was saved, and nothing goes.

        Args:
            trainer: the trainer.
            wait: returns when that is done.

        Returns:
            With `wait`, whether the files are committed.
        """
        moment = self._moment
        if not moment.paths:
            return False
        self._last_global_step_saved = trainer.global_step
        self._last_checkpoint_saved = moment.paths[-1]
        kept = {*self.best_k_models, self.best_model_path, self.last_model_path}
        superseded = [path for path in dict.fromkeys(moment.superseded) if path not in kept]

        def tidy() -> None:
            if moment.link is not None:
                self._link_checkpoint(trainer, moment.paths[0], moment.link)
            for path in superseded:
                if self._should_remove_checkpoint(trainer, path, moment.paths[-1]):
                    self._remove_checkpoint(trainer, path)

        def tell(paths: list[str]) -> None:
            for path in paths if trainer.is_global_zero else ():
                self._last_checkpoint_saved = path
                for logger in trainer.loggers:
                    logger.after_save_checkpoint(weakref.proxy(self))

        def go_back(error: BaseException) -> None:
            for name, value in moment.before.items():
                setattr(self, name, value)

        # one state for all files of the moment; Lightning collects it anew for each
        anew = switched(trainer, "saves_within_hooks")
        try:
            for paths in [[path] for path in moment.paths] if anew else [moment.paths]:
                after = tidy if paths[-1] == moment.paths[-1] else None
                saving = trainer.begin_save(
                    paths, self.save_weights_only, then=partial(tell, paths), otherwise=go_back, after_commit=after,
                    wait=wait,
                )  # fmt: skip
        except BaseException as error:
            go_back(error)
            raise
        return wait and saving.committed

    @staticmethod
    def _link_checkpoint(trainer: Trainer, filepath: str, linkpath: str) -> None:
        """Makes `linkpath` a symbolic link to `filepath`."""
        if trainer.is_global_zero:
            io.link(filepath, linkpath)

    # ------------------------------------------------------------------ deleting

    def _should_remove_checkpoint(self, trainer: Trainer, previous: str, current: str) -> bool:
        """Whether the file may go: it lies in this callback's folder, and a user did not name it to go on from."""
        assert self.dirpath is not None
        if self._resumed_from is not None and trainer.ckpt_is_users and store.same_file(previous, self._resumed_from):
            return False
        return store.may_remove(previous, current, self.dirpath, self._resumed_from)

    def _remove_checkpoint(self, trainer: Trainer, filepath: str) -> None:
        """Deletes a file or a folder; the plugin that writes checkpoints does it where there is one."""
        remove = getattr(trainer.strategy, "remove_checkpoint", None)
        if remove is not None:
            remove(filepath)
        elif trainer.is_global_zero:
            io.remove(filepath)

    # ------------------------------------------------------------------ the folder

    def _resolve_ckpt_dir(self, trainer: Trainer) -> str:
        """The folder: as given, else of the first logger's run, else below the trainer's root."""
        if self.dirpath is not None:
            return self.dirpath
        root = str(trainer.default_root_dir)
        if not trainer.loggers:
            return io.join(root, "checkpoints")
        logger = trainer.loggers[0]
        version = logger.version if isinstance(logger.version, str) else f"version_{logger.version}"
        parts = [str(logger.save_dir or root), str(logger.name or ""), version, "checkpoints"]
        return io.expanded(io.join(*(part for part in parts if part)))  # as loggers find their own folder

    def _warn_if_dir_not_empty(self, dirpath: str) -> None:
        if not io.is_remote(dirpath) and any(not name.startswith(".") for name in io.list_dir(dirpath)):
            warn(f"The checkpoint folder {dirpath} is not empty. What is in it stays; equal names get a version.")

    def to_yaml(self, filepath: str | Path | None = None) -> None:
        """Writes the kept paths with their scores as YAML; default: `best_k_models.yaml` in `dirpath`."""
        scores = {path: float(score) for path, score in self.best_k_models.items()}
        if filepath is None:
            if self.dirpath is None:
                raise ConfigError("ModelCheckpoint.to_yaml needs a filepath: no folder is known before the first fit")
            filepath = io.join(self.dirpath, "best_k_models.yaml")
        io.write_atomically(str(filepath), lambda file: _write(file, yaml.safe_dump(scores).encode()))

    # ------------------------------------------------------------------ state

    def state_dict(self) -> dict[str, Any]:
        """Which files are kept, and how they score."""
        return {
            "monitor": self.monitor,
            "best_model_score": self.best_model_score,
            "best_model_path": self.best_model_path,
            "current_score": self.current_score,
            "dirpath": self.dirpath,
            "best_k_models": dict(self.best_k_models),
            "kth_best_model_path": self.kth_best_model_path,
            "kth_value": self.kth_value,
            "last_model_path": self.last_model_path,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on with the ranking, unless the folder is another one now: then only the best path is taken over."""
        saved_in = state_dict.get("dirpath", self.dirpath)
        if self.dirpath == saved_in:
            self.best_model_score = state_dict["best_model_score"]
            self.current_score = state_dict.get("current_score", self.current_score)
            self.kth_best_model_path = state_dict.get("kth_best_model_path", self.kth_best_model_path)
            self.kth_value = state_dict.get("kth_value", self.kth_value)
            self.best_k_models = dict(state_dict.get("best_k_models", self.best_k_models))
            self.last_model_path = state_dict.get("last_model_path", self.last_model_path)
        else:
            warn(
                f"The checkpoint folder was {saved_in!r} and is {self.dirpath!r} now: the ranking starts anew, only "
                "`best_model_path` is taken over."
            )
        self.best_model_path = state_dict["best_model_path"]


def _absolute(dirpath: str | Path | None) -> str | None:
    """The folder as it is kept: local ones absolute, with `~` and links resolved."""
    if not dirpath:
        return None
    text = str(dirpath)
    return text if io.is_remote(text) else os.path.realpath(io.local_path(text))


def _write(file: Any, data: bytes) -> None:
    file.write(data)

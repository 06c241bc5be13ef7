"""`search`: trains a LightningModule again and again with other settings, and finds the best.

Owns what a trial of the first door is: a module from `build`, a Trainer, a metric. tuner/study owns the study. Who
calls: users.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from bolide.callbacks import Callback, ModelCheckpoint
from bolide.checkpoint import io, store
from bolide.core.errors import ConfigError, UserCodeError, did_you_mean
from bolide.core.messages import notes_silenced
from bolide.data.loaders import made
from bolide.module import LightningModule
from bolide.seed import seed_everything
from bolide.trainer.trainer import Trainer
from bolide.tuner.study import Settings, Space, Study, run_study
from bolide.tuner.trial import Trial


@dataclass(frozen=True)
class SearchResult:
    """The best trial of a search.

    Attributes:
        index: its number.
        value: its metric at its best.
        settings: what was chosen for it.
        metrics: everything it logged last.
        history: the metric at each validation, as (step, value).
        checkpoint: the path of its best checkpoint.
        study: all trials; `study.plot(path)` draws them.
    """

    index: int
    value: float
    settings: dict[str, Any]
    metrics: dict[str, float]
    history: list[tuple[int, float]]
    checkpoint: str | None
    study: Study


class Reports(Callback):
    """Tells a trial the metric of each validation; a trial that is worse than others ends there."""

    def __init__(self, trial: Trial, monitor: str) -> None:
        self.trial, self.monitor = trial, monitor
        self.history: list[tuple[int, float]] = []

    def state_dict(self) -> dict[str, Any]:
        """The metric so far, for a trial that goes on in another process."""
        return {"history": [list(entry) for entry in self.history]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Comes back to it."""
        self.history = [(int(step), float(value)) for step, value in state_dict["history"]]

    def on_validation_end(self, trainer: Any, pl_module: LightningModule) -> None:
        """Reports."""
        if trainer.sanity_checking:
            return
        found = trainer.callback_metrics
        if self.monitor not in found:
            raise UserCodeError(
                f"monitor={self.monitor!r} was not logged; logged are {', '.join(found) or 'none'}."
                + did_you_mean(self.monitor, found)
            )
        value = float(found[self.monitor])
        self.history.append((trainer.global_step, value))
        self.trial.results["history"] = self.history
        self.trial.report(value, trainer.global_step)


def search(
    build: Callable[..., LightningModule],
    space: Space,
    *,
    monitor: str = "val_loss",
    direction: str = "minimize",
    n_trials: int = 20,
    train_dataloaders: Any = None,
    val_dataloaders: Any = None,
    datamodule: Any = None,
    trainer: Mapping[str, Any] | None = None,
    output_dir: str | os.PathLike[str] = "search",
    storage: Any = None,
    study_name: str = "bolide",
    sampler: Any = "tpe",
    pruner: Any = "median",
    seed: int = 0,
    timeout_s: float | None = None,
    n_jobs: int = 1,
    progress_bar: bool = True,
    backend: str = "optuna",
    max_failures: int = 2,
) -> SearchResult:
    """Trains `build(**settings)` for settings out of `space`, and returns the best trial.

    Each trial begins from the same seed, and leaves its best checkpoint below `output_dir`. Trials that are worse than
    the median of others at the same step are given up. With `storage`, a search that was killed goes on where it was.

    Args:
        build: makes a module of the settings.
        space: by name, a list to choose from, (low, high) or (low, high, "log"); or a function of optuna's trial.
        monitor: the metric that validation logs.
        direction: "minimize" or "maximize".
        n_trials: how many, those of an interrupted search among them.
        train_dataloaders: as for Trainer.fit; a function that makes them is called for each trial.
        val_dataloaders: as above.
        datamodule: in the place of loaders.
        trainer: arguments of Trainer, such as {"max_epochs": 5}.
        output_dir: where trials keep their checkpoints.
        storage: a path or URL for the study; None keeps it in memory.
        study_name: its name in the storage.
        sampler: "tpe" (Bayesian), "random", "grid", or a sampler of optuna's.
        pruner: "median", "hyperband", "none", or a pruner of optuna's.
        seed: of the choice and of each trial.
        timeout_s: no further trial begins after so long.
        n_jobs: processes side by side; needs `storage`.
        progress_bar: whether a bar shows the best so far.
        backend: "optuna" trains here; "ray" on a Ray cluster, `n_jobs` trials side by side; needs `storage`, and an
            `output_dir` that all its machines see.
        max_failures: how often Ray starts a trial again whose process is lost; it goes on from its newest checkpoint.

    Raises:
        ConfigError: lists everything that is wrong.
        MissingPackageError: optuna is not installed.

    Example::

        best = search(Digits, {"lr": (1e-4, 1e-1, "log")}, monitor="accuracy", direction="maximize",
                      train_dataloaders=train, val_dataloaders=val, trainer={"max_epochs": 3})
        print(best.settings, best.value, best.checkpoint)
    """
    options = dict(trainer or {})
    if "default_root_dir" in options:
        raise ConfigError("trainer={'default_root_dir': ...}: each trial has a folder of its own below output_dir")
    settings = Settings(
        n_trials, [direction], storage, study_name, sampler, pruner, seed, timeout_s, n_jobs, progress_bar, backend,
        os.path.join(os.fspath(output_dir), "ray"), max_failures,
    )  # fmt: skip

    def train(trial: Trial) -> float:
        seed_everything(seed, verbose=False)
        module = build(**trial.settings)
        folder = os.path.join(os.fspath(output_dir), f"trial-{trial.index}")
        if trial.can_go_on and not trial.goes_on:
            for path in store.checkpoints_in(folder):  # of another search: a lost trial must not go on from them
                io.remove(path)
        saver = ModelCheckpoint(
            dirpath=folder, monitor=monitor, mode="min" if direction == "minimize" else "max", filename="best",
            enable_version_counter=False, save_last=trial.can_go_on,
        )  # fmt: skip
        reports = Reports(trial, monitor)
        own = options.get("callbacks") or []
        own = list(own) if isinstance(own, (list, tuple)) else [own]
        quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False}
        runner = Trainer(**{**quiet, **options, "callbacks": [*own, reports, saver], "default_root_dir": folder})
        try:
            with notes_silenced():
                data = made(train_dataloaders), made(val_dataloaders), made(datamodule)
                runner.fit(module, *data, ckpt_path="auto" if trial.goes_on else None)
        finally:
            trial.results["checkpoint"] = saver.best_model_path or None
            trial.results["metrics"] = {name: float(value) for name, value in runner.callback_metrics.items()}
        if not reports.history:
            raise UserCodeError("No trial validates; give val_dataloaders and a validation_step that logs the metric")
        values = [value for _, value in reports.history if not math.isnan(value)]
        if not values:
            return math.inf if direction == "minimize" else -math.inf
        return min(values) if direction == "minimize" else max(values)

    study = run_study(train, space, settings)
    best = study.best()
    kept = best.user_attrs
    return SearchResult(
        kept["index"], best.value, dict(kept["settings"]), kept["metrics"], [tuple(x) for x in kept["history"]],
        kept["checkpoint"], study,
    )  # fmt: skip

"""`hyperparameter_search`: the second door's trainer, again and again with other settings.

Owns what a trial of the second door is: settings put into its arguments, a model made anew, an objective. tuner/study
owns the study. Who calls: Trainer.hyperparameter_search.
"""

from __future__ import annotations

import copy
import gc
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

from bolide import collectives
from bolide.checkpoint import io
from bolide.compat.hf_args import ROWS, translated
from bolide.core.errors import ConfigError
from bolide.core.messages import warn
from bolide.transformers.choices import HPSearchBackend
from bolide.transformers.folders import checkpoints_in
from bolide.transformers.state import BestRun
from bolide.tuner.study import BACKENDS, Settings, Space, run_study
from bolide.tuner.together import run_together
from bolide.tuner.trial import PrunedError, Trial

KINDS: dict[str, Callable[[Any], Any]] = {"bool": bool, "int": int, "float": float}
CLOCKS = ("_runtime", "_per_second", "_model_preparation_time")
KNOWN = (
    "storage", "sampler", "pruner", "study_name", "load_if_exists", "timeout", "n_jobs", "progress_bar",
    "show_progress_bar", "gc_after_trial", "catch", "seed", "max_failures",
)  # fmt: skip


def default_space(trial: Any) -> dict[str, Any]:
    """What is searched where nothing is said: learning rate, epochs, seed, batch size."""
    return {
        "learning_rate": trial.suggest_float("learning_rate", 1e-6, 1e-4, log=True),
        "num_train_epochs": trial.suggest_int("num_train_epochs", 1, 5),
        "seed": trial.suggest_int("seed", 1, 40),
        "per_device_train_batch_size": trial.suggest_categorical("per_device_train_batch_size", [4, 8, 16, 32, 64]),
    }


def default_compute_objective(metrics: Mapping[str, float]) -> float:
    """The sum of the metrics of an evaluation; its loss where there is no other."""
    found = {name: value for name, value in metrics.items() if name != "epoch" and not name.endswith(CLOCKS)}
    loss = found.pop("eval_loss", None)
    return float(loss) if not found and loss is not None else float(sum(found.values()))


class Reports:
    """Tells a trial the objective of each evaluation of its training; one that is worse than others ends there."""

    def __init__(self, trial: Trial, objective: Callable[[Any], Any], several: bool) -> None:
        self.trial, self.objective, self.several = trial, objective, several
        self.metrics: dict[str, float] | None = None

    def __call__(self, metrics: Mapping[str, float], step: int) -> None:
        """Takes what an evaluation gave, of all datasets, after so many steps."""
        self.metrics = dict(metrics)
        if not self.several:
            self.trial.report(float(self.objective(dict(metrics))), step)


def hyperparameter_search(
    trainer: Any,
    hp_space: Space | None,
    compute_objective: Callable[[dict[str, float]], Any] | None,
    n_trials: int,
    direction: str | Sequence[str],
    backend: str | None,
    hp_name: Callable[[Any], str] | None,
    **options: Any,
) -> BestRun | list[BestRun]:
    """Runs a search; arguments are those of Trainer.hyperparameter_search.

    Afterwards the trainer's arguments are what they were before. Within several processes all of them call it, and
    train each trial together: the first one has the study, and all get the best run.

    Raises:
        ConfigError: lists everything that is wrong.
        MissingPackageError: optuna is not installed.
    """
    direction = options.pop("directions", None) or direction  # optuna's name for more than one
    directions = [direction] if isinstance(direction, str) else list(direction)
    wrong = [f"hyperparameter_search has no argument {name!r}; there are {', '.join(KNOWN)}" for name in options
             if name not in KNOWN]  # fmt: skip
    if trainer.model_init is None:
        wrong.append("hyperparameter_search makes a new model for each trial: write Trainer(model_init=...)")
    if trainer.eval_dataset is None:
        wrong.append("hyperparameter_search compares evaluations: write Trainer(eval_dataset=...)")
    backend = getattr(backend, "value", backend) or "optuna"
    if backend not in BACKENDS:
        wrong.append(f"backend={backend!r} must be one of {', '.join(BACKENDS)}")
    catch = options.get("catch") or ()
    wrong += [f"catch={catch!r} must be a class of errors, or a tuple of them" for one in _each(catch)
              if not (isinstance(one, type) and issubclass(one, Exception))]  # fmt: skip
    if trainer.args.shards_model:
        raise ConfigError("hyperparameter_search with fsdp or deepspeed was not tried; leave it out for the search")
    if catch and trainer._several:
        wrong.append("catch: an error in one process leaves the others waiting; start the script as one process")
    if options.get("load_if_exists") is False:
        wrong.append("load_if_exists=False: a study that is in the storage goes on; write another study_name")
    if wrong:
        raise ConfigError(wrong)
    objective = trainer.compute_objective = compute_objective or default_compute_objective
    trainer.hp_space, trainer.objective = hp_space or default_space, None
    settings = Settings(
        n_trials=n_trials, directions=directions, storage=options.get("storage"),
        name=options.get("study_name") or "bolide", sampler=options.get("sampler") or "tpe",
        pruner=options.get("pruner", "median"), seed=options.get("seed", trainer.args.seed),
        timeout_s=options.get("timeout"), n_jobs=options.get("n_jobs", 1),
        progress_bar=options.get("progress_bar", options.get("show_progress_bar", not trainer.args.disable_tqdm)),
        backend=backend, folder=os.path.join(trainer.args.output_dir or "search", "ray"),
        max_failures=options.get("max_failures", 2),
    )  # fmt: skip

    collects_garbage = bool(options.get("gc_after_trial"))

    def train(trial: Trial) -> Any:
        with as_trial(trainer, trial, hp_name):
            trainer.hp_search_backend = HPSearchBackend(backend)
            reports = Reports(trial, objective, len(directions) > 1)
            trainer._report = reports
            try:
                trainer.train(resume_from_checkpoint=_place_of(trainer, trial), trial=trial)
                if reports.metrics is None or trainer.args.eval_strategy == "no":
                    reports.metrics = trainer.evaluate()
                trainer.objective = objective(dict(reports.metrics))
                return trainer.objective
            except PrunedError:
                raise
            except _each(catch) as error:
                warn(f"Trial {trial.number} is given up: {type(error).__name__}: {error}")
                raise PrunedError from error
            finally:
                trainer._report = None
                folder = trainer.state.best_model_checkpoint or trainer._newest_checkpoint
                trial.results |= {
                    "metrics": reports.metrics, "history": trainer.state.log_history,
                    "checkpoint": os.fspath(folder) if folder else None,
                }  # fmt: skip
                if collects_garbage:
                    gc.collect()

    study = (run_together if trainer._several else run_study)(train, hp_space or default_space, settings)

    def best_runs() -> list[BestRun]:
        assert study is not None
        return [_run_of(found) for found in (study.pareto() if len(directions) > 1 else [study.best()])]

    runs = [run._replace(run_summary=study) for run in collectives.on_rank_zero(best_runs)]
    return runs if len(directions) > 1 else runs[0]


def _run_of(found: Any) -> BestRun:
    """A trial of the study as a run, without the study."""
    kept, values = found.user_attrs, found.values
    return BestRun(
        str(kept["index"]), values[0] if len(values) == 1 else list(values), dict(kept["settings"]), None,
        kept["metrics"], kept["history"], kept["checkpoint"],
    )  # fmt: skip


def _each(catch: Any) -> tuple[Any, ...]:
    return tuple(catch) if isinstance(catch, (tuple, list)) else (catch,)


def _place_of(trainer: Any, trial: Trial) -> bool | None:
    """True where a trial goes on that a lost process had begun; one that may have to finds no other's checkpoints."""
    if trial.can_go_on and not trial.goes_on:
        trainer._trial = trial
        for folder in checkpoints_in(trainer._get_output_dir(trainer._trial)):
            io.remove(folder)
    return trial.goes_on or None


def put(args: Any, settings: Mapping[str, Any]) -> None:
    """Gives training arguments the settings of a trial: by the names of today or older ones, as the kind they have.

    Raises:
        ConfigError: lists everything that is wrong with them.
    """
    kinds = {f.name: str(getattr(f.type, "__name__", f.type)) for f in fields(args) if f.init}
    older = {name: value for name, value in settings.items() if name in ROWS and name not in kinds}
    found, wrong = translated(older, kinds, type(args).__name__)
    if wrong:
        raise ConfigError(wrong)
    for name, value in {**settings, **found}.items():
        if name in kinds or name in vars(args):
            kind = KINDS.get(kinds.get(name, ""))
            setattr(args, name, value if kind is None or value is None else kind(value))
        elif name not in older:
            warn(f"The space chose {name}={value!r}, which is no training argument; model_init(trial) may read it.")
    args.__post_init__()


@contextmanager
def as_trial(trainer: Any, trial: Trial, hp_name: Callable[[Any], str] | None) -> Iterator[None]:
    """The trainer with a trial's settings and fresh callbacks; afterwards it is as it was, its model let go of."""
    args, callbacks = trainer.args, list(trainer.callback_handler.callbacks)
    plain = (bool, int, float, str, type(None))
    kept = [{k: v for k, v in vars(callback).items() if isinstance(v, plain)} for callback in callbacks]
    own = copy.copy(args)
    put(own, trial.settings)
    trainer.args = own
    trainer.hp_name = hp_name
    try:
        yield
    finally:
        trainer.args = args
        for callback, state in zip(callbacks, kept, strict=True):
            vars(callback).update(state)
        trainer.optimizer = trainer.lr_scheduler = None
        trainer._made_engine = trainer._made_adapter = trainer._engine_loader = None
        trainer._trial = trainer.hp_search_backend = None

"""A study: trials one after the other, their values and settings in a file that survives a kill.

Owns which settings a trial gets (grid, random, TPE), pruning, the bar, and what is left at the end. It trains nothing:
a trial is a function that the caller gives. Optuna does the choosing. Who calls: tuner/search and transformers/search.
"""

from __future__ import annotations

import importlib.util
import itertools
import math
import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tqdm import tqdm

from bolide.core.errors import ConfigError, MissingPackageError, UserCodeError, did_you_mean
from bolide.core.messages import info
from bolide.launch.ray_cluster import require_ray
from bolide.tuner.trial import PrunedError, Trial

Space = Mapping[str, Any] | Callable[[Any], Mapping[str, Any]]
Train = Callable[[Trial], Any]
DIRECTIONS = ("minimize", "maximize")
SAMPLERS = ("tpe", "random", "grid")
SQLITE_WAITS_S = 120
BACKENDS = ("optuna", "ray")
PRUNERS = ("median", "hyperband", "none")


def require_optuna() -> Any:
    """Optuna, quiet.

    Raises:
        MissingPackageError: it is not installed.
    """
    if importlib.util.find_spec("optuna") is None:
        raise MissingPackageError("A search", "optuna", "search")
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


# ---------------------------------------------------------------------- what is searched


def suggest(ask: Any, space: Space) -> dict[str, Any]:
    """Chooses settings out of a space.

    A space is a function of optuna's trial, or a dictionary: a list is a choice, (low, high) a range of whole or real
    numbers, (low, high, "log") one on a logarithmic scale.

    Raises:
        ConfigError: something else.
    """
    if callable(space):
        found = space(ask)
        if not isinstance(found, Mapping):
            raise ConfigError(f"the space returned a {type(found).__name__}; return a dictionary of settings")
        return {name: _plain(value) for name, value in found.items()}
    return {name: _one(ask, name, entry) for name, entry in space.items()}


def _plain(value: Any) -> Any:
    """A number of numpy's as one of Python's, which a storage can keep; anything else as it is."""
    return value.item() if hasattr(value, "item") and getattr(value, "ndim", None) == 0 else value


def _one(ask: Any, name: str, entry: Any) -> Any:
    if isinstance(entry, list):
        return ask.suggest_categorical(name, entry)
    if isinstance(entry, tuple) and len(entry) in (2, 3) and all(_is_number(x) for x in entry[:2]):
        low, high = entry[:2]
        log = len(entry) == 3
        if log and entry[2] != "log":
            raise ConfigError(f"space[{name!r}] = {entry!r}: the third entry can be 'log' only")
        if isinstance(low, int) and isinstance(high, int):
            return ask.suggest_int(name, low, high, log=log)
        return ask.suggest_float(name, low, high, log=log)
    raise ConfigError(f"space[{name!r}] = {entry!r} must be a list to choose from, (low, high) or (low, high, 'log')")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def grid_of(space: Space) -> list[dict[str, Any]]:
    """All points of a grid, in order.

    Raises:
        ConfigError: the space is not one of lists alone.
    """
    if callable(space) or not all(isinstance(entry, list) for entry in space.values()):
        raise ConfigError("sampler='grid' needs a space whose entries are all lists: {'lr': [0.1, 0.01], ...}")
    return [dict(zip(space, point, strict=True)) for point in itertools.product(*space.values())]


def points_of(space: Space, settings: Settings) -> tuple[list[dict[str, Any]] | None, int]:
    """The points of a grid, if it is one, and how many trials there are in all."""
    if settings.sampler != "grid":
        return None, settings.n_trials
    grid = grid_of(space)
    return grid, min(settings.n_trials, len(grid))


# ---------------------------------------------------------------------- the study


@dataclass
class Study:
    """What a search leaves.

    Attributes:
        study: optuna's.
        seconds: how long this call took.
    """

    study: Any
    seconds: float = 0.0

    def finished(self) -> list[Any]:
        """The trials that count, in their order: done or given up. What a kill or an error ended is done again."""
        states = require_optuna().trial.TrialState
        found = self.study.get_trials(deepcopy=False, states=(states.COMPLETE, states.PRUNED))
        return sorted(found, key=lambda trial: trial.user_attrs["index"])

    def missing(self, total: int) -> list[int]:
        """The numbers below `total` of trials that are still to be done."""
        done = {trial.user_attrs["index"] for trial in self.finished()}
        return [index for index in range(total) if index not in done]

    def best(self) -> Any:
        """The best trial.

        Raises:
            UserCodeError: none came to a value.
        """
        found, complete = self.finished(), require_optuna().trial.TrialState.COMPLETE
        if all(trial.state != complete for trial in found):
            raise UserCodeError(
                f"The search has no best trial: of its {len(found)} trials none came to a value; all were given up, or "
                "ended with NaN"
            )
        return self.study.best_trial

    def pareto(self) -> list[Any]:
        """The trials that no other is better than in every direction."""
        return list(self.study.best_trials)

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Writes how the best value came about, and how much each setting mattered, as one HTML page.

        Raises:
            MissingPackageError: plotly is not installed.
        """
        if importlib.util.find_spec("plotly") is None:
            raise MissingPackageError("Plotting a study", "plotly", "search")
        optuna = require_optuna()
        several = len(self.study.directions) > 1
        figures = []
        for i in range(len(self.study.directions)):
            target = {"target": lambda t, i=i: t.values[i], "target_name": f"objective {i}"} if several else {}
            figures.append(optuna.visualization.plot_optimization_history(self.study, **target))
            done = [t for t in self.finished() if t.values is not None and t.params]
            if len(done) > 1 and len({tuple(t.values) for t in done}) > 1:
                figures.append(optuna.visualization.plot_param_importances(self.study, **target))
        parts = [
            figure.to_html(full_html=False, include_plotlyjs="inline" if i == 0 else False)
            for i, figure in enumerate(figures)
        ]
        page = f"<html><head><meta charset='utf-8'><title>{self.study.study_name}</title></head><body>"
        with open(path, "w", encoding="utf-8") as file:
            file.write(page + "\n".join(parts) + "</body></html>\n")


@dataclass
class Settings:
    """How a study goes.

    Attributes:
        n_trials: trials in all, those of earlier calls on the same storage among them.
        directions: "minimize" or "maximize" for each objective.
        storage: None keeps the study in memory; a path, or a URL such as sqlite:///study.db, in a file.
        name: of the study in the storage.
        sampler: "tpe", "random", "grid", or a sampler of optuna's.
        pruner: "median", "hyperband", "none", or a pruner of optuna's.
        seed: trial i draws by seed + i, whatever was killed before it.
        timeout_s: no further trial begins after so long.
        n_jobs: processes side by side, on one storage.
        progress_bar: whether a bar shows the best so far.
        backend: "optuna" trains here, "ray" on a Ray cluster, `n_jobs` trials side by side.
        folder: where Ray keeps its files; all machines of the cluster see it.
        max_failures: how often Ray starts a trial again whose process is lost.
    """

    n_trials: int
    directions: Sequence[str]
    storage: Any = None
    name: str = "bolide"
    sampler: Any = "tpe"
    pruner: Any = "median"
    seed: int = 0
    timeout_s: float | None = None
    n_jobs: int = 1
    progress_bar: bool = True
    backend: str = "optuna"
    folder: str = "search"
    max_failures: int = 2

    def problems(self) -> list[str]:
        """Everything that is wrong."""
        wrong = []
        if not isinstance(self.n_trials, int) or self.n_trials < 1:
            wrong.append(f"n_trials={self.n_trials!r} must be a whole number of at least 1")
        wrong += [f"direction={word!r} must be 'minimize' or 'maximize'" for word in self.directions
                  if word not in DIRECTIONS]  # fmt: skip
        for name, words in (("sampler", SAMPLERS), ("pruner", PRUNERS)):
            value = getattr(self, name)
            if isinstance(value, str) and value not in words:
                wrong.append(f"{name}={value!r} must be one of {', '.join(words)}." + did_you_mean(value, words))
        if not isinstance(self.n_jobs, int) or self.n_jobs < 1:
            wrong.append(f"n_jobs={self.n_jobs!r} must be a whole number of at least 1")
        if not isinstance(self.max_failures, int) or self.max_failures < 0:
            wrong.append(f"max_failures={self.max_failures!r} must be a whole number of at least 0")
        if self.backend not in BACKENDS:
            wrong.append(f"backend={self.backend!r} must be one of {', '.join(BACKENDS)}")
        elif self.backend == "ray":
            if self.storage is None:
                wrong.append("backend='ray' keeps the study in a file: write storage='study.db'")
        elif isinstance(self.n_jobs, int) and self.n_jobs > 1 and (self.storage is None or not hasattr(os, "fork")):
            wrong.append(f"n_jobs={self.n_jobs} processes meet in a file: write storage='study.db' (not on Windows)")
        return wrong


def run_study(train: Train, space: Space, settings: Settings) -> Study:
    """Runs trials until there are so many; `train` returns a trial's value, or one for each direction.

    A trial whose process was killed is done again with the same settings. An error in a trial ends the study, and is
    raised; the trials that are done stay in the storage.

    Raises:
        ConfigError: lists everything that is wrong with the settings.
    """
    wrong = settings.problems()
    if wrong:
        raise ConfigError(wrong)
    optuna = require_optuna()
    began_s = time.monotonic()
    grid, total = points_of(space, settings)
    here = settings.n_jobs == 1 and settings.backend == "optuna"
    if settings.backend == "ray":
        require_ray('backend="ray"')
        from bolide.tuner.on_ray import run_on_ray

        keeper = Keeper(space, settings, grid, total)
        count = len(keeper.missing)
        with bar_of(settings, total, count) as bar:

            def show() -> None:
                bar.set_postfix_str(best_so_far(keeper.study))
                bar.update()

            run_on_ray(train, keeper, show, count, settings.n_jobs, settings.folder, settings.max_failures)
    elif settings.n_jobs > 1:
        _side_by_side(train, space, settings, grid, total)
    study = _open(optuna, settings)
    if here:
        _forget_interrupted(optuna, study)
        missing = Study(study).missing(total)
        with bar_of(settings, total, len(missing)) as bar:
            for index in missing:
                if _late(settings, began_s):
                    break
                _one_trial(optuna, study, train, space, settings, grid, index)
                bar.set_postfix_str(best_so_far(study))
                bar.update()
    return Study(study, time.monotonic() - began_s)


def bar_of(settings: Settings, total: int, missing: int) -> Any:
    """The bar, which begins with the trials that an earlier call has done."""
    if missing < total:
        info(f"The study goes on: {total - missing} of its {total} trials are done.")
    return tqdm(
        total=total, initial=total - missing, disable=not settings.progress_bar, file=sys.stderr, dynamic_ncols=True
    )


def _late(settings: Settings, began_s: float) -> bool:
    return settings.timeout_s is not None and time.monotonic() - began_s > settings.timeout_s


def _open(optuna: Any, settings: Settings) -> Any:
    storage = settings.storage
    if isinstance(storage, (str, os.PathLike)):
        text = os.fspath(storage)
        storage = text if "://" in text else f"sqlite:///{os.path.abspath(text)}"
        if storage.startswith("sqlite:///"):
            os.makedirs(os.path.dirname(storage.removeprefix("sqlite:///")) or ".", exist_ok=True)
            # processes that share the file wait for each other, on a slow disk longer than sqlite's own 5 s
            waits = {"connect_args": {"timeout": SQLITE_WAITS_S}}
            storage = optuna.storages.RDBStorage(storage, engine_kwargs=waits)
    return optuna.create_study(
        storage=storage, study_name=settings.name, directions=list(settings.directions), load_if_exists=True,
        pruner=_pruner(optuna, settings),
    )  # fmt: skip


def _pruner(optuna: Any, settings: Settings) -> Any:
    if not isinstance(settings.pruner, str):
        return settings.pruner or optuna.pruners.NopPruner()
    if len(settings.directions) > 1:
        return optuna.pruners.NopPruner()
    made = {
        "median": lambda: optuna.pruners.MedianPruner(n_startup_trials=4),
        "hyperband": optuna.pruners.HyperbandPruner,
        "none": optuna.pruners.NopPruner,
    }
    return made[settings.pruner]()


def _sampler(optuna: Any, settings: Settings, index: int) -> Any:
    """The sampler of one trial: new each time, so that what it draws depends on the trial's number alone."""
    if not isinstance(settings.sampler, str):
        return settings.sampler
    if settings.sampler == "tpe":
        return optuna.samplers.TPESampler(seed=settings.seed + index)
    return optuna.samplers.RandomSampler(seed=settings.seed + index)


def _forget_interrupted(optuna: Any, study: Any) -> None:
    """Trials that a killed process left running count for nothing; they are done again."""
    for trial in study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.RUNNING,)):
        study.tell(trial.number, state=optuna.trial.TrialState.FAIL)


def _one_trial(optuna: Any, study: Any, train: Train, space: Space, settings: Settings, grid: Any, index: int) -> None:
    ask, trial = _begun(optuna, study, space, settings, grid, index)
    states = optuna.trial.TrialState
    try:
        value = train(trial)
    except PrunedError:
        _keep(ask, trial)
        study.tell(ask, state=states.PRUNED)
        return
    except BaseException:
        study.tell(ask, state=states.FAIL)
        raise
    _keep(ask, trial)
    _end(optuna, study, ask, value)


def _begun(optuna: Any, study: Any, space: Space, settings: Settings, grid: Any, index: int) -> tuple[Any, Trial]:
    """A new trial, as optuna's and as the one that is trained, its settings chosen."""
    study.sampler = _sampler(optuna, settings, index)
    if grid is not None:
        study.enqueue_trial(grid[index])
    ask = study.ask()

    seen: set[int] = set()

    def tell(value: float, step: int) -> bool:
        if step not in seen:  # a trial that goes on from a checkpoint comes by some of its steps again
            ask.report(value, step)
        seen.add(step)
        return bool(ask.should_prune())

    def choose(kind: str, name: str, *among: Any, **options: Any) -> Any:
        return getattr(ask, f"suggest_{kind}")(name, *among, **options)

    trial = Trial(index, suggest(ask, space), tell, choose=choose)
    ask.set_user_attr("index", index)
    return ask, trial


def _end(optuna: Any, study: Any, ask: Any, value: Any) -> None:
    """Ends a trial with its value; one that diverged has none, and is not done again."""
    values = [float(x) for x in value] if isinstance(value, (list, tuple)) else [float(value)]
    if any(math.isnan(x) for x in values):
        study.tell(ask, state=optuna.trial.TrialState.PRUNED)
    else:
        study.tell(ask, values)


def _keep(ask: Any, trial: Trial) -> None:
    for name, result in {"settings": trial.settings, **trial.results}.items():
        ask.set_user_attr(name, result)


def best_so_far(study: Any) -> str:
    """What a bar shows of a study of optuna's."""
    try:
        if len(study.directions) > 1:
            return f"{len(study.best_trials)} on the Pareto front"
        return f"best {study.best_value:.5g} {study.best_params}"
    except ValueError:
        return "no trial is done yet"


class Keeper:
    """A study that hands out trials to others: what backend="ray" asks.

    Arguments are those of `run_study`, with the points of a grid, if any, and how many trials there are.
    """

    def __init__(self, space: Space, settings: Settings, grid: Any, total: int) -> None:
        self.optuna = require_optuna()
        self.space, self.settings, self.grid = space, settings, grid
        self.study = _open(self.optuna, settings)
        _forget_interrupted(self.optuna, self.study)
        self.missing = Study(self.study).missing(total)
        self.began_s = time.monotonic()
        self.running: dict[int, tuple[Any, Trial]] = {}

    def next(self) -> tuple[int, dict[str, Any]] | None:
        """The next trial's number and settings; None where there is none."""
        if not self.missing or _late(self.settings, self.began_s):
            return None
        index = self.missing.pop(0)
        ask, trial = _begun(self.optuna, self.study, self.space, self.settings, self.grid, index)
        self.running[index] = ask, trial
        return index, trial.settings

    def report(self, index: int, value: float, step: int) -> bool:
        """Takes an intermediate value; whether the trial is to be given up."""
        return self.running[index][1].tell(value, step)

    def choose(self, index: int, kind: str, name: str, *among: Any, **options: Any) -> Any:
        """Chooses one more setting of a trial."""
        return self.running[index][1]._chosen(kind, name, *among, **options)

    def finish(self, index: int, value: Any, results: dict[str, Any]) -> None:
        """Ends a trial; without a value it was given up."""
        ask, trial = self.running.pop(index)
        trial.results = results
        _keep(ask, trial)
        if value is None:
            self.study.tell(ask, state=self.optuna.trial.TrialState.PRUNED)
        else:
            _end(self.optuna, self.study, ask, value)


def _side_by_side(train: Train, space: Space, settings: Settings, grid: Any, total: int) -> None:
    """Runs trials in forked processes on one storage; each takes the next number until there are so many.

    Raises:
        ConfigError: a CUDA context is open, which a fork cannot take along.
        RuntimeError: a process failed.
    """
    import torch

    if torch.cuda.is_initialized():
        raise ConfigError("n_jobs > 1 forks, which cannot be done once CUDA is in use; search first, or write n_jobs=1")
    optuna = require_optuna()
    study = _open(optuna, settings)
    _forget_interrupted(optuna, study)
    missing = Study(study).missing(total)
    del study
    began_s = time.monotonic()
    children = []
    for job in range(settings.n_jobs):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                mine = _open(optuna, settings)
                for index in missing[job :: settings.n_jobs]:
                    if _late(settings, began_s):
                        break
                    _one_trial(optuna, mine, train, space, settings, grid, index)
                code = 0
            except BaseException:  # noqa: BLE001  # the process ends here, with its word
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        children.append(pid)
    failed = [pid for pid in children if os.waitpid(pid, 0)[1] != 0]
    if failed:
        raise RuntimeError(f"{len(failed)} of {settings.n_jobs} processes of the search failed; see what they wrote")

"""A study over a Ray cluster: Ray Tune places the trials, and starts those again whose process is lost.

Owns what Tune is told: its search algorithm asks the study for settings, its scheduler asks the study whether a trial
is to be given up. The study itself stays in the program that searches, and in its file. This module imports Ray at its
head, so it is imported late. Who calls: tuner/study, for backend="ray".
"""

from __future__ import annotations

import json
import os
import time
import traceback
import uuid
from collections.abc import Callable
from typing import Any, Protocol

import ray
from ray import tune
from ray.tune.schedulers import FIFOScheduler, TrialScheduler
from ray.tune.search import Searcher

from bolide.checkpoint import io
from bolide.core import env
from bolide.launch.ray_cluster import connected, enter, folder_for_workers
from bolide.tuner.trial import Trial

TOLD = "told"
"""The one entry of what a trial reports: text, as Tune would take a dictionary apart."""


class Keeper(Protocol):
    """Who keeps the study."""

    def next(self) -> tuple[int, dict[str, Any]] | None: ...

    def report(self, index: int, value: float, step: int) -> bool: ...

    def finish(self, index: int, value: Any, results: dict[str, Any]) -> None: ...


def run_on_ray(
    train: Callable[[Trial], Any], keeper: Keeper, show: Callable[[], None], count: int, jobs: int, folder: str,
    max_failures: int,
) -> None:  # fmt: skip
    """Trains the trials that `keeper` hands out.

    Args:
        train: a trial's function; goes to the workers by Ray's serialisation.
        keeper: next() -> (index, settings), or None where there is none; report(index, value, step) -> whether to give
            up; finish(index, value, results), with None as the value of a trial that is given up.
        show: called when a trial is over.
        count: how many trials there are at the most.
        jobs: how many at a time.
        folder: where Tune keeps its files; all machines of the cluster see it.
        max_failures: how often a trial is started again whose process is lost.

    Raises:
        RuntimeError: a trial raised, or was lost too often; with its traceback.
    """
    if count == 0:
        return
    name = f"study-{time.strftime('%Y%m%d-%H%M%S')}-{uuid.uuid4().hex[:6]}"
    folder = folder if io.is_remote(folder) else os.path.abspath(folder)
    begun = io.join(folder, name, "begun")
    errors = Errors()
    quiet = {"TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1"}

    with connected('backend="ray"', cpus=jobs, log_to_driver=False), env.changed(quiet):
        here = folder_for_workers(ray)

        def trial_main(config: dict[str, Any]) -> None:
            _trial_main(config, train, here, begun)

        gpus = ray.cluster_resources().get("GPU", 0) > 0
        search, scheduler = Asks(keeper, show, errors), GivesUp(keeper, errors)
        scheduler.numbers = search.numbers
        tuner = tune.Tuner(
            tune.with_resources(trial_main, {"CPU": 1, "GPU": 1} if gpus else {"CPU": 1}),
            tune_config=tune.TuneConfig(
                search_alg=search, scheduler=scheduler, num_samples=count, max_concurrent_trials=jobs,
                trial_dirname_creator=lambda trial: f"trial-{trial.config['index']}",
            ),
            run_config=tune.RunConfig(
                name=name, storage_path=folder, verbose=0, failure_config=tune.FailureConfig(max_failures=max_failures),
                stop=EndsWithAnError(errors),
            ),
        )  # fmt: skip
        tuner.fit()
    if errors.texts:
        raise RuntimeError(errors.texts[0])


class Errors:
    """What trials of this search failed with; the first ends it."""

    def __init__(self) -> None:
        self.texts: list[str] = []


class Asks(Searcher):
    """Tune's search algorithm: the study's next trial, and what has become of it."""

    def __init__(self, keeper: Keeper, show: Callable[[], None], errors: Errors) -> None:
        super().__init__()
        self.keeper, self.show, self.errors = keeper, show, errors
        self.numbers: dict[str, int] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Tune saves its objects as it goes along; the study has a file of its own."""
        return {}

    def save(self, checkpoint_path: str) -> None:
        """Nothing: a search that was killed goes on from the study's file."""

    def set_search_properties(self, metric: str | None, mode: str | None, config: dict[str, Any], **spec: Any) -> bool:
        """The study knows its directions."""
        return True

    def suggest(self, trial_id: str) -> Any:
        """The settings of the next trial."""
        found = None if self.errors.texts else self.keeper.next()
        if found is None:
            return Searcher.FINISHED
        index, settings = found
        self.numbers[trial_id] = index
        return {"index": index, "settings": settings}

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """A trial is over: done, given up, or lost."""
        index = self.numbers.pop(trial_id)
        told = json.loads(result[TOLD]) if result and TOLD in result else {}
        if error:
            self.errors.texts.append(f"Trial {index}: its process was lost more often than it is started again")
        elif "error" in told:
            self.errors.texts.append(f"Trial {index} failed.\n\n{told['error']}")
        elif not self.errors.texts:  # else this one was stopped because of another's error, and is done again
            self.keeper.finish(index, told.get("value") if told.get("done") else None, told.get("results", {}))
            self.show()


class GivesUp(FIFOScheduler):
    """Tune's scheduler: trials in their order; the study says which one is given up."""

    def __init__(self, keeper: Keeper, errors: Errors) -> None:
        super().__init__()
        self.keeper, self.errors = keeper, errors
        self.numbers: dict[str, int] = {}

    def __getstate__(self) -> dict[str, Any]:
        """As for the search algorithm."""
        return {}

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        """A trial told a value."""
        told = json.loads(result[TOLD])
        if "step" not in told:
            return TrialScheduler.CONTINUE
        give_up = self.keeper.report(self.numbers[trial.trial_id], told["value"], told["step"])
        return TrialScheduler.STOP if give_up else TrialScheduler.CONTINUE


class EndsWithAnError(tune.Stopper):
    """The first error ends the search."""

    def __init__(self, errors: Errors) -> None:
        self.errors = errors

    def __getstate__(self) -> dict[str, Any]:
        """As for the search algorithm."""
        return {}

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        """No trial is ended for its own sake."""
        return False

    def stop_all(self) -> bool:
        """Whether the search is over."""
        return bool(self.errors.texts)


def _trial_main(config: dict[str, Any], train: Callable[[Trial], Any], here: str | None, begun: str) -> None:
    """In a process of its own, on some machine: one trial."""
    enter(here)
    mark = io.join(begun, str(config["index"]))
    goes_on = io.exists(mark)
    if not goes_on:
        io.make_dirs(begun)
        io.write_atomically(mark, lambda file: file.write(b""))

    def tell(value: float, step: int) -> bool:
        # where the study gives this trial up, Tune ends its process in this call
        tune.report({TOLD: json.dumps({"value": value, "step": step, "results": trial.results})})
        return False

    trial = Trial(config["index"], config["settings"], tell, can_go_on=True, goes_on=goes_on)
    try:
        value = train(trial)
    except Exception:  # noqa: BLE001  # told, not raised: Tune would start it again, and the error would come again
        tune.report({TOLD: json.dumps({"error": traceback.format_exc()})})
        return
    plain = [float(x) for x in value] if isinstance(value, (list, tuple)) else float(value)
    tune.report({TOLD: json.dumps({"done": True, "value": plain, "results": trial.results})})

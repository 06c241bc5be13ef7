"""A study over a Ray cluster: one actor keeps it, tasks train its trials wherever Ray places them.

Owns the actor and the tasks; what a study is, tuner/study knows. Who calls: tuner/study, for backend="ray".
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from bolide.core.errors import MissingPackageError


class PrunedError(Exception):
    """Raised within a trial that is given up."""


@dataclass
class RemoteTrial:
    """A trial in a task: as tuner/study's Trial, with a study that is elsewhere."""

    index: int
    settings: dict[str, Any]
    results: dict[str, Any]
    tell: Callable[[float, int], bool]

    @property
    def number(self) -> int:
        """As `index`, by the name that optuna's trials have."""
        return self.index

    @property
    def params(self) -> dict[str, Any]:
        """As `settings`, by the name that optuna's trials have."""
        return self.settings

    def report(self, value: float, step: int) -> None:
        """Tells an intermediate value; raises PrunedError where the trial is to be given up."""
        if self.tell(float(value), step):
            raise PrunedError


def run_on_ray(train: Callable[[Any], Any], keeper: Callable[[], Any], jobs: int) -> None:
    """Trains the trials that `keeper` hands out, so many at a time.

    Args:
        train: a trial's function.
        keeper: makes the object that keeps the study: next() -> (index, settings) or None; report(index, value, step)
            -> whether to give up; finish(index, value, results), with None as the value of a trial that is given up.
        jobs: tasks side by side.

    Raises:
        MissingPackageError: Ray is not installed.
    """
    if importlib.util.find_spec("ray") is None:
        raise MissingPackageError('backend="ray"', "ray")
    import ray

    started = not ray.is_initialized()
    if started:
        ray.init(include_dashboard=False, log_to_driver=False)
    try:
        actor = ray.remote(num_cpus=0)(Kept).remote(keeper)
        task = ray.remote(num_cpus=1, num_gpus=1 if torch.cuda.is_available() else 0, max_retries=0)(_train_all)
        ray.get([task.remote(actor, train) for _ in range(jobs)])
    finally:
        if started:
            ray.shutdown()


class Kept:
    """The actor: the keeper, made where it runs, and asked by one task after the other."""

    def __init__(self, keeper: Callable[[], Any]) -> None:
        self.keeper = keeper()

    def ask(self, name: str, *args: Any) -> Any:
        """Calls a method of the keeper."""
        return getattr(self.keeper, name)(*args)


def _train_all(actor: Any, train: Callable[[Any], Any]) -> None:
    import ray

    def ask(name: str, *args: Any) -> Any:
        return ray.get(actor.ask.remote(name, *args))

    while (found := ask("next")) is not None:
        index, settings = found

        def tell(value: float, step: int, index: int = index) -> bool:
            return bool(ask("report", index, value, step))

        trial = RemoteTrial(index, settings, {}, tell)
        try:
            value = train(trial)
        except PrunedError:
            ask("finish", index, None, trial.results)
        else:
            ask("finish", index, value, trial.results)

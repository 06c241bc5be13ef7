"""The base class of loggers, and the one that swallows everything.

A logger is told metrics, hyperparameters and the end of the run. Who calls: log.py and the engine, on rank zero.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from argparse import Namespace
from collections.abc import Callable, Mapping
from functools import wraps
from typing import TYPE_CHECKING, Any

from bolide.core import env

if TYPE_CHECKING:
    from torch import Tensor, nn

    from bolide.callbacks.checkpoint import Checkpoint


class Logger(ABC):
    """Where metrics go. `name`, `version` and `log_metrics` must be given by a subclass."""

    @property
    @abstractmethod
    def name(self) -> str | None:
        """The experiment's name; the folder below `save_dir`."""

    @property
    @abstractmethod
    def version(self) -> int | str | None:
        """The run's number or name; the folder below `name`."""

    @abstractmethod
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """Records `metrics`, plain numbers by name, at `step` of the loggers' axis."""

    def log_hyperparams(self, params: Mapping[str, Any] | Namespace, *args: Any, **kwargs: Any) -> None:
        """Records the hyperparameters of the run."""
        return None

    def log_graph(self, model: nn.Module, input_array: Tensor | None = None) -> None:
        """Records the model's graph, where the logger can."""
        return None

    def save(self) -> None:
        """Writes out what is buffered."""
        return None

    def finalize(self, status: str) -> None:
        """The run ends: "success", "failed" or "interrupted"."""
        self.save()

    def position(self) -> dict[str, Any]:
        """Where the history stands, all of it written out, as plain data for `go_on`; empty where none is kept."""
        return {}

    def go_on(self, position: dict[str, Any]) -> None:
        """Drops what was logged after `position`: the run goes on from there, and logs it again."""
        return None

    def start_over(self) -> None:
        """Drops all that earlier attempts of this run logged: it was to go on, and there is nothing to go on from."""
        return None

    def after_save_checkpoint(self, checkpoint_callback: Checkpoint) -> None:
        """A checkpoint was committed by `checkpoint_callback`."""
        return None

    @property
    def root_dir(self) -> str | None:
        """The folder of all versions of this experiment, or None."""
        return None

    @property
    def log_dir(self) -> str | None:
        """The folder of this run, or None."""
        return None

    @property
    def is_placed(self) -> bool:
        """Whether `own_folder` is settled before the run begins."""
        return False

    @property
    def own_folder(self) -> str | None:
        """The folder that this run alone may write, or None; the engine locks it."""
        return None

    def renumber(self) -> bool:
        """Takes another folder, as a run that was quicker has this one; returns whether it could."""
        return False

    @property
    def save_dir(self) -> str | None:
        """The folder that was asked for, or None."""
        return None

    @property
    def group_separator(self) -> str:
        """What stands between the parts of a nested hyperparameter's name."""
        return "/"


def rank_zero_experiment(fn: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Makes a logger's `experiment` property give, on all ranks but the first, an object that accepts every call."""

    @wraps(fn)
    def experiment(logger: Any) -> Any:
        return fn(logger) if env.rank() == 0 else DummyExperiment()

    return experiment


class DummyLogger(Logger):
    """A logger that keeps nothing: what `fast_dev_run` puts in the place of the real ones."""

    @property
    def name(self) -> str:
        """An empty name."""
        return ""

    @property
    def version(self) -> str:
        """An empty version."""
        return ""

    @property
    def experiment(self) -> DummyExperiment:
        """An object whose every method may be called and does nothing."""
        return DummyExperiment()

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """Keeps nothing."""


class DummyExperiment:
    """Answers every call with nothing, so that `logger.experiment.add_image(...)` may stay in a dry run."""

    def _nothing(self, *args: Any, **kwargs: Any) -> None:
        return None

    def __getattr__(self, name: str) -> Any:  # the one object whose purpose is to accept any name
        return self._nothing

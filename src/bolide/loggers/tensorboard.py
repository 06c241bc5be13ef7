"""TensorBoardLogger: metrics, hyperparameters and the graph as TensorBoard's event files."""

from __future__ import annotations

import math
import os
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from bolide.checkpoint import io
from bolide.core import env
from bolide.core.errors import MissingPackageError
from bolide.core.messages import rank_zero_only, warn
from bolide.loggers import folders
from bolide.loggers.file_logger import FileLogger
from bolide.loggers.logger import DummyExperiment
from bolide.summary import evaluating, run_on_example

if TYPE_CHECKING:
    from torch import nn
    from torch.utils.tensorboard import SummaryWriter


EVENTS = ".tfevents."
"""What the names of event files have in common."""


class TensorBoardLogger(FileLogger):
    """Logs to `save_dir/name/version_N/events.out.tfevents.*` and `hparams.yaml`.

    Args:
        save_dir: the folder of all experiments.
        name: the experiment's folder; "" or None: no such level.
        version: a number, or a name used as it is; None: one more than the greatest there is.
        log_graph: logs the graph, where the model has an `example_input_array`.
        default_hp_metric: writes -1 as `hp_metric` with hyperparameters that come without a metric, so that
            TensorBoard shows them.
        prefix: put in front of each metric's name, with a dash.
        sub_dir: a folder below that of the run, for the event files and `hparams.yaml`.
        kwargs: handed on to `SummaryWriter`, such as `max_queue`, `flush_secs`, `purge_step`.

    Raises:
        MissingPackageError: tensorboard is not installed.

    Example::

        logger = TensorBoardLogger("logs", name="digits")
        Trainer(logger=logger).fit(model)
        logger.experiment.add_image("first", image)  # all of SummaryWriter's methods
    """

    NAME_HPARAMS_FILE = folders.HPARAMS_FILE
    LOGGER_JOIN_CHAR = folders.JOIN

    def __init__(
        self,
        save_dir: str | Path,
        name: str | None = "lightning_logs",
        version: int | str | None = None,
        log_graph: bool = False,
        default_hp_metric: bool = True,
        prefix: str = "",
        sub_dir: str | Path | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(save_dir, name, version)
        _require_tensorboard()
        self._log_graph = log_graph
        self._default_hp_metric = default_hp_metric
        self._prefix = prefix
        self._sub_dir = None if sub_dir is None else os.fspath(sub_dir)
        self._kwargs = kwargs
        self._experiment: SummaryWriter | None = None
        self.hparams: dict[str, Any] = {}

    @property
    def sub_dir(self) -> str | None:
        """The folder below that of the run, as it was given."""
        return self._sub_dir

    @property
    def log_dir(self) -> str:
        """The folder of this run's event files."""
        folder = folders.expanded(folders.run_folder(self._save_dir, self._name, self.version))
        if self._sub_dir is None:
            return folder
        return io.join(folder, folders.expanded(self._sub_dir).lstrip("/"))

    @property
    def experiment(self) -> SummaryWriter:
        """The writer of this run; made the first time it is asked for. On other ranks, one that does nothing."""
        if env.rank() != 0:
            return DummyExperiment()
        if self._experiment is None:
            from torch.utils.tensorboard import SummaryWriter

            io.make_dirs(self.log_dir)
            self._experiment = SummaryWriter(log_dir=self.log_dir, **self._kwargs)
        return self._experiment

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Records numbers at `step`, all in one event; a dictionary of numbers goes to `add_scalars`.

        Raises:
            ValueError: a value that is neither.
        """
        scalars: dict[str, float] = {}
        for name, value in folders.with_prefix(metrics, self._prefix).items():
            if isinstance(value, Mapping):
                self.experiment.add_scalars(name, value, step)
                continue
            try:
                scalars[name] = value.item() if isinstance(value, Tensor) else float(value)
            except (TypeError, ValueError, RuntimeError) as error:
                raise ValueError(
                    f"TensorBoardLogger was given {name}={value!r}: metrics are numbers, 1-element tensors or "
                    "dictionaries of them. For anything else use logger.experiment (add_text, add_histogram, ...)."
                ) from error
        if scalars:
            self._write(scalars, step)

    def _write(self, scalars: Mapping[str, float], step: int | None) -> None:
        """One event of many scalars: a tenth of the cost of an event each, and read back as those are."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=name, simple_value=value) for name, value in scalars.items()]
        self.experiment._get_file_writer().add_summary(Summary(value=values), step)

    @rank_zero_only
    def log_hyperparams(
        self,
        params: Mapping[str, Any] | Namespace,
        metrics: Mapping[str, Any] | float | None = None,
        step: int | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        """Records hyperparameters, with the metrics they led to where those are known.

        Args:
            params: the hyperparameters; nested ones are joined by "/".
            metrics: metrics by name, or a number, which becomes `hp_metric`.
            step: the step of the metrics.
        """
        from torch.utils.tensorboard.summary import hparams as hparams_summaries

        given = folders.as_dict(params)
        self.hparams.update(given)
        folders.write_hparams(self.log_dir, self.hparams)
        if metrics is None:
            results: dict[str, Any] = {"hp_metric": -1} if self._default_hp_metric else {}
        else:
            results = dict(metrics) if isinstance(metrics, Mapping) else {"hp_metric": metrics}
        if not results:
            return
        self.log_metrics(results, step)
        flat = {name: _primitive(value) for name, value in folders.flatten(given).items()}
        writer = self.experiment._get_file_writer()
        for summary in hparams_summaries(flat, results):
            writer.add_summary(summary, step)

    @rank_zero_only
    def log_graph(self, model: nn.Module, input_array: Tensor | None = None) -> None:
        """Records the graph of the model's forward pass, if `log_graph` was asked for."""
        if not self._log_graph:
            return
        example = getattr(model, "example_input_array", None) if input_array is None else input_array
        if example is None:
            warn(
                "TensorBoardLogger(log_graph=True) needs an input: set `self.example_input_array` in the module. "
                "The graph is not logged."
            )
            return
        import torch

        with torch.no_grad(), torch.random.fork_rng(), evaluating(model):
            self.experiment.add_graph(*_graph_of(model, example))

    @rank_zero_only
    def save(self) -> None:
        """Flushes the events, and writes `hparams.yaml` where it is not there."""
        if self._experiment is not None:
            self._experiment.flush()
        if io.is_dir(self.log_dir) and not io.exists(io.join(self.log_dir, self.NAME_HPARAMS_FILE)):
            folders.write_hparams(self.log_dir, self.hparams)

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """Flushes and closes the event file; the run is over. Logging again opens a new one."""
        if self._experiment is not None:
            self.save()
            self._experiment.close()

    def position(self) -> dict[str, Any]:
        """The sizes in bytes of the event files, all events written: those of this run's folder and of its curves'."""
        if env.rank() != 0 or io.is_remote(self.log_dir):
            return {}
        self.experiment.flush()
        curves = [os.path.relpath(folder, self.log_dir) for folder in self.experiment.all_writers or ()]
        return {"files": {name: os.path.getsize(io.join(self.log_dir, name)) for name in self._events({".", *curves})}}

    def start_over(self) -> None:
        """Removes the event files of earlier attempts."""
        self.go_on({"files": {}})

    def go_on(self, position: dict[str, Any]) -> None:
        """Cuts the event files at their sizes of then, and removes those that later attempts began.

        The file that this process writes stays; files of other folders are not looked at.
        """
        if env.rank() != 0 or "files" not in position or io.is_remote(self.log_dir):
            return
        self.experiment.flush()
        own = os.path.basename(str(self.experiment._get_file_writer().event_writer._file_name))
        then: dict[str, int] = position["files"]
        for name in self._events({".", *(os.path.dirname(name) for name in then)}):
            path = io.join(self.log_dir, name)
            if name not in then and name != own:
                io.remove(path)
            elif name != own and then[name] < os.path.getsize(path):
                os.truncate(path, then[name])

    def _events(self, curves: set[str]) -> list[str]:
        """The event files of this run's folder, ".", and of folders in it: `add_scalars` makes one for each curve."""
        found = []
        for folder in sorted(curves):
            inside = folder in (".", os.path.basename(folder)) and folder not in ("", "..")
            if inside and io.is_dir(path := io.join(self.log_dir, folder)):
                found += [os.path.normpath(io.join(folder, name)) for name in io.list_dir(path) if EVENTS in name]
        return found


def slurm_version() -> int | None:
    """The number of SLURM's job, which is the version of the logger that a Trainer makes by itself; else None."""
    job = env.get("SLURM_JOB_ID")
    return int(job) if job and job.isdecimal() else None


def _graph_of(model: nn.Module, example: Any) -> tuple[nn.Module, Any]:
    """A module that can be traced, and its arguments.

    The tracer asks a module for all its attributes, and a LightningModule's are there within a run only. So what is
    traced has its parts and parameters, and nothing else of it.
    """
    from torch import nn

    class Forward(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self._modules, self._parameters, self._buffers = model._modules, model._parameters, model._buffers

        def forward(self, *arguments: Any) -> Any:
            return run_on_example(model, arguments if len(arguments) > 1 else arguments[0])

    return Forward().eval(), example


def _primitive(value: Any) -> Any:
    """A value that TensorBoard can show as a hyperparameter: a number, a truth value or text."""
    value = folders.readable(value)
    if isinstance(value, (bool, int, str)) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return str(value)


def _require_tensorboard() -> None:
    from importlib.util import find_spec

    if find_spec("tensorboard") is None:
        raise MissingPackageError("TensorBoardLogger", "tensorboard", "tensorboard")


__all__ = ["TensorBoardLogger", "slurm_version"]

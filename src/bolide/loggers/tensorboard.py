"""TensorBoardLogger: metrics, hyperparameters and the graph as TensorBoard's event files."""

from __future__ import annotations

import math
import os
import re
import uuid
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

MARK = re.compile("[0-9a-f]{8}")
"""What the names of one run's event files have in common, too."""


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
        self._mark = uuid.uuid4().hex[:8]
        self.hparams: dict[str, Any] = {}

    @property
    def sub_dir(self) -> str | None:
        """The folder below that of the run, as it was given."""
        return self._sub_dir

    @property
    def log_dir(self) -> str:
        """The folder of this run's event files."""
        if self._sub_dir is None:
            return self.run_dir
        return io.join(self.run_dir, io.expanded(self._sub_dir).lstrip("/"))

    @property
    def experiment(self) -> SummaryWriter:
        """The writer of this run; made the first time it is asked for. On other ranks, one that does nothing."""
        if env.rank() != 0:
            return DummyExperiment()
        if self._experiment is None:
            from torch.utils.tensorboard import SummaryWriter

            io.make_dirs(self.log_dir)
            kwargs = {**self._kwargs, "filename_suffix": self._suffix}
            self._experiment = SummaryWriter(log_dir=self.log_dir, **kwargs)
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
        """The run's mark, and the sizes in bytes of its event files, all events written."""
        if env.rank() != 0 or io.is_remote(self.log_dir):
            return {}
        self.experiment.flush()
        files = {name: os.path.getsize(io.join(self.log_dir, name)) for name in self._event_files()}
        return {"mark": self._mark, "files": files}

    def start_over(self) -> None:
        """Tells readers to forget the points of earlier attempts; their files, maybe of other runs too, stay."""
        if env.rank() == 0:
            from tensorboard.compat.proto.event_pb2 import Event, SessionLog

            start = Event(step=0, session_log=SessionLog(status=SessionLog.START))
            self.experiment._get_file_writer().add_event(start)

    def go_on(self, position: dict[str, Any]) -> None:
        """Cuts the run's event files at their sizes of then, and removes those that later attempts began.

        What this process has written so far stays, under the run's mark. Files of other runs are not looked at.
        """
        mark = str(position.get("mark"))
        if env.rank() != 0 or MARK.fullmatch(mark) is None or io.is_remote(self.log_dir):
            return
        own = {name: name.replace(self._mark, mark) for name in self._event_files()}
        self.experiment.close()  # the next event opens a new file, with the suffix that it has then
        for before, after in own.items():
            os.rename(io.join(self.log_dir, before), io.join(self.log_dir, after))
        self._mark = mark
        self.experiment.filename_suffix = self._suffix
        for name in set(self._event_files()) - set(own.values()):
            path, size = io.join(self.log_dir, name), position["files"].get(name)
            if size is None:
                io.remove(path)
            elif size < os.path.getsize(path):  # a longer one would be filled up with zeros
                os.truncate(path, size)

    @property
    def _suffix(self) -> str:
        """What the names of event files end with: the run's mark, by which it finds its own, and what was asked for."""
        return f".{self._mark}{self._kwargs.get('filename_suffix', '')}"

    def _event_files(self) -> list[str]:
        """This run's event files, below its folder: `add_scalars` makes a folder for each curve."""
        root = self.log_dir
        folders_here = ["", *(name for name in io.list_dir(root) if os.path.isdir(io.join(root, name)))]
        names = [os.path.join(folder, name) for folder in folders_here for name in io.list_dir(io.join(root, folder))]
        return [name for name in names if EVENTS in name and name.endswith(self._suffix)]


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

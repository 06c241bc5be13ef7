"""CSVLogger: metrics as rows of a file. One file a run: save_dir/name/version_N/metrics.csv."""

from __future__ import annotations

import csv
import io as text_io
import os
from argparse import Namespace
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from bolide.checkpoint import io
from bolide.core.errors import ConfigError
from bolide.core.messages import info, rank_zero_only
from bolide.loggers import folders
from bolide.loggers.file_logger import FileLogger


class ExperimentWriter:
    """Writes the rows of one run, and its hyperparameters.

    Columns are the sorted names of all metrics and `step`. A new name rewrites the file with one more column; else
    rows are appended. Rows that the file holds already stay.

    Args:
        log_dir: the folder of the run.
    """

    NAME_METRICS_FILE = "metrics.csv"
    NAME_HPARAMS_FILE = folders.HPARAMS_FILE

    def __init__(self, log_dir: str) -> None:
        self.log_dir = log_dir
        self.metrics_file_path = io.join(log_dir, self.NAME_METRICS_FILE)
        self.metrics: list[dict[str, Any]] = []  # rows that are not in the file yet
        self.metrics_keys: list[str] = []  # the file's columns
        self.hparams: dict[str, Any] = {}
        self._rows = 0
        if io.exists(self.metrics_file_path):
            kept = self._read()
            self.metrics_keys = sorted({name for row in kept for name in row})
            self._rows = len(kept)
            self._rewrite(kept)  # a line that a crash cut short goes
            info(f"{self.metrics_file_path} holds {len(kept)} rows of an earlier run; new ones are added.")

    def log_hparams(self, params: Mapping[str, Any]) -> None:
        """Keeps hyperparameters and writes them to `hparams.yaml`."""
        self.hparams.update(params)
        folders.write_hparams(self.log_dir, self.hparams)

    def log_metrics(self, metrics_dict: Mapping[str, Any], step: int | None = None) -> None:
        """Keeps a row; `step` defaults to the number of rows so far."""
        row = {name: value.item() if isinstance(value, Tensor) else value for name, value in metrics_dict.items()}
        row["step"] = self._rows if step is None else step
        self.metrics.append(row)
        self._rows += 1

    def save(self) -> None:
        """Writes the rows that are kept."""
        if not self.metrics:
            return
        new = {name for row in self.metrics for name in row} - set(self.metrics_keys)
        exists = bool(self.metrics_keys) and io.exists(self.metrics_file_path)
        if new or not exists or io.is_remote(self.metrics_file_path):
            earlier = self._read() if exists else []
            self.metrics_keys = sorted({*self.metrics_keys, *new})
            self._rewrite([*earlier, *self.metrics])
        else:
            with open(io.local_path(self.metrics_file_path), "a", newline="") as file:
                file.write(self._text(self.metrics, header=False))
                file.flush()
                os.fsync(file.fileno())
        self.metrics = []

    def truncate(self, rows: int) -> None:
        """Drops all rows after the first `rows`."""
        self.save()
        kept = self._read() if io.exists(self.metrics_file_path) else []
        if len(kept) > rows:
            self._rewrite(kept[:rows])
        self._rows = min(rows, len(kept))

    def _text(self, rows: Iterable[Mapping[str, Any]], header: bool) -> str:
        text = text_io.StringIO()
        writer = csv.DictWriter(text, fieldnames=self.metrics_keys, lineterminator="\n")
        if header:
            writer.writeheader()
        writer.writerows(rows)
        return text.getvalue()

    def _rewrite(self, rows: Iterable[Mapping[str, Any]]) -> None:
        data = self._text(rows, header=True).encode()
        io.write_atomically(self.metrics_file_path, lambda file: file.write(data))

    def _read(self) -> list[dict[str, Any]]:
        """The whole rows of the file, empty cells left out."""
        text = io.read_bytes(self.metrics_file_path).decode()
        whole, newline, _ = text.rpartition("\n")
        rows = csv.DictReader(text_io.StringIO(whole + newline, newline=""))
        return [{name: value for name, value in row.items() if name and value not in (None, "")} for row in rows]


class CSVLogger(FileLogger):
    """Logs to `save_dir/name/version_N/metrics.csv` and `hparams.yaml`.

    A given `version` whose folder holds a file already goes on with it: that is how a resumed run keeps one file.

    Args:
        save_dir: the folder of all experiments.
        name: the experiment's folder; "" or None: no such level.
        version: a number, or a name used as it is; None: one more than the greatest there is.
        prefix: put in front of each metric's name, with a dash.
        flush_logs_every_n_steps: how many steps lie between two writes.

    Raises:
        ConfigError: less than one step between two writes.

    Example::

        Trainer(logger=CSVLogger("logs", name="digits")).fit(model)  # logs/digits/version_0/metrics.csv
    """

    LOGGER_JOIN_CHAR = folders.JOIN

    def __init__(
        self,
        save_dir: str | Path,
        name: str | None = "lightning_logs",
        version: int | str | None = None,
        prefix: str = "",
        flush_logs_every_n_steps: int = 100,
    ) -> None:
        super().__init__(save_dir, name, version)
        if flush_logs_every_n_steps < 1:
            raise ConfigError(
                f"CSVLogger(flush_logs_every_n_steps={flush_logs_every_n_steps!r}) must be a whole number from 1 on"
            )
        self._prefix = prefix
        self._flush_logs_every_n_steps = flush_logs_every_n_steps
        self._experiment: ExperimentWriter | None = None

    @property
    def log_dir(self) -> str:
        """The folder of this run."""
        return self.run_dir

    @property
    def experiment(self) -> ExperimentWriter:
        """The writer of this run; made the first time it is asked for."""
        if self._experiment is None:
            self._experiment = ExperimentWriter(self.log_dir)
        return self._experiment

    @rank_zero_only
    def log_hyperparams(self, params: Mapping[str, Any] | Namespace | None = None, *args: Any, **kwargs: Any) -> None:
        """Writes hyperparameters to `hparams.yaml`."""
        self.experiment.log_hparams(folders.as_dict(params))

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Adds a row of numbers at `step`; `step` defaults to the number of rows so far."""
        self.experiment.log_metrics(folders.with_prefix(metrics, self._prefix), step)
        if step is not None and (step + 1) % self._flush_logs_every_n_steps == 0:
            self.save()

    @rank_zero_only
    def save(self) -> None:
        """Writes the rows that wait."""
        if self._experiment is not None:
            self._experiment.save()

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """Writes the rows that wait; the run is over."""
        self.save()

    def position(self) -> dict[str, Any]:
        """The number of rows, all written."""
        self.save()
        return {"rows": self.experiment._rows}

    def start_over(self) -> None:
        """Drops all rows."""
        self.experiment.truncate(0)

    def go_on(self, position: dict[str, Any]) -> None:
        """Drops the rows that were logged after `position`."""
        if "rows" in position:
            self.experiment.truncate(int(position["rows"]))


__all__ = ["CSVLogger", "ExperimentWriter"]

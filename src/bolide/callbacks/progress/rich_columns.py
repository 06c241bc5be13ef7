"""The columns of the rich bar. This module needs the package rich: it is imported by who draws with it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from rich.progress import BarColumn, Progress, ProgressColumn, Task
from rich.style import Style
from rich.text import Text


class CustomProgress(Progress):
    """rich's Progress; the name that subclasses of the bar use."""


class CustomBarColumn(BarColumn):
    """A bar that pulses where the number of batches is not known."""


class BatchesProcessedColumn(ProgressColumn):
    """How many batches of how many: "12/469", or "12/--" where the number of batches is not known."""

    def __init__(self, style: str | Style) -> None:
        self.style = style
        super().__init__()

    def render(self, task: Task) -> Text:
        """The text of a task."""
        total = "--" if task.total is None or math.isinf(task.total) else f"{int(task.total)}"
        return Text(f"{int(task.completed)}/{total}", style=self.style)


class CustomTimeColumn(ProgressColumn):
    """The time a task has taken, and what it will still take."""

    max_refresh = 0.5

    def __init__(self, style: str | Style) -> None:
        self.style = style
        super().__init__()

    def render(self, task: Task) -> Text:
        """The text of a task."""
        elapsed = task.finished_time if task.finished else task.elapsed
        return Text(f"{_clock(elapsed)} • {_clock(task.time_remaining)}", style=self.style)


class ProcessingSpeedColumn(ProgressColumn):
    """Batches a second."""

    def __init__(self, style: str | Style) -> None:
        self.style = style
        super().__init__()

    def render(self, task: Task) -> Text:
        """The text of a task."""
        speed = task.finished_speed or task.speed
        if not speed and task.elapsed:
            speed = task.completed / task.elapsed
        return Text(f"{speed or 0:>.2f}it/s", style=self.style)


class MetricsTextColumn(ProgressColumn):
    """The metrics of the training bar: each epoch's own where old bars stay on the screen."""

    def __init__(self, style: str | Style, text_delimiter: str = " ", metrics_format: str = ".3f") -> None:
        self.style = style
        self.text_delimiter = text_delimiter
        self.metrics_format = metrics_format
        self.metrics: dict[int, dict[str, Any]] = {}
        super().__init__()

    def update(self, task_id: int, metrics: Mapping[str, Any]) -> None:
        """The metrics that a task shows from now on."""
        self.metrics[task_id] = dict(metrics)

    def render(self, task: Task) -> Text:
        """The text of a task."""
        shown = self.metrics.get(task.id, {})
        return Text(self.text_delimiter.join(f"{k}: {self._format(v)}" for k, v in shown.items()), style=self.style)

    def _format(self, value: Any) -> str:
        return format(value, self.metrics_format) if isinstance(value, float) else str(value)


def _clock(seconds: float | None) -> str:
    return "-:--:--" if seconds is None else str(timedelta(seconds=int(seconds)))

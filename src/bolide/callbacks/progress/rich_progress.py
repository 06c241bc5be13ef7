"""RichProgressBar: bars drawn with the package rich."""

from __future__ import annotations

import math
import shutil
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from bolide.callbacks.progress.paced import PacedProgressBar, epoch_of
from bolide.callbacks.progress.progress_bar import Metrics
from bolide.core.errors import MissingPackageError

if TYPE_CHECKING:
    from rich.progress import Progress, Task
    from rich.style import Style

    from bolide.callbacks.progress.rich_columns import MetricsTextColumn
    from bolide.module import LightningModule
    from bolide.trainer.trainer import Trainer

MIN_BAR_WIDTH, MAX_BAR_WIDTH = 10, 40


@dataclass
class RichProgressBarTheme:
    """The styles of the rich bar: rich's style text ("bold green") or Style objects.

    Example::

        RichProgressBar(theme=RichProgressBarTheme(description="green_yellow", metrics_format=".2e"))
    """

    description: str | Style = ""
    progress_bar: str | Style = "#6206E0"
    progress_bar_finished: str | Style = "#6206E0"
    progress_bar_pulse: str | Style = "#6206E0"
    batch_progress: str | Style = ""
    time: str | Style = "dim"
    processing_speed: str | Style = "dim underline"
    metrics: str | Style = "italic"
    metrics_text_delimiter: str = " "
    metrics_format: str = ".3f"


class RichProgressBar(PacedProgressBar):
    """Shows training, validation, testing and prediction as bars of rich, with the metrics logged for the bar.

    Args:
        refresh_rate: how many batches lie between two drawings at the least; 0 draws nothing. A bar is never drawn
            more than ten times a second.
        leave: keeps each epoch's bar on the screen.
        theme: the styles.
        console_kwargs: handed on to `rich.console.Console`.

    Raises:
        MissingPackageError: rich is not installed.

    Example::

        Trainer(callbacks=[RichProgressBar(leave=True)]).fit(model)
    """

    def __init__(
        self,
        refresh_rate: int = 1,
        leave: bool = False,
        theme: RichProgressBarTheme | None = None,
        console_kwargs: dict[str, Any] | None = None,
    ) -> None:
        if find_spec("rich") is None:
            raise MissingPackageError("RichProgressBar", "rich", "rich")
        super().__init__(refresh_rate, leave)
        self.theme = theme or RichProgressBarTheme()
        self._console_kwargs = console_kwargs or {}
        self.progress: Progress | None = None
        self._metric_component: MetricsTextColumn | None = None
        self._tasks: dict[str, Any] = {}  # the task of each kind that is open

    def configure_columns(self, trainer: Trainer) -> list[Any]:
        """The columns left of the metrics; override it for others."""
        from rich.progress import TextColumn

        from bolide.callbacks.progress import rich_columns as columns

        theme = self.theme
        width = self._console_kwargs.get("width") or shutil.get_terminal_size().columns
        return [
            TextColumn("[progress.description]{task.description}", style=theme.description),
            columns.CustomBarColumn(
                bar_width=bar_width(width),
                complete_style=theme.progress_bar,
                finished_style=theme.progress_bar_finished,
                pulse_style=theme.progress_bar_pulse,
            ),
            columns.BatchesProcessedColumn(style=theme.batch_progress),
            columns.CustomTimeColumn(style=theme.time),
            columns.ProcessingSpeedColumn(style=theme.processing_speed),
        ]

    @property
    def train_progress_bar(self) -> Task:
        """The task of training."""
        return self._task("train")

    @property
    def val_sanity_check_bar(self) -> Task:
        """The task of the sanity check."""
        return self._task("sanity")

    @property
    def val_progress_bar(self) -> Task:
        """The task of validation."""
        return self._task("validate")

    @property
    def test_progress_bar(self) -> Task:
        """The task of testing."""
        return self._task("test")

    def refresh(self, hard: bool = False) -> None:
        """Draws."""
        if self.progress is not None:
            self.progress.refresh()

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The bar stands at the epoch's start; with `leave`, it is a new one."""
        if self._leave and self.progress is not None and self._task("train").completed:
            self.progress.stop_task(self._tasks["train"])
            self._open("train")
        super().on_train_epoch_start(trainer, pl_module)

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Prints above the bars."""
        if self.progress is not None and not kwargs.get("file"):
            console, sep, end = self.progress.console, kwargs.get("sep", " "), kwargs.get("end", "\n")
            console.print(*args, sep=sep, end=end, markup=False, highlight=False, soft_wrap=True)
        else:
            print(*args, **kwargs)

    def _train_title(self, trainer: Trainer) -> str:
        return epoch_of(trainer).ljust(len(self.validation_description))

    def _start(self) -> Progress:
        """The display, which is there while any bar is."""
        if self.progress is None:
            from rich.console import Console

            from bolide.callbacks.progress import rich_columns as columns

            theme = self.theme
            self._metric_component = columns.MetricsTextColumn(
                theme.metrics, theme.metrics_text_delimiter, theme.metrics_format
            )
            self.progress = columns.CustomProgress(
                *self.configure_columns(self.trainer),
                self._metric_component,
                console=Console(**self._console_kwargs),
                auto_refresh=False,  # no thread: Pace decides when to draw
                disable=self.is_disabled,
            )
            self.progress.start()
        return self.progress

    def _task(self, kind: str) -> Task:
        if self.progress is None or kind not in self._tasks:
            raise TypeError(f"{type(self).__name__} has no bar for {kind!r} now; it is there while that runs")
        return next(task for task in self.progress.tasks if task.id == self._tasks[kind])

    def _open(self, kind: str) -> None:
        if self.is_enabled:
            self._tasks[kind] = self._start().add_task("", total=None, visible=False)

    def _restart(self, kind: str, description: str, total: float, done: int) -> None:
        if self.progress is None or kind not in self._tasks:
            return
        task = self._tasks[kind]
        self.progress.reset(
            task, total=None if math.isinf(total) else total, completed=done, visible=True, description=description
        )
        self.progress.refresh()

    def _draw(self, kind: str, done: int, metrics: Metrics | None) -> None:
        if self.progress is None or kind not in self._tasks:
            return
        task = self._tasks[kind]
        if metrics is not None and self._metric_component is not None:
            self._metric_component.update(task, metrics)
        self.progress.update(task, completed=done)
        self.progress.refresh()

    def _close(self, kind: str) -> None:
        task = self._tasks.pop(kind, None)
        if self.progress is None or task is None:
            return
        if kind == "sanity" or (kind == "validate" and "train" in self._tasks):
            self.progress.remove_task(task)
            self.progress.refresh()
        else:
            self.progress.stop_task(task)
        if not self._tasks:
            self._close_all()

    def _close_all(self) -> None:
        self._tasks = {}
        if self.progress is not None:
            progress, self.progress = self.progress, None
            progress.stop()


def bar_width(console_width: int) -> int:
    """Columns for the bar itself: the narrower the console, the more of it the metrics need."""
    return min(MAX_BAR_WIDTH, max(MIN_BAR_WIDTH, console_width // 2 - 30))

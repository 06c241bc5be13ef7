"""PlainProgressBar: lines instead of a bar, for output that is no terminal: a log file, a job's output."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any, TextIO

from bolide.callbacks.progress.paced import PacedProgressBar, epoch_of
from bolide.callbacks.progress.progress_bar import Metrics
from bolide.core.hooks import internal

if TYPE_CHECKING:
    from bolide.trainer.trainer import Trainer

LINE_EVERY_S = 30.0


class PlainProgressBar(PacedProgressBar):
    """Writes one line at each epoch's end, with the metrics and the rate; in long epochs one every half minute.

    Args:
        refresh_rate: how many batches lie between two lines of a long epoch at the least; 0 writes nothing.
        interval_s: seconds between two such lines at the least.
        stream: where the lines go; default: standard error.

    Example::

        Epoch 3/9: 469 batches in 4.1 s (114/s), train_loss=0.0313, val_acc=0.987
    """

    def __init__(self, refresh_rate: int = 1, interval_s: float = LINE_EVERY_S, stream: TextIO | None = None) -> None:
        super().__init__(refresh_rate, leave=True)
        self._interval_s = interval_s
        self._stream = stream
        self._began: dict[str, float] = {}
        self._name: dict[str, str] = {}
        self._total: dict[str, float] = {}
        self._first: dict[str, int] = {}

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Prints."""
        print(*args, **kwargs)

    def _new_pace(self) -> Any:
        pace = super()._new_pace()
        pace.least_s = pace.interval_s = self._interval_s
        return pace

    def _train_title(self, trainer: Trainer) -> str:
        return epoch_of(trainer)

    @internal
    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Writes a line, if it is time to. The epoch's own line comes at its end."""
        pace = self._pace
        if pace.due(batch_idx + 1) and pace.n < pace.total:
            self._draw_train(trainer, pl_module)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Writes the epoch's line."""
        if self.is_enabled:
            self._write("train", self._pace.n, self.get_metrics(trainer, pl_module), over=True)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Says how long a validation of its own took; in a fit the epoch's line shows its values."""
        if trainer.sanity_checking:
            return
        if trainer.state.fn == "fit":
            self.reset_dataloader_idx_tracker()
            self._close("validate")
        else:
            self._close_eval("validate")

    def on_sanity_check_end(self, trainer: Any, pl_module: Any) -> None:
        """The sanity check has no line."""
        self.reset_dataloader_idx_tracker()
        self._close("sanity")

    def _end_batch(self, kind: str, batch_idx: int) -> None:
        pace = self._eval_pace
        if pace.due(batch_idx + 1) and pace.n < pace.total:
            super()._end_batch(kind, batch_idx)

    def _close_eval(self, kind: str) -> None:
        self.reset_dataloader_idx_tracker()
        if self.is_enabled and kind in self._name:
            self._write(kind, self._eval_pace.n, None, over=True)
        self._close(kind)

    def _open(self, kind: str) -> None:
        self._began[kind] = time.monotonic()

    def _restart(self, kind: str, description: str, total: float, done: int) -> None:
        self._began[kind] = time.monotonic()
        self._name[kind], self._total[kind], self._first[kind] = description, total, done

    def _draw(self, kind: str, done: int, metrics: Metrics | None) -> None:
        self._write(kind, done, metrics, over=False)

    def _close(self, kind: str) -> None:
        for kept in (self._began, self._name, self._total, self._first):
            kept.pop(kind, None)

    def _close_all(self) -> None:
        for kind in list(self._began):
            self._close(kind)

    def _write(self, kind: str, done: int, metrics: Metrics | None, over: bool) -> None:
        elapsed_s = max(time.monotonic() - self._began[kind], 1e-9)
        rate = (done - self._first[kind]) / elapsed_s
        total = self._total[kind]
        if over:
            amount = f"{done} batches in {_duration(elapsed_s)}"
        elif total < float("inf"):
            amount = f"{done}/{total} batches ({100 * done / max(total, 1):.0f} %) in {_duration(elapsed_s)}"
        else:
            amount = f"{done} batches in {_duration(elapsed_s)} so far"
        rate_text = f"{rate:.3g}" if rate < 999.5 else f"{rate:.0f}"
        shown = [f"{name}={_number(value)}" for name, value in (metrics or {}).items() if name != "v_num"]
        line = ", ".join([f"{self._name[kind]}: {amount} ({rate_text}/s)", *shown])
        print(line, file=self._stream or sys.stderr, flush=True)


def _duration(seconds: float) -> str:
    if seconds < 1:
        return f"{seconds:.2f} s"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)

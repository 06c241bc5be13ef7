"""TQDMProgressBar: bars drawn with tqdm."""

from __future__ import annotations

import logging
import math
import sys
from typing import TYPE_CHECKING, Any, TextIO

from tqdm.std import tqdm as _tqdm

from bolide.callbacks.progress.paced import PacedProgressBar
from bolide.callbacks.progress.progress_bar import Metrics
from bolide.core.messages import log

if TYPE_CHECKING:
    from bolide.module import LightningModule
    from bolide.trainer.trainer import Trainer

PAD_SIZE = 5
UNKNOWN_WIDTH = 80  # a terminal that says it has no columns, as under a recorder or in a container


class Tqdm(_tqdm):
    """A tqdm bar whose numbers keep their width, and which starts no thread."""

    monitor_interval = 0

    @staticmethod
    def format_num(n: Any) -> str:
        """A number for the line: floats with at least five characters, so that it does not jump."""
        if isinstance(n, float) and math.isfinite(n):
            text = f"{n:.3g}"
            if "e" in text:
                return text
            text = text if "." in text or len(text) >= PAD_SIZE else text + "."
            return text.ljust(PAD_SIZE, "0")
        return str(_tqdm.format_num(n)) if isinstance(n, (int, float)) else str(n)

    @property
    def format_dict(self) -> Any:
        """What the line is made of; tqdm itself would show nothing where the width is 0."""
        parts = super().format_dict
        if parts["ncols"] == 0:
            parts["ncols"] = UNKNOWN_WIDTH
        return parts


class TQDMProgressBar(PacedProgressBar):
    """Shows training, validation, testing and prediction as tqdm bars, with the metrics logged for the bar.

    Args:
        refresh_rate: how many batches lie between two drawings at the least; 0 draws nothing. A bar is never drawn
            more than ten times a second.
        process_position: by how many lines the bars are moved down, where several processes share a terminal.
        leave: keeps each epoch's bar on the screen.

    Example::

        Trainer(callbacks=[TQDMProgressBar(refresh_rate=10)]).fit(model)
    """

    BAR_FORMAT = "{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}, {rate_noinv_fmt}{postfix}]"

    def __init__(self, refresh_rate: int = 1, process_position: int = 0, leave: bool = False) -> None:
        super().__init__(refresh_rate, leave)
        self._process_position = process_position
        self._bars: dict[str, _tqdm] = {}

    @property
    def process_position(self) -> int:
        """By how many lines the bars are moved down."""
        return self._process_position

    @property
    def train_progress_bar(self) -> _tqdm:
        """The bar of training."""
        return self._bar("train")

    @train_progress_bar.setter
    def train_progress_bar(self, bar: _tqdm) -> None:
        self._bars["train"] = bar

    @property
    def val_progress_bar(self) -> _tqdm:
        """The bar of validation, or of the sanity check while that runs."""
        return self._bar("sanity" if "sanity" in self._bars else "validate")

    @val_progress_bar.setter
    def val_progress_bar(self, bar: _tqdm) -> None:
        self._bars["validate"] = bar

    @property
    def test_progress_bar(self) -> _tqdm:
        """The bar of testing."""
        return self._bar("test")

    @test_progress_bar.setter
    def test_progress_bar(self, bar: _tqdm) -> None:
        self._bars["test"] = bar

    @property
    def predict_progress_bar(self) -> _tqdm:
        """The bar of prediction."""
        return self._bar("predict")

    @predict_progress_bar.setter
    def predict_progress_bar(self, bar: _tqdm) -> None:
        self._bars["predict"] = bar

    def init_sanity_tqdm(self) -> _tqdm:
        """Makes the bar of the sanity check; override it for another look."""
        return self._make(self.sanity_check_description, position=2 * self._process_position, leave=False)

    def init_train_tqdm(self) -> _tqdm:
        """Makes the bar of training; override it for another look."""
        return self._make(self.train_description, position=2 * self._process_position, leave=True)

    def init_validation_tqdm(self) -> _tqdm:
        """Makes the bar of validation; override it for another look."""
        below = "train" in self._bars
        return self._make(self.validation_description, position=2 * self._process_position + below, leave=not below)

    def init_test_tqdm(self) -> _tqdm:
        """Makes the bar of testing; override it for another look."""
        return self._make(self.test_description, position=2 * self._process_position, leave=True)

    def init_predict_tqdm(self) -> _tqdm:
        """Makes the bar of prediction; override it for another look."""
        return self._make(self.predict_description, position=2 * self._process_position, leave=True)

    def print(self, *args: Any, sep: str = " ", **kwargs: Any) -> None:
        """Prints above the bars."""
        bar = next((bar for bar in self._bars.values() if not bar.disable), None)
        if bar is None:
            print(*args, sep=sep, **kwargs)
        else:
            bar.write(sep.join(map(str, args)), **kwargs)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The bar stands at the epoch's start; with `leave`, it is a new one."""
        if self._leave and self.train_progress_bar.n:
            self._close("train")
            self._open("train")
        super().on_train_epoch_start(trainer, pl_module)

    def _make(self, description: str, position: int, leave: bool) -> _tqdm:
        return _tqdm_class()(
            desc=description,
            position=position,
            leave=leave,
            disable=self.is_disabled,
            dynamic_ncols=True,
            file=_stream(),
            smoothing=0,
            miniters=1 << 62,  # tqdm never draws by itself: Pace decides
            bar_format=self.BAR_FORMAT,
        )

    def _bar(self, kind: str) -> _tqdm:
        if kind not in self._bars:
            raise TypeError(f"{type(self).__name__} has no bar for {kind!r} now; it is there while that runs")
        return self._bars[kind]

    def _open(self, kind: str) -> None:
        make = {
            "sanity": self.init_sanity_tqdm,
            "train": self.init_train_tqdm,
            "validate": self.init_validation_tqdm,
            "test": self.init_test_tqdm,
            "predict": self.init_predict_tqdm,
        }[kind]
        log.addFilter(self._make_room)
        self._bars[kind] = make()

    def _restart(self, kind: str, description: str, total: float, done: int) -> None:
        bar = self._bar(kind)
        bar.set_description(description, refresh=False)
        bar.reset(convert_inf(total))  # draws
        if done:
            bar.initial = bar.n = done
            bar.refresh()

    def _draw(self, kind: str, done: int, metrics: Metrics | None) -> None:
        bar = self._bar(kind)
        if bar.disable:
            return
        if metrics is not None:
            bar.set_postfix(metrics, refresh=False)
        bar.n = done
        bar.refresh()

    def _close(self, kind: str) -> None:
        bar = self._bars.pop(kind, None)
        if bar is not None:
            bar.close()
        if not self._bars:
            log.removeFilter(self._make_room)

    def _make_room(self, record: logging.LogRecord) -> bool:
        """Clears the bars' lines before a note is written there; they come back below it when they are next drawn."""
        for bar in self._bars.values():
            if not bar.disable:
                bar.clear()
        return True

    def _close_all(self) -> None:
        for kind in list(self._bars):
            self._close(kind)


def convert_inf(x: int | float | None) -> int | float | None:
    """None for what tqdm cannot show as a total: infinity, NaN, None."""
    return None if x is None or not math.isfinite(x) else x


def _stream() -> TextIO:
    """Where bars go: standard output, or standard error where only that is a terminal."""
    return sys.stderr if not sys.stdout.isatty() and sys.stderr.isatty() else sys.stdout


def _tqdm_class() -> type[_tqdm]:
    """tqdm's widget in a notebook that can show it, else the line."""
    if "ipykernel" in sys.modules and "ipywidgets" in sys.modules:
        from tqdm.notebook import tqdm

        return tqdm
    return Tqdm


__all__ = ["TQDMProgressBar", "Tqdm", "convert_inf"]

"""What bars that are redrawn have in common: at which hook which bar is opened, drawn and closed.

Owns the moments, not the look: a subclass says how a bar of a kind ("sanity", "train", "validate", "test", "predict")
is opened, drawn and closed. A batch after which nothing is drawn costs one call of `Pace.due`.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, ClassVar

from bolide.callbacks.progress.pace import Pace
from bolide.callbacks.progress.progress_bar import Metrics, ProgressBar, check_refresh_rate
from bolide.core.hooks import internal

if TYPE_CHECKING:
    from bolide.module import LightningModule
    from bolide.trainer.trainer import Trainer


class PacedProgressBar(ProgressBar):
    """A bar that is redrawn at most ten times a second, and not before `refresh_rate` batches."""

    monitors_metrics: ClassVar[bool] = True  # draws the end of an epoch after the module has logged it

    def __init__(self, refresh_rate: int, leave: bool) -> None:
        super().__init__()
        self._refresh_rate = check_refresh_rate(type(self).__name__, refresh_rate)
        self._leave = leave
        self._enabled = True
        self._pace = Pace(0)  # of training
        self._eval_pace = Pace(0)

    @property
    def refresh_rate(self) -> int:
        """How many batches lie between two drawings at the least; 0: nothing is drawn."""
        return self._refresh_rate

    @property
    def is_enabled(self) -> bool:
        """Whether it draws."""
        return self._enabled and self._refresh_rate > 0

    @property
    def is_disabled(self) -> bool:
        """Whether it draws nothing."""
        return not self.is_enabled

    def enable(self) -> None:
        """Draws again."""
        self._enabled = True

    def disable(self) -> None:
        """Draws nothing from now on."""
        self._enabled = False

    # ------------------------------------------------------------------ how it looks: for subclasses

    def _open(self, kind: str) -> None:
        """A bar of a kind appears; its length is not known yet."""
        raise NotImplementedError

    def _restart(self, kind: str, description: str, total: float, done: int) -> None:
        """The bar of a kind gets a length and a name, and stands at `done`."""
        raise NotImplementedError

    def _draw(self, kind: str, done: int, metrics: Metrics | None) -> None:
        """The bar of a kind is drawn at `done`, with `metrics` where they changed."""
        raise NotImplementedError

    def _close(self, kind: str) -> None:
        """The bar of a kind is over."""
        raise NotImplementedError

    def _close_all(self) -> None:
        """All bars that are open are over."""
        raise NotImplementedError

    def _train_title(self, trainer: Trainer) -> str:
        """What the epoch's bar is called."""
        return f"Epoch {trainer.current_epoch}"

    # ------------------------------------------------------------------ training

    def _new_pace(self) -> Pace:
        return Pace(self._refresh_rate if self._enabled else 0)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Opens the bar of training."""
        self._pace = self._new_pace()
        self._open("train")
        if trainer.progress.mid_epoch:  # going on within an epoch, whose start is not told again
            self.on_train_epoch_start(trainer, pl_module)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The bar stands at the epoch's start, or where a resumed one goes on."""
        done = trainer.progress.batch
        self._pace.start(self.total_train_batches, done)
        self._restart("train", self._train_title(trainer), self.total_train_batches, done)

    @internal
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Draws, if it is time to."""
        if self._pace.due(batch_idx + 1):
            self._draw_train(trainer, pl_module)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Draws the epoch's final state."""
        self._draw_train(trainer, pl_module)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Closes the bar of training."""
        self._close("train")

    def _draw_train(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.is_disabled:
            return
        began_s = time.monotonic()
        self._draw("train", self._pace.n, self.get_metrics(trainer, pl_module))
        self._pace.drawn(began_s)

    # ------------------------------------------------------------------ validation, testing, prediction

    def _open_eval(self, kind: str) -> None:
        self.reset_dataloader_idx_tracker()
        self._eval_pace = self._new_pace()
        self._open(kind)

    def _start_loader(self, kind: str, description: str, total: float, dataloader_idx: int) -> None:
        self._current_eval_dataloader_idx = dataloader_idx
        self._eval_pace.start(total)
        self._restart(kind, f"{description} DataLoader {dataloader_idx}", total, 0)

    def _end_batch(self, kind: str, batch_idx: int) -> None:
        if self._eval_pace.due(batch_idx + 1):
            began_s = time.monotonic()
            self._draw(kind, batch_idx + 1, None)
            self._eval_pace.drawn(began_s)

    def _close_eval(self, kind: str) -> None:
        self.reset_dataloader_idx_tracker()
        if self.is_enabled:
            self._draw(kind, self._eval_pace.n, None)
        self._close(kind)

    def on_sanity_check_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Opens the bar of the sanity check."""
        self._open_eval("sanity")

    def on_sanity_check_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Closes the bar of the sanity check."""
        self._close_eval("sanity")

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Opens the bar of validation."""
        if not trainer.sanity_checking:
            self._open_eval("validate")

    def on_validation_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """A loader's first batch starts its bar."""
        if self._current_eval_dataloader_idx == dataloader_idx:
            return
        if trainer.sanity_checking:
            total = trainer.num_sanity_val_batches[dataloader_idx]
            self._start_loader("sanity", self.sanity_check_description, total, dataloader_idx)
        else:
            total = trainer.num_val_batches[dataloader_idx]
            self._start_loader("validate", self.validation_description, total, dataloader_idx)

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Draws, if it is time to."""
        self._end_batch("sanity" if trainer.sanity_checking else "validate", batch_idx)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Closes the bar of validation; in a fit, training's shows the new values."""
        if trainer.sanity_checking:
            return
        self._close_eval("validate")
        if trainer.state.fn == "fit":
            self._draw_train(trainer, pl_module)

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Opens the bar of testing."""
        self._open_eval("test")

    def on_test_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """A loader's first batch starts its bar."""
        if self._current_eval_dataloader_idx != dataloader_idx:
            total = trainer.num_test_batches[dataloader_idx]
            self._start_loader("test", self.test_description, total, dataloader_idx)

    def on_test_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Draws, if it is time to."""
        self._end_batch("test", batch_idx)

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Closes the bar of testing."""
        self._close_eval("test")

    def on_predict_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Opens the bar of prediction."""
        self._open_eval("predict")

    def on_predict_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """A loader's first batch starts its bar."""
        if self._current_eval_dataloader_idx != dataloader_idx:
            total = trainer.num_predict_batches[dataloader_idx]
            self._start_loader("predict", self.predict_description, total, dataloader_idx)

    def on_predict_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Draws, if it is time to."""
        self._end_batch("predict", batch_idx)

    def on_predict_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Closes the bar of prediction."""
        self._close_eval("predict")

    # ------------------------------------------------------------------ the end

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Leaves the bars as they stand, so that the traceback starts on a line of its own."""
        self._close_all()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Closes what is still open."""
        self._close_all()


def epoch_of(trainer: Trainer) -> str:
    """The epoch that runs and the last one there will be, counted from 0: "Epoch 3/9"."""
    last = trainer.max_epochs
    return f"Epoch {trainer.current_epoch}" + (f"/{last - 1}" if last is not None and last > 0 else "")

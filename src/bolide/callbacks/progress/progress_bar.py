"""The base class of progress bars: what they show, what they are called, how many batches there are. Draws nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bolide.callbacks.callback import Callback
from bolide.core.errors import MisconfigurationException
from bolide.core.messages import warn_once
from bolide.core.text import printable

if TYPE_CHECKING:
    from bolide.module import LightningModule
    from bolide.trainer.trainer import Trainer

Metrics = dict[str, int | str | float | dict[str, float]]


class ProgressBar(Callback):
    """Base of progress bars, for subclassing.

    Example::

        class Percent(ProgressBar):
            def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
                if batch_idx % 100 == 0:
                    print(f"{100 * batch_idx / self.total_train_batches:.0f} %")
    """

    def __init__(self) -> None:
        super().__init__()
        self._trainer: Trainer | None = None
        self._current_eval_dataloader_idx: int | None = None

    @property
    def trainer(self) -> Trainer:
        """The trainer that uses this bar.

        Raises:
            TypeError: none does yet.
        """
        if self._trainer is None:
            raise TypeError(f"{type(self).__name__}.trainer is not known before a Trainer uses the bar")
        return self._trainer

    @property
    def sanity_check_description(self) -> str:
        """What the sanity check is called."""
        return "Sanity Checking"

    @property
    def train_description(self) -> str:
        """What training is called before its first epoch."""
        return "Training"

    @property
    def validation_description(self) -> str:
        """What validation is called."""
        return "Validation"

    @property
    def test_description(self) -> str:
        """What testing is called."""
        return "Testing"

    @property
    def predict_description(self) -> str:
        """What prediction is called."""
        return "Predicting"

    @property
    def total_train_batches(self) -> int | float:
        """The batches of a training epoch; infinite where the loader has no length."""
        return self.trainer.num_training_batches

    @property
    def total_val_batches(self) -> int | float:
        """The validation batches that belong to this training epoch, all loaders together."""
        trainer = self.trainer
        every = trainer.check_val_every_n_epoch
        if trainer.state.fn == "fit" and every is not None and (trainer.current_epoch + 1) % every != 0:
            return 0
        return sum(trainer.num_val_batches) if trainer.enable_validation else 0

    @property
    def total_val_batches_current_dataloader(self) -> int | float:
        """The batches of the validation loader that runs; in the sanity check, of the latter."""
        counts = self.trainer.num_sanity_val_batches if self.trainer.sanity_checking else self.trainer.num_val_batches
        return counts[self._loader_idx]

    @property
    def total_test_batches_current_dataloader(self) -> int | float:
        """The batches of the test loader that runs."""
        return self.trainer.num_test_batches[self._loader_idx]

    @property
    def total_predict_batches_current_dataloader(self) -> int | float:
        """The batches of the prediction loader that runs."""
        return self.trainer.num_predict_batches[self._loader_idx]

    @property
    def _loader_idx(self) -> int:
        return self._current_eval_dataloader_idx or 0

    def has_dataloader_changed(self, dataloader_idx: int) -> bool:
        """Whether another loader runs than at the last call."""
        before, self._current_eval_dataloader_idx = self._current_eval_dataloader_idx, dataloader_idx
        return before != dataloader_idx

    def reset_dataloader_idx_tracker(self) -> None:
        """The loaders are done: the next one counts as another."""
        self._current_eval_dataloader_idx = None

    @property
    def is_enabled(self) -> bool:
        """Whether it draws."""
        return True

    def disable(self) -> None:
        """Draws nothing from now on; the trainer calls it on all processes but the first."""
        raise NotImplementedError(f"{type(self).__name__} does not say how it is turned off; give it a disable method")

    def enable(self) -> None:
        """Draws again."""
        raise NotImplementedError(f"{type(self).__name__} does not say how it is turned on; give it an enable method")

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Prints without spoiling the bar."""
        print(*args, **kwargs)

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Keeps the trainer, and turns the bar off on all processes but the first."""
        self._trainer = trainer
        if not trainer.is_global_zero:
            self.disable()

    def get_metrics(self, trainer: Trainer, pl_module: LightningModule) -> Metrics:
        """What the bar shows: the logger's version and what was logged with `prog_bar=True`, as numbers.

        It reads values back from the device, so bars call it only when they draw.

        Example::

            class NoVersion(TQDMProgressBar):
                def get_metrics(self, trainer, pl_module):
                    items = super().get_metrics(trainer, pl_module)
                    items.pop("v_num", None)
                    return items
        """
        standard = get_standard_metrics(trainer)
        logged = trainer.progress_bar_metrics
        twice = sorted(standard.keys() & logged.keys())
        if twice:
            warn_once(
                f"The bar shows {twice[0]!r} by itself, and self.log({twice[0]!r}, ..., prog_bar=True) puts another "
                "value under that name; use another one."
            )
        return {**standard, **{printable(name): value for name, value in logged.items()}}


def get_standard_metrics(trainer: Trainer) -> Metrics:
    """What every bar shows: `v_num`, the version of the loggers' runs."""
    if not trainer.loggers:
        return {}
    versions = [logger.version for logger in trainer.loggers]
    text = versions[0] if len(versions) == 1 else "_".join(dict.fromkeys(str(v) for v in versions))
    if text is None or text == "":
        return {}
    return {"v_num": text[-4:] if isinstance(text, str) else text}


def check_refresh_rate(name: str, refresh_rate: int) -> int:
    """`refresh_rate` of the bar `name`, if it is a whole number of at least 0.

    Raises:
        MisconfigurationException: it is not.
    """
    if not isinstance(refresh_rate, int) or refresh_rate < 0:
        raise MisconfigurationException(
            f"{name}(refresh_rate={refresh_rate!r}) must be a whole number of batches, or 0 to draw nothing"
        )
    return refresh_rate

"""GradientAccumulationScheduler: another accumulation factor from given epochs on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bolide.callbacks.callback import Callback
from bolide.core.errors import ConfigError, UserCodeError

if TYPE_CHECKING:
    from bolide.module import LightningModule
    from bolide.trainer.trainer import Trainer


class GradientAccumulationScheduler(Callback):
    """Sets `trainer.accumulate_grad_batches` by epoch.

    Args:
        scheduling: {epoch: factor}, epochs from 0. Before the first epoch named, the factor is 1.

    Raises:
        ConfigError: an empty dictionary, an epoch below 0 or a factor below 1.

    Example::

        GradientAccumulationScheduler({2: 4, 4: 8})  # epochs 0, 1: 1; epochs 2, 3: 4; from epoch 4: 8
    """

    def __init__(self, scheduling: dict[int, int]) -> None:
        super().__init__()
        shown = f"GradientAccumulationScheduler({scheduling!r})"
        if not isinstance(scheduling, dict) or not scheduling:
            raise ConfigError(f"{shown} needs a dictionary of epochs and factors, for example {{4: 2}}")
        wrong = [
            f"{shown}: the epoch {e!r} must be a whole number of at least 0" for e in scheduling if not _whole(e, 0)
        ]
        wrong += [
            f"{shown}: the factor {f!r} must be a whole number of at least 1"
            for f in scheduling.values()
            if not _whole(f, 1)
        ]
        if wrong:
            raise ConfigError(wrong)
        self.scheduling = {0: 1, **scheduling} if 0 not in scheduling else dict(scheduling)
        self.epochs = sorted(self.scheduling)
        self._applied = 1

    def going_to_accumulate_grad_batches(self) -> bool:
        """Whether any epoch has a factor above 1."""
        return any(factor > 1 for factor in self.scheduling.values())

    def get_accumulate_grad_batches(self, epoch: int) -> int:
        """The factor of `epoch`, counted from 0."""
        return self.scheduling[max(start for start in self.epochs if start <= epoch)]

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Refuses what contradicts a schedule."""
        if not pl_module.automatic_optimization:
            raise UserCodeError(
                "GradientAccumulationScheduler has no effect in manual optimization, where training_step decides when "
                "to step. Remove the callback, or set automatic_optimization = True."
            )
        if trainer.accumulate_grad_batches not in (1, self._applied):
            raise ConfigError(
                f"Trainer(accumulate_grad_batches={trainer.accumulate_grad_batches}) and a "
                "GradientAccumulationScheduler contradict each other; leave one of them out"
            )
        if trainer.progress.mid_epoch:  # going on within an epoch, whose start is not told again
            self.on_train_epoch_start(trainer, pl_module)

    def on_train_epoch_start(self, trainer: Trainer, *_: Any) -> None:
        """Sets the factor of the epoch that begins."""
        self._applied = self.get_accumulate_grad_batches(trainer.current_epoch)
        trainer.accumulate_grad_batches = self._applied


def _whole(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least

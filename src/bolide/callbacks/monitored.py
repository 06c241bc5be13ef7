"""What callbacks that act on a logged metric have in common: when to look, and what to say when it is not there.

Who calls: ModelCheckpoint and EarlyStopping.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bolide.checkpoint import policy

if TYPE_CHECKING:
    from bolide.trainer.trainer import Trainer


def validates(trainer: Trainer) -> bool:
    """Whether the fit validates. The loaders' lengths count once they are known."""
    counts = trainer.num_val_batches
    return bool(trainer.enable_validation) and (not counts or sum(counts) > 0)


def at_train_epoch_end(trainer: Trainer, asked: bool | None) -> bool:
    """Whether to act at the end of the training epoch, not of validation; `asked` is the user's setting."""
    return policy.at_train_epoch_end(
        asked, trainer.val_check_interval, trainer.check_val_every_n_epoch, validates(trainer)
    )


def missing_metric(trainer: Trainer, callback: Any) -> str:
    """The text of the error that `callback` monitors what nobody logs; the nearest logged name first."""
    owner = f"{type(callback).__name__}(monitor={callback.monitor!r})"
    return policy.missing_metric(owner, callback.monitor, [*trainer.logged_names, *trainer.callback_metrics])


def switched(trainer: Trainer, name: str) -> bool:
    """Whether this run gives Lightning's value on the point `name`."""
    return bool(getattr(getattr(trainer, "compat", None), name, False))

"""The base class of callbacks that save checkpoints; they hear every event after all other callbacks."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from bolide.callbacks.callback import Callback

if TYPE_CHECKING:
    from bolide.module import LightningModule
    from bolide.trainer.trainer import Trainer


class Rest:
    """Until which optimizer step nobody need be told that a batch is over: `until` may be set anew at any time."""

    __slots__ = ("until",)

    def __init__(self) -> None:
        self.until = 0


class Checkpoint(Callback):
    """A callback that saves checkpoints.

    The trainer keeps its subclasses last in the list of callbacks, so that what others did is in the file.
    """

    monitors_metrics: ClassVar[bool] = True
    saves_at_boundaries: ClassVar[bool] = True
    """The ends of batches, validations and epochs are told to this callback when all else about them is done."""
    saver_rest: Rest = Rest()
    """A callback that knows when it next has something to do has one of its own; others hear of each batch."""

    def catch_up(self, trainer: Trainer, pl_module: LightningModule, kind: str, validated: bool) -> None:
        """Does what an interrupted run left undone: another callback's file was written at this moment, not this one's.

        Args:
            trainer: the trainer, gone on from that file.
            pl_module: the module.
            kind: "batch" or "epoch", whichever ended.
            validated: whether a validation belonged to the batch.
        """
        if kind == "epoch":
            self.on_train_epoch_end(trainer, pl_module)
            return
        self.on_train_batch_end(trainer, pl_module, None, None, trainer.progress.batch - 1)
        if validated:
            self.on_validation_end(trainer, pl_module)

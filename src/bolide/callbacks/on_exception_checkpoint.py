"""OnExceptionCheckpoint: when an exception ends a fit, the state at the last step boundary is on the disk.

Owns the one file and the moment; what is in it is collected and written by `trainer.save_checkpoint`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from bolide.callbacks.checkpoint import Checkpoint
from bolide.callbacks.loss_guard import buffers_of, set_buffers
from bolide.checkpoint import io
from bolide.core.errors import ConfigError
from bolide.core.hooks import internal
from bolide.core.messages import info, warn
from bolide.seed import generators, set_generators

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from bolide.module import LightningModule
    from bolide.trainer.trainer import Trainer


class OnExceptionCheckpoint(Checkpoint):
    """Saves the state when an exception, Ctrl-C or a stop from outside ends a fit; removes the file at a normal end.

    What is saved is the state of the last step boundary: the batch that failed was not trained on, and is the first one
    of the run that goes on. For that the random states and the module's buffers are kept at each boundary (some 50
    microseconds, and a copy of the buffers), and are put back before the save. Where the exception came while weights
    were being changed, there is no such state any more: the file then holds what there is, and a warning says so. What
    the failed batch logged for the mean of its epoch stays in it.

    Nothing is saved before the first batch, nor after a loss that is not finite has reached the weights.

    Args:
        dirpath: the folder.
        filename: the file's name, without ".ckpt".

    Raises:
        ConfigError: no folder, or a name that leads out of it.

    Example::

        trainer = Trainer(callbacks=[OnExceptionCheckpoint("checkpoints")])
        trainer.fit(model, ckpt_path="last")
    """

    FILE_EXTENSION = ".ckpt"

    def __init__(self, dirpath: str | Path, filename: str = "on_exception") -> None:
        super().__init__()
        if not dirpath:
            raise ConfigError(f"OnExceptionCheckpoint(dirpath={dirpath!r}) needs a folder; write for example 'crashed'")
        if not filename or filename in (".", "..") or "/" in filename or "\\" in filename or "\0" in filename:
            raise ConfigError(
                f"OnExceptionCheckpoint(filename={filename!r}) must be the name of a file within dirpath; write for "
                "example 'on_exception'"
            )
        self.dirpath = str(dirpath)
        self.filename = filename
        self._boundary: tuple[Any, ...] | None = None
        self._batches = -1  # how many batches were trained on at the boundary
        self._changed = ""  # what of the boundary's state the running batch has changed for good

    @property
    def ckpt_path(self) -> str:
        """The file."""
        return io.join(self.dirpath, self.filename + self.FILE_EXTENSION)

    def last_candidates(self, trainer: Trainer) -> list[str]:
        """The paths of what an earlier run may have left; for ckpt_path="last"."""
        return [self.ckpt_path]

    # ------------------------------------------------------------------ boundaries

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """What an earlier fit left in memory is not this one's."""
        if stage == "fit":
            self._boundary = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Nothing is trained yet in this fit: what it went on from is on the disk already."""
        self._boundary = None
        self._changed = ""

    @internal
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """All about a batch is done: a step boundary."""
        self._keep(trainer, pl_module)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """All about an epoch is done: a step boundary."""
        self._keep(trainer, pl_module)

    def _keep(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._boundary = generators(), buffers_of(pl_module)
        self._batches = trainer.progress.total_batches
        self._changed = ""

    @internal
    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: torch.Tensor) -> None:
        """Gradients that an open accumulation window has gathered are about to change."""
        if not self._changed and trainer.progress.batch % trainer.accumulate_grad_batches:
            self._changed = "the gradients of the open accumulation window"

    @internal
    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer) -> None:
        """Weights are about to change."""
        self._changed = "the weights"

    # ------------------------------------------------------------------ saving

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Saves, unless the state is on the disk already or is of no use."""
        if getattr(exception, "checkpoint_settled", False) or trainer.state.fn != "fit" or trainer.fast_dev_run:
            return
        name = type(exception).__name__
        if getattr(exception, "weights_are_spoiled", False):
            warn(f"{name}: nothing was saved, as the weights have taken part in it. Go on from an earlier checkpoint.")
            return
        if self._boundary is None:
            return
        # a batch that is counted already is not trained on again: what failed was a hook or the validation after it
        counted = trainer.progress.total_batches != self._batches
        if self._changed and not counted:
            warn(
                f"{name} came while {self._changed} changed, so {self.ckpt_path} holds the state within a step: a run "
                "that goes on from it trains on that batch again."
            )
        elif not counted:
            self._go_to_boundary(pl_module)
        trainer.save_checkpoint(self.ckpt_path)
        info(f"{name}: the state at step {trainer.global_step} was saved to {self.ckpt_path}")

    def save_on_stop(self, trainer: Trainer) -> str:
        """Saves because the run is asked to stop, at a step boundary; returns the path."""
        trainer.save_checkpoint(self.ckpt_path)
        return self.ckpt_path

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """A fit that came to its normal end needs no such file."""
        if stage == "fit" and not trainer.fast_dev_run and io.exists(self.ckpt_path):
            trainer.strategy.remove_checkpoint(self.ckpt_path)

    def _go_to_boundary(self, pl_module: LightningModule) -> None:
        assert self._boundary is not None
        states, buffers = self._boundary
        set_generators(states)
        set_buffers(pl_module, buffers)

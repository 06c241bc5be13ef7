"""NonFinite: what happens when a loss is NaN or infinite."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from bolide.callbacks.loss_guard import LossGuard, Policy
from bolide.core.errors import ConfigError, UserCodeError

if TYPE_CHECKING:
    from bolide.module import LightningModule
    from bolide.trainer.trainer import Trainer

CHECK_EVERY = 50


class NonFiniteError(UserCodeError):
    """A loss was NaN or infinite; `weights_are_spoiled` says whether it may have reached the weights."""

    def __init__(self, text: str, weights_are_spoiled: bool = False) -> None:
        super().__init__(text)
        self.weights_are_spoiled = weights_are_spoiled


class NonFinite(LossGuard):
    """Tests each training loss for NaN and infinity.

    With "raise" on an accelerator nothing waits for the device in a step: losses are gathered there, and read every
    `check_every` steps, before each checkpoint, and at each epoch's end. By then up to so many updates with a bad loss
    may have been applied, and no checkpoint has been written since. On CPU, where reading costs nothing, and with
    `check_every=1`, the exception comes before the update. For "skip" and "rewind", see their account in `LossGuard`:
    they act before the update, so they read each loss.

    Args:
        policy: "raise", "skip" or "rewind".
        max: with "skip" and "rewind": how many batches may be left out in the whole run; one more raises. None: any.
        check_every: with "raise": after how many losses they are read; default: each on CPU, else every 50th.
        every_n_steps: with "rewind": keep a state to go back to every so many steps; default: at each checkpoint.

    Raises:
        ConfigError: a setting that is none of these.
        NonFiniteError: in the fit, when it comes to that.

    Example::

        Trainer(callbacks=[NonFinite(policy="skip", max=20)]).fit(model)
    """

    what = "The loss is not finite"

    def __init__(
        self,
        policy: Policy = "raise",
        max: int | None = 10,
        check_every: int | None = None,
        every_n_steps: int | None = None,
    ) -> None:
        super().__init__(policy, max, every_n_steps)
        if check_every is not None and (not isinstance(check_every, int) or check_every < 1):
            raise ConfigError(f"NonFinite(check_every={check_every!r}) must be a whole number from 1 on")
        if check_every not in (None, 1) and policy != "raise":
            raise ConfigError(
                f"NonFinite(check_every={check_every}, policy={policy!r}): a loss must be read before its update for "
                "that policy; leave check_every out"
            )
        self.check_every = check_every
        self._unread: list[Tensor] = []

    def is_bad(self, loss: Tensor) -> bool:
        """Whether `loss` is NaN or infinite."""
        return not math.isfinite(float(loss.detach()))

    def error(self, trainer: Trainer, loss: float) -> Exception:
        """The end of the fit."""
        counted = f", after {len(self.skipped)} that were left out (max={self.max})" if self.policy != "raise" else ""
        return NonFiniteError(
            f"The loss of batch {self._batch_idx} of epoch {trainer.current_epoch} is {loss}{counted}; the update was "
            "not applied. Trainer(detect_anomaly=True) names the operation that made it; a lower learning rate, "
            "gradient_clip_val, or bf16 in the place of fp16 often helps"
        )

    def vetoes_loss(self, trainer: Trainer, pl_module: LightningModule, loss: Tensor) -> bool:
        """Whether the batch is left out; with "raise" the loss is read now or later."""
        if self.policy != "raise":
            return super().vetoes_loss(trainer, pl_module, loss)
        every = self.check_every or (1 if loss.device.type == "cpu" else CHECK_EVERY)
        if every == 1:
            return super().vetoes_loss(trainer, pl_module, loss)
        self._unread.append(loss.detach())
        if len(self._unread) >= every:
            self.read(trainer)
        return False

    def read(self, trainer: Trainer) -> None:
        """Looks at the losses that were gathered: one transfer from the device.

        Raises:
            NonFiniteError: one of them is not finite, and its update was applied.
        """
        losses, self._unread = self._unread, []
        if not losses:
            return
        finite = torch.isfinite(torch.stack([loss.float().mean() for loss in losses])).tolist()
        bad = not all(finite)
        if trainer.world_size > 1:
            bad = bool(trainer.strategy.reduce_boolean_decision(bad, all=False))
        if bad:
            ago = len(finite) - finite.index(False) if not all(finite) else len(finite)
            raise NonFiniteError(
                f"A loss was not finite {ago} batch(es) before batch {self._batch_idx} of epoch "
                f"{trainer.current_epoch} was over; its update was applied, so go on from the last checkpoint. With "
                "NonFinite(check_every=1) the error comes before the update, and each step waits for the device",
                weights_are_spoiled=True,
            )

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Nothing is gathered yet."""
        super().on_train_start(trainer, pl_module)
        self._unread = []

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """No bad loss is carried into the next epoch."""
        self.read(trainer)

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """No checkpoint is written with weights that a bad loss has reached."""
        self.read(trainer)
        super().on_save_checkpoint(trainer, pl_module, checkpoint)

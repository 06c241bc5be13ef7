"""What callbacks do about a loss that must not be trained on: raise, leave the batch out, or go back to a good state.

`LossGuard` owns the account of such batches and the two ways out of them; which loss is bad is its subclasses' matter.
Who calls: the engine asks `vetoes_loss` with each loss, before the backward pass.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from bolide.callbacks.callback import Callback
from bolide.core.errors import ConfigError, UserCodeError
from bolide.core.hooks import internal
from bolide.core.messages import warn
from bolide.seed import generators, set_generators

if TYPE_CHECKING:
    from bolide.module import LightningModule
    from bolide.trainer.trainer import Trainer

Policy = Literal["raise", "skip", "rewind"]


class LossGuard(Callback):
    """Looks at each loss before the backward pass; what it does about a bad one is its `policy`.

    - "raise": an exception ends the fit. The update of that batch was not applied.
    - "skip": the batch is left out, as if `training_step` had returned None: no backward pass, no gradient. The
      module's buffers and all random states are put back to where they stood as the batch began, and what it logged
      does not count in the epoch's mean, so the weights are, bit for bit, those of a run that never met the batch.
      Counters and schedulers go on: the batch counts as trained on. In an accumulation window the others keep the
      divisor of the whole window.
    - "rewind": as "skip", and weights, buffers, optimizers, schedulers and the gradient scaler go back to the last
      state that was kept, so that all updates since then are undone. The data go on behind the bad batch, and counters
      (`global_step`, epoch, the loggers' axis) are not turned back. States of other callbacks stay.

    A state is kept in host memory (one copy of what a checkpoint holds) at the start, at each checkpoint that is
    written, and where `every_n_steps` is given every so many steps instead; one with weights that are not finite is
    not. With the default a run that was killed and went on from its last checkpoint goes back to the same states as an
    undisturbed one; after a stop by a signal between two saves, or with `every_n_steps`, it may go back to a newer one.

    "skip" and "rewind" read each loss on the host, which waits for the device in each step, and copy the buffers and
    random states as each batch begins (some 50 microseconds and a copy of the buffers).

    Attributes:
        skipped: a dictionary for each batch that was left out: `policy`, `loss`, and `first` and `last`, the (epoch,
            batch) from which and up to which nothing counts. It is saved in checkpoints.
    """

    may_veto = True
    what = "a bad loss"

    def __init__(self, policy: Policy, max: int | None, every_n_steps: int | None) -> None:
        super().__init__()
        name = type(self).__name__
        wrong = []
        if policy not in ("raise", "skip", "rewind"):
            wrong.append(f"{name}(policy={policy!r}) must be 'raise', 'skip' or 'rewind'")
        if max is not None and (isinstance(max, bool) or not isinstance(max, int) or max < 0):
            wrong.append(f"{name}(max={max!r}) must be a whole number from 0 on, or None: without limit")
        if every_n_steps is not None and (not isinstance(every_n_steps, int) or every_n_steps < 1):
            wrong.append(f"{name}(every_n_steps={every_n_steps!r}) must be a whole number from 1 on")
        if every_n_steps is not None and policy != "rewind":
            wrong.append(f"{name}(every_n_steps={every_n_steps!r}) has a meaning for policy='rewind' only")
        if wrong:
            raise ConfigError(wrong)
        self.policy: Policy = policy
        self.max = max
        self.every_n_steps = every_n_steps
        self.skipped: list[dict[str, Any]] = []
        self._batch_idx = 0
        self._start: tuple[Any, ...] | None = None  # random states and buffers as the batch began
        self._kept: dict[str, Any] | None = None  # the state to go back to
        self._by_hand = False

    def start_anew(self) -> None:
        """No batch has been left out."""
        self.skipped = []

    @abstractmethod
    def is_bad(self, loss: Tensor) -> bool:
        """Whether `loss` (0-dim) must not be trained on. Reads it on the host."""

    @abstractmethod
    def error(self, trainer: Trainer, loss: float) -> Exception:
        """The exception for policy="raise", and for the batch that is one too many."""

    def accept(self, loss: Tensor) -> None:
        """Is told each loss that is trained on."""

    # ------------------------------------------------------------------ moments

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Manual optimization steps within `training_step`: nobody could leave its batches out."""
        self._by_hand = not pl_module.automatic_optimization
        if self._by_hand and self.policy != "raise":
            raise UserCodeError(
                f"{type(self).__name__}(policy={self.policy!r}) cannot work with automatic_optimization = False: the "
                "step is over when training_step returns. Write policy='raise'"
            )

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The state to go back to before there is another."""
        self._kept = None
        if self.policy == "rewind":
            self._keep(trainer, pl_module)

    @internal
    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Keeps what the forward pass changes."""
        self._batch_idx = batch_idx
        if self.policy == "raise":
            return
        self._start = generators(), buffers_of(pl_module)
        if self.every_n_steps is not None and batch_idx % trainer.accumulate_grad_batches == 0:
            if self._kept is None or trainer.global_step - self._kept["step"] >= self.every_n_steps:
                self._keep(trainer, pl_module)

    @internal
    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: Tensor) -> None:
        """In manual optimization the loss is first seen here."""
        if self._by_hand:
            self.vetoes_loss(trainer, pl_module, loss)

    def vetoes_loss(self, trainer: Trainer, pl_module: LightningModule, loss: Tensor) -> bool:
        """Whether the batch of `loss` is left out. Asked before the backward pass; the loss is not scaled.

        Raises:
            Exception: the policy is "raise", or this batch is one more than `max`.
        """
        bad = self.is_bad(loss)
        if trainer.world_size > 1:
            bad = bool(trainer.strategy.reduce_boolean_decision(bad, all=False))
        if not bad:
            self.accept(loss)
            return False
        value = float(loss.detach())
        place = [trainer.current_epoch, self._batch_idx]
        one_too_many = self.max is not None and len(self.skipped) >= self.max
        if self.policy == "raise" or one_too_many or (self.policy == "rewind" and self._kept is None):
            raise self.error(trainer, value)
        first = place
        if self.policy == "rewind" and self._kept is not None:
            first = self._kept["place"]
            go_back(trainer, pl_module, self._kept)
        self._go_to_batch_start(pl_module, buffers=self.policy == "skip")
        self.skipped.append({"policy": self.policy, "loss": value, "first": list(first), "last": place})
        since = "" if first == place else f"; all since batch {first[1]} of epoch {first[0]} is undone"
        limit = "" if self.max is None else f" ({len(self.skipped)} of at most {self.max})"
        warn(f"{self.what}, {value:g}: batch {place[1]} of epoch {place[0]} is left out{since}{limit}.")
        return True

    def _go_to_batch_start(self, pl_module: LightningModule, buffers: bool) -> None:
        if self._start is None:
            return
        states, kept = self._start
        set_generators(states)
        if buffers:
            set_buffers(pl_module, kept)

    # ------------------------------------------------------------------ state

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """What is written is the state to go back to from now on."""
        if self.policy == "rewind" and self.every_n_steps is None and trainer.state.fn == "fit":
            self._keep(trainer, pl_module)

    def _keep(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if all(bool(torch.isfinite(parameter).all()) for parameter in pl_module.parameters()):
            self._kept = keep(trainer, pl_module)

    def state_dict(self) -> dict[str, Any]:
        """The batches that were left out."""
        return {"skipped": [dict(entry) for entry in self.skipped]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on with the account."""
        self.skipped = [dict(entry) for entry in state_dict["skipped"]]


# ---------------------------------------------------------------------- states in host memory


def keep(trainer: Trainer, module: LightningModule) -> dict[str, Any]:
    """A copy, in host memory, of all that an update changes; `place` is the (epoch, batch) that follows."""
    scaler = trainer.scaler
    return {
        "step": trainer.global_step,
        "place": [trainer.current_epoch, trainer.progress.batch if trainer.progress.epoch_open else 0],
        "weights": copied(module.state_dict()),
        "buffers": buffers_of(module),
        "optimizers": [copied(optimizer.state_dict()) for optimizer in trainer.optimizers],
        "schedulers": [copied(config.scheduler.state_dict()) for config in trainer.lr_scheduler_configs],
        "scaler": None if scaler is None else copied(scaler.state_dict()),
    }


def go_back(trainer: Trainer, module: LightningModule, state: dict[str, Any]) -> None:
    """Puts the run at a state of `keep`; gradients that were gathered since are dropped."""
    module.load_state_dict(state["weights"])
    set_buffers(module, state["buffers"])
    # an optimizer takes over tensors that already fit, so each time it gets a copy
    for optimizer, saved in zip(trainer.optimizers, state["optimizers"], strict=True):
        optimizer.load_state_dict(copied(saved))
    for config, saved in zip(trainer.lr_scheduler_configs, state["schedulers"], strict=True):
        config.scheduler.load_state_dict(copied(saved))
    if trainer.scaler is not None:
        trainer.scaler.load_state_dict(state["scaler"])
    for parameter in module.parameters():
        parameter.grad = None


def copied(value: Any) -> Any:
    """A copy of a state, its tensors in host memory."""
    if isinstance(value, Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, Mapping):
        return {key: copied(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(copied(item) for item in value)
    return value


def buffers_of(module: LightningModule) -> dict[str, Tensor]:
    """Copies of all buffers, those that checkpoints leave out too."""
    return {name: buffer.detach().clone() for name, buffer in module.named_buffers()}


def set_buffers(module: LightningModule, kept: Mapping[str, Tensor]) -> None:
    """Gives the buffers their kept values."""
    with torch.no_grad():
        for name, buffer in module.named_buffers():
            if name in kept and kept[name].shape == buffer.shape:
                buffer.copy_(kept[name])

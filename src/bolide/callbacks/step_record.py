"""StepRecord: the losses of a run, batch by batch, so that a step can be computed again and compared.

Owns the losses and their place in checkpoints. Who calls: the trainer adds it for `resilience={"replay": True}`, and
trainer/replay.py reads it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from bolide.callbacks.callback import Callback

if TYPE_CHECKING:
    from bolide.module import LightningModule
    from bolide.trainer.trainer import Trainer

LENGTH = 10_000


class StepRecord(Callback):
    """Keeps the loss of each training batch, as the bits that the device computed; reads none within a step.

    The last 10,000 are kept, and are saved in checkpoints.

    Example::

        trainer = Trainer(resilience={"replay": True})
        trainer.fit(model)
        print(trainer.replay_step(120))
    """

    def __init__(self, length: int = LENGTH) -> None:
        super().__init__()
        self.length = length
        self._count = 0  # how many were recorded; the ring holds the last of them
        self._numbers = torch.zeros(length, dtype=torch.long)
        self._losses: torch.Tensor | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """What another module's run recorded is not this one's."""
        if trainer.progress.total_batches == 0:
            self._count = 0

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Keeps the loss; batches without one are left out."""
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            return
        if self._losses is None or self._losses.device != loss.device:
            kind = torch.float32 if loss.device.type == "mps" else torch.float64  # MPS has no float64
            ring = torch.zeros(self.length, dtype=kind, device=loss.device)
            self._losses = ring if self._losses is None else ring.copy_(self._losses)
        place = self._count % self.length
        self._losses[place].copy_(loss.detach().reshape(()))
        self._numbers[place] = trainer.progress.total_batches
        self._count += 1

    def losses(self) -> dict[int, float]:
        """The loss of each batch, by its number in the run, from 1 on; float64 holds the bits of every precision."""
        numbers, losses = self._in_order()
        return dict(zip(numbers.tolist(), losses.tolist(), strict=True))

    def _in_order(self) -> tuple[torch.Tensor, torch.Tensor]:
        if self._losses is None:
            return torch.zeros(0, dtype=torch.long), torch.zeros(0, dtype=torch.double)
        order = torch.arange(max(0, self._count - self.length), self._count) % self.length
        return self._numbers[order], self._losses.cpu().double()[order]

    def state_dict(self) -> dict[str, Any]:
        """The losses, in two tensors: their batches' numbers (int64) and their values (float64)."""
        numbers, losses = self._in_order()
        return {"batches": numbers, "losses": losses}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on behind what was recorded up to the checkpoint."""
        numbers, losses = state_dict["batches"][-self.length :], state_dict["losses"][-self.length :].double()
        self._count = len(numbers)
        self._numbers = torch.zeros(self.length, dtype=torch.long)
        self._losses = torch.zeros(self.length, dtype=torch.double)
        self._numbers[: self._count], self._losses[: self._count] = numbers, losses

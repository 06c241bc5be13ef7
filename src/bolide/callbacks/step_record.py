"""StepRecord: the losses of a run, batch by batch, so that a step can be computed again and compared.

Owns the losses and their place in checkpoints. Who calls: the trainer adds it for `resilience={"replay": True}`, and
trainer/replay.py reads it.
"""

from __future__ import annotations

from collections import deque
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
        self._losses: deque[tuple[int, torch.Tensor]] = deque(maxlen=length)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Keeps the loss; batches without one are left out."""
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        if isinstance(loss, torch.Tensor) and loss.numel() == 1:
            self._losses.append((trainer.progress.total_batches, loss.detach().reshape(())))

    def losses(self) -> dict[int, float]:
        """The loss of each batch, by its number in the run, from 1 on; float64 holds the bits of every precision."""
        if not self._losses:
            return {}
        values = torch.stack([loss.double() for _, loss in self._losses]).cpu().tolist()
        return dict(zip([number for number, _ in self._losses], values, strict=True))

    def state_dict(self) -> dict[str, Any]:
        """The losses, in two tensors: their batches' numbers (int64) and their values (float64)."""
        found = self.losses()
        return {
            "batches": torch.tensor(list(found), dtype=torch.long),
            "losses": torch.tensor(list(found.values()), dtype=torch.double),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on behind what was recorded up to the checkpoint."""
        pairs = zip(state_dict["batches"].tolist(), state_dict["losses"].cpu(), strict=True)
        self._losses = deque(pairs, maxlen=self._losses.maxlen)

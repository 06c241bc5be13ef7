"""Small modules and loaders that many tests share: one weight, whose gradient is known by heart."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

import bolide as pl

QUIET: dict[str, Any] = {
    "accelerator": "cpu", "enable_progress_bar": False, "enable_model_summary": False, "logger": False,
    "num_sanity_val_steps": 0, "enable_checkpointing": False,
}  # fmt: skip


class Idx(Dataset[torch.Tensor]):
    """n samples; sample i is tensor([i])."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int) -> torch.Tensor:
        return torch.tensor([float(i)])


class OneWeight(pl.LightningModule):
    """One weight at 0 whose loss is itself: its gradient is 1 a batch, and SGD with lr 1 moves it by the step's sum.

    Records (epoch, batch_idx, value) of each training batch, the weight after each batch, and (global_step, batch_idx)
    of each validation batch.
    """

    def __init__(self) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(1))
        self.seen: list[tuple[int, int, float]] = []
        self.path: list[float] = [0.0]
        self.validated: list[tuple[int, int]] = []

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        value = batch[0] if isinstance(batch, (list, tuple)) else batch
        self.seen.append((self.current_epoch, batch_idx, float(torch.as_tensor(value).flatten()[0])))
        return self.w.sum()

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.path.append(self.w.item())

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.validated.append((self.global_step, batch_idx))

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=1.0)

    @property
    def moves(self) -> list[float]:
        """How far each optimizer step moved the weight."""
        return [round(a - b, 6) for a, b in zip(self.path, self.path[1:], strict=False) if a != b]


class Generated:
    """Batches without a length."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __iter__(self) -> Any:
        return (torch.tensor([float(i)]) for i in range(self.n))


def loader(n: int, **options: Any) -> DataLoader[Any]:
    """Batches of one sample each, 0 to n - 1."""
    return DataLoader(Idx(n), batch_size=options.pop("batch_size", 1), **options)


def trainer(**options: Any) -> pl.Trainer:
    """A trainer that writes and prints nothing."""
    return pl.Trainer(**{**QUIET, **options})

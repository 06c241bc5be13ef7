"""Small runs for the tests of callbacks: a module with one weight, whose metrics are what a test says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bolide as pl

INF, NAN = float("inf"), float("nan")


class Scored(pl.LightningModule):
    """Gradient 1 a batch; logs `v` from `values` at each validation, `step_loss` a batch, `end` an epoch, as asked."""

    def __init__(self, values: Any = (), log_train: bool = False, log_end: bool = False) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(1))
        self.values, self.log_train, self.log_end = list(values), log_train, log_end
        self.validations = 0

    def training_step(self, batch, batch_idx):
        if self.log_train:
            self.log("step_loss", float(self.global_step), prog_bar=True)
        return self.w.sum()

    def validation_step(self, batch, batch_idx):
        pass

    def on_validation_epoch_end(self):
        if self.values and not self.trainer.sanity_checking:
            self.log("v", float(self.values[self.validations % len(self.values)]), prog_bar=True)
            self.validations += 1

    def on_train_epoch_end(self):
        if self.log_end:
            self.log("end", float(self.current_epoch))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 1.0)


def rows(count: int) -> DataLoader:
    return DataLoader(TensorDataset(torch.zeros(count, 1)))


def trainer(*callbacks: Any, **arguments: Any) -> pl.Trainer:
    defaults: dict[str, Any] = {
        "accelerator": "cpu",
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": any(isinstance(c, pl.callbacks.Checkpoint) for c in callbacks),
        "num_sanity_val_steps": 0,
        "max_epochs": 3,
        "callbacks": list(callbacks),
    }
    return pl.Trainer(**{**defaults, **arguments})


def fit(
    *callbacks: Any,
    module: Any = None,
    values: Any = (),
    train: int = 5,
    val: int = 1,
    fit: Any = None,
    **arguments: Any,
) -> pl.Trainer:
    made = trainer(*callbacks, **arguments)
    module = Scored(values) if module is None else module
    made.fit(module, rows(train), rows(val) if val else None, **(fit or {}))
    return made


def saved(folder: Path) -> dict[str, int]:
    """The checkpoint files below a folder, with the step that each holds."""
    return {
        str(path.relative_to(folder)): torch.load(path, weights_only=True)["global_step"]
        for path in sorted(folder.rglob("*.ckpt"))
    }

"""Writes the golden checkpoints: files of each format version, which every later version must go on from.

`python -m tests.golden.make` writes those of the present version. Files of earlier versions are never written again.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

import bolide
from bolide.callbacks import EarlyStopping
from bolide.checkpoint import sharded
from bolide.checkpoint.digest import FORMAT
from bolide.launch.processes import run_in_processes
from bolide.strategies import FSDPStrategy

FOLDER = Path(__file__).parent


class Golden(bolide.LightningModule):
    """A network with dropout and batch norm, so that buffers and random numbers count."""

    def __init__(self, width: int = 8, lr: float = 0.05) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = torch.nn.Sequential(
            torch.nn.Linear(4, width), torch.nn.BatchNorm1d(width), torch.nn.Dropout(0.2), torch.nn.Linear(width, 1)
        )

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        x, y = batch
        loss = torch.nn.functional.mse_loss(self.net(x), y)
        self.log("loss", loss, on_step=True, on_epoch=True)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch
        self.log("val", torch.nn.functional.mse_loss(self.net(x), y))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.7)]


def loader(shuffle: bool) -> Any:
    """24 rows in batches of 4."""
    generator = torch.Generator().manual_seed(5)
    data = torch.randn(24, 4, generator=generator)
    rows = torch.utils.data.TensorDataset(data, data.sum(1, keepdim=True))
    return torch.utils.data.DataLoader(rows, batch_size=4, shuffle=shuffle)


def trainer(max_steps: int, **options: Any) -> bolide.Trainer:
    """A quiet trainer on the CPU, with callbacks whose states are in the file."""
    return bolide.Trainer(
        max_steps=max_steps, accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
        enable_checkpointing=False, accumulate_grad_batches=2, gradient_clip_val=1.0,
        callbacks=EarlyStopping("val", patience=9), **options,
    )  # fmt: skip


def main(folder: Path = FOLDER) -> None:
    """Writes a checkpoint from within the second epoch, and one with weights only."""
    bolide.seed_everything(7)
    fitted = trainer(8)
    for progress in fitted.steps(Golden(), loader(shuffle=True), loader(shuffle=False)):
        if progress.total_batches == 9:  # four steps, and half of an accumulation window
            fitted.save_checkpoint(folder / f"format_{FORMAT}.ckpt")
            fitted.save_checkpoint(folder / f"format_{FORMAT}_weights.ckpt", weights_only=True)
            break


def write_sharded(folder: str) -> None:
    """On one of two ranks: a training of FSDP, saved as a folder of shards."""
    bolide.seed_everything(3, verbose=False)
    one = trainer(4, devices=2, strategy=FSDPStrategy(state_dict_type="sharded"))
    one.fit(Golden(), loader(shuffle=True), loader(shuffle=False))
    one.save_checkpoint(f"{folder}/sharded_{sharded.FORMAT}.ckpt")


def main_sharded(folder: Path = FOLDER) -> None:
    """Writes the golden folder of the present version."""
    run_in_processes(write_sharded, (str(folder),), 2, fork=True)


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    main(target)
    main_sharded(target)

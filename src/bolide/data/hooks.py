"""The hooks that modules and datamodules share: data, loaders, the way to the device, state.

Stubs only; an override is found by core/hooks and called by the engine.
"""

from __future__ import annotations

from typing import Any

import torch

from bolide.core.hooks import stub
from bolide.data.transfer import move_to_device


class DataHooks:
    """What provides data: `prepare_data`, `setup`, the four loaders, the transfer of a batch."""

    @stub
    def prepare_data(self) -> None:
        """Downloads or writes what all processes read; assign nothing to self here."""

    @stub
    def setup(self, stage: str) -> None:
        """Fit, validate, test or predict begins (`stage`), on every process."""

    @stub
    def teardown(self, stage: str) -> None:
        """Fit, validate, test or predict ends (`stage`)."""

    @stub
    def train_dataloader(self) -> Any:
        """The training batches: a DataLoader, any iterable, or a collection of them read side by side."""

    @stub
    def val_dataloader(self) -> Any:
        """The validation batches: a DataLoader, any iterable, or a collection of them read one after the other."""

    @stub
    def test_dataloader(self) -> Any:
        """The test batches."""

    @stub
    def predict_dataloader(self) -> Any:
        """The batches to predict."""

    @stub
    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Changes a batch before it goes to the device."""
        return batch

    @stub
    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        """Brings a batch to the device; override for containers that have no `to`."""
        return move_to_device(batch, device)

    @stub
    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Changes a batch on the device, where augmentation is fast."""
        return batch

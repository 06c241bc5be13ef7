"""The smallest models and data sets that exercise every part of a run; many projects' tests are built on them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset

from bolide.datamodule import LightningDataModule
from bolide.module import LightningModule


class RandomDataset(Dataset[Tensor]):
    """`length` random vectors of `size` numbers, drawn at construction."""

    def __init__(self, size: int, length: int) -> None:
        self.len = length
        self.data = torch.randn(length, size)

    def __getitem__(self, index: int) -> Tensor:
        return self.data[index]

    def __len__(self) -> int:
        return self.len


class RandomDictDataset(Dataset[dict[str, Tensor]]):
    """As RandomDataset; a sample is a dictionary of a vector `a` and `b`, which is `a` plus 2."""

    def __init__(self, size: int, length: int) -> None:
        self.len = length
        self.data = torch.randn(length, size)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        a = self.data[index]
        return {"a": a, "b": a + 2}

    def __len__(self) -> int:
        return self.len


class RandomIterableDataset(IterableDataset[Tensor]):
    """`count` random vectors of `size` numbers, drawn one by one; without a length."""

    def __init__(self, size: int, count: int) -> None:
        self.count = count
        self.size = size

    def __iter__(self) -> Iterator[Tensor]:
        for _ in range(self.count):
            yield torch.randn(self.size)


class RandomIterableDatasetWithLen(IterableDataset[Tensor]):
    """As RandomIterableDataset, with a length."""

    def __init__(self, size: int, count: int) -> None:
        self.count = count
        self.size = size

    def __iter__(self) -> Iterator[Tensor]:
        for _ in range(len(self)):
            yield torch.randn(self.size)

    def __len__(self) -> int:
        return self.count


class BoringModel(LightningModule):
    """One linear layer from 32 numbers to 2, drawn towards ones, on 64 random vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(32, 2)

    def forward(self, x: Tensor) -> Tensor:
        """The layer's output."""
        return self.layer(x)

    def loss(self, preds: Tensor, labels: Tensor | None = None) -> Tensor:
        """The mean squared distance to `labels`, or to ones."""
        return functional.mse_loss(preds, torch.ones_like(preds) if labels is None else labels)

    def step(self, batch: Any) -> Tensor:
        """The loss of a batch."""
        return self.loss(self(batch))

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        """The loss."""
        return {"loss": self.step(batch)}

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        """The loss, as `x`."""
        return {"x": self.step(batch)}

    def test_step(self, batch: Any, batch_idx: int) -> Any:
        """The loss, as `y`."""
        return {"y": self.step(batch)}

    def configure_optimizers(self) -> Any:
        """SGD, whose rate falls to a tenth each epoch."""
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, step_size=1)]

    def train_dataloader(self) -> Any:
        """64 vectors, one by one."""
        return DataLoader(RandomDataset(32, 64))

    def val_dataloader(self) -> Any:
        """64 vectors, one by one."""
        return DataLoader(RandomDataset(32, 64))

    def test_dataloader(self) -> Any:
        """64 vectors, one by one."""
        return DataLoader(RandomDataset(32, 64))

    def predict_dataloader(self) -> Any:
        """64 vectors, one by one."""
        return DataLoader(RandomDataset(32, 64))


class ManualOptimBoringModel(BoringModel):
    """A BoringModel that steps its optimizer itself."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        """One step."""
        optimizer: Any = self.optimizers()
        loss = self.step(batch)
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()
        return loss


class BoringDataModule(LightningDataModule):
    """64 random vectors for each stage, made in `setup`."""

    def __init__(self) -> None:
        super().__init__()
        self.random_full = RandomDataset(32, 64 * 4)

    def setup(self, stage: str) -> None:
        """Splits the vectors among the stages."""
        if stage == "fit":
            self.random_train = Subset(self.random_full, indices=range(64))
        if stage in ("fit", "validate"):
            self.random_val = Subset(self.random_full, indices=range(64, 64 * 2))
        if stage == "test":
            self.random_test = Subset(self.random_full, indices=range(64 * 2, 64 * 3))
        if stage == "predict":
            self.random_predict = Subset(self.random_full, indices=range(64 * 3, 64 * 4))

    def train_dataloader(self) -> Any:
        """Vectors 0 to 63, one by one."""
        return DataLoader(self.random_train)

    def val_dataloader(self) -> Any:
        """Vectors 64 to 127, one by one."""
        return DataLoader(self.random_val)

    def test_dataloader(self) -> Any:
        """Vectors 128 to 191, one by one."""
        return DataLoader(self.random_test)

    def predict_dataloader(self) -> Any:
        """Vectors 192 to 255, one by one."""
        return DataLoader(self.random_predict)


class BoringDataModuleNoLen(LightningDataModule):
    """Streams of random vectors without a length: 512 to train on, 128, 256 and 64 for the other stages."""

    def setup(self, stage: str) -> None:
        """Makes the streams of the stage."""
        if stage == "fit":
            self.random_train = RandomIterableDataset(32, 512)
        if stage in ("fit", "validate"):
            self.random_val = RandomIterableDataset(32, 128)
        if stage == "test":
            self.random_test = RandomIterableDataset(32, 256)
        if stage == "predict":
            self.random_predict = RandomIterableDataset(32, 64)

    def train_dataloader(self) -> Any:
        """512 vectors, one by one."""
        return DataLoader(self.random_train)

    def val_dataloader(self) -> Any:
        """128 vectors, one by one."""
        return DataLoader(self.random_val)

    def test_dataloader(self) -> Any:
        """256 vectors, one by one."""
        return DataLoader(self.random_test)

    def predict_dataloader(self) -> Any:
        """64 vectors, one by one."""
        return DataLoader(self.random_predict)


class IterableBoringDataModule(LightningDataModule):
    """Two loaders for each stage: one over a sized data set, one over a stream of the same number of vectors."""

    def setup(self, stage: str) -> None:
        """Makes the data sets of the stage."""
        if stage == "fit":
            self.train_datasets = _both(16)
        if stage in ("fit", "validate"):
            self.val_datasets = _both(32)
        if stage == "test":
            self.test_datasets = _both(64)
        if stage == "predict":
            self.predict_datasets = _both(128)

    def train_dataloader(self) -> Any:
        """Twice 16 vectors of 4 numbers, one by one."""
        return [DataLoader(dataset) for dataset in self.train_datasets]

    def val_dataloader(self) -> Any:
        """Twice 32 vectors of 4 numbers, one by one."""
        return [DataLoader(dataset) for dataset in self.val_datasets]

    def test_dataloader(self) -> Any:
        """Twice 64 vectors of 4 numbers, one by one."""
        return [DataLoader(dataset) for dataset in self.test_datasets]

    def predict_dataloader(self) -> Any:
        """Twice 128 vectors of 4 numbers, one by one."""
        return [DataLoader(dataset) for dataset in self.predict_datasets]


def _both(length: int) -> list[Dataset[Tensor]]:
    return [RandomDataset(4, length), RandomIterableDataset(4, length)]


class DemoModel(LightningModule):
    """One linear layer from 32 numbers, with hyperparameters."""

    def __init__(self, out_dim: int = 10, learning_rate: float = 0.02) -> None:
        super().__init__()
        self.l1 = nn.Linear(32, out_dim)
        self.learning_rate = learning_rate

    def forward(self, x: Tensor) -> Tensor:
        """The layer's output, cut off at zero."""
        return torch.relu(self.l1(x.view(x.size(0), -1)))

    def training_step(self, batch: Any, batch_nb: int) -> Any:
        """The sum of the outputs."""
        return self(batch).sum()

    def configure_optimizers(self) -> Any:
        """Adam."""
        return torch.optim.Adam(self.parameters(), lr=self.learning_rate)


class Net(nn.Module):
    """A small convolutional network for images of 28 x 28 pixels and 10 classes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3, 1)
        self.conv2 = nn.Conv2d(32, 64, 3, 1)
        self.dropout1 = nn.Dropout(0.25)
        self.dropout2 = nn.Dropout(0.5)
        self.fc1 = nn.Linear(9216, 128)
        self.fc2 = nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Log-probabilities: (batch, 1, 28, 28) to (batch, 10)."""
        x = functional.relu(self.conv1(x))
        x = functional.relu(self.conv2(x))
        x = self.dropout1(functional.max_pool2d(x, 2))
        x = functional.relu(self.fc1(torch.flatten(x, 1)))
        return functional.log_softmax(self.fc2(self.dropout2(x)), dim=1)

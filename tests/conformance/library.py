"""Small modules, datasets and loaders that the scripts share, and the list in which scripts enter themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

SCRIPTS: dict[str, tuple[Callable[..., None], tuple[str, ...]]] = {}
FEATURES = 4


def scripts_in_modes(*modes: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A decorator that enters a function `(pl, record, out_dir)` as a conformance script, run in these modes.

    The function's name is the test's id.
    """

    def script(function: Callable[..., None]) -> Callable[..., None]:
        assert function.__name__ not in SCRIPTS, f"there are two scripts named {function.__name__}"
        SCRIPTS[function.__name__] = (function, modes)
        return function

    return script


class Rows(Dataset):  # type: ignore[type-arg]
    """`size` rows of four normal numbers, the same in every process."""

    def __init__(self, size: int = 6) -> None:
        self.rows = torch.randn(size, FEATURES, generator=torch.Generator().manual_seed(1))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.rows[index]


class Stream(IterableDataset):  # type: ignore[type-arg]
    """The same rows, without a length."""

    def __init__(self, size: int = 6) -> None:
        self.rows = Rows(size).rows

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(self.rows)


def rows(size: int = 6, batch_size: int = 2, **arguments: Any) -> DataLoader[Any]:
    return DataLoader(Rows(size), batch_size=batch_size, **arguments)


def stream(size: int = 6, batch_size: int = 2, **arguments: Any) -> DataLoader[Any]:
    return DataLoader(Stream(size), batch_size=batch_size, **arguments)


def regression(pl: ModuleType, lr: float = 0.1) -> type:
    """A linear module that logs a forked train loss and a validation loss, with plain SGD."""

    class Regression(pl.LightningModule):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(FEATURES, 2)

        def forward(self, batch: torch.Tensor) -> torch.Tensor:
            return self.layer(batch)

        def loss(self, batch: torch.Tensor) -> torch.Tensor:
            return (self.layer(batch) - 1.0).pow(2).mean()

        def training_step(self, batch: torch.Tensor, batch_idx: int) -> Any:
            loss = self.loss(batch)
            self.log("train", loss, on_step=True, on_epoch=True, prog_bar=True)
            return loss

        def validation_step(self, batch: torch.Tensor, batch_idx: int) -> Any:
            loss = self.loss(batch)
            self.log("val", loss, prog_bar=True)
            return loss

        def test_step(self, batch: torch.Tensor, batch_idx: int) -> Any:
            loss = self.loss(batch)
            self.log("test", loss)
            return {"loss": loss}

        def predict_step(self, batch: torch.Tensor, batch_idx: int) -> Any:
            return self(batch)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=lr)

    return Regression


def shuffled_network(pl: ModuleType) -> type:
    """Dropout and batch normalisation with Adam: its weights tell any change in the order of random draws."""

    class Network(pl.LightningModule):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.Sequential(
                torch.nn.Linear(FEATURES, 8),
                torch.nn.BatchNorm1d(8),
                torch.nn.ReLU(),
                torch.nn.Dropout(0.5),
                torch.nn.Linear(8, 1),
            )

        def training_step(self, batch: torch.Tensor, batch_idx: int) -> Any:
            loss = (self.layers(batch) - batch.sum(1, keepdim=True)).pow(2).mean()
            self.log("train", loss)
            return loss

        def validation_step(self, batch: torch.Tensor, batch_idx: int) -> Any:
            self.log("val", self.layers(batch).mean() + torch.rand(()))

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters(), lr=0.01)

    return Network

"""`LightningDataModule`: copies of it."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import bolide as pl
from tests.fixtures import OneWeight, loader, trainer


class Numbers(pl.LightningDataModule):
    """Three batches."""

    def train_dataloader(self) -> Any:
        return loader(3)


def test_a_copy_takes_no_trainer_along() -> None:
    datamodule, run = Numbers(), trainer(max_epochs=1)
    run.fit(OneWeight(), datamodule=datamodule)
    assert datamodule.trainer is run
    assert copy.deepcopy(datamodule).trainer is None
    assert pickle.loads(pickle.dumps(datamodule)).trainer is None  # noqa: S301 what was dumped here

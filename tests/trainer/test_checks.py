"""What the Trainer's functions refuse before they start, and what becomes of a compiled module."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch

import bolide as pl
from bolide.core.errors import ConfigError, MisconfigurationException
from tests.fixtures import OneWeight, loader, trainer


class Affine(pl.LightningModule):
    """One layer, called through `forward`."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def forward(self, x: Any) -> Any:
        return self.layer(x)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self(batch).mean()

    def predict_step(self, batch: Any) -> Any:
        return self(batch)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def test_a_class_in_the_place_of_a_module_is_named() -> None:
    with pytest.raises(MisconfigurationException, match=r"the class OneWeight.*write OneWeight\(\.\.\.\)"):
        trainer(max_epochs=1).fit(OneWeight, loader(1))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "given, named",
    [
        ({"train_dataloaders": loader(1)}, "given train_dataloaders and a datamodule"),
        ({"val_dataloaders": loader(1)}, "given val_dataloaders and a datamodule"),
        (
            {"train_dataloaders": loader(1), "val_dataloaders": loader(1)},
            "given train_dataloaders and val_dataloaders and a datamodule",
        ),
    ],
)
def test_loaders_beside_a_datamodule_are_named_as_they_were_given(given: dict[str, Any], named: str) -> None:
    with pytest.raises(MisconfigurationException, match=named):
        trainer(max_epochs=1).fit(OneWeight(), datamodule=pl.LightningDataModule(), **given)


def test_an_accelerator_that_is_not_there_is_the_only_complaint() -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has the accelerator")
    with pytest.raises(ConfigError) as caught:
        trainer(accelerator="cuda", devices=[0, 1])
    assert "accelerator='cuda'" in str(caught.value)
    assert "CPUs have no indices" not in str(caught.value)


def test_a_compiled_module_is_itself_again_after_the_fit() -> None:
    module = Affine()
    run = trainer(max_epochs=1)
    run.fit(torch.compile(module, backend="eager"), loader(2))  # type: ignore[arg-type]
    assert "forward" not in module.__dict__
    other = copy.deepcopy(module)
    torch.nn.init.constant_(other.layer.weight, 5.0)
    torch.nn.init.constant_(other.layer.bias, 0.0)
    assert other(torch.ones(1, 1)).item() == 5.0  # its own weights, not those of the module it was copied from
    loaded = pickle.loads(pickle.dumps(module))  # noqa: S301 what was dumped here
    assert loaded.layer.weight.item() == module.layer.weight.item()


def test_a_copy_made_while_a_compiled_module_trains_has_its_own_weights() -> None:
    class Copies(Affine):
        def on_train_end(self) -> None:
            self.copied = [copy.deepcopy(self)]

    module = Copies()
    trainer(max_epochs=1).fit(torch.compile(module, backend="eager"), loader(1))  # type: ignore[arg-type]
    other = module.copied[0]
    torch.nn.init.constant_(other.layer.weight, 7.0)
    torch.nn.init.constant_(other.layer.bias, 0.0)
    assert other(torch.ones(1, 1)).item() == 7.0


def unpickled(thing):
    return pickle.loads(pickle.dumps(thing))  # noqa: S301 what was dumped here


@pytest.mark.parametrize("make", [unpickled, copy.deepcopy, copy.copy])
def test_a_copy_of_a_trainer_hears_of_changes_to_its_own_callbacks(make):
    class Adds(pl.Callback):
        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
            if batch_idx == 1:
                trainer.callbacks.append(Counts())

    class Counts(pl.Callback):
        heard = 0

        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            Counts.heard += 1

    original = trainer(max_epochs=1)
    made = make(original)
    made.callbacks.append(Adds())
    made.fit(OneWeight(), loader(5))
    assert Counts.heard == 3  # from the batch after on

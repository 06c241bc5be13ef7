"""The small models and data sets: their sizes, and that each runs through every stage."""

from __future__ import annotations

import pytest
import torch

import bolide as pl
from bolide.demos import boring_classes as boring

QUIET = {
    "logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False,
    "accelerator": "cpu", "max_epochs": 1, "limit_train_batches": 2, "limit_val_batches": 2, "limit_test_batches": 2,
    "limit_predict_batches": 2,
}  # fmt: skip


def test_data_sets():
    assert (len(boring.RandomDataset(3, 4)), boring.RandomDataset(3, 4)[0].shape) == (4, torch.Size([3]))
    sample = boring.RandomDictDataset(3, 4)[1]
    assert torch.equal(sample["b"], sample["a"] + 2)
    assert len(list(boring.RandomIterableDataset(3, 4))) == 4
    assert len(boring.RandomIterableDatasetWithLen(3, 4)) == len(list(boring.RandomIterableDatasetWithLen(3, 4))) == 4
    with pytest.raises(TypeError):
        len(boring.RandomIterableDataset(3, 4))


def test_the_boring_model():
    model = boring.BoringModel()
    batch = torch.ones(1, 32)
    loss = (model(batch) - 1).pow(2).mean()
    assert torch.allclose(model.training_step(batch, 0)["loss"], loss)
    assert torch.allclose(model.validation_step(batch, 0)["x"], loss)
    assert torch.allclose(model.test_step(batch, 0)["y"], loss)
    (optimizer,), (scheduler,) = model.configure_optimizers()
    assert (optimizer.defaults["lr"], scheduler.step_size) == (0.1, 1)


@pytest.mark.parametrize(
    "datamodule",
    [None, boring.BoringDataModule, boring.BoringDataModuleNoLen],
)
@pytest.mark.parametrize("kind", [boring.BoringModel, boring.ManualOptimBoringModel])
def test_all_stages(kind, datamodule):
    trainer, model = pl.Trainer(**QUIET), kind()
    data = datamodule() if datamodule else None
    before = model.layer.weight.clone()
    trainer.fit(model, datamodule=data)
    assert trainer.global_step == 2
    assert not torch.equal(before, model.layer.weight)
    trainer.validate(model, datamodule=data, verbose=False)
    trainer.test(model, datamodule=data, verbose=False)
    assert len(trainer.predict(model, datamodule=data)) == 2


@pytest.mark.parametrize(
    ("stage", "counts"),
    [("fit", (16, 32)), ("validate", (None, 32)), ("test", (None, None)), ("predict", (None, None))],
)
def test_two_loaders_a_stage(stage, counts):
    data = boring.IterableBoringDataModule()
    data.setup(stage)
    for name, count in zip(("train_datasets", "val_datasets"), counts, strict=True):
        assert hasattr(data, name) == (count is not None)
        if count is not None:
            sized, streamed = getattr(data, name)
            assert (len(sized), streamed.count) == (count, count)


def test_the_other_models():
    assert boring.DemoModel(out_dim=3)(torch.ones(2, 32)).shape == (2, 3)
    assert boring.DemoModel(learning_rate=0.5).configure_optimizers().defaults["lr"] == 0.5
    assert boring.Net().eval()(torch.ones(1, 1, 28, 28)).exp().sum().item() == pytest.approx(1)

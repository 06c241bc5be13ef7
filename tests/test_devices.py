"""The same fit on each kind of device: the weights are those of the CPU, the checkpoint opens without the device."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bolide as pl

MPS = torch.backends.mps.is_available()
DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")],
    ),
    pytest.param(
        "mps",
        marks=[pytest.mark.gpu, pytest.mark.skipif(not MPS, reason="needs an MPS device")],
    ),
]


class Net(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
        self.devices_seen = set()

    def training_step(self, batch, batch_idx):
        x, y = batch
        self.devices_seen |= {x.device.type, y.device.type, next(self.parameters()).device.type}
        loss = nn.functional.cross_entropy(self.net(x), y)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val_loss", nn.functional.cross_entropy(self.net(x), y))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fitted(folder, accelerator, precision="32-true"):
    pl.seed_everything(3)
    model = Net()
    data = TensorDataset(torch.randn(64, 8), torch.randint(0, 3, (64,)))
    trainer = pl.Trainer(
        accelerator=accelerator, devices=1, precision=precision, max_epochs=2, default_root_dir=folder, logger=False,
        enable_progress_bar=False, enable_model_summary=False, log_every_n_steps=1,
    )  # fmt: skip
    trainer.fit(model, DataLoader(data, batch_size=16), DataLoader(data, batch_size=16))
    return trainer, model


@pytest.mark.parametrize("accelerator", DEVICES)
def test_a_fit_gives_the_weights_of_the_cpu(tmp_path, accelerator):
    trainer, model = fitted(tmp_path / "there", accelerator)
    assert model.devices_seen == {accelerator} and trainer.global_step == 8
    _, expected = fitted(tmp_path / "here", "cpu")
    for name, value in expected.state_dict().items():
        assert torch.allclose(model.state_dict()[name].cpu(), value, atol=1e-4), name
    content = torch.load(trainer.checkpoint_callback.best_model_path, weights_only=True, map_location="cpu")
    Net().load_state_dict(content["state_dict"])


@pytest.mark.parametrize("accelerator", DEVICES)
@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true"])
def test_low_precision_trains_there_too(tmp_path, accelerator, precision):
    trainer, model = fitted(tmp_path, accelerator, precision)
    assert model.devices_seen == {accelerator}
    assert 0 < float(trainer.callback_metrics["val_loss"]) < 1.2

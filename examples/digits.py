"""Reads handwritten digits: 1,797 real scans of 8 x 8 pixels, from scikit-learn, with a small convolutional network."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

import bolide as pl
from bolide.callbacks import ModelCheckpoint


class Digits(pl.LightningModule):
    def __init__(self):
        super().__init__()
        convs = nn.Conv2d(1, 32, 3), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.BatchNorm2d(64), nn.ReLU()
        self.net = nn.Sequential(*convs, nn.Flatten(), nn.Dropout(0.3), nn.Linear(64 * 4 * 4, 10))

    def training_step(self, batch, batch_idx):
        images, digits = batch
        loss = nn.functional.cross_entropy(self.net(images), digits)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, batch_idx):
        images, digits = batch
        self.log("accuracy", (self.net(images).argmax(1) == digits).float().mean(), prog_bar=True)

    test_step = validation_step

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


def main(max_epochs=15, ckpt_path=None, callbacks=(), **options):
    pl.seed_everything(0)
    images, digits = load_digits(return_X_y=True)
    data = TensorDataset(torch.tensor(images).float().view(-1, 1, 8, 8) / 16, torch.tensor(digits))
    train, val, test = random_split(data, [0.64, 0.16, 0.2])
    best = ModelCheckpoint(monitor="accuracy", mode="max", save_last=True)
    trainer = pl.Trainer(max_epochs=max_epochs, callbacks=[best, *callbacks], log_every_n_steps=10, **options)
    trainer.fit(Digits(), DataLoader(train, 64, shuffle=True), DataLoader(val, 64), ckpt_path=ckpt_path)
    return trainer.test(dataloaders=DataLoader(test, 64), ckpt_path="best")


if __name__ == "__main__":
    main()

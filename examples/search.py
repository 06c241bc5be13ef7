"""Searches the settings of a network that reads handwritten digits: 20 trials, the bad ones given up early."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

import bolide as pl
from bolide.tuner import search


class Digits(pl.LightningModule):
    def __init__(self, width, dropout, lr):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Dropout(dropout), nn.Linear(width, 10))
        self.lr = lr

    def training_step(self, batch, batch_idx):
        images, digits = batch
        return nn.functional.cross_entropy(self.net(images), digits)

    def validation_step(self, batch, batch_idx):
        images, digits = batch
        logits = self.net(images)
        self.log("val_loss", nn.functional.cross_entropy(logits, digits))
        self.log("accuracy", (logits.argmax(1) == digits).float().mean())

    test_step = validation_step

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.lr)


SPACE = {"width": [16, 32, 64, 128], "dropout": (0.0, 0.5), "lr": (1e-4, 1e-1, "log")}


def main(n_trials=20, max_epochs=8, storage="digits-study.db", output_dir="digits-search"):
    images, digits = load_digits(return_X_y=True)
    data = TensorDataset(torch.tensor(images).float() / 16, torch.tensor(digits))
    train, val, test = random_split(data, [0.64, 0.16, 0.2], generator=torch.Generator().manual_seed(0))
    best = search(
        Digits,
        SPACE,
        monitor="val_loss",
        n_trials=n_trials,
        train_dataloaders=lambda: DataLoader(train, 64, shuffle=True),
        val_dataloaders=lambda: DataLoader(val, 256),
        trainer={"max_epochs": max_epochs, "accelerator": "cpu"},
        storage=storage,
        output_dir=output_dir,
    )
    pruned = sum(trial.state.name == "PRUNED" for trial in best.study.finished())
    print(f"best of {len(best.study.finished())} trials, {pruned} of them given up: {best.settings}")
    print(f"val_loss {best.value:.4f}, checkpoint {best.checkpoint}")
    tester = pl.Trainer(logger=False, enable_progress_bar=False, accelerator="cpu")
    found = tester.test(Digits(**best.settings), DataLoader(test, 256), ckpt_path=best.checkpoint)
    best.study.plot("digits-study.html")
    return best, found


if __name__ == "__main__":
    main()

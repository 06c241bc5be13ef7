"""The runs that the chaos tests kill: three models, their data, and a digest over all that a run leaves.

A world is built anew in each process from its name and options alone. What it consumed is written down line by line
in a ledger, outside of checkpoints, so that a repeated or a missing sample shows.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import random
import signal
from pathlib import Path
from typing import Any

import numpy
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

from bolide.checkpoint import io
from bolide.checkpoint.file import read_checkpoint
from tests.chaos.power import Recorder


class Samples(Dataset[Any]):
    """n samples drawn from one seed; with `augment`, random numbers of three generators are added to each."""

    def __init__(self, n: int, shape: tuple[int, ...], augment: bool) -> None:
        generator = torch.Generator().manual_seed(3)
        self.x = torch.randn(n, *shape, generator=generator)
        self.y = torch.randint(4, (n,), generator=generator)
        self.augment = augment

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> Any:
        x = self.x[i]
        if self.augment:
            x = x + 0.1 * torch.randn(()) + 0.1 * random.random() + 0.1 * float(numpy.random.rand())
        return i, x, self.y[i]


class Mlp(nn.Sequential):
    """With dropout."""

    shape = (12,)

    def __init__(self) -> None:
        super().__init__(nn.Linear(12, 24), nn.ReLU(), nn.Dropout(0.3), nn.Linear(24, 4))


class Cnn(nn.Sequential):
    """With batch norm."""

    shape = (1, 6, 6)

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Dropout(0.2), nn.Linear(6 * 16, 4)
        )


class Transformer(nn.Module):
    """One layer, with dropout."""

    shape = (5, 8)

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        self.head = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.layer(x).mean(1))
        return out


NETS: dict[str, Any] = {"mlp": Mlp, "cnn": Cnn, "transformer": Transformer}


class Steps:
    """A classifier that logs by step and epoch, keeps a metric object, and writes down what it consumes.

    A LightningModule is made of it, of Bolide's or of Lightning's.
    """

    log: Any
    current_epoch: int
    parameters: Any

    def __init__(self, net: str, ledger: Path | None) -> None:
        super().__init__()
        from torchmetrics import MeanMetric

        self.net = NETS[net]()
        self.mean = MeanMetric()
        self.ledger = ledger

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        i, x, y = batch
        loss = F.cross_entropy(self.net(x), y)
        self.mean.update(loss.detach())
        self.log("loss", loss, on_step=True, on_epoch=True)
        self.log("mean", self.mean, on_step=False, on_epoch=True)
        if self.ledger is not None:
            line = f"{self.current_epoch} {batch_idx} {','.join(map(str, i.tolist()))} {x.double().sum().item()!r}\n"
            with open(self.ledger, "a") as file:
                file.write(line)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        _, x, y = batch
        self.log("val_loss", F.cross_entropy(self.net(x), y))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 40)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def library(name: str) -> Any:
    """The package by whose Trainer a world is run: "bolide", or "lightning"."""
    return importlib.import_module({"bolide": "bolide", "lightning": "lightning.pytorch"}[name])


def run(out: str, options: dict[str, Any], callbacks: list[Any] | None = None) -> Any:
    """One attempt at a world: goes on from what is there, or starts."""
    folder = Path(out)
    pl = library(options.get("library", "bolide"))
    task = type("Task", (Steps, pl.LightningModule), {})
    o = {
        "net": "mlp",
        "workers": 0,
        "n": 70,
        "epochs": 3,
        "every": 4,
        "accumulate": 4,
        "val": 9,
        "ckpt": "last",
        **options,
    }
    folder.mkdir(parents=True, exist_ok=True)
    if "die" in o:
        die_at(*o["die"])
    if "record" in o:
        io.operations.listeners.append(Recorder(Path(o["record"]), folder))
    torch.set_num_threads(1)
    pl.seed_everything(5, workers=bool(o.get("keyed")), verbose=False)
    data = Samples(o["n"], NETS[o["net"]].shape, bool(o.get("augment")))
    extra: dict[str, Any] = {"persistent_workers": True} if o.get("persistent") else {}
    if o["workers"] and "prefetch" in o:
        extra["prefetch_factor"] = o["prefetch"]
    train = DataLoader(data, batch_size=4, shuffle=True, num_workers=o["workers"], **extra)
    val = DataLoader(Samples(8, NETS[o["net"]].shape, False), batch_size=4)
    saver = pl.callbacks.ModelCheckpoint(
        dirpath=folder / "checkpoints", monitor="val_loss", save_top_k=2, save_last=True,
        every_n_train_steps=o["every"], filename="{epoch}-{step}-{val_loss:.4f}",
    )  # fmt: skip
    trainer = pl.Trainer(
        max_epochs=o["epochs"], accelerator="cpu", logger=pl.loggers.CSVLogger(folder, name="", version=""),
        callbacks=[saver, pl.callbacks.EarlyStopping("val_loss", patience=50), *(callbacks or [])],
        enable_progress_bar=False, enable_model_summary=False, accumulate_grad_batches=o["accumulate"],
        gradient_clip_val=0.5,
        val_check_interval=o["val"], log_every_n_steps=1, default_root_dir=folder, num_sanity_val_steps=1,
        precision=o.get("precision", "32-true"),
    )  # fmt: skip
    trainer.fit(task(o["net"], folder / "ledger.txt"), train, val, ckpt_path=o["ckpt"])
    trainer.save_checkpoint(folder / "final.ckpt")
    return trainer


def die_at(when: str, number: int) -> None:
    """This process kills itself before or after file operation `number`, counted from now."""
    first = io.operations.count

    def listen(at: str, count: int, kind: str, path: str) -> None:
        if (at, count - first) == (when, number):
            os.kill(os.getpid(), signal.SIGKILL)

    io.operations.listeners.append(listen)


def digest(value: Any) -> Any:
    """Nested state as plain text, tensors as SHA-256 over dtype, shape and bytes."""
    if isinstance(value, torch.Tensor):
        raw = value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes() if value.numel() else b""
        return hashlib.sha256(f"{value.dtype}{tuple(value.shape)}".encode() + raw).hexdigest()
    if isinstance(value, dict):
        return {str(key): digest(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [digest(item) for item in value]
    return repr(value)


VOLATILE = {"since_validation_s", "fingerprint", "last_model_path", "best_model_path", "kth_best_model_path", "dirpath"}
VOLATILE |= {"run_id", "run_dir"}  # each attempt has its own


def _stable(value: Any, base: str) -> Any:
    """State without clocks, and with paths below the run's folder."""
    if isinstance(value, dict):
        return {key: _stable(item, base) for key, item in value.items() if key not in VOLATILE}
    if isinstance(value, list):
        return [_stable(item, base) for item in value]
    return value


def left(out: str) -> dict[str, Any]:
    """What a finished run leaves: the final state, the metric file, the ledger of the samples that counted."""
    folder = Path(out)
    state = read_checkpoint(folder / "final.ckpt")
    callbacks = state.pop("callbacks")
    ranks = {key: sorted(map(digest, s.get("best_k_models", {}).values())) for key, s in callbacks.items()}
    lines = (folder / "ledger.txt").read_text().splitlines()
    counted: dict[tuple[str, str], str] = {}
    for line in lines:  # a batch that was trained on again after a kill counts as it was trained on last
        epoch, batch, rest = line.split(" ", 2)
        counted[epoch, batch] = rest
    order = sorted(counted, key=lambda key: (int(key[0]), int(key[1])))
    return {
        "state": _stable(digest(state), out),
        "ranks": ranks,
        "metrics": (folder / "metrics.csv").read_text(),
        "ledger": [f"{e} {b} {counted[e, b]}" for e, b in order],
    }


def differences(a: Any, b: Any, path: str = "") -> list[str]:
    """Where two results of `left` differ."""
    if isinstance(a, dict) and isinstance(b, dict):
        keys = [*a, *(key for key in b if key not in a)]
        return [d for key in keys for d in differences(a.get(key), b.get(key), f"{path}/{key}")]
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        return [d for i, (x, y) in enumerate(zip(a, b, strict=True)) for d in differences(x, y, f"{path}[{i}]")]
    return [] if a == b else [f"{path}: {str(a)[:80]} / {str(b)[:80]}"]


if __name__ == "__main__":
    import sys
    import warnings

    warnings.simplefilter("ignore")
    run(sys.argv[1], json.loads(sys.argv[2]))

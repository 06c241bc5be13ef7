"""Cost of one step, on a noisy machine: short runs of steps in turn, in one process.

`step_cost.py` times whole fits, and a machine that other work shares moves between two of them. Here a hand-written
loop and Bolide (through `Trainer.steps`) train side by side, a few steps each in turn, hundreds of times: what the
machine does to one it does to the other, and the median of the ratios is steady to a percent or so. `raw2` is a second
hand-written loop in the same rotation: how far it is from 1 is what noise is left.

    python benchmarks/step_pairs.py                  # mlp, cnn and gpt, bare and real
    python benchmarks/step_pairs.py --work mlp --turns 800
"""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import random
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).parent))
from step_cost import Loader, fresh

import bolide as pl
from bolide.callbacks import ModelCheckpoint
from bolide.loggers import TensorBoardLogger

CHUNK = {"mlp": 25, "cnn": 6, "gpt": 2}
"""Steps in one turn of one contestant: some ten milliseconds."""


def raw(work: str, steps: int, real: bool, out: str) -> Iterator[None]:
    """The loop a careful person writes by hand, a step at a time."""
    model, loader = fresh(work), Loader(work, steps)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
    if real:
        from torch.utils.tensorboard import SummaryWriter
        from tqdm import tqdm

        writer, bar = SummaryWriter(out), tqdm(total=steps, file=sys.stderr)
    model.train()
    for i, (x, y) in enumerate(loader):
        loss = F.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if real:
            bar.update()
            if (i + 1) % 50 == 0:
                writer.add_scalar("train_loss", loss.item(), i + 1)
        yield


def bolide(work: str, steps: int, real: bool, out: str) -> Iterator[object]:
    """The same by a LightningModule and a Trainer."""
    net = fresh(work)

    class Task(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def training_step(self, batch, batch_idx):
            x, y = batch
            loss = F.cross_entropy(self.net(x), y)
            if real:
                self.log("train_loss", loss, prog_bar=True)
            return loss

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=1e-3, weight_decay=0.0)

    trainer = pl.Trainer(
        max_epochs=1, accelerator="cpu", devices=1, default_root_dir=out, enable_model_summary=False,
        logger=TensorBoardLogger(out) if real else False, callbacks=[ModelCheckpoint(dirpath=out)] if real else None,
        enable_progress_bar=real, enable_checkpointing=real,
    )  # fmt: skip
    return trainer.steps(Task(), Loader(work, steps))


CONTESTANTS: dict[str, Callable[..., Iterator[object]]] = {"raw": raw, "raw2": raw, "bolide": bolide}


def measure(work: str, real: bool, turns: int) -> dict[str, list[float]]:
    """Seconds of each turn, by contestant."""
    chunk, order = CHUNK[work], random.Random(0)
    times: dict[str, list[float]] = {name: [] for name in CONTESTANTS}
    with contextlib.ExitStack() as stack:
        folders = {name: stack.enter_context(tempfile.TemporaryDirectory()) for name in CONTESTANTS}
        stack.enter_context(contextlib.redirect_stderr(io.StringIO()))
        loops = {name: make(work, (turns + 2) * chunk, real, folders[name]) for name, make in CONTESTANTS.items()}
        names = list(loops)
        for turn in range(turns + 1):
            order.shuffle(names)  # nobody always runs after the same other
            for name in names:
                loop = loops[name]
                start = time.perf_counter()
                for _ in range(chunk):
                    next(loop)
                if turn:  # the first turn warms up
                    times[name].append((time.perf_counter() - start) / chunk)
        for loop in loops.values():
            loop.close()
    return times


def main() -> None:
    """Prints a row for each work and mode."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", default="mlp,cnn,gpt")
    parser.add_argument("--mode", default="bare,real")
    parser.add_argument("--turns", type=int, default=400)
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    logging.getLogger("bolide").setLevel(logging.ERROR)
    for work in args.work.split(","):
        for mode in args.mode.split(","):
            times = measure(work, mode == "real", args.turns)
            base = times["raw"]
            for name in ("raw2", "bolide"):
                ratios = sorted(a / b for a, b in zip(times[name], base, strict=True))
                low, high = ratios[len(ratios) // 4], ratios[3 * len(ratios) // 4]
                print(
                    f"{work:4} {mode:5} {name:7} median x{statistics.median(ratios):.3f} ({low:.3f}-{high:.3f})"
                    f"   best x{min(times[name]) / min(base):.3f}   raw {1e6 * statistics.median(base):8.1f} us",
                    flush=True,
                )


if __name__ == "__main__":
    main()

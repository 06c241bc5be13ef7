"""Two processes under Bolide beside hand-written torch DDP, in the same processes and the same run.

Each pass trains both, in turns, on the same batches, a share of the network's work a step; what is compared is the
median time of a step of the slower rank. `python benchmarks/ddp.py [--steps N] [--rounds N] [--log]`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import bolide as pl
from bolide.launch.processes import run_in_processes

WIDTH, BATCH = 1024, 128


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 10))


class Module(pl.LightningModule):
    """The network under the Trainer."""

    def __init__(self, log: bool) -> None:
        super().__init__()
        self.net, self.logs = network(), log

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        if self.logs:
            self.log("loss", loss, on_epoch=True, sync_dist=True)
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.01)


class Batches:
    """The same batch so often, on each rank its own."""

    def __init__(self, count: int) -> None:
        generator = torch.Generator().manual_seed(dist.get_rank())
        self.batch = torch.randn(BATCH, 64, generator=generator), torch.randint(0, 10, (BATCH,), generator=generator)
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Any:
        return iter([self.batch] * self.count)


def by_hand(steps: int) -> float:
    """Seconds a step of a hand-written loop."""
    ddp = DistributedDataParallel(network())
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
    batches = Batches(steps)
    started_s = 0.0
    for i, (x, y) in enumerate(batches):
        if i == steps // 5:
            dist.barrier()
            started_s = time.perf_counter()
        loss = nn.functional.cross_entropy(ddp(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return (time.perf_counter() - started_s) / (steps - steps // 5)


class Clock(pl.Callback):
    """Times the steps behind the first fifth."""

    def __init__(self, steps: int) -> None:
        self.steps, self.started_s = steps, 0.0

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == self.steps // 5:
            dist.barrier()
            self.started_s = time.perf_counter()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self.step_s = (time.perf_counter() - self.started_s) / (self.steps - self.steps // 5)


def by_bolide(steps: int, log: bool) -> float:
    """Seconds a step under the Trainer."""
    clock = Clock(steps)
    trainer = pl.Trainer(
        accelerator="cpu", devices=2, strategy="ddp", max_epochs=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, callbacks=[clock], use_distributed_sampler=False,
    )  # fmt: skip
    trainer.fit(Module(log), Batches(steps))
    return clock.step_s


def measure(steps: int, rounds: int, log: bool) -> dict[str, list[float]] | None:
    strategy = pl.Trainer(accelerator="cpu", devices=2, strategy="ddp", logger=False).strategy
    strategy.start()
    found: dict[str, list[float]] = {"by hand": [], "bolide": []}
    for i in range(rounds):
        order = ["by hand", "bolide"] if i % 2 == 0 else ["bolide", "by hand"]
        for name in order:
            seconds = torch.tensor([by_hand(steps) if name == "by hand" else by_bolide(steps, log)])
            dist.all_reduce(seconds, dist.ReduceOp.MAX)
            found[name].append(seconds.item())
    return found if dist.get_rank() == 0 else None


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--log", action="store_true", help="with self.log(..., sync_dist=True) in each step")
    options = parser.parse_args()
    found = run_in_processes(measure, (options.steps, options.rounds, options.log), 2, fork=True)
    ratios = [b / a for a, b in zip(found["by hand"], found["bolide"], strict=True)]
    print(json.dumps({
        "by_hand_us": round(statistics.median(found["by hand"]) * 1e6, 1),
        "bolide_us": round(statistics.median(found["bolide"]) * 1e6, 1),
        "ratio": round(statistics.median(ratios), 4),
        "ratios": [round(ratio, 4) for ratio in ratios],
    }))  # fmt: skip


if __name__ == "__main__":
    main()

"""Two processes under Bolide beside hand-written torch DDP: steps of both in turns, in the same processes.

Each pair of steps is on the same batch; which comes first alternates, as the second finds the caches warm. What is
told is the median of the pairs' ratios, of the slower rank, so that whatever else the machine does falls on both.
`python benchmarks/ddp.py [--pairs N] [--log]`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import bolide as pl
from bolide.launch.processes import run_in_processes

WIDTH, BATCH, WARM_UP = 512, 64, 20


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


def by_hand(count: int) -> Iterator[None]:
    """A hand-written loop, step by step."""
    ddp = DistributedDataParallel(network())
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
    for x, y in Batches(count):
        loss = nn.functional.cross_entropy(ddp(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield


def measure(pairs: int, log: bool) -> dict[str, Any] | None:
    trainer = pl.Trainer(
        accelerator="cpu", devices=2, strategy="ddp", max_epochs=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, use_distributed_sampler=False,
    )  # fmt: skip
    trainer.strategy.start()
    count = pairs + WARM_UP + 1  # what ends an epoch is no step
    loops: dict[str, Iterator[Any]] = {
        "by hand": by_hand(count), "bolide": iter(trainer.steps(Module(log), Batches(count)))
    }  # fmt: skip
    seconds: dict[str, list[float]] = {"by hand": [], "bolide": []}
    for i in range(pairs + WARM_UP):
        for name in ("by hand", "bolide") if i % 2 else ("bolide", "by hand"):
            dist.barrier()
            started_s = time.perf_counter()
            next(loops[name])
            seconds[name].append(time.perf_counter() - started_s)
    times = torch.tensor([seconds["by hand"][WARM_UP:], seconds["bolide"][WARM_UP:]], dtype=torch.float64)
    dist.all_reduce(times, dist.ReduceOp.MAX)
    hand, bolide = times.tolist()
    if dist.get_rank() != 0:
        return None
    ratios = [b / a for a, b in zip(hand, bolide, strict=True)]
    quarters = statistics.quantiles(ratios, n=4)
    return {
        "by_hand_us": round(statistics.median(hand) * 1e6, 1),
        "bolide_us": round(statistics.median(bolide) * 1e6, 1),
        "ratio": round(statistics.median(ratios), 4),
        "quartiles": [round(quarters[0], 4), round(quarters[2], 4)],
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=400)
    parser.add_argument("--log", action="store_true", help="with self.log(..., sync_dist=True) in each step")
    options = parser.parse_args()
    print(json.dumps(run_in_processes(measure, (options.pairs, options.log), 2, fork=True)))


if __name__ == "__main__":
    main()

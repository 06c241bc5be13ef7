"""What going on from the middle of a large epoch costs: from the call of fit to the first batch.

A set of 20 million samples, gone on with at sample 10 million, beside a start at sample 0, for torch's own samplers and
for one that only can be iterated. Samples that are fetched on the way are counted: there should be none. Medians of
rounds in turn.

python benchmarks/resume.py
"""

from __future__ import annotations

import argparse
import logging
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, RandomSampler, Sampler, SequentialSampler

import bolide as pl

BATCH = 10_000


class Numbers(Dataset[Any]):
    """Sample i is i; counts what is fetched."""

    def __init__(self, n: int) -> None:
        self.n, self.fetched = n, 0

    def __len__(self) -> int:
        return self.n

    def __getitems__(self, indices: list[int]) -> torch.Tensor:
        """A batch at once."""
        self.fetched += len(indices)
        return torch.tensor(indices)


class OwnSampler(Sampler[int]):
    """Every third index, then the others in turn: nothing that torch knows."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __iter__(self) -> Iterator[int]:
        for start in range(3):
            yield from range(start, self.n, 3)


SAMPLERS: dict[str, Callable[[Numbers], Any]] = {
    "in order": lambda data: SequentialSampler(data),
    "shuffled": lambda data: RandomSampler(data),
    "a sampler of one's own": lambda data: OwnSampler(len(data)),
}


class Task(pl.LightningModule):
    """Notes when its first batch comes."""

    def __init__(self) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(1))
        self.first: tuple[float, int] | None = None

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if self.first is None:
            self.first = time.perf_counter(), int(batch[0])
        return self.w.sum()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), 0.1)


def begin(data: Numbers, kind: str, path: Path | None, batches: int) -> tuple[float, int, int, Any]:
    """Seconds to the first batch, its first sample, what was fetched before it; trains on so many batches."""
    task = Task()
    trainer = pl.Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False,
    )  # fmt: skip
    loader = DataLoader(data, BATCH, sampler=SAMPLERS[kind](data), collate_fn=lambda batch: batch)
    torch.manual_seed(0)
    data.fetched = 0
    start_s = time.perf_counter()
    steps = trainer.steps(task, loader, ckpt_path=path)
    fetched = 0
    for i, _ in enumerate(steps, 1):
        fetched = fetched or data.fetched
        if i == batches:
            break
    assert task.first is not None
    return task.first[0] - start_s, task.first[1], fetched, trainer


def main() -> None:
    """Prints a row for each sampler."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=20_000_000)
    parser.add_argument("--at", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.getLogger("bolide").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    data = Numbers(args.samples)
    print(f"| sampler | start at sample 0, s | at sample {args.at:,}, s | difference, s | samples fetched to skip |")
    print("|---|---:|---:|---:|---:|")
    for kind in SAMPLERS:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "middle.ckpt"
            *_, trainer = begin(data, kind, None, args.at // BATCH)
            trainer.save_checkpoint(path)
            times: dict[Path | None, list[float]] = {None: [], path: []}
            skipped = 0
            for _ in range(args.rounds):
                for place in times:
                    took_s, _, fetched, _ = begin(data, kind, place, 1)
                    times[place].append(took_s)
                    skipped = max(skipped, fetched - 2 * BATCH)  # the first batch, and the one that is read ahead
        start, middle = (statistics.median(values) for values in times.values())
        print(f"| {kind} | {start:.2f} | {middle:.2f} | {middle - start:+.2f} | {max(0, skipped)} |", flush=True)


if __name__ == "__main__":
    main()

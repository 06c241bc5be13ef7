"""An epoch's loading of data in memory: torch's DataLoader, and Bolide's reading of the very same loader.

60,000 samples of 784 floats and a label, batch 64, shuffled. Both sides run in turn in one process, round after
round; the ratio is that of the fastest rounds, and the batches are compared bit by bit first.

python benchmarks/tensor_loader.py
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.utils.data import DataLoader, Subset, TensorDataset

from bolide.data.tensors import batches_of, is_plain

GOAL = 5.0
torch.set_num_threads(1)


def loaders(samples: int, features: int, batch_size: int) -> dict[str, DataLoader[Any]]:
    """The loaders to compare: a TensorDataset, and a Subset of nine tenths of it."""
    generator = torch.Generator().manual_seed(1)
    data = TensorDataset(
        torch.randn(samples, features, generator=generator), torch.randint(10, (samples,), generator=generator)
    )
    part = Subset(data, torch.randperm(samples, generator=generator)[: samples * 9 // 10].tolist())
    return {
        "TensorDataset": DataLoader(data, batch_size, shuffle=True),
        "Subset": DataLoader(part, batch_size, shuffle=True),
    }


def seconds(read: Callable[[DataLoader[Any]], Iterable[Any]], loader: DataLoader[Any]) -> float:
    """How long an epoch of `loader` takes when nothing is done with the batches."""
    start = time.perf_counter()
    for _ in read(loader):
        pass
    return time.perf_counter() - start


def same(loader: DataLoader[Any]) -> bool:
    """Whether both sides give the same batches from the same seed, and leave the generator in the same state."""
    torch.manual_seed(2)
    left, left_state = list(loader), torch.get_rng_state()
    torch.manual_seed(2)
    right, right_state = list(batches_of(loader)), torch.get_rng_state()
    equal = all(torch.equal(a, b) for x, y in zip(left, right, strict=True) for a, b in zip(x, y, strict=True))
    return equal and torch.equal(left_state, right_state)


def main() -> None:
    """Measures and prints one line for each loader."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--samples", type=int, default=60_000)
    parser.add_argument("--features", type=int, default=784)
    parser.add_argument("--batch-size", type=int, default=64)
    args = parser.parse_args()
    for name, loader in loaders(args.samples, args.features, args.batch_size).items():
        assert is_plain(loader)
        identical = same(loader)
        theirs, ours = [], []
        for _ in range(args.rounds):
            theirs.append(seconds(iter, loader))
            ours.append(seconds(batches_of, loader))
        print(
            f"{name:14} torch {1e3 * min(theirs):8.1f} ms   bolide {1e3 * min(ours):7.1f} ms"
            f"   x{min(theirs) / min(ours):5.1f} as fast (goal: {GOAL})"
            f"   {'same batches' if identical else 'OTHER BATCHES'}"
        )


if __name__ == "__main__":
    main()

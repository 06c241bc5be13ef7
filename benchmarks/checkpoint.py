"""What a checkpoint costs the training: how long the loop waits, and how long the file takes.

A model and its AdamW state, 64 and 256 MB. In turn, round after round in one process: one copy of the state into
memory already touched (memmove, the quickest there is), torch.save with flush and fsync, Bolide's write while the
loop waits, and Bolide's asynchronous save: how long the loop waits for the first one and for later ones. Collecting
the state dictionaries counts as waiting. Medians of all rounds, and the longest wait.

python benchmarks/checkpoint.py
"""

from __future__ import annotations

import argparse
import ctypes
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from bolide.checkpoint import digest
from bolide.checkpoint.file import write_checkpoint
from bolide.checkpoint.snapshot import nbytes_of
from bolide.checkpoint.writer import Writer

MB = 1 << 20
ALLOWED_COPIES = 1.25
ALLOWED_MS = 10.0
FIRST = 2.0
"""The first wait may be so many times as long as the later ones."""

torch.set_num_threads(1)


class Training:
    """A model of square layers with its optimizer, after one step."""

    def __init__(self, mb: int, layers: int) -> None:
        width = int((mb * MB / 12 / layers) ** 0.5)  # 4 bytes for each of the weight and AdamW's two moments
        self.model = nn.Sequential(*(nn.Linear(width, width) for _ in range(layers)))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, foreach=True)
        for parameter in self.model.parameters():
            parameter.grad = torch.randn_like(parameter)
        self.optimizer.step()

    def step(self) -> None:
        """Changes every value."""
        self.optimizer.step()

    def checkpoint(self) -> dict[str, Any]:
        """What a checkpoint holds now, in memory that is the training's."""
        return {"state_dict": self.model.state_dict(), "optimizer_states": [self.optimizer.state_dict()]}


def tensors_of(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    members = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return [tensor for member in members for tensor in tensors_of(member)]


def milliseconds(run: Callable[[], Any]) -> float:
    start = time.perf_counter()
    run()
    return 1e3 * (time.perf_counter() - start)


def torch_save(checkpoint: dict[str, Any], path: str) -> None:
    with open(path, "wb") as file:
        torch.save(checkpoint, file)
        file.flush()
        os.fsync(file.fileno())


def measure(mb: int, layers: int, rounds: int, folder: str) -> dict[str, list[float]]:
    """Milliseconds of each contestant, round by round."""
    training = Training(mb, layers)
    sources = tensors_of(training.checkpoint())
    touched = [torch.zeros_like(tensor) for tensor in sources]
    path = os.path.join(folder, "a.ckpt")
    later = Writer()
    found: dict[str, list[float]] = {}

    def copy() -> None:
        for target, source in zip(touched, sources, strict=True):
            ctypes.memmove(target.data_ptr(), source.data_ptr(), source.nbytes)

    def first_wait(reserve: bool) -> float:
        writer = Writer()
        if reserve:
            writer.reserve(nbytes_of(training.checkpoint()))
            writer._snapshots.arena.settle()
        wait_ms = milliseconds(lambda: writer.save(training.checkpoint(), path))
        writer.close()
        return wait_ms

    def later_wait() -> float:
        wait_ms = milliseconds(lambda: later.save(training.checkpoint(), path))
        later.drain()
        return wait_ms

    def digests() -> float:
        with open(path, "rb") as file:
            return milliseconds(lambda: digest.check(file))

    contestants: dict[str, Callable[[], float]] = {
        "copy": lambda: milliseconds(copy),
        "later": later_wait,
        "torch": lambda: milliseconds(lambda: torch_save(training.checkpoint(), path)),
        "first": lambda: first_wait(reserve=False),
        "sync": lambda: milliseconds(lambda: write_checkpoint(training.checkpoint(), path)),
        "first, reserved": lambda: first_wait(reserve=True),
        "digests": digests,
    }
    later_wait()
    for number in range(rounds):
        names = list(contestants)
        for name in names[number % len(names) :] + names[: number % len(names)]:  # nobody always comes after the same
            if name == "digests":
                write_checkpoint(training.checkpoint(), path)
            training.step()
            os.sync()
            found.setdefault(name, []).append(contestants[name]())
    found["mb"] = [nbytes_of(training.checkpoint()) / MB]
    found["file_mb"] = [os.path.getsize(path) / MB]
    found["tensors"] = [float(len(sources))]
    later.close()
    return found


ROWS = {
    "copy": "one copy into touched memory",
    "torch": "`torch.save`, flush, fsync",
    "sync": "Bolide, synchronous, with digests",
    "later": "Bolide, asynchronous: the loop waits",
    "first": "the same, first save, memory not made ready",
    "first, reserved": "the same, first save, memory made ready",
}


def table(found: dict[str, list[float]]) -> list[str]:
    """One size's lines: medians, the longest, and the ratio to the copy of the same rounds."""
    copy_ms = statistics.median(found["copy"])
    allowed_ms = ALLOWED_COPIES * copy_ms + ALLOWED_MS
    limits = {"later": allowed_ms, "first": FIRST * allowed_ms, "first, reserved": FIRST * allowed_ms}
    lines = []
    for name, text in ROWS.items():
        median_ms, longest_ms = statistics.median(found[name]), max(found[name])
        limit = f"{limits[name]:.0f}" if name in limits else ""
        verdict = "" if name not in limits else "yes" if median_ms <= limits[name] else "NO"
        lines.append(
            f"| {found['mb'][0]:.0f} MB, {found['tensors'][0]:.0f} tensors | {text} | {median_ms:.1f} "
            f"| {longest_ms:.1f} | {median_ms / copy_ms:.1f} | {limit} | {verdict} |"
        )
    return lines


def main() -> None:
    """Measures and prints a table, then the speed of checking."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--sizes-mb", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--layers", type=int, default=48)
    parser.add_argument("--folder", help="where the files go; default: the system's place for temporary files")
    args = parser.parse_args()
    lines, notes = [], []
    for mb in args.sizes_mb:
        folder = tempfile.mkdtemp(dir=args.folder)
        try:
            found = measure(mb, args.layers, args.rounds, folder)
        finally:
            shutil.rmtree(folder)
        lines += table(found)
        speed = found["file_mb"][0] / 1024 / (min(found["digests"]) / 1e3)
        ratio = statistics.median(found["torch"]) / statistics.median(found["later"])
        notes.append(f"{mb} MB: the loop waits 1/{ratio:.0f} of torch.save's time; digests checked at {speed:.2f} GB/s")
    print("| state | what | ms | longest ms | in copies | allowed ms | kept |")
    print("|---|---|---:|---:|---:|---:|---|")
    print(*lines, "", *notes, f"torch {torch.__version__}, 1 thread, {args.rounds} rounds", sep="\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()

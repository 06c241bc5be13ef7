"""The same kills for Lightning, and how many of them it survives with the same bits.

    python -m tests.chaos.peer            # Bolide and Lightning, 10 kills each
    python -m tests.chaos.peer --kills 50 --library lightning

Both train the same worlds with the same callbacks, are killed at the same instants after their first batch, and go on
from `last.ckpt`. Counted for each kill: whether the run came to its end at all, whether weights and optimizer state are
those of its own undisturbed run, and whether each batch and the metric file are, too.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from pathlib import Path
from typing import Any

import torch

from tests.chaos.killing import cold, forked
from tests.chaos.worlds import digest

NETS = ("mlp", "cnn", "transformer")
COUNTED = ("came to its end", "same weights and optimizer", "same batches", "same metric file")


def results(out: Path) -> dict[str, Any]:
    """What a run leaves, as far as both libraries have it."""
    state = torch.load(out / "final.ckpt", weights_only=True)
    kept = [digest(state[key]) for key in ("state_dict", "optimizer_states", "lr_schedulers", "global_step", "epoch")]
    counted: dict[str, str] = {}
    for line in (out / "ledger.txt").read_text().splitlines():
        epoch, batch, rest = line.split(" ", 2)
        counted[f"{epoch} {batch}"] = rest
    return {"weights": kept, "batches": counted, "metrics": (out / "metrics.csv").read_text()}


def survive(folder: Path, library: str, kills: int) -> dict[str, int]:
    """Kills so many runs once each; returns how often each of `COUNTED` held."""
    draw, found = random.Random(10), dict.fromkeys(COUNTED, 0)
    whole: dict[str, Any] = {}
    for number in range(kills):
        net, after_s = NETS[number % 3], draw.uniform(0.0, 1.0)
        options = {"net": net, "library": library}
        if net not in whole:
            out = folder / f"{library}-{net}"
            assert forked(out, {**options, "ckpt": None}) == 0
            whole[net] = results(out)
        out = folder / f"{library}-{number}"
        try:
            if cold(out, options, after_s) != 0 or not (out / "final.ckpt").exists():
                cold(out, options)
            left = results(out)
        except AssertionError:  # it could not go on
            continue
        same = [True, *(left[key] == whole[net][key] for key in ("weights", "batches", "metrics"))]
        for name, held in zip(COUNTED, same, strict=True):
            found[name] += held
    return found


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--library", default="bolide,lightning")
    args = parser.parse_args()
    print(f"| of {args.kills} runs killed once | {' | '.join(COUNTED)} |")
    print("|---|" + "---:|" * len(COUNTED))
    for library in args.library.split(","):
        with tempfile.TemporaryDirectory() as folder:
            found = survive(Path(folder), library, args.kills)
        print(f"| {library} | {' | '.join(str(found[name]) for name in COUNTED)} |", flush=True)


if __name__ == "__main__":
    main()

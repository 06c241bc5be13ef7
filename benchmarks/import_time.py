"""What `import bolide` costs beyond `import torch`: fresh processes, in turn, the median of each.

python benchmarks/import_time.py
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys

GOAL_S = 0.25
BEGIN = "import time; start = time.perf_counter(); import torch; "
END = "print(time.perf_counter() - start)"
STATEMENTS = {
    "import torch": "",
    "import bolide": "import bolide; ",
    "bolide.Trainer, bolide.LightningModule": "import bolide; bolide.Trainer, bolide.LightningModule; ",
}


def seconds(statement: str) -> float:
    """How long a fresh process takes for `import torch` and `statement`."""
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + statement + END], stdout=subprocess.PIPE, text=True, check=True
    )
    return float(done.stdout)


def main() -> None:
    """Measures and prints one line for each statement."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    rounds = parser.parse_args().rounds
    taken: dict[str, list[float]] = {name: [] for name in STATEMENTS}
    for _ in range(rounds + 1):
        for name, statement in STATEMENTS.items():
            taken[name].append(seconds(statement))
    medians = {name: statistics.median(times[1:]) for name, times in taken.items()}  # the first round warms the disk
    torch_s = medians["import torch"]
    for name, median in medians.items():
        over = "" if name == "import torch" else f"   over torch {median - torch_s:6.3f} s (goal: {GOAL_S})"
        print(f"{name:40} {median:6.3f} s{over}")


if __name__ == "__main__":
    main()

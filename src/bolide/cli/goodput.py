"""`bolide goodput`: the table of where the time of a run went, from its ledger. Called by cli/main.py."""

from __future__ import annotations

from bolide.core.errors import MisconfigurationException
from bolide.monitor import ledger


def run_goodput(folder: str) -> int:
    """Prints the table of each ledger in `folder` and below it; returns the exit code.

    Raises:
        MisconfigurationException: there is none.
    """
    paths = ledger.find(folder)
    if not paths:
        raise MisconfigurationException(
            f"there is no {ledger.FILE_NAME} in {folder}. A run writes it with Trainer(callbacks=[GoodputMonitor()])"
        )
    for i, path in enumerate(paths):
        if i or len(paths) > 1:
            print(f"{'' if i == 0 else chr(10)}{path}")
        attempts = ledger.read(path)
        print(ledger.table(attempts))
        for number, attempt in enumerate(attempts, 1):
            seconds = sum(attempt.seconds.values())
            done = attempt.batches - (attempt.first_batch if attempt.first_batch is not None else attempt.batches)
            print(f"  attempt {number}: {attempt.status}, {ledger.duration(seconds)}, {done} batches")
    return 0

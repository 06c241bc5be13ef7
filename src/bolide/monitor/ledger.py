"""The goodput ledger: a file of lines that say where the time of each attempt of a run went, and what they add up to.

Owns the file's format, its reading and its sums: pure functions over lines. Who calls: monitor/goodput writes the
lines, `bolide goodput` prints the table.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

FILE_NAME = "goodput.jsonl"
FORMAT = 1
CATEGORIES = (
    "startup", "training", "data_wait", "validation", "saving", "restoring", "recomputed", "idle",
)  # fmt: skip
"""Where time goes. "training" is what was kept, "recomputed" what an earlier attempt had trained already and lost."""

TITLES = {"startup": "start-up", "data_wait": "data wait"}


@dataclass(frozen=True)
class Attempt:
    """One process's part of a run: its last line.

    `seconds` by category; `began_s` and `ended_s` in seconds since 1970; `first_batch` is the number of batches that
    were done when it began (None: it never began to train), `batches` when its last line was written.
    """

    name: str
    began_s: float
    ended_s: float
    first_batch: int | None
    batches: int
    status: str
    seconds: dict[str, float]


def line_of(attempt: Attempt) -> bytes:
    """The line of the file that says how an attempt stands; a later one of the same attempt replaces it."""
    data = {
        "format": FORMAT,
        "attempt": attempt.name,
        "began_s": round(attempt.began_s, 3),
        "at_s": round(attempt.ended_s, 3),
        "first_batch": attempt.first_batch,
        "batches": attempt.batches,
        "status": attempt.status,
        "seconds": {name: round(attempt.seconds.get(name, 0.0), 6) for name in CATEGORIES},
    }
    return json.dumps(data, separators=(",", ":")).encode() + b"\n"


def parse_line(line: str | bytes) -> Attempt | None:
    """The attempt that a line tells of; None for a torn line, or one that says something else."""
    try:
        data = json.loads(line)
        if data["format"] != FORMAT:
            return None
        seconds = {name: float(data["seconds"].get(name, 0.0)) for name in CATEGORIES}
        first = data["first_batch"]
        found = Attempt(
            str(data["attempt"]), float(data["began_s"]), float(data["at_s"]), None if first is None else int(first),
            int(data["batches"]), str(data["status"]), seconds,
        )  # fmt: skip
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    return found if all(math.isfinite(value) for value in (found.began_s, found.ended_s, *seconds.values())) else None


def read(path: str | os.PathLike[str]) -> list[Attempt]:
    """The attempts in a file, in the order in which they began; each as its last whole line tells it."""
    if not os.path.isfile(path):
        return []
    with open(path, "rb") as file:
        found = [parse_line(line) for line in file]
    last = {attempt.name: attempt for attempt in found if attempt is not None}
    return sorted(last.values(), key=lambda attempt: attempt.began_s)


def append(path: str, line: bytes) -> None:
    """Adds a line in one write, after a torn one on a new line."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_CLOEXEC", 0), 0o666)
    try:
        size = os.fstat(descriptor).st_size
        torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
        os.write(descriptor, b"\n" + line if torn else line)
    finally:
        os.close(descriptor)


def totals(attempts: Sequence[Attempt]) -> dict[str, float]:
    """The seconds of all attempts by category; what lies between two of them is "idle".

    They add up to the time from the first attempt's start to the last one's last line.
    """
    sums = {name: sum(attempt.seconds.get(name, 0.0) for attempt in attempts) for name in CATEGORIES}
    for before, after in zip(attempts, attempts[1:], strict=False):
        sums["idle"] += max(0.0, after.began_s - before.ended_s)
    return sums


def repeated_batches(attempts: Sequence[Attempt]) -> int:
    """How many batches were trained on again, because an attempt went on from before what was reached already."""
    repeated = reached = 0
    for attempt in attempts:
        if attempt.first_batch is not None:
            if attempt.first_batch > 0:  # one that begins anew repeats nothing
                repeated += max(0, min(attempt.batches, reached) - attempt.first_batch)
            reached = max(reached, attempt.batches)
    return repeated


def share(seconds: dict[str, float]) -> float:
    """The goodput: the time of training that was kept, in all time; NaN where there is none."""
    whole_s = sum(seconds.values())
    return seconds.get("training", 0.0) / whole_s if whole_s > 0 else math.nan


def duration(seconds: float) -> str:
    """Seconds as text of three units at most."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = [(days, "d"), (hours, "h"), (minutes, "min"), (rest, "s")]
    while parts[0][0] == 0:
        parts.pop(0)
    return " ".join(f"{value} {unit}" for value, unit in parts[:3])


def table(attempts: Sequence[Attempt]) -> str:
    """The summary: the last attempt, and beside it all of them where there are several."""
    if not attempts:
        return "There is no attempt in the ledger."
    columns = [(f"attempt {len(attempts)}", totals(attempts[-1:]))]
    if len(attempts) > 1:
        columns.append((f"all {len(attempts)} attempts", totals(attempts)))
    names = [name for name in CATEGORIES if any(sums[name] >= 0.05 for _, sums in columns)]
    rows = [["", *(title for title, _ in columns)]]
    for name in names:
        cells = []
        for _, sums in columns:
            whole_s = sum(sums.values())
            cells.append(f"{duration(sums[name])} {100 * sums[name] / whole_s if whole_s else 0:5.1f} %")
        rows.append([TITLES.get(name, name), *cells])
    rows.append(["in all", *(f"{duration(sum(sums.values()))}        " for _, sums in columns)])
    lines = ["Where the time went", *_aligned(rows)]
    repeated = repeated_batches(attempts)
    tail = f"; {repeated} batches were trained on again" if repeated else ""
    lines.append(f"Goodput, training that was kept in all time: {100 * share(columns[-1][1]):.1f} %{tail}")
    return "\n".join(lines)


def _aligned(rows: Iterable[Sequence[str]]) -> list[str]:
    rows = list(rows)
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        ("  " + row[0].ljust(widths[0]) + "".join("  " + cell.rjust(widths[i + 1]) for i, cell in enumerate(row[1:])))
        .rstrip()
        for row in rows
    ]  # fmt: skip


def find(folder: str | os.PathLike[str]) -> list[Path]:
    """The ledgers in a folder and below it; of a file that is one, itself."""
    path = Path(folder)
    if path.is_file():
        return [path]
    return sorted(path.rglob(FILE_NAME))

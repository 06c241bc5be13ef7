"""How much memory the parts of a run take: the figures of `skip_memory_metrics=False`.

Owns the reading of them; each part adds its own to what it returns and logs. Who calls: the trainer.
"""

from __future__ import annotations

import gc
import threading
from typing import Any

import torch

SAMPLE_EVERY_S = 0.001


def resident_bytes() -> int:
    """What this process has in memory."""
    import psutil

    return int(psutil.Process().memory_info().rss)


class Peak(threading.Thread):
    """Looks at the process's memory about a thousand times a second, and keeps the most."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.most = resident_bytes()
        self.over = threading.Event()

    def run(self) -> None:
        """Looks, until told to stop."""
        while not self.over.wait(SAMPLE_EVERY_S):
            self.most = max(self.most, resident_bytes())

    def stop(self) -> int:
        """The most that was seen."""
        self.over.set()
        self.join()
        return max(self.most, resident_bytes())


class MemoryRecord:
    """The memory of one part of a run at a time; one within another is not looked at.

    Args:
        on: whether anything is measured.
    """

    def __init__(self, on: bool) -> None:
        self.on = on
        self.part: str | None = None
        self.began: dict[str, int] = {}
        self.waiting: dict[str, int] = {}
        self.peak: Any = None

    def start(self, part: str) -> None:
        """A part begins: init, train, eval or test."""
        if not self.on or (self.part == "train" and part != "train"):
            return
        if self.peak is not None:  # of a part that ended in an error
            self.peak.stop()
        self.part, self.began = part, self._now()
        if torch.cuda.is_initialized():
            torch.cuda.reset_peak_memory_stats()
        self.peak = Peak()
        self.peak.start()
        if part == "init":
            self.waiting = {f"before_init_mem_{place}": count for place, count in self.began.items()}

    def stop(self, part: str) -> dict[str, int]:
        """What the part took, in bytes: what it holds more than before, and what it needed beyond that meanwhile.

        The figures of "init" come with those of the part that follows.
        """
        if self.part != part:
            return {}
        peaks = {"cpu": self.peak.stop()}
        if torch.cuda.is_initialized():
            peaks["gpu"] = torch.cuda.max_memory_allocated()
        now, self.part, self.peak = self._now(), None, None
        for place, count in now.items():
            self.waiting[f"{part}_mem_{place}_alloc_delta"] = count - self.began.get(place, 0)
            self.waiting[f"{part}_mem_{place}_peaked_delta"] = max(0, peaks[place] - count)
        if part == "init":
            return {}
        found, self.waiting = self.waiting, {}
        return found

    def _now(self) -> dict[str, int]:
        gc.collect()
        found = {"cpu": resident_bytes()}
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()
            found["gpu"] = torch.cuda.memory_allocated()
        return found

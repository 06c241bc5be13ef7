"""When a bar is redrawn: seldom enough to cost nothing, often enough to be read."""

from __future__ import annotations

import time
from math import inf

DRAW_EVERY_S = 0.1
DRAW_AT_LEAST_EVERY_S = 1.0
SHARE_OF_TIME = 0.01


class Pace:
    """Decides after which batch a bar is redrawn.

    Not before `every` batches and a tenth of a second have passed since the last drawing, and so that drawing takes no
    more than a hundredth of the time; at the last batch always.

    Args:
        every: batches between two drawings at the least; 0: never draw.
        interval_s: seconds between two drawings at the least.
    """

    __slots__ = ("every", "interval_s", "least_s", "n", "next_n", "next_s", "total")

    def __init__(self, every: int = 1, interval_s: float = DRAW_EVERY_S) -> None:
        self.every: float = every if every > 0 else inf
        self.least_s = self.interval_s = interval_s
        self.n = 0
        self.total: float = inf
        self.next_n: float = self.every
        self.next_s = 0.0

    def start(self, total: float, n: int = 0) -> None:
        """A bar of `total` batches begins, `n` of which are done; its first batch may be drawn at once."""
        self.n = n
        self.total = total if self.every < inf else inf
        self.next_n = n + self.every if self.least_s <= DRAW_EVERY_S else n
        self.next_s = 0.0 if self.least_s <= DRAW_EVERY_S else time.monotonic() + self.least_s

    def due(self, n: int) -> bool:
        """Whether to draw now that `n` batches are done. This is all that a batch costs when it is not."""
        self.n = n
        if n >= self.total:
            return True
        return n >= self.next_n and time.monotonic() >= self.next_s

    def drawn(self, began_s: float) -> None:
        """The bar was drawn, which began at `began_s` of the monotonic clock."""
        now_s = time.monotonic()
        slow_s = (now_s - began_s) / SHARE_OF_TIME
        self.interval_s = max(self.least_s, min(slow_s, DRAW_AT_LEAST_EVERY_S))
        self.next_n = self.n + self.every
        self.next_s = now_s + self.interval_s

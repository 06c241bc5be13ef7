"""AdvancedProfiler: known by name, not built yet."""

from __future__ import annotations

from typing import Any

from bolide.profilers.profiler import PassThroughProfiler, not_built


class AdvancedProfiler(PassThroughProfiler):
    """Every function call of each action."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise not_built(self, "Run the script with: python -m cProfile train.py")

"""SimpleProfiler: known by name, not built yet."""

from __future__ import annotations

from typing import Any

from bolide.profilers.profiler import PassThroughProfiler, not_built


class SimpleProfiler(PassThroughProfiler):
    """How long each action took, in a table."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise not_built(self, "Time the actions in a Callback with time.perf_counter.")

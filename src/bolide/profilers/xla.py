"""XLAProfiler: known by name, not built yet."""

from __future__ import annotations

from typing import Any

from bolide.profilers.profiler import PassThroughProfiler, not_built


class XLAProfiler(PassThroughProfiler):
    """TPUs."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise not_built(self, "TPUs are not supported.")

"""PyTorchProfiler: known by name, not built yet."""

from __future__ import annotations

from typing import Any

from bolide.profilers.profiler import PassThroughProfiler, not_built


class PyTorchProfiler(PassThroughProfiler):
    """PyTorch's operators and kernels."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise not_built(self, "Write: with torch.profiler.profile() as p: trainer.fit(...)")

"""Accelerators by their public names: what there is on this machine. world.py chooses the device of a run."""

from __future__ import annotations

from typing import Any

from bolide.accelerators.accelerator import (
    Accelerator,
    CPUAccelerator,
    CUDAAccelerator,
    MPSAccelerator,
    accelerator_of,
    find_usable_cuda_devices,
)
from bolide.core.errors import did_you_mean
from bolide.core.lazy import submodule

__all__ = [
    "Accelerator",
    "CPUAccelerator",
    "CUDAAccelerator",
    "MPSAccelerator",
    "accelerator_of",
    "find_usable_cuda_devices",
]


def __getattr__(name: str) -> Any:
    if name in ("XLAAccelerator", "TPUAccelerator"):
        raise AttributeError(f"bolide.accelerators.{name}: TPUs are not supported; CUDA, MPS and CPUs are.")
    if name == "GPUAccelerator":
        raise AttributeError("bolide.accelerators.GPUAccelerator is CUDAAccelerator today.")
    found = submodule(__name__, name)
    if found is not None:
        return found
    raise AttributeError(f"module 'bolide.accelerators' has no attribute {name!r}." + did_you_mean(name, __all__))

"""Where a run takes place: the accelerator, the device and this process's rank.

Owns the reading of `accelerator=` and `devices=`. Several devices are not built yet and are refused here by name.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import torch

from bolide.core import env
from bolide.core.errors import did_you_mean

ACCELERATORS = ("auto", "cpu", "gpu", "cuda", "mps")
REFUSED_ACCELERATORS = {
    "tpu": "TPUs are not supported by Bolide; use accelerator='gpu' or 'cpu'",
    "xla": "TPUs are not supported by Bolide; use accelerator='gpu' or 'cpu'",
    "hpu": "Habana devices are not supported by Bolide; use accelerator='gpu' or 'cpu'",
    "ipu": "Graphcore devices are not supported by Bolide; use accelerator='gpu' or 'cpu'",
}


@dataclass(frozen=True)
class World:
    """This process among all: its device, and the ranks, which are 0 of 1 on a single device."""

    device: torch.device
    global_rank: int = 0
    local_rank: int = 0
    node_rank: int = 0
    world_size: int = 1

    @property
    def kind(self) -> str:
        """The accelerator's name: "cpu", "cuda" or "mps"."""
        return self.device.type


def resolve_accelerator(accelerator: Any) -> tuple[str, list[str]]:
    """The device type that is meant, and what is wrong with the request."""
    if not isinstance(accelerator, str):
        name = getattr(accelerator, "name", None)
        kind = name() if callable(name) else name
        if isinstance(kind, str) and kind in ("cpu", "cuda", "mps"):
            return kind, []
        return "cpu", [f"accelerator={accelerator!r} must be one of {', '.join(ACCELERATORS)}, or an Accelerator"]
    if accelerator in REFUSED_ACCELERATORS:
        return "cpu", [f"accelerator={accelerator!r}: {REFUSED_ACCELERATORS[accelerator]}"]
    if accelerator not in ACCELERATORS:
        return "cpu", [
            f"accelerator={accelerator!r} must be one of {', '.join(ACCELERATORS)}."
            + did_you_mean(accelerator, ACCELERATORS)
        ]
    cuda, mps = torch.cuda.is_available(), torch.backends.mps.is_available()
    if accelerator in ("auto", "gpu") and (cuda or mps):
        return ("cuda" if cuda else "mps"), []
    if accelerator in ("auto", "cpu"):
        return "cpu", []
    if (accelerator == "cuda" and cuda) or (accelerator == "mps" and mps):
        return accelerator, []
    return "cpu", [
        f"accelerator={accelerator!r}: this machine has no such device that torch can use; "
        "write accelerator='auto' to take what is there, or 'cpu'"
    ]


def resolve_devices(devices: Any, kind: str) -> tuple[int, list[str]]:
    """The index of the one device that is meant, and what is wrong with the request."""
    indices, wrong = _device_indices(devices, kind)
    if wrong:
        return 0, [wrong]
    if len(indices) > 1:
        return 0, [
            f"devices={devices!r} asks for {len(indices)} devices; several devices are not built in this version of "
            "Bolide: write devices=1"
        ]
    available = torch.cuda.device_count() if kind == "cuda" else 1
    if kind != "cpu" and indices[0] >= available:
        return 0, [f"devices={devices!r}: this machine has {available} device(s), numbered from 0"]
    return indices[0], []


def _device_indices(devices: Any, kind: str) -> tuple[list[int], str | None]:
    expected = f"devices={devices!r} must be a number of devices, a list of indices, -1 or 'auto'"
    if devices in ("auto", None):
        return [0], None
    if isinstance(devices, str):
        text = devices.strip()
        try:
            parts = [int(part) for part in text.split(",") if part.strip()]
        except ValueError:
            return [], expected
        devices = parts if "," in text else (parts[0] if parts else 0)
    if isinstance(devices, bool) or not isinstance(devices, (int, list, tuple)):
        return [], expected
    if isinstance(devices, int):
        if devices == -1:
            return list(range(max(torch.cuda.device_count(), 1))) if kind == "cuda" else [0], None
        if devices < 1:
            return [], f"devices={devices!r}: at least one device is needed; write devices=1"
        return list(range(devices)), None
    if not devices:
        return [], f"devices={devices!r}: at least one device is needed; write devices=1"
    if kind == "cpu":
        return [], f"devices={devices!r}: CPUs have no indices; write devices={len(devices)}"
    if not all(isinstance(i, int) and i >= 0 for i in devices) or len(set(devices)) != len(devices):
        return [], f"devices={devices!r} must hold different indices, from 0"
    return list(devices), None


def resolve_world(accelerator: Any, devices: Any) -> tuple[World, list[str]]:
    """The world that `accelerator=` and `devices=` describe, and what is wrong with them."""
    kind, wrong = resolve_accelerator(accelerator)
    index, more = (0, []) if wrong else resolve_devices(devices, kind)  # what is there to choose from is not known
    device = torch.device(kind, index) if kind == "cuda" else torch.device(kind)
    return World(device=device, global_rank=env.rank()), wrong + more


def cpu_count() -> int:
    """How many cores this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # macOS has no affinity
        return os.cpu_count() or 1

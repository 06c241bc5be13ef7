"""Where a run takes place: the accelerator, the devices, and this process's place among all.

Owns the reading of `accelerator=`, `devices=` and `num_nodes=`, and how they fit what a launcher has started. It starts
no process and opens no group: launch/ does.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Protocol

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


class Launcher(Protocol):
    """What a cluster environment tells of this process; launch/environments has them."""

    name: str

    def world_size(self) -> int: ...

    def global_rank(self) -> int: ...

    def local_rank(self) -> int: ...

    def node_rank(self) -> int: ...

    def local_world_size(self) -> int | None: ...


@dataclass(frozen=True)
class World:
    """This process among all: its device and its ranks, which are 0 of 1 on a single device.

    `launched` tells that the other processes are there already, started by a launcher. Where they are not and
    `world_size` is above 1, this process is the one that is to start them.
    """

    device: torch.device
    global_rank: int = 0
    local_rank: int = 0
    node_rank: int = 0
    world_size: int = 1
    local_world_size: int = 1
    num_nodes: int = 1
    launched: bool = False
    indices: tuple[int, ...] = (0,)

    @property
    def kind(self) -> str:
        """The accelerator's name: "cpu", "cuda" or "mps"."""
        return self.device.type

    @property
    def starts_ranks(self) -> bool:
        """Whether this process has to start the others."""
        return self.world_size > 1 and not self.launched


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


def resolve_devices(devices: Any, kind: str) -> tuple[list[int], list[str]]:
    """The indices of the devices that are meant, and what is wrong with the request. CPUs are only counted."""
    indices, wrong = _device_indices(devices, kind)
    if wrong:
        return [0], [wrong]
    available = torch.cuda.device_count() if kind == "cuda" else 1
    missing = [index for index in indices if index >= available]
    if kind != "cpu" and missing:
        return [0], [
            f"devices={devices!r} needs the device {missing[0]}, and this machine has {available}, numbered from 0; "
            "write devices='auto' to take what is there"
        ]
    return indices, []


def _device_indices(devices: Any, kind: str) -> tuple[list[int], str | None]:
    expected = f"devices={devices!r} must be a number of devices, a list of indices, -1 or 'auto'"
    everything = list(range(max(torch.cuda.device_count(), 1))) if kind == "cuda" else [0]
    if devices in ("auto", None):
        # in a notebook one device, so that a cell does not become many processes unasked
        return ([0] if in_notebook() else everything), None
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
            return everything, None
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


def resolve_world(
    accelerator: Any, devices: Any, num_nodes: int = 1, launcher: Launcher | None = None, alone: bool = False
) -> tuple[World, list[str]]:
    """The world that the Trainer's arguments describe, and what is wrong with them.

    Args:
        accelerator: as given.
        devices: as given.
        num_nodes: as given.
        launcher: who started this process beside others; None where nobody did.
        alone: one process is meant, whatever the launcher has started.
    """
    kind, wrong = resolve_accelerator(accelerator)
    indices, more = ([0], []) if wrong else resolve_devices(devices, kind)  # what there is to choose from is not known
    wrong = wrong + more
    count = len(indices)
    nodes = num_nodes if isinstance(num_nodes, int) and num_nodes >= 1 else 1
    asked_for_one = devices not in ("auto", None) and count == 1 and nodes == 1
    if launcher is None or alone or asked_for_one or launcher.world_size() == 1:
        device = torch.device(kind, indices[0]) if kind == "cuda" else torch.device(kind)
        size = 1 if alone else count * nodes
        if nodes > 1 and not alone and launcher is None:
            wrong.append(
                f"num_nodes={num_nodes}: a script of its own starts processes on one machine only. Start it on each "
                "machine by torchrun --nnodes, srun, or bolide launch --nnodes"
            )
        rank = env.rank() if size == 1 else 0
        place = World(device, rank, world_size=size, local_world_size=count, num_nodes=nodes, indices=tuple(indices))
        return place, wrong
    local_size = launcher.local_world_size()
    if local_size is not None and devices not in ("auto", None) and count != local_size:
        wrong.append(
            f"devices={devices!r}, and {launcher.name} has started {local_size} process(es) on this machine: write "
            f"devices={local_size} or 'auto', or start {count}"
        )
    local_rank = launcher.local_rank()
    here = local_size or count
    if kind == "cuda" and devices in ("auto", None):
        indices = list(range(torch.cuda.device_count()))
    if kind == "cuda" and local_rank >= len(indices):
        wrong.append(
            f"{launcher.name} has started a process of local rank {local_rank} on a machine with {len(indices)} "
            "device(s): start one for each device"
        )
        local_rank = 0
    device = torch.device(kind, indices[local_rank]) if kind == "cuda" else torch.device(kind)
    size = launcher.world_size()
    world = World(
        device, launcher.global_rank(), local_rank, launcher.node_rank(), size, here, max(nodes, size // max(here, 1)),
        True, tuple(indices),
    )  # fmt: skip
    return world, wrong


def in_notebook() -> bool:
    """Whether this is the kernel of a notebook."""
    import sys

    return "ipykernel" in sys.modules and "IPython" in sys.modules


def cpu_count() -> int:
    """How many cores this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # macOS has no affinity
        return os.cpu_count() or 1

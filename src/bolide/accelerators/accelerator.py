"""What kinds of devices there are, how many, and what their state is. Facts only; nothing is placed here."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch

from bolide.core.errors import ConfigError
from bolide.world import cpu_count


class Accelerator(ABC):
    """A kind of device. `Trainer(accelerator=CUDAAccelerator())` means the same as its name."""

    @staticmethod
    @abstractmethod
    def name() -> str:
        """The kind: "cpu", "cuda" or "mps"."""

    @staticmethod
    @abstractmethod
    def is_available() -> bool:
        """Whether this machine has such a device that torch can use."""

    @staticmethod
    @abstractmethod
    def auto_device_count() -> int:
        """How many devices `devices="auto"` means."""

    @staticmethod
    @abstractmethod
    def parse_devices(devices: Any) -> Any:
        """What `devices=` means: a number of processes, or a list of indices.

        Raises:
            ConfigError: it means nothing.
        """

    @staticmethod
    @abstractmethod
    def get_parallel_devices(devices: Any) -> list[torch.device]:
        """The devices of what `parse_devices` gave."""

    def setup_device(self, device: torch.device) -> None:
        """Makes `device` the one that is used."""

    def setup(self, trainer: Any) -> None:
        """A run begins."""

    def get_device_stats(self, device: str | torch.device) -> dict[str, Any]:
        """Numbers that describe the state of `device`, by name."""
        return {}

    def teardown(self) -> None:
        """A run ends."""


class CPUAccelerator(Accelerator):
    """The CPU."""

    @staticmethod
    def name() -> str:
        """The kind: "cpu"."""
        return "cpu"

    @staticmethod
    def is_available() -> bool:
        """Always."""
        return True

    @staticmethod
    def auto_device_count() -> int:
        """One process."""
        return 1

    @staticmethod
    def parse_devices(devices: Any) -> int:
        """A number of processes."""
        try:
            count = int(devices)
        except (TypeError, ValueError):
            count = 0
        if isinstance(devices, bool) or count < 1:
            raise ConfigError(f"devices={devices!r}: expected a number of processes of at least 1 on the CPU.")
        return count

    @staticmethod
    def get_parallel_devices(devices: int) -> list[torch.device]:
        """The CPU once for each process."""
        return [torch.device("cpu")] * devices

    def setup_device(self, device: torch.device) -> None:
        """Checks that `device` is a CPU.

        Raises:
            ConfigError: it is none.
        """
        if device.type != "cpu":
            raise ConfigError(f"CPUAccelerator was given the device {device}.")

    def get_device_stats(self, device: str | torch.device) -> dict[str, Any]:
        """The cores that this process may use."""
        return {"cpu_count": cpu_count()}


class CUDAAccelerator(Accelerator):
    """NVIDIA and AMD GPUs."""

    @staticmethod
    def name() -> str:
        """The kind: "cuda"."""
        return "cuda"

    @staticmethod
    def is_available() -> bool:
        """Whether torch finds one."""
        return torch.cuda.is_available()

    @staticmethod
    def auto_device_count() -> int:
        """All of them."""
        return torch.cuda.device_count()

    @staticmethod
    def parse_devices(devices: Any) -> list[int]:
        """Indices of GPUs: from a number, a list, a text of either, or -1 for all."""
        return _indices(devices, torch.cuda.device_count())

    @staticmethod
    def get_parallel_devices(devices: list[int]) -> list[torch.device]:
        """The GPUs of these indices."""
        return [torch.device("cuda", index) for index in devices]

    def setup_device(self, device: torch.device) -> None:
        """Makes `device` the current one.

        Raises:
            ConfigError: it is no GPU.
        """
        if device.type != "cuda":
            raise ConfigError(f"CUDAAccelerator was given the device {device}.")
        torch.cuda.set_device(device)

    def get_device_stats(self, device: str | torch.device) -> dict[str, Any]:
        """torch's numbers about the memory of `device`."""
        return dict(torch.cuda.memory_stats(device))


class MPSAccelerator(Accelerator):
    """The GPU of Apple's machines."""

    @staticmethod
    def name() -> str:
        """The kind: "mps"."""
        return "mps"

    @staticmethod
    def is_available() -> bool:
        """Whether torch finds it."""
        return torch.backends.mps.is_available()

    @staticmethod
    def auto_device_count() -> int:
        """There is one."""
        return 1

    @staticmethod
    def parse_devices(devices: Any) -> list[int]:
        """The index 0."""
        return _indices(devices, 1)

    @staticmethod
    def get_parallel_devices(devices: list[int]) -> list[torch.device]:
        """The device of each index."""
        return [torch.device("mps", index) for index in devices]

    def get_device_stats(self, device: str | torch.device) -> dict[str, Any]:
        """The memory that torch holds, in bytes."""
        return {"M1_allocated_memory_bytes": torch.mps.current_allocated_memory()}


def _indices(devices: Any, available: int) -> list[int]:
    expected = f"devices={devices!r}: expected a number of devices, a list of indices from 0, or -1."
    if isinstance(devices, str):
        try:
            parts = [int(part) for part in devices.split(",") if part.strip()]
        except ValueError as error:
            raise ConfigError(expected) from error
        devices = parts if "," in devices or not parts else parts[0]
    if devices in (-1, [-1]):
        devices = available
    if isinstance(devices, bool) or not isinstance(devices, (int, list, tuple)):
        raise ConfigError(expected)
    indices = list(range(devices)) if isinstance(devices, int) else list(devices)
    if not indices or len(set(indices)) != len(indices):
        raise ConfigError(expected)
    missing = [index for index in indices if not 0 <= index < available]
    if missing:
        raise ConfigError(f"devices={devices!r}: this machine has {available} such devices, not number {missing[0]}.")
    return indices


def find_usable_cuda_devices(num_devices: int = -1) -> list[int]:
    """The indices of GPUs on which something can be allocated; those that another process holds exclusively are not.

    Args:
        num_devices: how many are wanted; -1 takes all.

    Raises:
        ConfigError: fewer are usable.
    """
    if num_devices == 0:
        return []
    usable: list[int] = []
    for index in range(torch.cuda.device_count()):
        try:
            torch.tensor(0.0, device=torch.device("cuda", index))
        except RuntimeError:  # in use, exclusively
            continue
        usable.append(index)
        if len(usable) == num_devices:
            break
    if len(usable) < num_devices or not usable:
        wanted = num_devices if num_devices > 0 else 1
        raise ConfigError(
            f"find_usable_cuda_devices({num_devices}): {wanted} wanted, {len(usable)} of "
            f"{torch.cuda.device_count()} CUDA devices of this machine can be used."
        )
    return usable


def accelerator_of(kind: str) -> Accelerator:
    """The accelerator of a device type.

    Raises:
        ConfigError: there is none of that type.
    """
    kinds: dict[str, type[Accelerator]] = {"cpu": CPUAccelerator, "cuda": CUDAAccelerator, "mps": MPSAccelerator}
    if kind not in kinds:
        raise ConfigError(f"There is no accelerator {kind!r}: expected one of {', '.join(kinds)}.")
    return kinds[kind]()

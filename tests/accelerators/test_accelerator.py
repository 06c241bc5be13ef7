"""Accelerators: what devices= means for each, and what there is."""

from __future__ import annotations

import pytest
import torch

from bolide.accelerators import (
    CPUAccelerator,
    CUDAAccelerator,
    MPSAccelerator,
    accelerator_of,
    find_usable_cuda_devices,
)
from bolide.core.errors import ConfigError


@pytest.mark.parametrize(("devices", "count"), [(1, 1), ("2", 2), (3.0, 3)])
def test_processes_on_the_cpu(devices, count):
    assert CPUAccelerator.parse_devices(devices) == count
    assert CPUAccelerator.get_parallel_devices(count) == [torch.device("cpu")] * count


@pytest.mark.parametrize("devices", [0, -1, True, None, [1, 2], "a"])
def test_what_is_no_number_of_processes(devices):
    with pytest.raises(ConfigError, match="number of processes"):
        CPUAccelerator.parse_devices(devices)


@pytest.mark.parametrize(
    ("devices", "indices"),
    [(2, [0, 1]), ("2", [0, 1]), ([3, 1], [3, 1]), ("1,3", [1, 3]), ("1,", [1]), (-1, [0, 1, 2, 3]),
     ("-1", [0, 1, 2, 3]), ([-1], [0, 1, 2, 3])],
)  # fmt: skip
def test_gpus_by_number_and_index(devices, indices, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    assert CUDAAccelerator.parse_devices(devices) == indices
    assert CUDAAccelerator.get_parallel_devices(indices) == [torch.device("cuda", index) for index in indices]


@pytest.mark.parametrize(
    ("devices", "message"),
    [(5, "4 such devices, not number 4"), ([4], "not number 4"), ([0, 0], "expected a number"), ([], "expected"),
     (0, "expected"), ("a", "expected"), ("", "expected"), (True, "expected"), (None, "expected")],
)  # fmt: skip
def test_gpus_that_are_not_there(devices, message, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    with pytest.raises(ConfigError, match=message):
        CUDAAccelerator.parse_devices(devices)


def test_usable_gpus(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)

    def allocate(value, device):
        if device.index == 1:
            raise RuntimeError("busy")

    monkeypatch.setattr(torch, "tensor", allocate)
    assert find_usable_cuda_devices() == [0, 2]
    assert find_usable_cuda_devices(1) == [0]
    assert find_usable_cuda_devices(0) == []
    with pytest.raises(ConfigError, match="3 wanted, 2 of 3 CUDA devices"):
        find_usable_cuda_devices(3)


def test_without_any_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(ConfigError, match="1 wanted, 0 of 0"):
        find_usable_cuda_devices()
    assert CUDAAccelerator.auto_device_count() == 0


def test_accelerators_by_kind():
    assert isinstance(accelerator_of("cpu"), CPUAccelerator)
    assert isinstance(accelerator_of("cuda"), CUDAAccelerator)
    assert isinstance(accelerator_of("mps"), MPSAccelerator)
    with pytest.raises(ConfigError, match="no accelerator 'tpu'"):
        accelerator_of("tpu")
    assert [accelerator_of(kind).name() for kind in ("cpu", "cuda", "mps")] == ["cpu", "cuda", "mps"]
    assert CPUAccelerator.is_available()
    assert MPSAccelerator.parse_devices(1) == [0]


def test_the_wrong_device_is_refused():
    CPUAccelerator().setup_device(torch.device("cpu"))
    with pytest.raises(ConfigError, match="CPUAccelerator was given the device cuda"):
        CPUAccelerator().setup_device(torch.device("cuda"))
    with pytest.raises(ConfigError, match="CUDAAccelerator was given the device cpu"):
        CUDAAccelerator().setup_device(torch.device("cpu"))


def test_stats_of_the_cpu():
    assert CPUAccelerator().get_device_stats("cpu")["cpu_count"] >= 1

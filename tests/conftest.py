"""What every test starts from: an empty folder, fixed seeds, one thread, and settings put back afterwards."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import numpy
import pytest
import torch

torch.set_num_threads(1)  # the tests run side by side; more threads than cores make all of them slow


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The test runs in a folder of its own, so that nothing it writes lands in the checkout."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(autouse=True)
def fixed_seeds() -> None:
    """Every test draws the same numbers, alone or among others."""
    random.seed(1)
    numpy.random.seed(1)
    torch.manual_seed(1)


@pytest.fixture(autouse=True)
def settings_put_back() -> Iterator[None]:
    """Torch's global settings and the environment are after a test what they were before it."""
    environment = dict(os.environ)
    dtype = torch.get_default_dtype()
    deterministic = torch.are_deterministic_algorithms_enabled()
    deterministic_warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    anomaly = torch.is_anomaly_enabled()
    benchmark = torch.backends.cudnn.benchmark
    yield
    os.environ.clear()
    os.environ.update(environment)
    torch.set_default_dtype(dtype)
    torch.use_deterministic_algorithms(deterministic, warn_only=deterministic_warn_only)
    torch.set_anomaly_enabled(anomaly)
    torch.backends.cudnn.benchmark = benchmark
    torch.set_grad_enabled(True)


@pytest.fixture(autouse=True)
def said_nothing_yet() -> None:
    """A warning that is given once a process is given in every test."""
    from bolide.core.messages import said

    said.clear()

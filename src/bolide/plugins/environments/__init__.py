"""Cluster environments: what started this process, and which of many it is. They are found by themselves."""

from __future__ import annotations

from typing import Any

from bolide.core.lazy import submodule
from bolide.launch.environments import (
    ClusterEnvironment,
    KubeflowEnvironment,
    LightningEnvironment,
    LSFEnvironment,
    MPIEnvironment,
    TorchElasticEnvironment,
)
from bolide.launch.slurm import SLURMEnvironment

__all__ = [
    "ClusterEnvironment",
    "KubeflowEnvironment",
    "LSFEnvironment",
    "LightningEnvironment",
    "MPIEnvironment",
    "SLURMEnvironment",
    "TorchElasticEnvironment",
]


def __getattr__(name: str) -> Any:
    if name == "XLAEnvironment":
        raise AttributeError("bolide.plugins.environments.XLAEnvironment: TPUs are not supported by Bolide.")
    found = submodule(__name__, name)
    if found is not None:
        return found
    raise AttributeError(f"module 'bolide.plugins.environments' has no attribute {name!r}.")

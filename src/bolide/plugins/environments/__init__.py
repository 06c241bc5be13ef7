"""Cluster environments: SLURM's queue. A run is one process, and its rank is read in core/env.py."""

from __future__ import annotations

from typing import Any

from bolide.plugins.environments.slurm import SLURMEnvironment

_NAMES = (
    "ClusterEnvironment", "KubeflowEnvironment", "LSFEnvironment", "LightningEnvironment", "MPIEnvironment",
    "TorchElasticEnvironment", "XLAEnvironment",
)  # fmt: skip
__all__ = ["SLURMEnvironment"]


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        raise AttributeError(
            f"bolide.plugins.environments.{name}: running on a cluster is not built in this version of Bolide."
        )
    raise AttributeError(f"module 'bolide.plugins.environments' has no attribute {name!r}.")

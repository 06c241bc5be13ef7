"""Cluster environments. There are none yet: a run is one process, and its rank is read in core/env.py."""

from __future__ import annotations

from typing import Any

_NAMES = (
    "ClusterEnvironment", "KubeflowEnvironment", "LSFEnvironment", "LightningEnvironment", "MPIEnvironment",
    "SLURMEnvironment", "TorchElasticEnvironment", "XLAEnvironment",
)  # fmt: skip
__all__: list[str] = []


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        raise AttributeError(
            f"bolide.plugins.environments.{name}: running on a cluster is not built in this version of Bolide."
        )
    raise AttributeError(f"module 'bolide.plugins.environments' has no attribute {name!r}.")

"""Which launcher started this process: each is asked, in one order. Who calls: the Trainer, when it is made."""

from __future__ import annotations

from bolide.launch.environments import (
    ClusterEnvironment,
    LightningEnvironment,
    LSFEnvironment,
    MPIEnvironment,
    RayEnvironment,
    TorchElasticEnvironment,
)
from bolide.launch.slurm import SLURMEnvironment

KINDS: tuple[type[ClusterEnvironment], ...] = (
    TorchElasticEnvironment, RayEnvironment, SLURMEnvironment, LSFEnvironment, MPIEnvironment, LightningEnvironment,
)  # fmt: skip


def detect() -> ClusterEnvironment | None:
    """The launcher that started this process, or None: torchrun, Ray, SLURM, LSF, MPI, then bare variables."""
    return next((kind() for kind in KINDS if kind.detect()), None)

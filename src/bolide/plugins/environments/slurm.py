"""SLURMEnvironment, under Lightning's module path."""

from bolide.launch.slurm import SLURMEnvironment

__all__ = ["SLURMEnvironment"]

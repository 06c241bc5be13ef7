"""The public path of DoublePrecision."""

from bolide.plugins.precision import DoublePrecision

__all__ = ["DoublePrecision"]

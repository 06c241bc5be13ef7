"""The public path of MixedPrecision."""

from bolide.plugins.precision import MixedPrecision

__all__ = ["MixedPrecision"]

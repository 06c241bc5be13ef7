"""The public path of HalfPrecision."""

from bolide.plugins.precision import HalfPrecision

__all__ = ["HalfPrecision"]

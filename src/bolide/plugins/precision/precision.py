"""The public path of Precision."""

from bolide.plugins.precision import Precision

__all__ = ["Precision"]

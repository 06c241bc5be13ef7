"""The public path of MPSAccelerator; accelerators/accelerator.py owns it."""

from bolide.accelerators.accelerator import MPSAccelerator

__all__ = ["MPSAccelerator"]

"""The public path of CPUAccelerator; accelerators/accelerator.py owns it."""

from bolide.accelerators.accelerator import CPUAccelerator

__all__ = ["CPUAccelerator"]

"""The public path of CUDAAccelerator; accelerators/accelerator.py owns it."""

from bolide.accelerators.accelerator import CUDAAccelerator, find_usable_cuda_devices

__all__ = ["CUDAAccelerator", "find_usable_cuda_devices"]

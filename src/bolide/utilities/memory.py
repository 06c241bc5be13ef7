"""Errors of memory, freeing it, and weights that several modules share."""

from __future__ import annotations

import gc
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map


def recursive_detach(in_dict: Any, to_cpu: bool = False) -> Any:
    """`in_dict`, however nested, with its tensors detached, and on the CPU where asked."""

    def detached(item: Any) -> Any:
        if not isinstance(item, Tensor):
            return item
        item = item.detach()
        return item.cpu() if to_cpu else item

    return tree_map(detached, in_dict)


def is_cuda_out_of_memory(exception: BaseException) -> bool:
    """Whether CUDA ran out of memory."""
    return isinstance(exception, torch.cuda.OutOfMemoryError) or (
        isinstance(exception, RuntimeError)
        and any("CUDA" in str(text) and "out of memory" in str(text) for text in exception.args)
    )


def is_cudnn_snafu(exception: BaseException) -> bool:
    """Whether cuDNN refused a size that memory did not allow for."""
    return isinstance(exception, RuntimeError) and any(
        "cuDNN error: CUDNN_STATUS_NOT_SUPPORTED." in str(text) for text in exception.args
    )


def is_out_of_cpu_memory(exception: BaseException) -> bool:
    """Whether the CPU's memory ran out."""
    return isinstance(exception, RuntimeError) and any(
        "DefaultCPUAllocator: can't allocate memory" in str(text) for text in exception.args
    )


def is_oom_error(exception: BaseException) -> bool:
    """Whether memory ran out, of whichever kind."""
    return is_cuda_out_of_memory(exception) or is_cudnn_snafu(exception) or is_out_of_cpu_memory(exception)


def garbage_collection_cuda() -> None:
    """Collects garbage and gives CUDA's cached memory back."""
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def find_shared_parameters(module: nn.Module) -> list[list[str]]:
    """The names of parameters and buffers that are one object, grouped."""
    names: dict[int, list[str]] = {}
    for name, value in (
        *module.named_parameters(remove_duplicate=False),
        *module.named_buffers(remove_duplicate=False),
    ):
        names.setdefault(id(value), []).append(name)
    return [group for group in names.values() if len(group) > 1]


def set_shared_parameters(module: nn.Module, shared_params: list[list[str]]) -> nn.Module:
    """Makes the parameters of each group the object that the first name has."""
    for first, *others in shared_params:
        path, _, name = first.rpartition(".")
        value = getattr(module.get_submodule(path), name)
        for other in others:
            path, _, name = other.rpartition(".")
            setattr(module.get_submodule(path), name, value)
    return module

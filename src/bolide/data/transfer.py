"""Moving a batch to a device: any nesting of tensors, and whatever has a `to`.

Who calls: the engine, where the device is not the CPU or the module overrides the transfer; users, by utilities.data.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map


def move_to_device(batch: Any, device: torch.device | str) -> Any:
    """`batch` with all that can move on `device`; containers are rebuilt, other objects stay as they are.

    Tensors in pinned memory are copied without waiting. An object with a `to(device)` method is moved by it.
    """
    device = torch.device(device)
    if isinstance(batch, Tensor):
        return batch.to(device, non_blocking=device.type == "cuda")

    def move(item: Any) -> Any:
        if isinstance(item, Tensor):
            # only copies from pinned memory may overlap; on a CPU target a non-blocking copy could be read too early
            return item.to(device, non_blocking=device.type == "cuda")
        if hasattr(item, "to") and callable(item.to) and not isinstance(item, type):
            moved = item.to(device)
            return item if moved is None else moved  # some containers (BatchEncoding of old) move in place
        return item

    if hasattr(batch, "to") and callable(batch.to):
        return move(batch)
    return tree_map(move, batch)

"""The public path of moving and mapping nested batches; data/transfer.py owns the moving."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_map

from bolide.data.transfer import move_to_device


def move_data_to_device(batch: Any, device: torch.device | str | int) -> Any:
    """`batch`, however nested, on `device`; a number is the index of an accelerator's device."""
    if isinstance(device, int):
        device = torch.device("cuda", device)
    return move_to_device(batch, device)


def apply_to_collection(data: Any, dtype: type | tuple[type, ...], function: Callable[..., Any], *args: Any) -> Any:
    """`data`, however nested, with `function(item, *args)` in the place of each item of class `dtype`."""
    return tree_map(
        lambda item: function(item, *args) if isinstance(item, dtype) else item,
        data,
        is_leaf=lambda item: isinstance(item, dtype),
    )

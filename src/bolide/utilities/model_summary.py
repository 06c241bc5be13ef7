"""The public path of the model summary; bolide/summary.py owns it. And the counting of floating-point operations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from bolide.summary import (
    LayerSummary,
    ModelSummary,
    get_formatted_model_size,
    get_human_readable_count,
    parse_batch_shape,
    summarize,
)

__all__ = [
    "LayerSummary",
    "ModelSummary",
    "get_formatted_model_size",
    "get_human_readable_count",
    "measure_flops",
    "parse_batch_shape",
    "summarize",
]


def measure_flops(
    model: nn.Module, forward_fn: Callable[[], Any], loss_fn: Callable[[Any], Tensor] | None = None
) -> int:
    """The floating-point operations of a forward pass, and with `loss_fn` of the backward pass too.

    Args:
        model: a module, best on the meta device, where nothing is computed.
        forward_fn: runs the forward pass and returns its output.
        loss_fn: turns the output into a scalar, whose backward pass is then counted.
    """
    with FlopCounterMode(display=False) as counter:
        output = forward_fn()
        if loss_fn is not None:
            loss_fn(output).backward()
    return int(counter.get_total_flops())

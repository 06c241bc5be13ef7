"""From what `torch.compile` gives back to the module that was compiled."""

from __future__ import annotations

from typing import Any

from torch import nn

from bolide.core.errors import UserCodeError


def from_compiled(model: Any) -> nn.Module:
    """The module that `torch.compile(module)` was given.

    Raises:
        UserCodeError: `model` was not compiled.
    """
    inner = getattr(model, "_orig_mod", None)
    if not isinstance(inner, nn.Module):
        raise UserCodeError(
            f"from_compiled expected what torch.compile gives back, got {type(model).__name__}. "
            "Write: from_compiled(torch.compile(module))"
        )
    return inner


def to_uncompiled(model: Any) -> nn.Module:
    """The module itself, whether it was compiled or not.

    Raises:
        UserCodeError: `model` is no module.
    """
    if not isinstance(model, nn.Module):
        raise UserCodeError(f"to_uncompiled expected a module, got {type(model).__name__}.")
    inner = getattr(model, "_orig_mod", None)
    return inner if isinstance(inner, nn.Module) else model

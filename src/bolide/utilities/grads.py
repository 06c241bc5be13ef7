"""Norms of gradients, by parameter."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from bolide.core.errors import ConfigError


def grad_norm(module: nn.Module, norm_type: float | int | str, group_separator: str = "/") -> dict[str, Tensor]:
    """The norm of each parameter's gradient, and that of all of them together. Nothing is read from the device.

    Args:
        module: parameters without a gradient are left out.
        norm_type: the p of the p-norm, above zero, or "inf".
        group_separator: what stands between the kind of norm and the parameter's name.

    Returns:
        0-dim tensors under "grad_2.0_norm/layer.weight" and, for the total, "grad_2.0_norm_total".

    Raises:
        ConfigError: a norm that is not above zero.

    Example::

        def on_before_optimizer_step(self, optimizer):
            self.log_dict(grad_norm(self.encoder, norm_type=2))
    """
    order = float(norm_type)
    if not order > 0:
        raise ConfigError(f"grad_norm(norm_type={norm_type!r}): expected a number above zero, or 'inf'.")
    norms = {
        f"grad_{order}_norm{group_separator}{name}": parameter.grad.detach().norm(order)
        for name, parameter in module.named_parameters()
        if parameter.grad is not None
    }
    if norms:
        norms[f"grad_{order}_norm_total"] = torch.stack(list(norms.values())).norm(order)
    return norms

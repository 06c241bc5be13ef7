"""Batch norm over all ranks. torch's own runs on GPUs; on the CPU the same sums go over gloo.

Who calls: the strategies, before a module is wrapped, where `sync_batchnorm=True` was asked for.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from bolide import collectives


class RankBatchNorm(_BatchNorm):
    """Batch norm whose mean and variance, in training, are those of the batches of all ranks together.

    Takes (N, C, ...) of any number of dimensions from two on. A rank without samples may not call it.
    """

    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"expected at least 2 dimensions, not {input.dim()}")

    def forward(self, input: Tensor) -> Tensor:
        """Normalizes; in training all ranks must call it, as it communicates."""
        self._check_input_dim(input)
        use_batch = self.training or (self.running_mean is None and self.running_var is None)
        if not use_batch or collectives.size() == 1:
            plain: Tensor = super().forward(input)
            return plain
        from torch.distributed.nn.functional import all_reduce

        dims = [0, *range(2, input.dim())]
        count = torch.tensor([input.numel() / input.size(1)], dtype=input.dtype, device=input.device)
        sums: Any = all_reduce(torch.cat([count, input.sum(dims), input.pow(2).sum(dims)]))
        total, channels = sums[0].detach(), input.size(1)
        mean = sums[1 : 1 + channels] / total
        variance = sums[1 + channels :] / total - mean.pow(2)
        if self.training and self.track_running_stats:
            self._track(mean.detach(), variance.detach() * total / (total - 1).clamp(min=1))
        shape = [1, channels, *[1] * (input.dim() - 2)]
        output: Tensor = (input - mean.view(shape)) * torch.rsqrt(variance.view(shape) + self.eps)
        if self.weight is None:
            return output
        output = output * self.weight.view(shape) + self.bias.view(shape)
        return output

    def _track(self, mean: Tensor, variance: Tensor) -> None:
        assert self.running_mean is not None and self.running_var is not None
        assert self.num_batches_tracked is not None
        with torch.no_grad():
            self.num_batches_tracked += 1
            share = 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
            self.running_mean.lerp_(mean.to(self.running_mean.dtype), share)
            self.running_var.lerp_(variance.to(self.running_var.dtype), share)


def convert(module: nn.Module, device: torch.device) -> nn.Module:
    """`module` with each batch norm exchanged for one over all ranks, weights and running values kept."""
    if device.type != "cpu":
        converted: nn.Module = nn.SyncBatchNorm.convert_sync_batchnorm(module)
        return converted
    if isinstance(module, _BatchNorm) and not isinstance(module, (RankBatchNorm, nn.SyncBatchNorm)):
        made = RankBatchNorm(
            module.num_features, module.eps, module.momentum, module.affine, module.track_running_stats
        )
        # the very same parameters and buffers, so that whoever holds them goes on holding the right ones
        made._parameters, made._buffers, made.training = module._parameters, module._buffers, module.training
        return made
    for name, child in module.named_children():
        replaced = convert(child, device)
        if replaced is not child:
            setattr(module, name, replaced)
    return module

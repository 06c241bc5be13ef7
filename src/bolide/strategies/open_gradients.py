"""The gradients of an accumulation window that is not full yet, where parameters are sharded: read, and put back.

FSDP holds them whole, with the parameters that it gathers, until they are exchanged at the window's end. Who calls:
engine/resume, when a checkpoint is made within a window and when a run goes on from it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from bolide.core.messages import warn_once


def held(module: nn.Module) -> dict[str, Tensor]:
    """This rank's gradients by the parameters' names: whole ones of FSDP's, local parts of a DTensor's. All call it."""
    with gathered(module):
        found = {name: p.grad for name, p in module.named_parameters() if p.grad is not None}
        return {name: _local(grad).detach().clone() for name, grad in found.items()}


def put_back(module: nn.Module, gradients: Mapping[str, Tensor]) -> None:
    """Puts back what `held` returned. All ranks call it."""
    with gathered(module):
        for name, parameter in module.named_parameters():
            if name not in gradients:
                continue
            gradient = gradients[name].to(parameter.device)
            if isinstance(parameter, DTensor):
                gradient = DTensor.from_local(gradient, parameter.device_mesh, parameter.placements, run_check=False)
            parameter.grad = gradient


def _local(gradient: Tensor) -> Tensor:
    return gradient.to_local() if isinstance(gradient, DTensor) else gradient


def can_hold(module: nn.Module) -> bool:
    """Whether all open gradients can be read: not where FSDP adds them up in another dtype than they come in."""
    if any(_adds_up_apart(part) for part in module.modules()):
        warn_once(
            "A checkpoint within an accumulation window keeps no gradients where FSDPStrategy(mixed_precision=...) has "
            "them added up in another dtype (reduce_dtype): going on from it, the batches of that window that were "
            "done do not count. Save at optimizer steps."
        )
        return False
    return True


def _adds_up_apart(part: nn.Module) -> bool:
    if not isinstance(part, FSDPModule):
        return False
    policy = part._get_fsdp_state()._mp_policy
    return policy.reduce_dtype is not None and policy.reduce_dtype != policy.param_dtype


@contextmanager
def gathered(module: nn.Module) -> Iterator[None]:
    """Within it FSDP's parameters are whole, and are the module's."""
    parts = [part for part in module.modules() if isinstance(part, FSDPModule)]
    for part in parts:
        part.unshard()
    try:
        yield
    finally:
        for part in parts:
            part.reshard()

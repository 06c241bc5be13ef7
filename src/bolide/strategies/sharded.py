"""What strategies with sharded parameters share: full and local state, clipping over meshes, the control word.

Parameters are torch's DTensors there. What is saved as one file holds whole tensors, so that any strategy, one process,
and plain torch read it; a sharded checkpoint gets each process's parts. Who calls: FSDPStrategy and
ModelParallelStrategy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.utils._pytree import tree_map

from bolide import collectives
from bolide.checkpoint.parts import box_of
from bolide.checkpoint.shards import need_library
from bolide.checkpoint.stored import Stored, whole
from bolide.core.errors import ConfigError, UserCodeError
from bolide.core.protocols import Optimizable
from bolide.strategies.control import ControlWord
from bolide.strategies.parallel import SpreadStrategy
from bolide.strategies.strategy import plain_keys


class ShardedStrategy(SpreadStrategy):
    """The base of strategies whose parameters are spread over processes. Its arguments are `ParallelStrategy`'s."""

    strategy_name = "sharded"
    sharded = True
    reads_parts = True

    def __init__(self, saves_parts: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.saves_parts = saves_parts

    def start(self, exact: bool = False) -> None:
        """Opens the group of processes.

        Raises:
            MissingPackageError: checkpoints are to be sharded, and the package that reads them is not installed.
            ConfigError: they are to be sharded, and written by a CheckpointIO.
        """
        if self.saves_parts:
            need_library(f"A sharded checkpoint (strategy={self.strategy_name!r} saves such)")
            if self.checkpoint_io is not None:
                raise ConfigError(
                    f"{type(self).__name__} is to save sharded checkpoints, which have a format of their own: leave "
                    "that, or the CheckpointIO, out"
                )
        super().start(exact)

    def roots(self) -> list[FSDPModule]:
        """The outermost parts that FSDP shards."""
        found: list[FSDPModule] = []

        def visit(module: nn.Module) -> None:
            if isinstance(module, FSDPModule):
                found.append(module)
                return
            for child in module.children():
                visit(child)

        if self.module is not None:
            visit(self.module)
        return found

    def built(self, module: nn.Module, build_optimizers: Callable[[], list[Optimizable]] | None) -> list[Optimizable]:
        """Builds the optimizers, which must be those of the sharded parameters.

        Raises:
            UserCodeError: an optimizer was made before the parameters were sharded.
        """
        self.module = module
        self.optimizers = build_optimizers() if build_optimizers is not None else []
        if build_optimizers is not None:
            self._word = ControlWord(torch.float32, torch.device("cpu"))
        known = {id(parameter) for parameter in module.parameters()}
        for optimizer in self.optimizers:
            strange = [p for group in optimizer.param_groups for p in group["params"] if id(p) not in known]
            if strange and any(True for _ in module.parameters()) and type(optimizer).__name__ != "NoOptimizer":
                raise UserCodeError(
                    f"configure_optimizers returned an optimizer with {len(strange)} parameter(s) that the module no "
                    "longer has: it was made before they were sharded. Make it in configure_optimizers, from "
                    "self.parameters()"
                )
        return self.optimizers

    # ------------------------------------------------------------------ a step

    def set_sync(self, on: bool) -> None:
        """Whether gradients are exchanged at the next backward pass."""
        if on != self._sync:
            self._sync = on
            for root in self.roots():
                root.set_requires_gradient_sync(on)
                root.set_is_last_backward(on)

    def before_backward(self, loss: Tensor) -> Tensor:
        """The loss with its batch's share."""
        return self.shared(loss)

    def clip(self, optimizer: Optimizable, limit: float, kind: str) -> Tensor | None:
        """Clips by the norm of all gradients of all ranks; returns it (0-dim), or None by value."""
        parameters = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        if kind == "value":
            for parameter in parameters:
                gradient = parameter.grad
                local = gradient.to_local() if isinstance(gradient, DTensor) else gradient
                local.clamp_(-limit, limit)
            return None
        return clip_over_meshes(parameters, limit)

    # ------------------------------------------------------------------ state

    def state(self) -> dict[str, Any]:
        """The module's weights by name, whole, on the CPU of the first process. All must call it."""
        assert self.module is not None
        return self._whole(plain_keys(self.module.state_dict()))

    def optimizer_state(self, optimizer: Optimizable) -> dict[str, Any]:
        """The optimizer's state, whole. All must call it."""
        return self._whole(optimizer.state_dict())

    def _whole(self, state: dict[str, Any]) -> dict[str, Any]:
        def whole(item: Any) -> Any:
            if not isinstance(item, Tensor):
                return item
            full = item.full_tensor() if isinstance(item, DTensor) else item
            return full.detach().cpu() if self.is_global_zero else torch.empty(0)

        found: dict[str, Any] = tree_map(whole, state)
        return found

    def localized(self, module: nn.Module, state: Mapping[str, Any]) -> Mapping[str, Any]:
        """Weights by name as `module` holds them: this rank's parts of those that it has sharded, and only they are
        read of what is Stored."""
        own = module.state_dict()
        return {name: _like(value, own.get(name)) for name, value in state.items()}

    def load_optimizer(self, optimizer: Optimizable, state: dict[str, Any]) -> None:
        """Takes a whole optimizer state, of which each rank keeps its part."""
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        indices = [i for group in state["param_groups"] for i in group["params"]]
        by_index = dict(zip(indices, parameters, strict=False))
        kept = {
            index: {name: _like(value, by_index.get(index)) for name, value in entry.items()}
            for index, entry in state["state"].items()
        }
        optimizer.load_state_dict({**state, "state": kept})


def _like(value: Any, own: Any) -> Any:
    """`value` (whole) as `own` is: sharded alike where that is a DTensor of the same shape."""
    if isinstance(value, Stored) and isinstance(own, DTensor) and value.shape == own.shape:
        return _part_like(value, own)
    value = whole(value)
    if not isinstance(own, DTensor) or not isinstance(value, Tensor) or value.shape != own.shape:
        return value
    device = own.device_mesh.device_type
    return distribute_tensor(value.to(device), own.device_mesh, own.placements, src_data_rank=None)


def _part_like(stored: Stored, own: DTensor) -> DTensor:
    """What this rank holds of a tensor on the disk, spread over ranks as `own` is."""
    local, box = own.to_local(), box_of(own)
    part = torch.empty_like(local, dtype=stored.dtype) if box is None else stored.read(box).to(local.device)
    return DTensor.from_local(
        part, own.device_mesh, own.placements, run_check=False, shape=own.shape, stride=own.stride()
    )


def clip_over_meshes(parameters: Iterable[nn.Parameter], limit: float, norm_type: float = 2.0) -> Tensor:
    """Clips the gradients to the norm `limit` of all of them (a p-norm); returns the norm before (0-dim, plain).

    torch's own function takes no mix of plain tensors and DTensors, nor of meshes: norms are computed for each mesh,
    then combined. All ranks must call it.
    """
    groups: dict[Any, list[nn.Parameter]] = {}
    for parameter in parameters:
        gradient = parameter.grad
        key = (gradient.device_mesh, gradient.placements) if isinstance(gradient, DTensor) else None
        groups.setdefault(key, []).append(parameter)
    norms: list[Tensor] = []
    for members in groups.values():
        norm = nn.utils.get_total_norm([p.grad for p in members if p.grad is not None], norm_type)
        norms.append(norm.full_tensor() if isinstance(norm, DTensor) else norm)
    if not norms:
        return torch.zeros(())
    total = torch.linalg.vector_norm(torch.stack(norms), norm_type) if len(norms) > 1 else norms[0]
    for members in groups.values():
        nn.utils.clip_grads_with_norm_(members, limit, total)
    return total


def same_start(module: nn.Module) -> None:
    """Gives all ranks the first one's weights and buffers."""
    tensors = [t.detach() for t in (*module.parameters(), *module.buffers()) if t.numel()]
    if tensors and collectives.size() > 1:
        dist._broadcast_coalesced(collectives.default_group(), tensors, 1 << 25, 0)

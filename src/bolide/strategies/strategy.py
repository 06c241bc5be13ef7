"""What every strategy answers: placing a module, stepping it, saving it; and the names users call on it.

`Strategy` is both the base class that users subclass and the single-device behaviour: a strategy for many processes
overrides what differs (strategies/parallel). Collectives are identities here, as there is one process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import torch
from torch import Tensor, nn

from bolide.checkpoint import io
from bolide.core.protocols import CheckpointFormat, Optimizable
from bolide.precision import Precision
from bolide.world import World


class Strategy:
    """How a module is placed, stepped and saved.

    Args:
        device: where the module runs; the trainer sets it where it is not given.
    """

    strategy_name = "single_device"
    distributed = False
    """Whether it runs several processes; such a one is given its place among them, and opens their group."""

    reads_parts = False
    """Whether the weights and states that it loads may be Stored, of which it reads what this process holds."""

    saves_parts = False
    """Whether a checkpoint is a folder to which each process writes its part, unless a file is asked for."""

    gradients_on_parameters = True
    """Whether a parameter's `grad` is its gradient between two batches of an accumulation window."""

    start_method: Literal["script", "spawn", "fork"] | None = None
    """How the processes are started where nobody has: None runs the script again, or forks where there is none."""

    def __init__(self, device: torch.device | str | None = None) -> None:
        self._root_device = torch.device(device) if device is not None else torch.device("cpu")
        self._device_given = device is not None
        self.module: nn.Module | None = None
        self.optimizers: list[Optimizable] = []
        self.checkpoint_io: CheckpointFormat | None = None
        self.world: World | None = None
        self.environment: Any = None

    # ------------------------------------------------------------------ how a module is placed, trained and saved

    def open(self, device: torch.device) -> None:
        """Takes the device of the run, unless one was given at construction."""
        if not self._device_given:
            self._root_device = device
        if self._root_device.type == "cuda":
            torch.cuda.set_device(self._root_device)

    @property
    def sharded(self) -> bool:
        """Whether each forward pass needs all ranks, as each has a part of the parameters."""
        return False

    def make_precision(self, name: str | int | None) -> Precision:
        """The precision `name` on the device of the run."""
        return Precision(name, self._root_device, sharded=self.sharded)

    def init_context(self, empty: bool | None = None) -> AbstractContextManager[Any]:
        """New parameters are made on the device; with `empty` without their initial values, on the meta device."""
        if empty:
            return torch.device("meta")
        return self._root_device if self._root_device.type != "cpu" else nullcontext()

    def prepare(self, module: nn.Module, build_optimizers: Callable[[], list[Optimizable]] | None) -> list[Optimizable]:
        """Places `module`, then builds the optimizers, which must see the placed parameters."""
        module.to(self._root_device)
        self.module = module
        self.optimizers = build_optimizers() if build_optimizers is not None else []
        return self.optimizers

    def set_sync(self, on: bool) -> None:
        """Whether gradients are exchanged at the next backward pass; nothing to do on one device."""

    def backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        """The backward pass; `args` and `kwargs` are `Tensor.backward`'s."""
        loss.backward(*args, **kwargs)

    def clip(self, optimizer: Optimizable, limit: float, kind: str) -> Tensor | None:
        """Clips the gradients of `optimizer`; returns their total norm (0-dim, on the device), or None by value."""
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        if kind == "value":
            nn.utils.clip_grad_value_(parameters, limit)
            return None
        return nn.utils.clip_grad_norm_(parameters, limit)

    def scale_gradients(self, optimizer: Optimizable, factor: float) -> None:
        """Multiplies the gradients of `optimizer`, before they are clipped and stepped on."""
        for group in optimizer.param_groups:
            gradients = [p.grad for p in group["params"] if p.grad is not None]
            if gradients:
                torch._foreach_mul_(gradients, factor)

    def state(self) -> dict[str, Any]:
        """The module's weights by name; keys of compiled parts are those of the plain module."""
        assert self.module is not None
        return plain_keys(self.module.state_dict())

    def close(self) -> None:
        """Lets go of the module and the optimizers."""
        self.module = None
        self.optimizers = []

    # ------------------------------------------------------------------ many processes: nothing to do for one

    def start(self, exact: bool = False) -> None:
        """A run begins: opens the group of processes. `exact` asks for the same bits however often it is resumed."""

    def stepping(self, optimizer: Optimizable) -> Any:
        """The optimizer that computes the steps of `optimizer`: itself, where the strategy puts no other around it."""
        return optimizer

    def optimizer_state(self, optimizer: Optimizable) -> dict[str, Any]:
        """The state of an optimizer as a file holds it."""
        return optimizer.state_dict()

    def state_in_parts(self) -> dict[str, Any]:
        """The module's weights by name as this process has them: parts of those that are spread over processes."""
        assert self.module is not None
        return plain_keys(self.module.state_dict())

    def load_optimizer(self, optimizer: Optimizable, state: dict[str, Any]) -> None:
        """Takes the state of an optimizer from a file; where `reads_parts`, tensors may be Stored."""
        optimizer.load_state_dict(state)

    def localized(self, module: nn.Module, state: Mapping[str, Any]) -> Mapping[str, Any]:
        """Weights of a file as `module`, which may be spread over processes, takes them; they may be Stored there."""
        return state

    def whole_shapes(self, module: nn.Module) -> dict[str, torch.Size]:
        """The shapes of those weights of `module`, by name, that are not whole in this process."""
        return {}

    def schedulers(self) -> list[Any]:
        """Schedulers that the strategy has of its own, beside those of `configure_optimizers`."""
        return []

    def bind(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        """What is called in the place of the module's method `name`, which is `method`."""
        return method

    # ------------------------------------------------------------------ what users call

    @property
    def root_device(self) -> torch.device:
        """The device of this process."""
        return self._root_device

    @property
    def model(self) -> nn.Module | None:
        """The placed module."""
        return self.module

    @property
    def lightning_module(self) -> nn.Module | None:
        """The user's module."""
        return self.module

    @property
    def is_global_zero(self) -> bool:
        """Whether this is the first process."""
        return True

    @property
    def global_rank(self) -> int:
        """This process's number."""
        return 0

    @property
    def local_rank(self) -> int:
        """This process's number on its machine."""
        return 0

    @property
    def world_size(self) -> int:
        """How many processes there are."""
        return 1

    def barrier(self, name: str | None = None) -> None:
        """Waits for all processes."""

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        """`obj` of process `src`."""
        return obj

    def reduce(self, tensor: Any, group: Any = None, reduce_op: str | None = "mean") -> Any:
        """`tensor` reduced over all processes."""
        return tensor

    def reduce_boolean_decision(self, decision: bool, all: bool = True) -> bool:
        """Whether all processes (or any) say yes."""
        return decision

    def all_gather(self, tensor: Tensor, group: Any = None, sync_grads: bool = False) -> Tensor:
        """The tensors of all processes."""
        return tensor

    def remove_checkpoint(self, filepath: Any) -> None:
        """Removes a checkpoint that this run wrote."""
        if self.checkpoint_io is not None:
            self.checkpoint_io.remove_checkpoint(filepath)
        else:
            io.remove(filepath)

    def batch_to_device(self, batch: Any, device: torch.device | None = None, dataloader_idx: int = 0) -> Any:
        """The batch on the device."""
        from bolide.data.transfer import move_to_device

        return move_to_device(batch, device or self._root_device)


class SingleDeviceStrategy(Strategy):
    """One process on one device.

    Args:
        device: where the module runs; the trainer's accelerator decides where it is not given.
    """


def plain_keys(state: Mapping[str, Any]) -> dict[str, Any]:
    """State with the keys of the plain module: `torch.compile` puts `_orig_mod.` into those of compiled parts."""
    if not any("_orig_mod." in key for key in state):
        return dict(state)
    return {key.replace("_orig_mod.", ""): value for key, value in state.items()}


def matching_keys(state: Mapping[str, Any], module: nn.Module) -> Mapping[str, Any]:
    """State with the keys that `module` has, whether its parts, or those that were saved, are compiled or not."""
    names = [*(n for n, _ in module.named_parameters()), *(n for n, _ in module.named_buffers())]
    compiled = {name.replace("_orig_mod.", ""): name for name in names if "_orig_mod." in name}
    if not compiled and not any("_orig_mod." in key for key in state):
        return state
    plain = plain_keys(state)
    return {compiled.get(key, key): value for key, value in plain.items()}

"""What all strategies for many processes share: their place, their group, and the collectives that users call.

Each subclass says how a module is wrapped. The control word that rides in the backward pass is strategies/control's.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn

from bolide import collectives
from bolide.checkpoint import io
from bolide.core.errors import ConfigError, UserCodeError
from bolide.launch.environments import ClusterEnvironment
from bolide.launch.group import Heartbeat, open_group
from bolide.strategies.batch_norm import convert
from bolide.strategies.control import ControlWord
from bolide.strategies.strategy import Strategy

DEFAULT_TIMEOUT = timedelta(minutes=30)
UNEVEN = ("stop", "join")
START_METHODS: dict[str | None, Literal["script", "spawn", "fork"] | None] = {
    None: None, "popen": None, "spawn": "spawn", "fork": "fork",
}  # fmt: skip


class ParallelStrategy(Strategy):
    """Several processes, one for each device.

    Args:
        accelerator: None; an error where it is given, as the trainer's decides.
        parallel_devices: None; an error where they are given, as the trainer's `devices` decide.
        cluster_environment: who started the processes, where that is not found by itself.
        checkpoint_io: writes and reads checkpoints.
        precision_plugin: None; an error where it is given, as the trainer's precision decides.
        process_group_backend: torch's name; default: gloo, with NCCL beside it on CUDA.
        timeout: how long a collective may wait.
        start_method: "popen" (the script is run again; forked where there is none), "spawn" or "fork".
        uneven: what happens when one rank has fewer batches than another: "stop" ends the epoch of all with the
            shortest, "join" goes on until the longest is done, without a contribution of those that have ended.
    """

    strategy_name = "parallel"
    distributed = True

    def __init__(
        self,
        *,
        accelerator: Any = None,
        parallel_devices: Any = None,
        cluster_environment: ClusterEnvironment | None = None,
        checkpoint_io: Any = None,
        precision_plugin: Any = None,
        process_group_backend: str | None = None,
        timeout: timedelta | None = None,
        start_method: str | None = None,
        uneven: str = "stop",
    ) -> None:
        super().__init__()
        name = type(self).__name__
        wrong = []
        if start_method not in START_METHODS:
            wrong.append(f"{name}(start_method={start_method!r}) must be 'popen', 'spawn' or 'fork'")
        if uneven not in UNEVEN:
            wrong.append(f"{name}(uneven={uneven!r}) must be 'stop' or 'join'")
        for argument, value, instead in (
            ("accelerator", accelerator, "Trainer(accelerator=...)"),
            ("parallel_devices", parallel_devices, "Trainer(devices=...)"),
            ("precision_plugin", precision_plugin, "Trainer(precision=...) or plugins=[...]"),
        ):
            if value is not None:
                wrong.append(f"{name}({argument}=...) has no effect: write {instead}")
        if timeout is not None and timeout.total_seconds() <= 0:
            wrong.append(f"{name}(timeout={timeout!r}) must be above zero")
        if wrong:
            raise ConfigError(wrong)
        self.environment = cluster_environment
        self.checkpoint_io = checkpoint_io
        self.process_group_backend = process_group_backend
        self.timeout = timeout or DEFAULT_TIMEOUT
        self.start_method = START_METHODS[start_method]
        self.uneven = uneven
        self.sync_batchnorm = False
        self.exact = False
        self.heartbeat = Heartbeat(0)

    def start(self, exact: bool = False) -> None:
        """Opens the group of processes, once."""
        assert self.world is not None
        self.exact = exact
        self.heartbeat = Heartbeat(self.local_rank)
        open_group(self.world, self.environment, self.process_group_backend, self.timeout)

    def place(self, module: nn.Module) -> nn.Module:
        """The module on the device, its batch norms over all ranks where that was asked for."""
        if self.sync_batchnorm:
            module = convert(module, self._root_device)
        module.to(self._root_device)
        return module

    def sync_buffers(self) -> None:
        """Gives all ranks the first one's buffers (running means), which a checkpoint would hold."""
        if self.module is None or self.world_size == 1:
            return
        buffers = [buffer for buffer in self.module.buffers() if buffer.numel()]
        if buffers:
            dist._broadcast_coalesced(collectives.default_group(), buffers, 1 << 25, 0)

    # ------------------------------------------------------------------ the backward pass, with what ranks say in it

    def before_backward(self, loss: Tensor) -> Tensor:
        """The loss as it is gone back from."""
        return loss

    def after_backward(self) -> None:
        """The backward pass is done."""

    def backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        """The backward pass, with the exchange of gradients."""
        self.before_backward(loss).backward(*args, **kwargs)
        self.after_backward()

    def backward_nothing(self) -> None:
        """The exchange of gradients of a rank that has no loss for this batch."""

    # ------------------------------------------------------------------ what users call

    @property
    def global_rank(self) -> int:
        """This process's number."""
        return self.world.global_rank if self.world is not None else 0

    @property
    def local_rank(self) -> int:
        """This process's number on its machine."""
        return self.world.local_rank if self.world is not None else 0

    @property
    def node_rank(self) -> int:
        """This machine's number."""
        return self.world.node_rank if self.world is not None else 0

    @property
    def world_size(self) -> int:
        """How many processes there are."""
        return self.world.world_size if self.world is not None else 1

    @property
    def num_processes(self) -> int:
        """How many processes this machine has."""
        return self.world.local_world_size if self.world is not None else 1

    @property
    def is_global_zero(self) -> bool:
        """Whether this is the first process."""
        return self.global_rank == 0

    @property
    def data_rank(self) -> int:
        """Which part of each global batch this process has."""
        return self.global_rank

    @property
    def data_size(self) -> int:
        """Into how many parts each global batch is split."""
        return self.world_size

    @property
    def counting_ranks(self) -> list[int]:
        """The processes that together have read each sample once."""
        return list(range(self.world_size))

    @property
    def distributed_sampler_kwargs(self) -> dict[str, int]:
        """Arguments of a distributed sampler of one's own."""
        return {"num_replicas": self.data_size, "rank": self.data_rank}

    def barrier(self, name: str | None = None) -> None:
        """Waits for all processes. All must call it."""
        if name:
            collectives.gather_numbers(f"barrier {name}", [])
        else:
            collectives.barrier()

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        """`obj` of process `src`. All must call it."""
        return collectives.broadcast(obj, src)

    def reduce(self, tensor: Any, group: Any = None, reduce_op: str | None = "mean") -> Any:
        """`tensor` reduced over all processes: "mean", "sum", "min" or "max". All must call it."""
        if not isinstance(tensor, Tensor):
            return tensor
        return collectives.reduce(tensor, str(reduce_op or "mean"), group)

    def reduce_boolean_decision(self, decision: bool, all: bool = True) -> bool:
        """Whether all processes (or any) say yes. All must call it."""
        ask: Callable[[str, bool], bool] = collectives.all_ranks if all else collectives.any_rank
        return ask("a common decision", bool(decision))

    def all_gather(self, tensor: Any, group: Any = None, sync_grads: bool = False) -> Any:
        """The tensors of all processes, stacked in a new first dimension. All must call it."""
        return collectives.all_gather(tensor, group, sync_grads)

    def remove_checkpoint(self, filepath: Any) -> None:
        """Removes a checkpoint that this run wrote; the first process does it."""
        if not self.is_global_zero:
            return
        if self.checkpoint_io is not None:
            self.checkpoint_io.remove_checkpoint(filepath)
        else:
            io.remove(filepath)


class SpreadStrategy(ParallelStrategy):
    """The base of strategies that spread a module's state over processes. Its arguments are `ParallelStrategy`'s.

    Their gradients do not carry the control word, which goes by a small collective of its own.
    """

    strategy_name = "spread"

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._word: ControlWord | None = None
        self._sync = True
        self.share = 1.0

    @property
    def word(self) -> ControlWord | None:
        """What ranks say to each other once a step."""
        return self._word

    def shared(self, loss: Tensor) -> Tensor:
        """The loss with its batch's share."""
        return loss if self.share == 1.0 else loss * self.share

    def after_backward(self) -> None:
        """Hears what the other ranks say: a small collective of its own, at the end of an accumulation window."""
        if self._sync and self._word is not None and self.world_size > 1:
            self._word.exchange(self.world_size)

    def backward_nothing(self) -> None:
        """Refuses a step without a loss.

        Raises:
            UserCodeError: always: the others wait for this rank's part of the gradients.
        """
        raise UserCodeError(
            f"`training_step` returned None, which strategy={self.strategy_name!r} cannot leave out: the ranks "
            "exchange parts of the weights in each backward pass. Return a loss that is zero: (output * 0).sum()"
        )


def same_modules(module: nn.Module) -> None:
    """Refuses ranks whose modules differ, before a collective over them can hang. All must call it.

    Raises:
        UserCodeError: other names or shapes on some rank.
    """
    mine = [(name, tuple(p.shape), p.requires_grad) for name, p in module.named_parameters()]
    everyone = collectives.gather_objects(mine)
    for rank, theirs in enumerate(everyone):
        if theirs == everyone[0]:
            continue
        odd = [entry for entry in theirs if entry not in everyone[0]] or [
            entry for entry in everyone[0] if entry not in theirs
        ]
        raise UserCodeError(
            f"The module of rank {rank} is not that of rank 0: they differ in {odd[0][0] if odd else 'the order'!r}"
            f" (of {len(theirs)} and {len(everyone[0])} parameters). All ranks must run the same code with the "
            "same settings."
        )


def trainable(module: nn.Module) -> list[nn.Parameter]:
    """The parameters that get gradients."""
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


def dtype_of(module: nn.Module) -> torch.dtype:
    """The dtype of the first floating-point parameter that gets gradients."""
    return next((p.dtype for p in trainable(module) if p.is_floating_point()), torch.float32)


__all__ = ["DEFAULT_TIMEOUT", "ParallelStrategy", "dtype_of", "same_modules", "trainable"]

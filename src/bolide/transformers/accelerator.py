"""`trainer.accelerator`: what scripts of the second door ask of Accelerate, answered by the engine.

Owns nothing: each name is one of the strategy's or the precision's. Who calls: user code, above all an overridden
training_step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import wraps
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader

from bolide.transformers import ranks
from bolide.transformers.weights import unwrapped


class Accelerator:
    """The names of Accelerate's Accelerator that scripts of a Trainer use.

    Args:
        owner: the trainer of the second door.
    """

    def __init__(self, owner: Any) -> None:
        self._owner = owner

    @property
    def _strategy(self) -> Any:
        return self._owner._engine.strategy

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        device: torch.device = self._strategy.root_device
        return device

    @property
    def num_processes(self) -> int:
        """How many processes take part."""
        return int(self._strategy.world_size)

    @property
    def process_index(self) -> int:
        """This process's number among all."""
        return int(self._strategy.global_rank)

    @property
    def local_process_index(self) -> int:
        """This process's number on its machine."""
        return int(self._strategy.local_rank)

    @property
    def is_main_process(self) -> bool:
        """Whether this is the first process."""
        return bool(self._strategy.is_global_zero)

    @property
    def is_local_main_process(self) -> bool:
        """Whether this is the first process of its machine."""
        return self.local_process_index == 0

    @property
    def is_last_process(self) -> bool:
        """Whether this is the last process."""
        return self.process_index == self.num_processes - 1

    @property
    def distributed_type(self) -> str:
        """NO, FSDP, DEEPSPEED, or by what device several processes train: MULTI_GPU or MULTI_CPU."""
        if self.num_processes == 1:
            return "NO"
        if self._owner.is_fsdp_enabled:
            return "FSDP"
        if self._owner.is_deepspeed_enabled:
            return "DEEPSPEED"
        return "MULTI_GPU" if self.device.type == "cuda" else "MULTI_CPU"

    @property
    def state(self) -> SimpleNamespace:
        """Who this process is, and which plugin shards the model."""
        names = ("device", "num_processes", "process_index", "local_process_index", "is_main_process",
                 "is_local_main_process", "is_last_process", "distributed_type", "mixed_precision")  # fmt: skip
        found = {name: getattr(self, name) for name in names}
        plugin = None
        if self._owner.is_fsdp_enabled:
            from bolide.transformers.sharding import Plugin

            plugin = Plugin()
        return SimpleNamespace(**found, deepspeed_plugin=None, fsdp_plugin=plugin)

    @property
    def gradient_accumulation_steps(self) -> int:
        """Batches to one optimizer step."""
        return int(self._owner.args.gradient_accumulation_steps)

    @property
    def sync_gradients(self) -> bool:
        """Whether the running batch is the last of its optimizer step."""
        return bool(self._owner._is_last_of_step)

    @property
    def mixed_precision(self) -> str:
        """no, fp16 or bf16."""
        args = self._owner.args
        return "fp16" if args.fp16 else "bf16" if args.bf16 else "no"

    def backward(self, loss: Tensor, **kwargs: Any) -> None:
        """The backward pass, with the loss scaler where there is one."""
        adapter = self._owner._adapter
        if self._owner._several and adapter._run is not None:
            ranks.before_backward(self._owner, self._strategy)
        if adapter._run is None:
            loss.backward(**kwargs)  # outside of a run, as in a test of one's own
        else:
            adapter.manual_backward(loss, **kwargs)

    def unwrap_model(self, model: Any, keep_fp32_wrapper: bool = True, keep_torch_compile: bool = False) -> Any:
        """The module within what parallelism wrapped around it, and compilation, unless that is to stay."""
        while keep_torch_compile and type(model).__name__.endswith("Parallel"):
            model = model.module
        return model if keep_torch_compile else unwrapped(model)

    def autocast(self, *args: Any, **kwargs: Any) -> AbstractContextManager[Any]:
        """The context of the run's precision."""
        context: AbstractContextManager[Any] = self._owner._engine.precision_plugin.forward_context()
        return context

    @contextmanager
    def no_sync(self, model: Any) -> Iterator[None]:
        """Gradients are not exchanged while this is open; nothing to do on one process."""
        strategy = self._strategy
        before = getattr(strategy, "syncs", True)
        if self.num_processes > 1:
            strategy.set_sync(False)
        try:
            yield
        finally:
            if self.num_processes > 1:
                strategy.set_sync(before)

    def gather(self, value: Any) -> Any:
        """The tensors of all processes, joined along their first dimension. All must call it."""
        return value if self.num_processes == 1 else ranks.gather(value)

    def gather_for_metrics(self, value: Any, use_gather_object: bool = False) -> Any:
        """As `gather`, of the evaluation's batch that runs; a batch that only fills up the last round is left out.

        With `use_gather_object`, or where nothing of the value is a tensor, the lists of all processes are joined.
        """
        if self.num_processes == 1:
            return value
        if use_gather_object or not any(isinstance(leaf, Tensor) for leaf in tree_leaves(value)):
            rows = ranks.in_order(value)
            return [item for row in rows for item in (row if isinstance(row, (list, tuple)) else [row])]
        return ranks.gather(value, everything=False)

    def pad_across_processes(self, tensor: Any, dim: int = 0, pad_index: int = 0, pad_first: bool = False) -> Any:
        """Tensors filled up along `dim` to the longest of all processes. All must call it."""
        return tensor if self.num_processes == 1 else ranks.padded(tensor, dim, pad_index, pad_first)

    def reduce(self, tensor: Any, reduction: str = "sum") -> Any:
        """A tensor reduced over all processes."""
        return self._strategy.reduce(tensor, reduce_op=reduction)

    def wait_for_everyone(self) -> None:
        """Waits for all processes."""
        self._strategy.barrier()

    def clip_grad_norm_(self, parameters: Any, max_norm: float, norm_type: float = 2) -> Tensor:
        """Clips gradients to a norm; returns the norm they had. All must call it where the model is sharded."""
        if self._owner.is_fsdp_enabled:
            from bolide.strategies.sharded import clip_over_meshes

            given: list[Any] = [parameters] if isinstance(parameters, Tensor) else list(parameters)
            return clip_over_meshes([p for p in given if p.grad is not None], max_norm, float(norm_type))
        return torch.nn.utils.clip_grad_norm_(parameters, max_norm, norm_type)

    def clip_grad_value_(self, parameters: Any, clip_value: float) -> None:
        """Clips each entry of the gradients."""
        torch.nn.utils.clip_grad_value_(parameters, clip_value)

    def get_state_dict(self, model: Any, unwrap: bool = True) -> dict[str, Any]:
        """The weights of a model by name: whole, on the first process, where it is sharded. All must call it then."""
        if self._owner.is_deepspeed_enabled:
            from bolide.transformers import zero

            return dict(zero.whole_state(unwrapped(model)))
        if self._owner.is_fsdp_enabled:
            from bolide.transformers.sharding import whole_state

            return dict(whole_state(unwrapped(model)))
        return dict((unwrapped(model) if unwrap else model).state_dict())

    def prepare_model(self, model: Any, device_placement: bool | None = None, evaluation_mode: bool = False) -> Any:
        """A model beside the one that trains, such as a frozen reference, on this process's device.

        The one that trains is placed by the engine, and returned as it is. Call `eval()` of a reference yourself.
        """
        trains = unwrapped(model) is unwrapped(self._owner.model)
        return model if trains or device_placement is False else model.to(self.device)

    def prepare_data_loader(self, loader: Any, **kwargs: Any) -> Any:
        """A DataLoader that reads this process's part: the processes take its batches in turn."""
        return self.prepare(loader)

    def prepare_optimizer(self, optimizer: Any, **kwargs: Any) -> Any:
        """The optimizer as it is."""
        return optimizer

    def prepare_scheduler(self, scheduler: Any) -> Any:
        """The schedule as it is."""
        return scheduler

    def prepare(self, *things: Any, **kwargs: Any) -> Any:
        """The things as they are, as the engine places them when a run begins; a DataLoader reads this process's part.

        The processes take its batches in turn.
        """
        args = self._owner.args
        if self.num_processes > 1:
            things = tuple(
                ranks.over_ranks(thing, args, training=False) if isinstance(thing, DataLoader) else thing
                for thing in things
            )
        return things[0] if len(things) == 1 else things

    @contextmanager
    def main_process_first(self) -> Iterator[None]:
        """The first process goes through the block before the others."""
        with self._owner.args.main_process_first(local=False):
            yield

    @contextmanager
    def local_main_process_first(self) -> Iterator[None]:
        """The first process of each machine goes through the block before its others."""
        with self._owner.args.main_process_first():
            yield

    def on_main_process(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A decorator: the function runs on the first process, and gives None on the others."""
        return self._where("is_main_process", function)

    def on_local_main_process(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A decorator: the function runs on the first process of each machine, and gives None on the others."""
        return self._where("is_local_main_process", function)

    def _where(self, which: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def there(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs) if getattr(self, which) else None

        return there

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Prints on the first process of a machine."""
        if self.is_local_main_process:
            print(*args, **kwargs)

    def free_memory(self, *things: Any) -> list[Any]:
        """Lets go of cached device memory."""
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()
        return [None for _ in things]

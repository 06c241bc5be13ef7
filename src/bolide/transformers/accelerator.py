"""`trainer.accelerator`: what scripts of the second door ask of Accelerate, answered by the engine.

Owns nothing: each name is one of the strategy's or the precision's. Who calls: user code, above all an overridden
training_step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial, wraps
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader

from bolide import collectives
from bolide.checkpoint import io
from bolide.transformers import ranks
from bolide.transformers.loss import one_loss
from bolide.transformers.weights import separate, unwrapped


class Accelerator:
    """The names of Accelerate's Accelerator that scripts of a Trainer use.

    Args:
        owner: the trainer of the second door.
    """

    def __init__(self, owner: Any) -> None:
        self._owner = owner
        self._flag = False

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
    def use_distributed(self) -> bool:
        """Whether several processes take part."""
        return self.num_processes > 1

    @property
    def multi_device(self) -> bool:
        """Whether several processes train, each on a GPU."""
        return self.use_distributed and self.device.type == "cuda"

    @property
    def is_fsdp2(self) -> bool:
        """Whether torch's FSDP2 spreads the model."""
        return bool(self._owner.is_fsdp_enabled)

    @property
    def deepspeed_plugin(self) -> Any:
        """Which settings DeepSpeed has; None without it."""
        return self._owner.args.deepspeed_plugin

    @property
    def scaler(self) -> Any:
        """The scaler of float16's losses; None where there is none."""
        return self._owner._engine.precision_plugin.scaler

    @property
    def native_amp(self) -> bool:
        """Whether precision is mixed."""
        return self.mixed_precision != "no"

    @property
    def optimizer_step_was_skipped(self) -> bool:
        """Whether the last step changed nothing, as its float16 gradients were not finite."""
        return bool(self._owner._adapter.was_skipped)

    @property
    def should_save_model(self) -> bool:
        """Whether a model is saved: always."""
        return True

    @property
    def split_batches(self) -> bool:
        """Whether a batch's size is that of all processes together."""
        return bool(self._owner.args.accelerator_config.split_batches)

    @property
    def dispatch_batches(self) -> bool | None:
        """Whether the first process alone reads."""
        dispatches: bool | None = self._owner.args.accelerator_config.dispatch_batches
        return dispatches

    @property
    def even_batches(self) -> bool:
        """As accelerator_config says; nothing here needs it."""
        return bool(self._owner.args.accelerator_config.even_batches)

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
        return SimpleNamespace(**found, deepspeed_plugin=self._owner.args.deepspeed_plugin, fsdp_plugin=plugin)

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
        return str(self._owner.args.mixed_precision)

    def backward(self, loss: Tensor, **kwargs: Any) -> None:
        """The backward pass, with the loss scaler where there is one."""
        adapter = self._owner._adapter
        if not loss.requires_grad:
            one_loss(loss, adapter.model)
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

    @contextmanager
    def accumulate(self, *models: Any) -> Iterator[None]:
        """Gradients are exchanged within it where the running batch is the last of its step."""
        if self.sync_gradients:
            yield
        else:
            with self.no_sync(models[0] if models else None):
                yield

    @contextmanager
    def split_between_processes(self, inputs: Any, apply_padding: bool = False) -> Iterator[Any]:
        """This process's part of a list, a tuple, a tensor, or a dictionary of them: the first ones get what is left.

        Args:
            inputs: the same on all processes.
            apply_padding: a part that is shorter than others is filled up with its last entry.
        """
        ranks_now, rank = self.num_processes, self.process_index
        yield inputs if ranks_now == 1 else part_of(inputs, rank, ranks_now, apply_padding)

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

    def reduce(self, tensor: Any, reduction: str = "sum", scale: float = 1.0) -> Any:
        """A tensor reduced over all processes, times `scale`; one process has it as it is."""
        found = self._strategy.reduce(tensor, reduce_op=reduction)
        return found if scale == 1.0 or self.num_processes == 1 else found * scale

    def set_trigger(self) -> None:
        """Raises a flag on this process, of which `check_trigger` tells all."""
        self._flag = True

    def check_trigger(self) -> bool:
        """Whether any process has raised its flag, which is lowered again. All must call it."""
        mine, self._flag = self._flag, False
        if self.num_processes == 1:
            return mine
        return any(row[0] for row in collectives.gather_numbers("check_trigger", [float(mine)]))

    def unscale_gradients(self, optimizer: Any = None) -> None:
        """Takes float16's scale off the gradients; nothing to do where there is none."""
        if self.scaler is not None:
            self.scaler.unscale_(optimizer if optimizer is not None else self._owner.optimizer)

    def save(self, obj: Any, f: Any, safe_serialization: bool = False) -> None:
        """Writes an object on the first process: by torch, or weights by name as safetensors."""
        if not self.is_main_process:
            return
        if safe_serialization:
            from safetensors.torch import save_file

            save_file(separate(obj), f, metadata={"format": "pt"})
        else:
            io.write_atomically(f, lambda file: torch.save(obj, file))

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

    def on_last_process(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A decorator: the function runs on the last process, and gives None on the others."""
        return self._where("is_last_process", function)

    def on_process(self, function: Callable[..., Any] | None = None, process_index: int | None = None) -> Any:
        """A decorator: the function runs on the process of that number, and gives None on the others."""
        if function is None:
            return partial(self.on_process, process_index=process_index)

        @wraps(function)
        def there(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs) if self.process_index == process_index else None

        return there

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

    clear = free_memory


def part_of(inputs: Any, rank: int, ranks: int, fills_up: bool) -> Any:
    """A process's part of a list, a tuple, a tensor, or a dictionary of them."""
    if isinstance(inputs, dict):
        return {name: part_of(value, rank, ranks, fills_up) for name, value in inputs.items()}
    least, more = divmod(len(inputs), ranks)
    start = rank * least + min(rank, more)
    found = inputs[start : start + least + (rank < more)]
    if not fills_up or not more or rank < more or not len(inputs):
        return found
    last = inputs[-1:]
    return torch.cat([found, last.to(found.device)]) if isinstance(found, Tensor) else found + last

"""DDPStrategy: torch's DistributedDataParallel around the module's steps.

Owns the wrapping, the exchange of gradients at the end of an accumulation window, the weight of a ragged batch, and the
order of summation that makes resumed runs the same to the bit.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parallel.distributed import _find_tensors

from bolide import collectives
from bolide.core.errors import ConfigError, did_you_mean
from bolide.core.protocols import Optimizable
from bolide.strategies.control import ControlWord
from bolide.strategies.parallel import ParallelStrategy, dtype_of, same_modules, trainable

DDP_ARGUMENTS = (
    "broadcast_buffers", "bucket_cap_mb", "find_unused_parameters", "check_reduction", "gradient_as_bucket_view",
    "static_graph", "init_sync", "skip_all_reduce_unused_params", "bucket_cap_mb_list", "batched_grad_copy",
)  # fmt: skip


class Router(nn.Module):
    """What DDP wraps: its forward calls any method of the user's module by name, and lets the control word take part.

    Not the module itself, whose forward is the user's to call within a step.
    """

    def __init__(self, module: nn.Module, word: ControlWord) -> None:
        super().__init__()
        self.module = module
        self.word = word
        self.__dict__["parts"] = module, word  # the same, found without a module's look-up

    def forward(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, Tensor]:
        """The output of the method `name`, and the root of the control word."""
        module, word = self.__dict__["parts"]
        return getattr(module, name)(*args, **kwargs), word.root()


class DDPStrategy(ParallelStrategy):
    """Each process has the whole module and a part of each batch; gradients are averaged in the backward pass.

    Args:
        ddp_comm_state: state of the communication hook.
        ddp_comm_hook: a communication hook of torch's or one's own.
        ddp_comm_wrapper: put around the hook, such as torch's fp16_compress_wrapper.
        model_averaging_period: averages the weights every so many steps, for torch's post-local-SGD hook.
        kwargs: `ParallelStrategy`'s arguments, and those of torch's DistributedDataParallel:
            find_unused_parameters, gradient_as_bucket_view, static_graph, bucket_cap_mb, broadcast_buffers.

    Example::

        Trainer(devices=2, strategy=DDPStrategy(find_unused_parameters=True))
    """

    strategy_name = "ddp"

    def __init__(
        self,
        *,
        ddp_comm_state: Any = None,
        ddp_comm_hook: Callable[..., Any] | None = None,
        ddp_comm_wrapper: Callable[..., Any] | None = None,
        model_averaging_period: int | None = None,
        **kwargs: Any,
    ) -> None:
        own = {name: kwargs.pop(name) for name in list(kwargs) if name in DDP_ARGUMENTS}
        known = (*DDP_ARGUMENTS, *inspect.signature(ParallelStrategy.__init__).parameters)
        unknown = [name for name in kwargs if name not in known]
        if unknown:
            raise ConfigError(
                f"DDPStrategy({unknown[0]}=...) is no argument of it, nor of torch's DistributedDataParallel."
                + did_you_mean(unknown[0], known)
            )
        super().__init__(**kwargs)
        self._ddp_kwargs = own
        self._comm = (ddp_comm_state, ddp_comm_hook, ddp_comm_wrapper)
        if ddp_comm_wrapper is not None and ddp_comm_hook is None:
            raise ConfigError("DDPStrategy(ddp_comm_wrapper=...) wraps a hook: give ddp_comm_hook too")
        self._averaging_period = model_averaging_period
        self._ddp: DistributedDataParallel | None = None
        self._word: ControlWord | None = None
        self._root: Tensor | None = None
        self._losses = 0
        self.share = 1.0

    # ------------------------------------------------------------------ placing

    def prepare(self, module: nn.Module, build_optimizers: Callable[[], list[Optimizable]] | None) -> list[Optimizable]:
        """Places the module, builds the optimizers, and wraps the module for training; all start from rank 0's."""
        self.module = module = self.place(module)
        self._ddp = None
        if build_optimizers is None:
            self._same_weights(module)
            self.optimizers = []
            return self.optimizers
        self.optimizers = build_optimizers()
        same_modules(module)
        self._word = ControlWord(dtype_of(module), self._root_device)
        router = Router(module, self._word)
        ignored = [f"module.{name}" for name in getattr(module, "_ddp_params_and_buffers_to_ignore", ())]
        if ignored:
            DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(router, ignored)
        # no device_ids: batches are on the device already, and DDP would walk through them to find out
        self._ddp = DistributedDataParallel(router, **self._ddp_kwargs)
        self._register_hook(self._ddp)
        self._losses = 0
        return self.optimizers

    def _same_weights(self, module: nn.Module) -> None:
        """Gives all ranks the first one's weights, as DDP does when it wraps."""
        tensors = [t.detach() for t in (*module.parameters(), *module.buffers()) if t.numel()]
        if tensors and self.world_size > 1:
            same_modules(module)
            dist._broadcast_coalesced(collectives.default_group(), tensors, 1 << 25, 0)

    def _register_hook(self, ddp: DistributedDataParallel) -> None:
        state, hook, wrapper = self._comm
        if hook is not None:
            ddp.register_comm_hook(state, wrapper(hook) if wrapper is not None else hook)
        elif self.exact and self.world_size > 2:
            # two numbers have the same sum in any order; with more, torch's buckets, which change after the first step,
            # decide the order, and a resumed run's bits would differ
            # by way of a lambda: DDP looks at a hook's annotations, and takes no text for a type
            ddp.register_comm_hook(collectives.default_group(), lambda group, bucket: sum_in_rank_order(group, bucket))
        if self._averaging_period is not None:
            from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager

            warmup = int(getattr(state, "start_localSGD_iter", 0))
            averager = PeriodicModelAverager(period=self._averaging_period, warmup_steps=warmup)
            for optimizer in self.optimizers:
                if isinstance(optimizer, torch.optim.Optimizer):
                    optimizer.register_step_post_hook(lambda *_: averager.average_parameters(self.module.parameters()))  # type: ignore[union-attr]

    @property
    def model(self) -> nn.Module | None:
        """The module as DDP wraps it; the module itself where nothing is trained."""
        return self._ddp if self._ddp is not None else self.module

    def close(self) -> None:
        """Lets go of the module and the optimizers."""
        super().close()
        self._ddp = self._word = self._root = None

    # ------------------------------------------------------------------ a step

    @property
    def word(self) -> ControlWord | None:
        """What ranks say to each other in the backward pass."""
        return self._word

    @property
    def syncs(self) -> bool:
        """Whether the next backward pass exchanges gradients."""
        return self._ddp is not None and self._ddp.require_backward_grad_sync

    def set_sync(self, on: bool) -> None:
        """Whether gradients are exchanged at the next backward pass."""
        if self._ddp is not None:
            self._ddp.require_backward_grad_sync = on

    def bind(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        """`training_step` goes through DDP; all else is the module's own."""
        if name != "training_step" or self._ddp is None:
            return method
        automatic = getattr(self.module, "automatic_optimization", True)
        return self._training_step if automatic else self._manual_training_step(method)

    def _training_step(self, *args: Any) -> Any:
        assert self._ddp is not None
        output, self._root = self._ddp("training_step", *args)
        return output

    def _manual_training_step(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """The backward passes come within the step, so DDP is told of each by itself, not by its forward."""

        def step(*args: Any) -> Any:
            assert self._ddp is not None
            self._ddp._pre_forward()
            return method(*args)

        return step

    def before_backward(self, loss: Tensor) -> Tensor:
        """The loss with its batch's share, and the control word where gradients are exchanged."""
        if self.share != 1.0:
            loss = loss * self.share
        self._losses += 1
        if not self.syncs:
            return loss
        root = self._root
        if root is None:  # manual optimization
            assert self._ddp is not None and self._word is not None
            root = self._word.root()
            unused = self._ddp.find_unused_parameters and not self._ddp.static_graph
            self._ddp.require_forward_param_sync = True
            self._ddp.reducer.prepare_for_backward(list(_find_tensors([loss, root])) if unused else [])
        self._root = None
        return loss + root.to(loss.dtype)  # adds zero

    def after_backward(self) -> None:
        """Hears what the other ranks said."""
        if self.syncs and self._word is not None:
            self._losses = 0
            self._word.read(self.world_size)

    def backward_nothing(self) -> None:
        """A rank whose step gave no loss goes back from zero, so that the others do not wait, and says so."""
        assert self._word is not None and self._ddp is not None and self.module is not None
        self._word.nothing = True
        root, self._root = self._root, None
        if not self.syncs or root is None:
            return
        alone = self._losses == 0
        if self._ddp.find_unused_parameters and not self._ddp.static_graph:
            root.backward()
        else:
            zero = torch.stack([parameter.sum().to(root.dtype) for parameter in trainable(self.module)]).sum() * 0.0
            # the word's own gradient is not zero: a NaN among the weights must not reach it
            torch.autograd.backward((root, zero), (torch.ones_like(root), torch.ones_like(zero)))
        self._word.read(self.world_size)
        self._losses = 0
        if alone:  # all ranks were without a loss, else `hear` has raised: nothing is stepped on
            for parameter in trainable(self.module):
                parameter.grad = None


def sum_in_rank_order(group: Any, bucket: Any) -> torch.futures.Future[Tensor]:
    """A communication hook: the mean over ranks, each element summed in the order of the ranks.

    So it does not depend on how gradients are put into buckets. Each rank sums its part of the elements: all-to-all, a
    sum, all-gather; twice the traffic of a ring is not more than a ring's.
    """
    buffer = bucket.buffer()
    count = dist.get_world_size(group)
    part = -(-buffer.numel() // count)
    sent = torch.zeros(part * count, dtype=buffer.dtype, device=buffer.device)
    sent[: buffer.numel()] = buffer
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent, group=group)
    rows = received.view(count, part)
    total = rows[0].clone()
    for row in rows[1:]:
        total += row
    total /= count
    dist.all_gather_into_tensor(sent, total, group=group)
    buffer.copy_(sent[: buffer.numel()])
    done: torch.futures.Future[Tensor] = torch.futures.Future()
    done.set_result(buffer)
    return done

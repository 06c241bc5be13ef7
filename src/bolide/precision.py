"""One table of precisions, and what each does to a module, a batch and a step.

Owns dtypes, autocast and the loss scaler. It steps no optimizer: the engine asks whether there is a scaler.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_map

from bolide import collectives
from bolide.core.config import PRECISION_ALIASES
from bolide.core.messages import warn


@dataclass(frozen=True)
class PrecisionRow:
    """`weights`: the dtype parameters are kept in (None: as they are); `autocast`: the dtype operations run in."""

    weights: torch.dtype | None = None
    autocast: torch.dtype | None = None
    scaler: bool = False
    legacy_key: str = "Precision"


TABLE: dict[str, PrecisionRow] = {
    "32-true": PrecisionRow(),
    "64-true": PrecisionRow(weights=torch.float64, legacy_key="DoublePrecision"),
    "16-true": PrecisionRow(weights=torch.float16, legacy_key="HalfPrecision"),
    "bf16-true": PrecisionRow(weights=torch.bfloat16, legacy_key="HalfPrecision"),
    "16-mixed": PrecisionRow(autocast=torch.float16, scaler=True, legacy_key="MixedPrecision"),
    "bf16-mixed": PrecisionRow(autocast=torch.bfloat16, legacy_key="MixedPrecision"),
}


class Precision:
    """A row of the table on a device.

    Args:
        name: one of the table's names, or an alias such as 16 or "bf16".
        device: where the module runs; fp16 autocast on a CPU becomes bf16, with a warning.
        sharded: each process has parts of the gradients: all leave a step out where any part is not finite.
    """

    def __init__(
        self, name: str | int | None = "32-true", device: torch.device | str = "cpu", sharded: bool = False
    ) -> None:
        self.device = torch.device(device)
        self.precision: str = PRECISION_ALIASES.get(name, str(name))
        if self.precision == "16-mixed" and self.device.type == "cpu":
            warn(
                "precision='16-mixed' is not there on a CPU: 'bf16-mixed' is used instead. Write "
                "precision='bf16-mixed'."
            )
            self.precision = "bf16-mixed"
        self.row = TABLE[self.precision]
        kind = RankGradScaler if sharded else torch.amp.GradScaler
        self.scaler: torch.amp.GradScaler | None = kind(self.device.type) if self.row.scaler else None

    def convert_module(self, module: nn.Module) -> nn.Module:
        """Brings the floating-point parameters and buffers to their dtype, in place."""
        return module if self.row.weights is None else module.to(self.row.weights)

    @property
    def converts_input(self) -> bool:
        """Whether floating-point tensors of a batch must be brought to the weights' dtype."""
        return self.row.weights is not None

    def convert_input(self, batch: Any) -> Any:
        """The batch with its floating-point tensors in the weights' dtype."""
        dtype = self.row.weights
        if dtype is None:
            return batch
        return tree_map(lambda x: x.to(dtype) if isinstance(x, Tensor) and x.is_floating_point() else x, batch)

    def forward_wrapper(self) -> Callable[[Callable[..., Any]], Callable[..., Any]] | None:
        """What a step function is wrapped in so that it runs in this precision; None where nothing is needed."""
        if self.row.autocast is not None:
            # the cache would keep the casts of a forward without gradients for the next one that needs them
            return torch.autocast(self.device.type, dtype=self.row.autocast, cache_enabled=True)
        return None if self.row.weights is None else _with_default_dtype(self.row.weights)

    def forward_context(self) -> AbstractContextManager[Any]:
        """The context in which a forward pass runs in this precision."""
        if self.row.autocast is not None:
            return torch.autocast(self.device.type, dtype=self.row.autocast)
        return nullcontext() if self.row.weights is None else default_dtype(self.row.weights)

    def init_context(self) -> AbstractContextManager[Any]:
        """The context in which new parameters get the weights' dtype."""
        return nullcontext() if self.row.weights is None else default_dtype(self.row.weights)

    def state_dict(self) -> dict[str, Any]:
        """The scaler's state, empty without one."""
        return {} if self.scaler is None else self.scaler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes back the scaler's state."""
        if self.scaler is not None and state:
            self.scaler.load_state_dict(state)


class RankGradScaler(torch.amp.GradScaler):
    """torch's loss scaler over processes that each have parts of the gradients: what one finds holds for all.

    Where all gradients are of one mesh torch asks the others by itself, and it takes no mix of tensors and DTensors;
    this serves any of them. All ranks step together.
    """

    def _unscale_grads_(
        self, optimizer: torch.optim.Optimizer, inv_scale: Tensor, found_inf: Tensor, allow_fp16: bool
    ) -> dict[torch.device, Tensor]:
        alike: dict[torch.dtype, list[Tensor]] = {}
        for group in optimizer.param_groups:
            for gradient in (parameter.grad for parameter in group["params"] if parameter.grad is not None):
                if gradient.dtype == torch.float16 and not allow_fp16:
                    raise ValueError(
                        "The gradients are fp16 themselves, which a loss scaler cannot unscale: keep the weights in "
                        "float32 (precision='16-mixed'), or write precision='16-true'"
                    )
                local = gradient.to_local() if isinstance(gradient, DTensor) else gradient
                # a gradient on the CPU (offloaded parameters) is checked there
                alike.setdefault(local.dtype, []).append(local)
        here = {gradient.device for gradients in alike.values() for gradient in gradients}
        counts = {device: found_inf.to(device) for device in here}
        for gradients in alike.values():
            for device in here:
                mine = [gradient for gradient in gradients if gradient.device == device]
                if mine:
                    torch._amp_foreach_non_finite_check_and_unscale_(mine, counts[device], inv_scale.to(device))
        total = sum((count.to(found_inf.device) for count in counts.values()), start=torch.zeros_like(found_inf))
        return {found_inf.device: collectives.reduce(total, "max")}


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """New floating-point tensors get `dtype` while this is open."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _with_default_dtype(dtype: torch.dtype) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def wrap(fn: Callable[..., Any]) -> Callable[..., Any]:
        def in_dtype(*args: Any, **kwargs: Any) -> Any:
            with default_dtype(dtype):
                return fn(*args, **kwargs)

        return in_dtype

    return wrap

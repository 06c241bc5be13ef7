"""What DeepSpeedStrategy puts around a module and its optimizer, and the schedulers that its configuration names.

Owns no engine. Who calls: DeepSpeedStrategy.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import nn

from bolide.core.errors import ConfigError, UserCodeError, did_you_mean
from bolide.core.protocols import Optimizable
from bolide.precision import Precision, PrecisionRow


class Stepping(Protocol):
    """What an EngineOptimizer asks of the strategy."""

    def take_step(self) -> None: ...

    def forget_gradients(self) -> None: ...

    def load_optimizer(self, optimizer: Optimizable, state: dict[str, Any]) -> None: ...


class Router(nn.Module):
    """What DeepSpeed wraps: its forward calls any method of the user's module by name.

    Parameters that the user's module has itself, outside its parts, are this one's, too, as DeepSpeed gathers those of
    the module that is called.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        for name, parameter in module.named_parameters(recurse=False):
            self.register_parameter(f"own_{name}", parameter)

    def forward(self, name: str | None, *args: Any) -> Any:
        """The output of the method `name`; without one what was given, so that DeepSpeed goes back from it."""
        return args[0] if name is None else getattr(self.module, name)(*args)


HELD = "_deepspeed"
"""The attribute of a module that names its engine: a later fit, of another trainer, takes its hooks out first."""


class Held:
    """The engine that has hooks in a module; a copy of the module has none."""

    def __init__(self, engine: Any = None) -> None:
        self.engine = engine

    def __reduce__(self) -> Any:
        return Held, ()


def engine_of(module: nn.Module) -> Any:
    """The engine that has hooks in a module; None where none has."""
    held = module.__dict__.get(HELD)
    return None if held is None else held.engine


class EngineOptimizer:
    """The optimizer as callbacks and the module see it: its groups and settings are its own, its step is DeepSpeed's.

    Each group's parameters are the flat partitions that DeepSpeed keeps, and `state` is that of these.
    """

    def __init__(self, strategy: Stepping, optimizer: Any) -> None:
        self._strategy = strategy
        self.optimizer = optimizer
        self.param_groups: list[dict[str, Any]] = optimizer.param_groups
        self.defaults: dict[str, Any] = optimizer.defaults
        self.state: Any = optimizer.state

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Evaluates the closure, then steps; returns what the closure returned."""
        result = None if closure is None else closure()
        self._strategy.take_step()
        return result

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forgets gradients that were not stepped on; those that were are forgotten by DeepSpeed itself."""
        self._strategy.forget_gradients()

    def state_dict(self) -> dict[str, Any]:
        """This rank's part of the state; `trainer.save_checkpoint` holds all of it."""
        state: dict[str, Any] = self.optimizer.state_dict()
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes a whole state in torch's format. All ranks must call it."""
        self._strategy.load_optimizer(self, state_dict)

    def __repr__(self) -> str:
        return f"EngineOptimizer({self.optimizer!r})"


class EnginePrecision(Precision):
    """A precision of which DeepSpeed scales the losses and keeps the weights.

    `loss_scaler` is DeepSpeed's, in fp16, once there is an engine; files hold its state as torch's GradScaler has it.
    """

    def __init__(self, name: str | int | None, device: torch.device) -> None:
        super().__init__(name, device)
        row = self.row
        self.row = PrecisionRow(row.weights, row.autocast, scaler=False, legacy_key=row.legacy_key)
        self.scaler = None
        self.loss_scaler: Any = None

    def state_dict(self) -> dict[str, Any]:
        """The state of the loss's scale; empty where it does not move."""
        own = self.loss_scaler
        if own is None or not hasattr(own, "last_overflow_iter"):
            return {}
        stable_steps = int(own.cur_iter - own.last_overflow_iter - 1)
        return {
            "scale": float(own.cur_scale), "growth_factor": float(own.scale_factor),
            "backoff_factor": 1.0 / own.scale_factor, "growth_interval": int(own.scale_window),
            "_growth_tracker": stable_steps % own.scale_window,
            "stable_steps": stable_steps, "hysteresis": int(own.cur_hysteresis),
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes back the loss's scale, also that of torch's GradScaler."""
        own = self.loss_scaler
        if own is None or not hasattr(own, "last_overflow_iter") or not state:
            return
        own.cur_scale = state["scale"]
        own.cur_iter = 0
        own.last_overflow_iter = -1 - state.get("stable_steps", state["_growth_tracker"])
        own.cur_hysteresis = state.get("hysteresis", own.cur_hysteresis)


def the_one(optimizers: list[Optimizable]) -> Any:
    """The optimizer, if it is one that DeepSpeed steps.

    Raises:
        UserCodeError: none, several, or one that must evaluate the loss itself.
    """
    if len(optimizers) != 1:
        raise UserCodeError(
            f"configure_optimizers returned {len(optimizers)} optimizers, and DeepSpeed steps one: put all parameters "
            "into groups of one, or write strategy='ddp'"
        )
    optimizer = optimizers[0]
    if not isinstance(optimizer, torch.optim.Optimizer) or type(optimizer).__name__ == "NoOptimizer":
        raise UserCodeError(
            "configure_optimizers must return a torch.optim.Optimizer under DeepSpeed, not "
            f"{'None' if type(optimizer).__name__ == 'NoOptimizer' else type(optimizer).__name__}"
        )
    if isinstance(optimizer, torch.optim.Adagrad):
        raise UserCodeError(
            "torch.optim.Adagrad under DeepSpeed would be replaced by one that the schedulers do not know: use "
            "torch.optim.AdamW, or strategy='ddp'"
        )
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise UserCodeError(
            f"{type(optimizer).__name__} evaluates the loss several times in a step, which DeepSpeed does not do: use "
            "another optimizer, or strategy='ddp'"
        )
    return optimizer


def make_scheduler(wanted: dict[str, Any], optimizer: Any) -> Any:
    """The scheduler that an entry "scheduler" of DeepSpeed's configuration asks for, of its own kinds.

    Raises:
        ConfigError: no such kind, or other parameters than it has.
    """
    from deepspeed.runtime import lr_schedules

    name = str(wanted.get("type"))
    if name not in lr_schedules.VALID_LR_SCHEDULES:
        raise ConfigError(
            f"DeepSpeedStrategy(config=...): scheduler.type={name!r} is none of "
            f"{', '.join(lr_schedules.VALID_LR_SCHEDULES)}." + did_you_mean(name, lr_schedules.VALID_LR_SCHEDULES)
        )
    try:
        return getattr(lr_schedules, name)(optimizer, **wanted.get("params", {}))
    except TypeError as error:
        raise ConfigError(f"DeepSpeedStrategy(config=...): scheduler.params of {name}: {error}") from error

"""The learning-rate schedules by name, as factors of the step.

Each row gives the factor of the base rate at optimizer step n. `Schedule` applies it: a torch LambdaLR whose step
costs what an addition costs, and whose state transformers and torch read. Who calls: the trainer, and users through
`get_scheduler`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, ReduceLROnPlateau

from bolide.core.errors import ConfigError
from bolide.transformers.choices import SchedulerType
from bolide.transformers.optimizers import JOINED

Factor = Callable[[int], float]


class Schedule(LambdaLR):
    """A LambdaLR with one factor for all groups; `base_lrs` may be changed, and holds from the next step on."""

    def __init__(self, optimizer: Optimizer, factor: Factor, last_epoch: int = -1) -> None:
        self.factor = factor
        wrapped = "step" in vars(optimizer)
        super().__init__(optimizer, factor, last_epoch)
        if not wrapped:  # torch counts the optimizer's steps for a warning, with a call around each of them
            vars(optimizer).pop("step", None)

    def step(self, epoch: int | None = None) -> None:
        """Moves to the next step's rate; torch's own does the same with a warning's bookkeeping on top."""
        if epoch is not None or self.last_epoch < 0:
            super().step(epoch)
            return
        self._step_count += 1
        self.last_epoch = step = self.last_epoch + 1
        if len(self.base_lrs) > 1:
            self.apply()
            return
        self.optimizer.param_groups[0]["lr"] = rate = self.base_lrs[0] * self.factor(step)
        self._last_lr = [rate]

    def apply(self) -> None:
        """Sets the rates of the step at which this stands."""
        factor = self.factor(self.last_epoch)
        self._last_lr = rates = [base * factor for base in self.base_lrs]
        for group, rate in zip(self.optimizer.param_groups, rates, strict=False):
            group["lr"] = rate

    def state_dict(self) -> dict[str, Any]:
        """As of a LambdaLR, with a rate for each group that the optimizer saves; the factor itself is no state."""
        state = {key: value for key, value in super().state_dict().items() if key != "factor"}
        return {**state, **{key: self._each(state[key], 1 + self._is_joined()) for key in ("base_lrs", "_last_lr")}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes back what `state_dict` gave, or a LambdaLR's state."""
        state = {key: value for key, value in state_dict.items() if key != "lr_lambdas"}
        for key in ("base_lrs", "_last_lr"):
            if self._is_joined() and len(state.get(key) or ()) == 2:
                state[key] = state[key][:1]
        super().load_state_dict({**state, "lr_lambdas": [None] * len(self.lr_lambdas)})

    def _is_joined(self) -> bool:
        return JOINED in self.optimizer.param_groups[0]

    @staticmethod
    def _each(rates: list[float], times: int) -> list[float]:
        return [rate for rate in rates for _ in range(times)]


# ---------------------------------------------------------------------- factors: (warmup, total, options) -> factor


def _constant(warmup: int, total: int) -> Factor:
    return lambda step: 1.0


def _constant_with_warmup(warmup: int, total: int) -> Factor:
    return lambda step: step / max(1.0, warmup) if step < warmup else 1.0


def _linear(warmup: int, total: int) -> Factor:
    def factor(step: int) -> float:
        if step < warmup:
            return step / max(1, warmup)
        return max(0.0, (total - step) / max(1, total - warmup))

    return factor


def _done(step: int, warmup: int, total: int) -> float:
    """The share of the steps after warm-up that is done."""
    return (step - warmup) / max(1, total - warmup)


def _cosine(warmup: int, total: int, num_cycles: float = 0.5) -> Factor:
    def factor(step: int) -> float:
        if step < warmup:
            return step / max(1, warmup)
        return max(0.0, 0.5 * (1.0 + math.cos(math.pi * num_cycles * 2.0 * _done(step, warmup, total))))

    return factor


def _cosine_with_restarts(warmup: int, total: int, num_cycles: int = 1) -> Factor:
    def factor(step: int) -> float:
        if step < warmup:
            return step / max(1, warmup)
        done = _done(step, warmup, total)
        return 0.0 if done >= 1.0 else max(0.0, 0.5 * (1.0 + math.cos(math.pi * ((num_cycles * done) % 1.0))))

    return factor


def _polynomial(warmup: int, total: int, base: float, lr_end: float = 1e-7, power: float = 1.0) -> Factor:
    if not base > lr_end:
        raise ConfigError(f"lr_scheduler_kwargs: lr_end={lr_end} must be below learning_rate={base}")

    def factor(step: int) -> float:
        if step < warmup:
            return step / max(1, warmup)
        if step > total:
            return lr_end / base
        left = 1 - _done(step, warmup, total)
        return ((base - lr_end) * left**power + lr_end) / base

    return factor


def _inverse_sqrt(warmup: int, total: int, timescale: int | None = None) -> Factor:
    scale = timescale if timescale is not None else (warmup or 10_000)

    def factor(step: int) -> float:
        return step / max(1, warmup) if step < warmup else 1.0 / math.sqrt((step + scale - warmup) / scale)

    return factor


def _least(base: float, min_lr: float | None, min_lr_rate: float | None) -> float:
    """The lowest factor, from a rate or a factor."""
    if (min_lr is None) == (min_lr_rate is None):
        raise ConfigError("lr_scheduler_kwargs needs one of min_lr and min_lr_rate for this lr_scheduler_type")
    return min_lr / base if min_lr is not None else float(min_lr_rate or 0.0)


def _cosine_with_min_lr(
    warmup: int, total: int, base: float, num_cycles: float = 0.5, min_lr: float | None = None,
    min_lr_rate: float | None = None,
) -> Factor:  # fmt: skip
    least = _least(base, min_lr, min_lr_rate)

    def factor(step: int) -> float:
        if step < warmup:
            return step / max(1, warmup)
        wave = 0.5 * (1.0 + math.cos(math.pi * num_cycles * 2.0 * _done(step, warmup, total)))
        return max(0.0, wave * (1 - least) + least)

    return factor


def _cosine_warmup_with_min_lr(
    warmup: int, total: int, base: float, num_cycles: float = 0.5, min_lr: float | None = None,
    min_lr_rate: float | None = None, warmup_lr_rate: float | None = None,
) -> Factor:  # fmt: skip
    least = _least(base, min_lr, min_lr_rate)

    def factor(step: int) -> float:
        if step < warmup:
            if warmup_lr_rate is None:
                return (step + 1.0) / max(1.0, warmup)
            return warmup_lr_rate + (1.0 - warmup_lr_rate) * step / max(1, warmup - 1)
        done = (step - warmup + 1.0) / max(1.0, total - warmup)
        return max(0.0, 0.5 * (1.0 + math.cos(math.pi * num_cycles * 2.0 * done)) * (1 - least) + least)

    return factor


def _ramp(kind: str, done: float) -> float:
    """How far a ramp is at the share `done` of its length."""
    if kind == "linear":
        return done
    if kind == "cosine":
        return 0.5 * (1.0 - math.cos(math.pi * done))
    if kind == "1-sqrt":
        return 1.0 - math.sqrt(1.0 - done) if done < 1 else 1.0
    raise ConfigError(f"lr_scheduler_kwargs: {kind!r} must be 'linear', 'cosine' or '1-sqrt'")


def _warmup_stable_decay(
    warmup: int, total: int | None, num_decay_steps: int = 0, warmup_type: str = "linear", decay_type: str = "cosine",
    min_lr_ratio: float = 0.0, num_cycles: float = 0.5, num_stable_steps: int | None = None,
) -> Factor:  # fmt: skip
    stable = num_stable_steps if num_stable_steps is not None else max(0, (total or 0) - warmup - num_decay_steps)

    def factor(step: int) -> float:
        if step < warmup:
            share = _ramp(warmup_type, step / max(1, warmup))
            return max(0.0, share * (1.0 - min_lr_ratio) + min_lr_ratio)
        if step < warmup + stable:
            return 1.0
        if step >= warmup + stable + num_decay_steps:
            return min_lr_ratio
        done = (step - warmup - stable) / max(1, num_decay_steps)
        if decay_type == "cosine":
            share = 0.5 * (1.0 + math.cos(math.pi * num_cycles * 2.0 * done))
        elif decay_type == "1-sqrt":
            share = 1.0 - math.sqrt(done)
        else:
            share = 1.0 - _ramp(decay_type, done)
        return max(0.0, share * (1.0 - min_lr_ratio) + min_lr_ratio)

    return factor


FACTORS: dict[str, Callable[..., Factor]] = {
    "constant": _constant, "constant_with_warmup": _constant_with_warmup, "linear": _linear, "cosine": _cosine,
    "cosine_with_restarts": _cosine_with_restarts, "polynomial": _polynomial, "inverse_sqrt": _inverse_sqrt,
    "cosine_with_min_lr": _cosine_with_min_lr, "cosine_warmup_with_min_lr": _cosine_warmup_with_min_lr,
    "warmup_stable_decay": _warmup_stable_decay,
}  # fmt: skip
WITH_BASE = ("polynomial", "cosine_with_min_lr", "cosine_warmup_with_min_lr")
"""Schedules whose factor depends on the base rate."""


def get_scheduler(
    name: str | SchedulerType,
    optimizer: Optimizer,
    num_warmup_steps: int | None = None,
    num_training_steps: int | None = None,
    scheduler_specific_kwargs: dict[str, Any] | None = None,
) -> LRScheduler | ReduceLROnPlateau:
    """A schedule by name.

    Args:
        name: one of `SchedulerType`.
        optimizer: whose rates it sets; its `lr` is the highest of the schedule.
        num_warmup_steps: steps of warm-up.
        num_training_steps: steps in all.
        scheduler_specific_kwargs: more arguments of that schedule.

    Raises:
        ConfigError: an unknown name, or arguments that the schedule does not take or needs.
    """
    try:
        word = SchedulerType(str(getattr(name, "value", name))).value
    except ValueError as error:
        raise ConfigError(f"lr_scheduler_type={name!r} {error}") from error
    options = dict(scheduler_specific_kwargs or {})
    if word == "reduce_lr_on_plateau":
        return ReduceLROnPlateau(optimizer, **options)
    if num_training_steps is None and word in ("linear", "cosine", "cosine_with_restarts", "polynomial"):
        raise ConfigError(f"lr_scheduler_type={word!r} needs num_training_steps")
    if word in WITH_BASE:
        options["base"] = optimizer.defaults["lr"]
    try:
        factor = FACTORS[word](num_warmup_steps or 0, num_training_steps, **options)
    except TypeError as error:
        given = ", ".join(key for key in options if key != "base")
        raise ConfigError(f"lr_scheduler_kwargs: {word!r} does not take these arguments: {given} ({error})") from error
    return Schedule(optimizer, factor)

"""Everything that can be decided before the first batch, decided once.

Who listens to which hook, which of the three steps runs, what the user's methods take, how gradients are clipped and
cleared, whether batches move. A Plan is never edited: where a callback, a limit or the accumulation changes, a new
one is built.
"""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from bolide.core.errors import UserCodeError
from bolide.core.hooks import HOOKS, Hooks, is_internal, is_saver, overrides, resolve, scoped
from bolide.core.messages import warn_once
from bolide.engine import optimizers as opt
from bolide.engine import step
from bolide.engine.ranks import backward_over_ranks, beating, over_ranks, rank_step
from bolide.engine.veto import vetoes_of, with_vetoes
from bolide.launch.group import is_watched

if TYPE_CHECKING:
    from bolide.engine.run import Run


@dataclass(frozen=True, slots=True)
class UserStep:
    """A module's step method, bound, and what it takes."""

    call: Callable[..., Any]
    wants_batch_idx: bool
    wants_loader_idx: bool
    takes_iterator: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """The decisions of a fit. `None` stands for "nothing to do", so that the step need not call to find out."""

    version: int
    hooks: Hooks
    automatic: bool
    step: Callable[..., Any]
    training_step: Callable[..., Any]
    wants_batch_idx: bool
    takes_iterator: bool
    module_may_skip: bool
    wants_outputs: bool
    savers: tuple[Any, ...]
    fetch_wrappers: tuple[Callable[[Any], Any], ...]
    accumulate: int
    full_divisor: bool
    transfer: Callable[[Any, int], Any] | None
    zero_grad: Callable[[int], None]
    backward: Callable[..., Any] | None
    backward_nothing: Callable[[], None] | None
    clip: Callable[[Any], Any] | None
    optimizer_step: Callable[..., Any] | None
    scheduler_step: Callable[[Any, Any], None]
    has_schedulers: bool
    has_plateau: bool
    max_steps: float
    log_every: int
    logs: bool
    optimizer: Any


def build(run: Run) -> Plan:
    """The plan of a fit as things stand."""
    module, config = run.module, run.config
    hooks = resolve(run.receivers(), run.log)
    automatic = module.automatic_optimization
    optimizer = run.optimizers[0] if run.optimizers else None
    user = user_step(run, "training_step")
    vetoes = vetoes_of(run) if automatic else ()
    overridden_step = overrides(module, "optimizer_step")
    needs_closure = automatic and opt.needs_closure(optimizer)
    if needs_closure and run.trainer.accumulate_grad_batches != 1:
        raise UserCodeError(
            f"accumulate_grad_batches={run.trainer.accumulate_grad_batches}: {type(optimizer).__name__} evaluates a "
            "batch's loss several times in a step, so no window can be accumulated; leave it out, or use larger batches"
        )
    closure = needs_closure or (automatic and overridden_step)
    kind = step.manual_step if not automatic else step.closure_step if closure else step.plain_step
    if config.detect_anomaly:
        kind = partial(step.anomaly_step, kind)
    plateau = any(s.reduce_on_plateau for s in run.schedulers)
    return Plan(
        version=run.version,
        hooks=hooks,
        automatic=automatic,
        step=kind,
        training_step=with_vetoes(run, user.call, vetoes) if vetoes else user.call,
        fetch_wrappers=fetch_wrappers_of(run),
        wants_batch_idx=user.wants_batch_idx,
        takes_iterator=user.takes_iterator,
        module_may_skip=overrides(module, "on_train_batch_start"),
        wants_outputs=wants_outputs(run),
        savers=savers_of(run),
        accumulate=run.trainer.accumulate_grad_batches,
        full_divisor=config.switches.accumulation_tail_full_divisor,
        transfer=transfer_of(run),
        zero_grad=_zero_grad(run, optimizer),
        backward=_backward(run),
        backward_nothing=getattr(run.strategy, "backward_nothing", None) if run.strategy.distributed else None,
        clip=_clip(run),
        optimizer_step=module.optimizer_step if overridden_step else None,
        scheduler_step=_override(run, "lr_scheduler_step")
        if overrides(module, "lr_scheduler_step")
        else opt.default_scheduler_step,
        has_schedulers=automatic and len(run.schedulers) > 0,
        has_plateau=automatic and plateau,
        max_steps=math.inf if run.trainer.max_steps == -1 else run.trainer.max_steps,
        log_every=run.trainer.log_every_n_steps or sys.maxsize,
        logs=bool(run.trainer.log_every_n_steps),
        optimizer=optimizer,
    )


def fetch_wrappers_of(run: Run) -> tuple[Callable[[Any], Any], ...]:
    """What callbacks put around the training batches of an epoch: `wrap_fetches(batches)`, where they have it."""
    found = (getattr(callback, "wrap_fetches", None) for callback in run.trainer.callbacks)
    ranks = (partial(over_ranks, run),) if run.strategy.distributed else ()
    if not ranks and is_watched():
        ranks = (partial(beating, run),)
    return (*ranks, *(wrap for wrap in found if callable(wrap)))


def savers_of(run: Run) -> tuple[Any, ...]:
    """The callbacks that save when all else about a batch or an epoch is done."""
    if run.config.switches.saves_within_hooks:
        return ()
    return tuple(callback for callback in run.trainer.callbacks if is_saver(callback))


def wants_outputs(run: Run) -> bool:
    """Whether anybody who hears the end of a training batch looks at what the step returned."""
    name = "on_train_batch_end"
    return overrides(run.module, name) or any(
        overrides(callback, name) and not is_internal(callback, name) for callback in run.trainer.callbacks
    )


def _override(run: Run, name: str) -> Callable[..., Any]:
    """The module's method `name`, with `self.log` knowing that it runs."""
    return scoped(run.log, HOOKS[name], getattr(run.module, name))


def user_step(run: Run, name: str) -> UserStep:
    """The module's step `name`, run in the precision's context, and which arguments it takes.

    Raises:
        UserCodeError: it takes `optimizer_idx`, which is gone.
    """
    method = getattr(run.module, name)
    parameters = _parameters(method)
    names = list(parameters)
    if "optimizer_idx" in names:
        raise UserCodeError(
            f"`{name}` takes optimizer_idx, which is no longer given: set self.automatic_optimization = False in "
            "__init__ and step self.optimizers() by hand"
        )
    variadic = any(p.kind is p.VAR_POSITIONAL for p in parameters.values())
    wrapper = run.precision.forward_wrapper()
    if run.strategy.distributed:
        method = rank_step(run, method) if name == "training_step" else run.strategy.bind(name, method)
    return UserStep(
        call=wrapper(method) if wrapper is not None else method,
        wants_batch_idx="batch_idx" in names or variadic or len(_required(parameters)) > 1 or len(names) > 1,
        wants_loader_idx="dataloader_idx" in names or variadic,
        takes_iterator="dataloader_iter" in names,
    )


def _parameters(method: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    while inspect.ismethod(wrapped := getattr(method, "__wrapped__", None)):
        method = wrapped  # FSDP's wrapper is a method around a method, of which `signature` would drop the batch, too
    try:
        return dict(inspect.signature(method).parameters)
    except (TypeError, ValueError):  # a mock or a C function has no signature: give it everything
        return {"args": inspect.Parameter("args", inspect.Parameter.VAR_POSITIONAL)}


def _required(parameters: dict[str, inspect.Parameter]) -> list[str]:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [name for name, p in parameters.items() if p.default is p.empty and p.kind in kinds]


def check_loader_idx(run: Run, name: str, several: bool) -> None:
    """Refuses a step that must take `dataloader_idx` and does not, or must not and requires it.

    Raises:
        UserCodeError: with the signature to write.
    """
    parameters = _parameters(getattr(run.module, name))
    variadic = any(p.kind is p.VAR_POSITIONAL for p in parameters.values())
    if "dataloader_iter" in parameters:
        return
    if several and "dataloader_idx" not in parameters and not variadic:
        raise UserCodeError(
            f"There are several loaders, and `{name}` does not take dataloader_idx; write "
            f"def {name}(self, batch, batch_idx, dataloader_idx=0)"
        )
    if not several and "dataloader_idx" in _required(parameters):
        raise UserCodeError(
            f"There is one loader, and `{name}` requires dataloader_idx; write "
            f"def {name}(self, batch, batch_idx, dataloader_idx=0)"
        )


def transfer_of(run: Run) -> Callable[[Any, int], Any] | None:
    """What brings a batch to the device, with the user's transfer hooks; None where there is nothing to do."""
    steps: list[Callable[..., Any]] = []
    module, datamodule, device = run.module, run.datamodule, run.strategy.root_device
    if run.precision.converts_input:
        steps.append(lambda batch, _: run.precision.convert_input(batch))
    for name in ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer"):
        owner = datamodule if overrides(datamodule, name) else module
        if owner is datamodule and overrides(module, name):
            warn_once(f"Both the datamodule and the module define `{name}`; the datamodule's is used.")
        if overrides(owner, name):
            call = getattr(owner, name)
            if name == "transfer_batch_to_device":
                steps.append(lambda batch, i, call=call: call(batch, device, i))
            else:
                steps.append(call)
        elif name == "transfer_batch_to_device" and device.type != "cpu":
            steps.append(lambda batch, i: run.strategy.batch_to_device(batch, device, i))
    if not steps:
        return None
    if len(steps) == 1:
        return steps[0]

    def transfer(batch: Any, dataloader_idx: int) -> Any:
        for one in steps:
            batch = one(batch, dataloader_idx)
        return batch

    return transfer


def _zero_grad(run: Run, optimizer: Any) -> Callable[[int], None]:
    from torch.optim import Optimizer

    if overrides(run.module, "optimizer_zero_grad"):
        call = _override(run, "optimizer_zero_grad")
        return lambda batch_idx: call(run.progress.epoch, batch_idx, optimizer)
    if optimizer is not None and type(optimizer).zero_grad is not Optimizer.zero_grad:
        return lambda batch_idx: optimizer.zero_grad()
    return partial(opt.clear_gradients, optimizer)


def _backward(run: Run) -> Callable[..., Any] | None:
    """What runs the backward pass; None for `loss.backward()` itself."""
    from bolide.strategies.strategy import Strategy

    scaler = run.precision.scaler
    own = _override(run, "backward") if overrides(run.module, "backward") else None
    if run.strategy.distributed:
        return backward_over_ranks(run, own)
    if own is not None:
        call = own
        return call if scaler is None else lambda loss: call(scaler.scale(loss))
    if scaler is not None:
        return lambda loss: run.strategy.backward(scaler.scale(loss))
    return None if type(run.strategy).backward is Strategy.backward else run.strategy.backward


def _clip(run: Run) -> Callable[[Any], Any] | None:
    """What clips the gradients of an optimizer before its step; None where nobody asked for it."""
    value, kind = run.trainer.gradient_clip_val, run.trainer.gradient_clip_algorithm
    module = run.module
    if overrides(module, "configure_gradient_clipping") or overrides(module, "clip_gradients"):
        call = _override(run, "configure_gradient_clipping")
        return lambda optimizer: call(optimizer, gradient_clip_val=value, gradient_clip_algorithm=kind)
    if value is None or value <= 0:
        return None
    return lambda optimizer: run.strategy.clip(optimizer, float(value), str(kind or "norm"))

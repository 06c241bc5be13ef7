"""What `configure_optimizers` returned, understood; the proxy that users step; when schedulers step.

Owns the six forms of the return value and the scheduler records. It runs no step by itself: engine/step does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import partial
from types import MethodType
from typing import TYPE_CHECKING, Any, SupportsIndex

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, OneCycleLR, ReduceLROnPlateau
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from bolide.core.errors import MisconfigurationException, UserCodeError, did_you_mean
from bolide.core.hooks import overrides
from bolide.core.messages import warn, warn_once
from bolide.core.protocols import Optimizable, Stateful

if TYPE_CHECKING:
    from bolide.engine.run import Run


@dataclass
class LRSchedulerConfig:
    """One scheduler: when it steps, and on what.

    `interval` is "epoch" or "step", `frequency` steps it at every so many of these, `monitor` names the metric that a
    plateau scheduler looks at; with `strict` its absence is an error.
    """

    scheduler: Any
    name: str | None = None
    interval: str = "epoch"
    frequency: int = 1
    reduce_on_plateau: bool = False
    monitor: str | None = None
    strict: bool = True


class NoOptimizer(Optimizer):
    """Stands where `configure_optimizers` returned None: training runs, and no weight moves."""

    def __init__(self) -> None:
        super().__init__([torch.zeros(1)], {})

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Evaluates the closure."""
        return None if closure is None else closure()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clears nothing."""

    def state_dict(self) -> dict[str, Any]:
        """Nothing."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Nothing."""


FORMS = (
    "an optimizer, a list of optimizers, ([optimizers], [schedulers]), "
    '{"optimizer": ..., "lr_scheduler": ..., "monitor": ...}, a list of such dictionaries, or None'
)


def parse_optimizers(returned: Any, automatic: bool) -> tuple[list[Any], list[LRSchedulerConfig]]:
    """The optimizers and schedulers in what `configure_optimizers` returned.

    Raises:
        MisconfigurationException: none of the six forms, or one that contradicts itself.
    """
    if returned is None:
        warn("`configure_optimizers` returned None: this fit runs without an optimizer, and no weight will move.")
        return [NoOptimizer()], []
    optimizers, schedulers, monitor = _split(returned)
    if automatic and not optimizers:
        raise MisconfigurationException(
            "`configure_optimizers` returned no optimizer; return one, or None to run without any weight moving"
        )
    for item in optimizers:
        if not isinstance(item, Optimizable):
            raise MisconfigurationException(
                f"`configure_optimizers` returned a {type(item).__name__} where an optimizer is expected; return "
                f"{FORMS}"
            )
    configs = [scheduler_config(item, monitor, automatic) for item in schedulers]
    known = {id(opt) for opt in optimizers}
    for config in configs:
        bound = getattr(config.scheduler, "optimizer", None)
        if bound is not None and id(getattr(bound, "optimizer", bound)) not in known:
            raise MisconfigurationException(
                f"`configure_optimizers` returned a {type(config.scheduler).__name__} of an optimizer that it did not "
                "return; return that optimizer, too"
            )
    return list(optimizers), configs


def _split(returned: Any) -> tuple[list[Any], list[Any], str | None]:
    if isinstance(returned, Mapping):
        return _from_dict(returned)
    if isinstance(returned, (list, tuple)):
        if len(returned) == 2 and isinstance(returned[0], (list, tuple)):
            optimizers, schedulers = returned
            if isinstance(schedulers, (list, tuple)):
                return list(optimizers), list(schedulers), None
            return list(optimizers), [schedulers], None
        if returned and all(isinstance(item, Mapping) for item in returned):
            optimizers, schedulers = [], []
            for item in returned:
                found, scheds, monitor = _from_dict(item)
                optimizers += found
                schedulers += [s if monitor is None else _with_monitor(s, monitor) for s in scheds]
            return optimizers, schedulers, None
        if all(isinstance(item, Optimizable) for item in returned):
            return list(returned), [], None
    elif isinstance(returned, Optimizable):
        return [returned], [], None
    raise MisconfigurationException(
        f"`configure_optimizers` returned a {type(returned).__name__} that is none of the known forms; return {FORMS}"
    )


def _from_dict(returned: Mapping[str, Any]) -> tuple[list[Any], list[Any], str | None]:
    if "optimizer" not in returned:
        raise MisconfigurationException(
            f"`configure_optimizers` returned a dictionary with the keys {sorted(map(str, returned))} and no "
            "'optimizer'"
        )
    known = ("optimizer", "lr_scheduler", "monitor")
    extra = [str(key) for key in returned if key not in known]
    if extra:
        warn(f"`configure_optimizers`: the keys {extra} are not known and are left out; there are {', '.join(known)}.")
    scheduler = returned.get("lr_scheduler")
    return [returned["optimizer"]], [] if scheduler is None else [scheduler], returned.get("monitor")


def _with_monitor(scheduler: Any, monitor: str) -> Any:
    if isinstance(scheduler, Mapping):
        return {"monitor": monitor, **scheduler}
    return {"scheduler": scheduler, "monitor": monitor}


def scheduler_config(item: Any, monitor: str | None, automatic: bool) -> LRSchedulerConfig:
    """One scheduler record, checked.

    Raises:
        MisconfigurationException: an unknown interval, a frequency below 1, or a plateau scheduler without a monitor.
    """
    if not isinstance(item, Mapping):
        plateau = isinstance(item, ReduceLROnPlateau)
        config = LRSchedulerConfig(item, reduce_on_plateau=plateau, monitor=monitor)
    else:
        known = [f.name for f in fields(LRSchedulerConfig)]
        extra = [str(key) for key in item if key not in known]
        if extra:
            warn(
                f"`configure_optimizers`: the scheduler keys {extra} are not known and are left out."
                + did_you_mean(extra[0], known)
            )
        if "scheduler" not in item:
            raise MisconfigurationException(
                "`configure_optimizers`: a scheduler's dictionary needs the key 'scheduler'"
            )
        scheduler = item["scheduler"]
        given = {"monitor": monitor, **{key: value for key, value in item.items() if key in known}}
        given.setdefault("reduce_on_plateau", isinstance(scheduler, ReduceLROnPlateau))
        config = LRSchedulerConfig(**given)
        if not automatic:
            ignored = [key for key in ("monitor", "strict", "reduce_on_plateau", "interval") if key in item]
            if ignored:
                warn(f"In manual optimization schedulers are stepped by hand: the keys {ignored} have no effect.")
    if config.interval not in ("step", "epoch"):
        raise MisconfigurationException(
            f"`configure_optimizers`: interval={config.interval!r} must be 'step' or 'epoch'"
        )
    if not isinstance(config.frequency, int) or config.frequency < 1:
        raise MisconfigurationException(
            f"`configure_optimizers`: frequency={config.frequency!r} must be a whole number of at least 1"
        )
    if automatic and config.reduce_on_plateau and config.monitor is None:
        raise MisconfigurationException(
            "`configure_optimizers`: ReduceLROnPlateau needs the metric it looks at; return "
            '{"optimizer": optimizer, "lr_scheduler": scheduler, "monitor": "val_loss"}'
        )
    if isinstance(config.scheduler, OneCycleLR) and config.interval == "epoch" and automatic:
        warn(
            "OneCycleLR steps once an epoch here, and it is made to step with every optimizer step; write "
            '"interval": "step"'
        )
    return config


def check_schedulers(configs: list[LRSchedulerConfig], module: Any) -> None:
    """Refuses schedulers that the engine cannot step or save.

    Raises:
        MisconfigurationException: not torch's kind and no `lr_scheduler_step`, or without a state.
    """
    for config in configs:
        scheduler = config.scheduler
        if not isinstance(scheduler, Stateful):
            raise MisconfigurationException(
                f"The scheduler {type(scheduler).__name__} has no state_dict and load_state_dict, so it cannot be saved"
            )
        if not isinstance(scheduler, (LRScheduler, ReduceLROnPlateau)) and not overrides(module, "lr_scheduler_step"):
            raise MisconfigurationException(
                f"The scheduler {type(scheduler).__name__} is not torch's kind; define lr_scheduler_step(self, "
                "scheduler, metric) on the module to say how it steps"
            )


def needs_closure(optimizer: Any) -> bool:
    """Whether the optimizer cannot step without a closure, as LBFGS."""
    import inspect

    try:
        parameter = inspect.signature(type(optimizer).step).parameters.get("closure")
    except (TypeError, ValueError):
        return False
    return parameter is not None and parameter.default is inspect.Parameter.empty


def clear_gradients(optimizer: Any, batch_idx: int = 0) -> None:
    """Forgets the gradients: what `Optimizer.zero_grad()` does by default, without its profiler scope."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = None


RANGED = Optimizer.profile_hook_step(Optimizer.step).__code__
"""What torch puts around the `step` of each optimizer class: a range for profilers, and the hooks of the step."""


def step_of(optimizer: Any) -> Callable[..., Any]:
    """`optimizer.step`, without the range for profilers, which is dear in a small step, where nobody records.

    Whatever else was put around the step, on its class or on this optimizer, is called as ever. An
    ExecutionTraceObserver by itself, without a profiler, cannot be seen from Python: its trace lacks the range.
    """
    step: Any = getattr(type(optimizer), "step", None)
    if getattr(step, "__code__", None) is RANGED and not (
        optimizer._optimizer_step_pre_hooks
        or optimizer._optimizer_step_post_hooks
        or _global_optimizer_pre_hooks
        or _global_optimizer_post_hooks
        or torch.autograd._profiler_enabled()
        or torch.autograd.profiler._is_profiler_enabled  # in another thread, which may record this one, too
    ):
        own: Any = vars(optimizer).get("step")
        if own is None:
            return MethodType(step.__wrapped__, optimizer)
        if hasattr(own, "_wrapped_by_lr_sched") and own.__wrapped__ is step:
            optimizer._opt_called = True  # all that torch's schedulers put there: they warn where they step first
            return MethodType(step.__wrapped__, optimizer)
    whole: Callable[..., Any] = optimizer.step
    return whole


class LightningOptimizer:
    """What `self.optimizers()` and `optimizer_step` give the user: the optimizer, whose step the engine takes part in.

    `step` runs the before-step hooks, the scaler and the count. Everything else is the optimizer's own; `isinstance`
    sees the optimizer's class, too.
    """

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer
        self._run: Run | None = None

    @property
    def optimizer(self) -> Any:
        """The optimizer itself."""
        return self._optimizer

    @property  # type: ignore[misc]
    def __class__(self) -> Any:  # isinstance(proxy, torch.optim.Adam) holds, as user code asks it
        return type(self._optimizer)

    def __getattr__(self, name: str) -> Any:  # the proxy is the optimizer in all but its step
        return getattr(object.__getattribute__(self, "_optimizer"), name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("_optimizer", "_run"):
            object.__setattr__(self, name, value)
        else:
            setattr(self._optimizer, name, value)

    def __repr__(self) -> str:
        return f"LightningOptimizer({self._optimizer!r})"

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:  # by default a copy would be made of the optimizer's class
        return LightningOptimizer, (self._optimizer,)

    @contextmanager
    def toggle_model(self, sync_grad: bool = True) -> Iterator[None]:
        """Only this optimizer's parameters need gradients while this is open.

        With `sync_grad=False` the backward passes within exchange no gradients with other processes.
        """
        run = self._run
        if run is None:
            raise UserCodeError("optimizer.toggle_model() works while the trainer fits only")
        run.module.toggle_optimizer(self)
        if not sync_grad:
            run.strategy.set_sync(False)
        try:
            yield
        finally:
            if not sync_grad:
                run.strategy.set_sync(True)
            run.module.untoggle_optimizer(self)

    def step(self, closure: Callable[[], Any] | None = None, **kwargs: Any) -> Any:
        """One optimizer step, with its hooks; counted.

        Args:
            closure: evaluates the loss, with its backward pass, before the step; the engine's own in `optimizer_step`.
            kwargs: handed to the optimizer.

        Returns:
            What the optimizer's step returns.
        """
        run = self._run
        if run is None:
            return step_of(self._optimizer)(closure, **kwargs)
        ours = getattr(closure, "evaluate", None)
        # the engine's closure does the before-step work in the same frame; any other is followed by it
        full = partial(ours, True) if ours is not None else partial(_then_before_step, run, self._optimizer, closure)
        scaler = run.precision.scaler
        if scaler is None:
            result = step_of(self._optimizer)(full, **kwargs)
        else:
            if needs_closure(self._optimizer):
                raise UserCodeError(
                    f"{type(self._optimizer).__name__} evaluates its closure several times, which a loss scaler cannot "
                    "follow; write precision='bf16-mixed' or '32-true'"
                )
            result = full()
            if result is not None or ours is None:  # without a backward pass there is nothing that was scaled
                scaler.step(self._optimizer, **kwargs)
                scaler.update()
        if not run.plan.automatic:
            run.count_manual_step()
        return result


def _then_before_step(run: Run, optimizer: Any, closure: Callable[[], Any] | None) -> Any:
    loss = None if closure is None else closure()
    before_step(run, optimizer)
    return loss


def before_step(run: Run, optimizer: Any, unscale: bool = True) -> None:
    """What comes between the backward pass and the step: unscaling, the before-step hooks, clipping."""
    if unscale and run.precision.scaler is not None:
        run.precision.scaler.unscale_(optimizer)
    plan = run.plan
    for hook in plan.hooks.on_before_optimizer_step:
        hook(optimizer)
    if plan.automatic and plan.clip is not None:
        plan.clip(optimizer)


def step_schedulers(run: Run, interval: str, batch_idx: int) -> None:
    """Steps the schedulers of `interval` that are due and look at no metric."""
    for config in run.schedulers:
        if config.interval == interval and not config.reduce_on_plateau and _due(run, config, interval, batch_idx):
            run.plan.scheduler_step(config.scheduler, None)
            run.progress.scheduler_steps += 1


def _due(run: Run, config: LRSchedulerConfig, interval: str, batch_idx: int) -> bool:
    if interval == "epoch":
        done = run.progress.epoch + 1
    elif run.config.switches.scheduler_frequency_in_batches:
        done = batch_idx + 1
    else:
        done = run.progress.step
    return done % config.frequency == 0


def step_plateau_schedulers(run: Run, interval: str, batch_idx: int) -> None:
    """Steps the schedulers that look at a metric, where they are due and the metric is there.

    With validation every few epochs, an epoch without it steps nothing: a metric that was not measured anew tells
    nothing.

    Raises:
        MisconfigurationException: nobody logs the metric, and the scheduler is strict.
    """
    for config in run.schedulers:
        if config.interval != interval or not config.reduce_on_plateau or not _due(run, config, interval, batch_idx):
            continue
        metrics = run.log.callback_metrics
        run.log.publish()
        value = metrics.get(config.monitor or "")
        if value is None:
            if run.validation_enabled and not run.validated_this_epoch:
                continue
            text = (
                f"ReduceLROnPlateau looks at {config.monitor!r}, which nobody logs; logged are "
                f"{', '.join(run.log.names()) or 'none'}." + did_you_mean(config.monitor or "", run.log.names())
            )
            if config.strict:
                raise MisconfigurationException(text)
            warn_once(text)
            continue
        if interval == "epoch" and run.from_validation(config.monitor or "") and not run.validated_this_epoch:
            continue
        run.plan.scheduler_step(config.scheduler, value)
        run.progress.scheduler_steps += 1


def default_scheduler_step(scheduler: Any, metric: Tensor | None) -> None:
    """Steps a scheduler, with its metric where there is one."""
    if metric is None:
        scheduler.step()
    else:
        scheduler.step(metric)

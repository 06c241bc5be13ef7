"""All hooks in one table, and who listens to each, resolved once.

Owns the names, the order of the receivers and what `self.log` may do in each hook. The engine resolves the table at
the start of a fit, validate, test or predict into `Hooks`: a flat tuple of bound functions for each event, empty
where nobody overrides it. It calls no hook itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, Protocol, TypeVar

F = TypeVar("F", bound=Callable[..., Any])
Hook = Callable[..., Any]
CB, LM, DM = "callbacks", "module", "datamodule"


@dataclass(frozen=True)
class LogRule:
    """What `self.log` does in a hook: its defaults, and whether they may be changed."""

    on_step: bool
    on_epoch: bool
    fixed: bool = False


STEP_LOG = LogRule(on_step=True, on_epoch=False)
EVAL_LOG = LogRule(on_step=False, on_epoch=True)
EPOCH_LOG = LogRule(on_step=False, on_epoch=True, fixed=True)


@dataclass(frozen=True, eq=False)
class HookSpec:
    """One row of the table. `log` is None where logging is not allowed."""

    name: str
    receivers: tuple[str, ...] = (CB, LM)
    log: LogRule | None = None


def _table(*rows: HookSpec) -> dict[str, HookSpec]:
    return {row.name: row for row in rows}


EVENTS: dict[str, HookSpec] = _table(
    HookSpec("setup", (DM, CB, LM)),
    HookSpec("on_fit_start"),
    HookSpec("on_sanity_check_start", (CB,)),
    HookSpec("on_sanity_check_end", (CB,)),
    HookSpec("on_train_start", log=EPOCH_LOG),
    HookSpec("on_train_epoch_start", log=EPOCH_LOG),
    HookSpec("on_train_batch_start", log=STEP_LOG),
    HookSpec("on_before_zero_grad", log=STEP_LOG),
    HookSpec("on_before_backward", log=STEP_LOG),
    HookSpec("on_after_backward", log=STEP_LOG),
    HookSpec("on_before_optimizer_step", log=STEP_LOG),
    HookSpec("on_train_batch_end", log=STEP_LOG),
    HookSpec("on_validation_model_zero_grad", (LM,)),
    HookSpec("on_validation_start", log=EPOCH_LOG),
    HookSpec("on_validation_epoch_start", log=EPOCH_LOG),
    HookSpec("on_validation_batch_start", log=EVAL_LOG),
    HookSpec("on_validation_batch_end", log=EVAL_LOG),
    HookSpec("on_validation_epoch_end", log=EPOCH_LOG),
    HookSpec("on_validation_end"),
    HookSpec("on_test_start", log=EPOCH_LOG),
    HookSpec("on_test_epoch_start", log=EPOCH_LOG),
    HookSpec("on_test_batch_start", log=EVAL_LOG),
    HookSpec("on_test_batch_end", log=EVAL_LOG),
    HookSpec("on_test_epoch_end", log=EPOCH_LOG),
    HookSpec("on_test_end"),
    HookSpec("on_predict_start"),
    HookSpec("on_predict_epoch_start"),
    HookSpec("on_predict_batch_start"),
    HookSpec("on_predict_batch_end"),
    HookSpec("on_predict_epoch_end"),
    HookSpec("on_predict_end"),
    HookSpec("on_train_epoch_end", log=EPOCH_LOG),
    HookSpec("on_train_end"),
    HookSpec("on_fit_end"),
    HookSpec("teardown", (DM, CB, LM)),
    HookSpec("on_exception", (CB, DM)),
)
"""Hooks that tell many receivers that something happens."""

OVERRIDES: dict[str, HookSpec] = _table(
    HookSpec("training_step", (LM,), STEP_LOG),
    HookSpec("validation_step", (LM,), EVAL_LOG),
    HookSpec("test_step", (LM,), EVAL_LOG),
    HookSpec("predict_step", (LM,)),
    HookSpec("backward", (LM,), STEP_LOG),
    HookSpec("optimizer_step", (LM,), STEP_LOG),
    HookSpec("optimizer_zero_grad", (LM,), STEP_LOG),
    HookSpec("configure_gradient_clipping", (LM,), STEP_LOG),
    HookSpec("clip_gradients", (LM,), STEP_LOG),
    HookSpec("lr_scheduler_step", (LM,)),
    HookSpec("configure_optimizers", (LM,)),
    HookSpec("configure_callbacks", (LM,)),
    HookSpec("configure_model", (LM,)),
    HookSpec("prepare_data", (DM, LM)),
    HookSpec("train_dataloader", (DM, LM)),
    HookSpec("val_dataloader", (DM, LM)),
    HookSpec("test_dataloader", (DM, LM)),
    HookSpec("predict_dataloader", (DM, LM)),
    HookSpec("on_before_batch_transfer", (DM, LM)),
    HookSpec("transfer_batch_to_device", (DM, LM)),
    HookSpec("on_after_batch_transfer", (DM, LM)),
    HookSpec("on_validation_model_eval", (LM,)),
    HookSpec("on_validation_model_train", (LM,)),
    HookSpec("on_test_model_eval", (LM,)),
    HookSpec("on_test_model_train", (LM,)),
    HookSpec("on_predict_model_eval", (LM,)),
    HookSpec("on_predict_model_train", (LM,)),
    HookSpec("on_save_checkpoint", (CB, LM)),
    HookSpec("on_load_checkpoint", (LM, CB)),
    HookSpec("state_dict", (LM, CB, DM)),
    HookSpec("load_state_dict", (LM, DM, CB)),
)
"""Methods that one receiver answers for the run; they are not looped over, but `self.log` has rules there too."""

HOOKS: dict[str, HookSpec] = {**EVENTS, **OVERRIDES}


@dataclass(slots=True)
class Hooks:
    """For each event, the bound functions to call, in order. Callbacks' are bound to (trainer, module)."""

    setup: tuple[Hook, ...] = ()
    on_fit_start: tuple[Hook, ...] = ()
    on_sanity_check_start: tuple[Hook, ...] = ()
    on_sanity_check_end: tuple[Hook, ...] = ()
    on_train_start: tuple[Hook, ...] = ()
    on_train_epoch_start: tuple[Hook, ...] = ()
    on_train_batch_start: tuple[Hook, ...] = ()
    on_before_zero_grad: tuple[Hook, ...] = ()
    on_before_backward: tuple[Hook, ...] = ()
    on_after_backward: tuple[Hook, ...] = ()
    on_before_optimizer_step: tuple[Hook, ...] = ()
    on_train_batch_end: tuple[Hook, ...] = ()
    on_validation_model_zero_grad: tuple[Hook, ...] = ()
    on_validation_start: tuple[Hook, ...] = ()
    on_validation_epoch_start: tuple[Hook, ...] = ()
    on_validation_batch_start: tuple[Hook, ...] = ()
    on_validation_batch_end: tuple[Hook, ...] = ()
    on_validation_epoch_end: tuple[Hook, ...] = ()
    on_validation_end: tuple[Hook, ...] = ()
    on_test_start: tuple[Hook, ...] = ()
    on_test_epoch_start: tuple[Hook, ...] = ()
    on_test_batch_start: tuple[Hook, ...] = ()
    on_test_batch_end: tuple[Hook, ...] = ()
    on_test_epoch_end: tuple[Hook, ...] = ()
    on_test_end: tuple[Hook, ...] = ()
    on_predict_start: tuple[Hook, ...] = ()
    on_predict_epoch_start: tuple[Hook, ...] = ()
    on_predict_batch_start: tuple[Hook, ...] = ()
    on_predict_batch_end: tuple[Hook, ...] = ()
    on_predict_epoch_end: tuple[Hook, ...] = ()
    on_predict_end: tuple[Hook, ...] = ()
    on_train_epoch_end: tuple[Hook, ...] = ()
    on_train_end: tuple[Hook, ...] = ()
    on_fit_end: tuple[Hook, ...] = ()
    teardown: tuple[Hook, ...] = ()
    on_exception: tuple[Hook, ...] = ()


class Scoped(Protocol):
    """Who keeps the hook that is running, for `self.log`'s defaults: the Log."""

    scope: HookSpec | None


SAVING_MOMENTS = ("on_train_batch_end", "on_validation_end", "on_train_epoch_end")
"""The events of a fit at which checkpoints are saved: the engine tells savers of them last, when all else is done."""


def is_saver(callback: Any) -> bool:
    """Whether a callback saves checkpoints, so that it is told of its moments when all else is done."""
    return bool(getattr(callback, "saves_at_boundaries", False))


@dataclass
class Receivers:
    """Who may listen: the callbacks in their order, the module, the datamodule, and the trainer they are told.

    With `savers_apart` the callbacks that save are not told of `SAVING_MOMENTS` with the others.
    """

    trainer: Any
    module: Any
    datamodule: Any = None
    callbacks: Iterable[Any] = field(default_factory=tuple)
    savers_apart: bool = False


def stub(fn: F) -> F:
    """Marks a base-class method as doing nothing that a run would miss, so that it is not called."""
    fn._is_stub = True  # type: ignore[attr-defined]
    return fn


def internal(fn: F) -> F:
    """Marks a hook of a built-in callback that calls no `self.log` and looks at no outputs of the step.

    Nothing is then prepared for it. An override in a subclass does not carry the mark.
    """
    fn._is_internal = True  # type: ignore[attr-defined]
    return fn


def is_internal(callback: Any, name: str) -> bool:
    """Whether the hook `name` of `callback` is marked `internal`."""
    return bool(getattr(getattr(callback, name), "_is_internal", False))


def overrides(receiver: Any, name: str) -> bool:
    """Whether `receiver` has a `name` of its own: in its class, or put on the instance."""
    if receiver is None:
        return False
    if name in getattr(receiver, "__dict__", ()):
        return receiver.__dict__[name] is not None
    method = getattr(type(receiver), name, None)
    return method is not None and not getattr(method, "_is_stub", False)


def scoped(log: Scoped, spec: HookSpec, fn: Hook) -> Hook:
    """`fn`, with `self.log` knowing while it runs that it is in the hook `spec`."""

    def call(*args: Any, **kwargs: Any) -> Any:
        outer, log.scope = log.scope, spec
        try:
            return fn(*args, **kwargs)
        finally:
            log.scope = outer

    return call


def listeners(spec: HookSpec, receivers: Receivers, log: Scoped | None = None) -> list[Hook]:
    """The bound functions that hear the event `spec`, in order; with `log`, scoped where they may log.

    Callbacks that act on metrics (`monitors_metrics`: early stopping, checkpoints) hear the end of a training epoch
    after the module, so that they see what it logs there.
    """
    callbacks = [cb for cb in receivers.callbacks if overrides(cb, spec.name)]
    if receivers.savers_apart and spec.name in SAVING_MOMENTS:
        callbacks = [cb for cb in callbacks if not is_saver(cb)]
    late: list[Any] = []
    if spec.name == "on_train_epoch_end":
        late = [cb for cb in callbacks if getattr(cb, "monitors_metrics", False)]
        callbacks = [cb for cb in callbacks if cb not in late]

    def heard(callback: Any) -> Hook:
        hook = partial(getattr(callback, spec.name), receivers.trainer, receivers.module)
        return hook if log is None or is_internal(callback, spec.name) else scoped(log, spec, hook)

    found: list[Hook] = []
    for kind in spec.receivers:
        if kind == CB:
            found += [heard(cb) for cb in callbacks]
        else:
            receiver = getattr(receivers, kind)
            if overrides(receiver, spec.name):
                hook = getattr(receiver, spec.name)
                found.append(hook if log is None else scoped(log, spec, hook))
    return found + [heard(cb) for cb in late]


def resolve(receivers: Receivers, log: Scoped) -> Hooks:
    """Who listens to what, decided once: a tuple of bound functions for each event."""
    hooks = Hooks()
    for slot in fields(Hooks):
        setattr(hooks, slot.name, tuple(listeners(EVENTS[slot.name], receivers, log)))
    return hooks

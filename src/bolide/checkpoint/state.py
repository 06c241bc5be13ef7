"""What a checkpoint holds: one list, collected and put back.

`collect` is the only place that says what is saved. Restoring is in two halves, before and after the optimizers are
there. The run is read and written by attributes; no loop knows that it was restored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from torch import nn
from torch.nn.parameter import is_lazy

from bolide.checkpoint.loops import from_loops, to_loops
from bolide.checkpoint.plain import plain_hparams, to_plain
from bolide.checkpoint.stored import Stored, make_whole
from bolide.core.errors import CheckpointError
from bolide.core.hooks import overrides
from bolide.core.messages import warn
from bolide.secrets import hide
from bolide.strategies.strategy import matching_keys

LAYOUT = "2.6.6"
"""The release of Lightning whose dictionary layout the files follow; Lightning chooses its migrations by it."""

FORMAT = 1
"""The version of Bolide's own entries."""


def keyed(callbacks: Iterable[Any]) -> list[tuple[str, Any]]:
    """Callbacks with the key their state is saved under; equal keys are told apart by their order."""
    seen: dict[str, int] = {}
    found: list[tuple[str, Any]] = []
    for callback in callbacks:
        key = callback.state_key
        count = seen.get(key, 0)
        seen[key] = count + 1
        found.append((key if count == 0 else f"{key}#{count}", callback))
    return found


def collect(run: Any, weights_only: bool = False, in_parts: bool = False) -> dict[str, Any]:
    """Everything that a checkpoint of `run` holds: tensors and plain data.

    With `in_parts` weights and optimizer states are this rank's, parts of those that are spread over ranks (DTensors);
    else they are whole, on the first one.

    Order of the hooks: the module's state, the callbacks', the optimizers', the datamodule's, then
    `on_save_checkpoint` of the callbacks and the module.

    Raises:
        NotPlainError: a callback, scheduler or hook put in what is neither tensor nor plain data.
    """
    progress, module, datamodule = run.progress, run.module, run.datamodule
    callbacks = list(run.trainer.callbacks)
    strategy = run.strategy
    weights = strategy.state_in_parts() if in_parts else strategy.state()
    checkpoint: dict[str, Any] = {
        "epoch": run.trainer.current_epoch,
        "global_step": progress.step,
        "pytorch-lightning_version": LAYOUT,
        "state_dict": weights,
        "loops": to_loops(progress, module.automatic_optimization, int(sum(_finite(run.val.counts)))),
    }
    if not weights_only:
        checkpoint["callbacks"] = {
            key: to_plain(state, f"callbacks.{key}")
            for key, state in ((key, cb.state_dict()) for key, cb in keyed(callbacks))
            if state
        }
        checkpoint["optimizer_states"] = [
            optimizer.state_dict() if in_parts else strategy.optimizer_state(optimizer) for optimizer in run.optimizers
        ]
        checkpoint["lr_schedulers"] = [
            to_plain(config.scheduler.state_dict(), f"lr_schedulers.{i}") for i, config in enumerate(run.schedulers)
        ]
        scaler = run.precision.state_dict()
        if scaler:
            checkpoint[run.precision.row.legacy_key] = scaler
        checkpoint["bolide"] = {"format": FORMAT, "progress": progress.state_dict()}
    _add_hparams(checkpoint, module, "hparams_name", "hyper_parameters")
    if datamodule is not None:
        _add_hparams(checkpoint, datamodule, "datamodule_hparams_name", "datamodule_hyper_parameters")
        state = datamodule.state_dict()
        if state:
            checkpoint[type(datamodule).__qualname__] = to_plain(state, type(datamodule).__qualname__)
    own = set(checkpoint)
    if not weights_only:
        for callback in callbacks:
            if overrides(callback, "on_save_checkpoint"):
                callback.on_save_checkpoint(run.trainer, module, checkpoint)
    if overrides(module, "on_save_checkpoint"):
        module.on_save_checkpoint(checkpoint)
    for key in set(checkpoint) - own:
        checkpoint[key] = to_plain(checkpoint[key], key)
    return checkpoint


def _finite(counts: Iterable[float]) -> list[float]:
    return [count for count in counts if count != float("inf")]


def _add_hparams(checkpoint: dict[str, Any], owner: Any, name_key: str, key: str) -> None:
    values = owner.hparams
    if not values:
        return
    plain, dropped = plain_hparams(values, type(owner))
    if owner._hparams_name:
        checkpoint[name_key] = owner._hparams_name
    checkpoint[key] = hide(plain)
    if dropped:  # so that loading asks for them, and does not take their defaults in silence
        checkpoint[name_key.replace("_name", "_dropped")] = [list(entry) for entry in dropped]


def check_fits(
    checkpoint: Mapping[str, Any], module: nn.Module, strict: bool, path: str, whole: Mapping[str, Any]
) -> None:
    """Compares the weights of a file with a module, before anything is changed; `whole` has shapes that it lacks.

    Raises:
        CheckpointError: no weights in it, or (when strict) other names or shapes.
    """
    saved = checkpoint.get("state_dict")
    if not isinstance(saved, Mapping):
        raise CheckpointError(
            f"{path!r} holds no 'state_dict'; it has {sorted(map(str, checkpoint))[:8]} and is not a checkpoint of a "
            "module"
        )
    own_layout = type(module).load_state_dict is not nn.Module.load_state_dict
    if own_layout or type(module).state_dict is not nn.Module.state_dict:
        return  # the module has a layout of its own
    saved = matching_keys(saved, module)
    own = module.state_dict()
    shapes = [
        f"{name}: {tuple(saved[name].shape)} in the file, {tuple(whole.get(name, value.shape))} in the module"
        for name, value in own.items()
        if name in saved and hasattr(saved[name], "shape") and hasattr(value, "shape")
        and saved[name].shape != whole.get(name, value.shape) and not is_lazy(value)
    ]  # fmt: skip
    missing = [name for name in own if name not in saved] if strict else []
    foreign = [name for name in saved if name not in own] if strict else []
    if shapes or missing or foreign:
        lines = shapes[:5]
        lines += [f"missing in the file: {', '.join(missing[:5])}"] if missing else []
        lines += [f"not in the module: {', '.join(foreign[:5])}"] if foreign else []
        raise CheckpointError(
            f"The weights in {path!r} do not fit {type(module).__name__}:\n  "
            + "\n  ".join(lines)
            + "\nUse the module it "
            "was saved from, or set module.strict_loading = False to load only the names that are in both."
        )


def restore_module(run: Any, checkpoint: dict[str, Any], path: str, fitting: bool) -> Callable[[], Any]:
    """The half of a restore that comes before the optimizers: weights, datamodule, callbacks.

    Returns:
        What is to be called when the strategy has placed the module: the loading of weights that are on the disk yet,
        of which each rank reads its parts alone once it has them; else nothing is left to do.
    """
    module, datamodule = run.module, run.datamodule
    hooked = [one for one in (module, *run.trainer.callbacks) if overrides(one, "on_load_checkpoint")]
    if hooked or not run.strategy.reads_parts:
        make_whole(checkpoint)
    if overrides(module, "on_load_checkpoint"):
        module.on_load_checkpoint(checkpoint)
    check_fits(checkpoint, module, module.strict_loading, path, run.strategy.whole_shapes(module))
    load = partial(load_weights, run, checkpoint["state_dict"])
    later = any(isinstance(value, Stored) for value in checkpoint["state_dict"].values())
    if not later:
        load()
    if datamodule is not None and type(datamodule).__qualname__ in checkpoint:
        datamodule.load_state_dict(checkpoint[type(datamodule).__qualname__])
    restore_callbacks(run, checkpoint, fitting)
    return load if later else _nothing


def _nothing() -> None:
    """There is nothing left to do."""


def load_weights(run: Any, state: Mapping[str, Any]) -> None:
    """Gives the module its weights, of which each rank takes its parts."""
    module = run.module
    weights = run.strategy.localized(module, matching_keys(state, module))
    module.load_state_dict(weights, strict=module.strict_loading)


def restore_callbacks(run: Any, checkpoint: dict[str, Any], fitting: bool) -> None:
    """Tells the callbacks what was loaded, and gives each its state."""
    states = checkpoint.get("callbacks") or {}
    pairs = keyed(run.trainer.callbacks)
    unclaimed = sorted(set(states) - {key for key, _ in pairs})
    if unclaimed and fitting:
        warn(
            f"The checkpoint holds the state of callbacks that this trainer does not have: {unclaimed}. Give them in "
            "Trainer(callbacks=[...]) to go on with their state."
        )
    for _, callback in pairs:
        if overrides(callback, "on_load_checkpoint"):
            callback.on_load_checkpoint(run.trainer, run.module, checkpoint)
    for key, callback in pairs:
        if key in states:
            callback.load_state_dict(states[key])


def restore_training(run: Any, checkpoint: dict[str, Any], path: str) -> None:
    """The half of a restore that needs the optimizers: their states, schedulers, scaler, counters.

    Raises:
        CheckpointError: saved without optimizer states, or with those of other optimizers.
    """
    if "optimizer_states" not in checkpoint:
        raise CheckpointError(
            f"{path!r} holds weights only (save_weights_only=True), so training cannot go on from it. Load the "
            f"weights with {type(run.module).__name__}.load_from_checkpoint({path!r}) and start a new fit."
        )
    states, schedulers = checkpoint["optimizer_states"], checkpoint.get("lr_schedulers") or []
    if len(states) != len(run.optimizers) or len(schedulers) != len(run.schedulers):
        raise CheckpointError(
            f"{path!r} holds {len(states)} optimizer(s) and {len(schedulers)} scheduler(s); configure_optimizers gave "
            f"{len(run.optimizers)} and {len(run.schedulers)}"
        )
    for optimizer, state in zip(run.optimizers, states, strict=True):
        try:
            run.strategy.load_optimizer(optimizer, state)
        except ValueError as error:
            raise CheckpointError(f"The optimizer state in {path!r} does not fit: {error}") from error
    for config, state in zip(run.schedulers, schedulers, strict=True):
        config.scheduler.load_state_dict(state)
    run.precision.load_state_dict(checkpoint.get(run.precision.row.legacy_key) or {})
    own = checkpoint.get("bolide")
    if own is None:
        progress = from_loops(checkpoint, len(run.optimizers))
    else:
        progress = type(run.progress)()
        progress.load_state_dict(own["progress"])
    progress.ended_early = False  # what a stop cut short is taken up again
    run.progress.load_state_dict(progress.state_dict())
    run.restored = True

"""What a checkpoint keeps of a run beyond Lightning's keys, and how a fit goes on from it with the same bits.

`saved_run` is the list of it: randomness, the place in the data, metrics being averaged, open gradients, what was
still to be saved at the moment. `restore_run` puts back what needs no loader; `go_on`, called when training starts,
does the rest, randomness last. Who calls: engine/session and engine/fit.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from bolide.checkpoint.state import keyed
from bolide.core.messages import warn, warn_once
from bolide.data.batches import started
from bolide.data.loaders import set_epoch
from bolide.data.position import generator_states, has_pool, set_generator_states
from bolide.seed import rng_state, set_rng_state

if TYPE_CHECKING:
    from bolide.engine.run import EvalData, Run


def fingerprint() -> dict[str, Any]:
    """What decides the bits of a run beside its program: a resume under another one may differ, and says so."""
    return {
        "torch": torch.__version__.split("+")[0],
        "threads": torch.get_num_threads(),
        "machine": platform.machine(),
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "cuda": torch.cuda.get_device_name() if torch.cuda.is_initialized() else None,
        "matmul": torch.get_float32_matmul_precision(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
    }


def saved_run(run: Run) -> dict[str, Any]:
    """Everything of a run that is not in Lightning's keys: tensors and plain data."""
    return {
        "run_id": run.run_id,
        "run_dir": run.trainer.run_dir,
        "fingerprint": fingerprint(),
        "rng": rng_state(),
        "data": saved_data(run),
        "log": run.log.state_dict(run.module),
        "gradients": open_gradients(run),
        "boundary": saved_boundary(run),
        "loggers": [logger.position() for logger in run.trainer.loggers],
        "loop": {
            "validated_this_epoch": run.validated_this_epoch,
            "validation_names": sorted(run.validation_names),
            "stepped_in_batch": run.stepped_in_batch,
            "since_validation_s": time.monotonic() - run.val_timer_s,
            "val_steps_logged": dict(run.val.steps_logged),
        },
    }


def saved_data(run: Run) -> dict[str, Any] | None:
    """The place in the training data, and the generators that loaders have for themselves."""
    source = run.train
    if source is None or not source.readers:
        return None
    data: dict[str, Any] = {
        "train_generators": [generator_states(reader.loader) for reader in source.readers],
        "val_generators": [generator_states(s.loader) for s in run.val.sources],
        "train_pools": [has_pool(reader.loader) for reader in source.readers],
        "train_loaded_epoch": run.train_loaded_epoch,
        "val_loaded_epoch": run.val.loaded_epoch,
        "position": None,
        "before_ahead": None,
    }
    if run.progress.mid_epoch:
        ahead = source.ahead
        data["position"] = source.position() if ahead is None or ahead.position is None else ahead.position
        data["before_ahead"] = rng_state(ahead.before) if ahead is not None and ahead.before is not None else None
    return data


def open_gradients(run: Run) -> dict[str, torch.Tensor] | None:
    """The gradients of an accumulation window that is not full yet, by parameter name."""
    progress = run.progress
    open_window = run.module.automatic_optimization and progress.batch % run.trainer.accumulate_grad_batches
    if not progress.mid_epoch or progress.is_last_batch or not open_window:
        return None
    if not run.strategy.gradients_on_parameters:
        warn_once(
            "A checkpoint within an accumulation window keeps no gradients that the strategy has in its own buffers: "
            "going on from it, the batches of that window that were done do not count. Save at optimizer steps."
        )
        return None
    if run.strategy.sharded:
        from bolide.strategies import open_gradients as sharded

        return sharded.held(run.module) if sharded.can_hold(run.module) else None
    return {name: p.grad.detach().clone() for name, p in run.module.named_parameters() if p.grad is not None}


def saved_boundary(run: Run) -> dict[str, Any] | None:
    """Which callbacks have yet to save at the moment that this checkpoint belongs to."""
    if run.boundary is None:
        return None
    kind, validated = run.boundary
    order = [key for key, callback in keyed(run.trainer.callbacks) if callback in run.plan.savers]
    keys = {id(callback): key for key, callback in keyed(run.trainer.callbacks)}
    done = 0 if run.saver is None else order.index(keys[id(run.saver)]) + 1
    return {"kind": kind, "validated": validated, "owes_validation": run.owes_validation, "pending": order[done:]}


# ---------------------------------------------------------------------- going on


def goes_on(run: Run) -> bool:
    """Whether this fit goes on from a checkpoint that knows its place, or within an epoch."""
    return run.saved is not None or (run.restored and run.progress.mid_epoch)


def restore_run(run: Run, saved: dict[str, Any] | None) -> None:
    """Puts back what needs no loader: metrics, open gradients, flags."""
    if saved is None or "rng" not in saved or run.config.switches.resume_keeps_no_randomness:
        return
    run.saved = saved
    run.run_id = saved.get("run_id", run.run_id)
    here = fingerprint()
    other = {k: (v, here.get(k)) for k, v in saved["fingerprint"].items() if v != here.get(k)}
    if other:
        what = ", ".join(f"{name} was {was!r} and is {now!r}" for name, (was, now) in other.items())
        warn(
            f"This run goes on in another environment than it was saved in: {what}. Its bits may differ from there on."
        )
    loop = saved["loop"]
    run.validated_this_epoch = loop["validated_this_epoch"]
    run.validation_names = set(loop["validation_names"])
    run.stepped_in_batch = loop["stepped_in_batch"]
    run.val_timer_s = time.monotonic() - loop["since_validation_s"]
    run.val.steps_logged = {int(key): int(count) for key, count in loop["val_steps_logged"].items()}
    data = saved["data"]
    if data is not None:
        run.val.saved_place = {"generators": data["val_generators"], "loaded_epoch": data["val_loaded_epoch"]}


def go_on(run: Run, validate_owed: Callable[[Run], None]) -> Any:
    """Comes back to the place in the data, then to the randomness, of the checkpoint.

    Returns:
        The iterator of the epoch that is open, behind its batches that were trained on; None between epochs.
    """
    saved, source, progress = run.saved, run.train, run.progress
    assert source is not None
    iterator: Any = None
    data = saved["data"] if saved is not None else None
    if data is not None:
        for reader, states, pool in zip(source.readers, data["train_generators"], data["train_pools"], strict=False):
            set_generator_states(reader.loader, states)
            reader.expects_pool = pool
        run.train_loaded_epoch = data["train_loaded_epoch"]
    if progress.mid_epoch:
        set_epoch(source.loader, progress.epoch)  # samplers that are told it have another order in each
        source.go_on(data["position"] if data is not None else None, progress.batch)
        iterator = source.iterate()
        if not source.sized:
            if data is not None and data["before_ahead"] is not None:
                set_rng_state(data["before_ahead"])
            iterator = started(source, iterator)
    if saved is None:
        return iterator
    run.log.load_state_dict(saved["log"], run.module)
    restore_gradients(run, saved["gradients"])
    for logger, position in zip(run.trainer.loggers, saved["loggers"], strict=False):
        logger.go_on(position)
    set_rng_state(saved["rng"])
    if saved["boundary"] is not None and saved["boundary"].get("owes_validation"):
        validate_owed(run)
    catch_up(run, saved["boundary"])
    run.saved = None
    return iterator


def restore_gradients(run: Run, gradients: dict[str, torch.Tensor] | None) -> None:
    """Puts back the gradients of an open accumulation window."""
    if gradients is None:
        return
    if not run.strategy.gradients_on_parameters:
        warn(
            "The checkpoint was saved within an accumulation window, and the strategy has gradients in buffers of its "
            "own, to which those of a checkpoint cannot go: the batches of that window that were done do not count."
        )
        return
    if run.strategy.sharded:
        from bolide.strategies import open_gradients as sharded

        sharded.put_back(run.module, gradients)
        return
    for name, parameter in run.module.named_parameters():
        if name in gradients:
            parameter.grad = gradients[name].to(parameter.device)


def catch_up(run: Run, boundary: dict[str, Any] | None) -> None:
    """Lets the callbacks save that had not yet saved when the checkpoint was written."""
    if boundary is None or not boundary["pending"]:
        return
    progress = run.progress
    run.boundary = (boundary["kind"], boundary["validated"])
    if boundary["kind"] == "epoch":  # that epoch is not closed yet at its savers' moment
        progress.epoch -= 1
        progress.epoch_open = progress.epoch_done = True
    for key, callback in keyed(run.trainer.callbacks):
        if key in boundary["pending"]:
            run.saver = callback
            callback.catch_up(run.trainer, run.module, boundary["kind"], boundary["validated"])
    run.boundary = run.saver = None
    progress.close_epoch()


def restore_place(data: EvalData) -> None:
    """Puts the generators of validation loaders back, and when they were loaded, once they are there."""
    saved, data.saved_place = data.saved_place, None
    if saved is not None and saved["loaded_epoch"] >= 0:
        data.loaded_epoch = saved["loaded_epoch"]
        for source, states in zip(data.sources, saved["generators"], strict=False):
            set_generator_states(source.loader, states)

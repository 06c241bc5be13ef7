"""One training step, top to bottom: `plain_step`, and its two sisters in the same order.

The plan picks one of them for a fit. None of them waits for the device, looks anything up by name, or asks what
cannot change. Who calls: engine/fit, once a batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from bolide.core.errors import UserCodeError
from bolide.core.hooks import OVERRIDES
from bolide.core.messages import warn_once
from bolide.engine.optimizers import before_step, step_of, step_schedulers

if TYPE_CHECKING:
    from bolide.engine.run import Run

TRAINING_STEP = OVERRIDES["training_step"]
OPTIMIZER_STEP = OVERRIDES["optimizer_step"]


def plain_step(run: Run, batch: Any, batch_idx: int, last: bool) -> Any:
    """Forward, backward and, at the end of an accumulation window, clip and step: automatic optimization.

    Returns what `on_train_batch_end` is told: the loss detached, with what else `training_step` returned.
    """
    plan, log, optimizer = run.plan, run.log, run.plan.optimizer
    hooks = plan.hooks
    opens, closes, divisor = (True, True, 1) if plan.accumulate == 1 else window(run, batch_idx, last)

    log.scope = TRAINING_STEP
    output = plan.training_step(batch, batch_idx) if plan.wants_batch_idx else plan.training_step(batch)
    log.scope = None
    loss = output if output.__class__ is Tensor else loss_of(output)

    if opens:
        for hook in hooks.on_before_zero_grad:
            hook(optimizer)
        plan.zero_grad(batch_idx)
    if loss is not None:
        if divisor != 1:
            loss = loss / divisor
        for hook in hooks.on_before_backward:
            hook(loss)
        if plan.backward is None:
            if not loss.requires_grad or loss.dim():
                check_loss(loss)
            loss.backward()
        else:
            plan.backward(loss)
        for hook in hooks.on_after_backward:
            hook()
    elif plan.backward_nothing is not None:
        plan.backward_nothing()

    if closes:
        if divisor != 1:
            mend_short_window(run, batch_idx, divisor)
        scaler = run.precision.scaler
        if scaler is not None and loss is not None:
            scaler.unscale_(optimizer)
        for hook in hooks.on_before_optimizer_step:
            hook(optimizer)
        if plan.clip is not None:
            plan.clip(optimizer)
        if scaler is None:
            step_of(optimizer)()
        elif loss is not None:
            scaler.step(optimizer)
            scaler.update()
        run.progress.commit_step()
        run.stepped_in_batch = True
        if plan.has_schedulers:
            step_schedulers(run, "step", batch_idx)
    if last and plan.has_schedulers:
        step_schedulers(run, "epoch", batch_idx)
    return outputs_of(output, loss) if plan.wants_outputs else None


def closure_step(run: Run, batch: Any, batch_idx: int, last: bool) -> Any:
    """The same step where the user's `optimizer_step`, or an optimizer such as LBFGS, calls for the loss itself."""
    plan, log, optimizer = run.plan, run.log, run.plan.optimizer
    hooks = plan.hooks
    opens, closes, divisor = (True, True, 1) if plan.accumulate == 1 else window(run, batch_idx, last)
    output: Any = None
    loss: Tensor | None = None
    evaluations = 0

    def closure(closes_window: bool = False) -> Tensor | None:
        nonlocal output, loss, evaluations
        if evaluations and log.journal is not None:
            log.rewind()
        evaluations += 1
        with torch.enable_grad():
            outer, log.scope = log.scope, TRAINING_STEP
            output = plan.training_step(batch, batch_idx) if plan.wants_batch_idx else plan.training_step(batch)
            log.scope = outer
            loss = output if output.__class__ is Tensor else loss_of(output)
            if opens:
                for hook in hooks.on_before_zero_grad:
                    hook(optimizer)
                plan.zero_grad(batch_idx)
            if loss is not None:
                if divisor != 1:
                    loss = loss / divisor
                for hook in hooks.on_before_backward:
                    hook(loss)
                if plan.backward is None:
                    if not loss.requires_grad or loss.dim():
                        check_loss(loss)
                    loss.backward()
                else:
                    plan.backward(loss)
                for hook in hooks.on_after_backward:
                    hook()
            elif plan.backward_nothing is not None:
                plan.backward_nothing()
        if closes_window:
            if divisor != 1:
                mend_short_window(run, batch_idx, divisor)
            before_step(run, optimizer, unscale=loss is not None)
        return None if loss is None else loss.detach()

    if not closes:
        closure()
    else:
        closure.evaluate = closure  # type: ignore[attr-defined]  # by this the proxy's step knows the engine's own
        if not run.config.switches.closure_logs_add_up:
            log.open_journal()
        proxy = run.proxies[0]
        if plan.optimizer_step is None:
            proxy.step(closure)
        else:
            log.scope = OPTIMIZER_STEP
            plan.optimizer_step(run.progress.epoch, batch_idx, proxy, closure)
            log.scope = None
        log.close_journal()
        if not evaluations:
            raise UserCodeError(
                "`optimizer_step` never evaluated its closure, so nothing was trained; write "
                "optimizer.step(closure=optimizer_closure), or call optimizer_closure()"
            )
        run.progress.commit_step()
        run.stepped_in_batch = True
        if plan.has_schedulers:
            step_schedulers(run, "step", batch_idx)
    if last and plan.has_schedulers:
        step_schedulers(run, "epoch", batch_idx)
    return outputs_of(output, loss) if plan.wants_outputs else None


def manual_step(run: Run, batch: Any, batch_idx: int, last: bool) -> Any:
    """Manual optimization: `training_step` does it all, through `manual_backward` and `optimizer.step()`."""
    plan, log = run.plan, run.log
    log.scope = TRAINING_STEP
    output = plan.training_step(batch, batch_idx) if plan.wants_batch_idx else plan.training_step(batch)
    log.scope = None
    if output is None or not plan.wants_outputs:
        return {}
    if isinstance(output, Tensor):
        return {"loss": output.detach()}
    if isinstance(output, Mapping):
        loss = output.get("loss")
        return {**output, "loss": loss.detach()} if isinstance(loss, Tensor) else dict(output)
    raise UserCodeError(
        f"`training_step` returned a {type(output).__name__}; in manual optimization return a tensor, a dictionary or "
        "None"
    )


def anomaly_step(step: Callable[..., Any], run: Run, batch: Any, batch_idx: int, last: bool) -> Any:
    """A step under autograd's anomaly detection, which names the operation that made a NaN."""
    with torch.autograd.set_detect_anomaly(True):
        return step(run, batch, batch_idx, last)


def window(run: Run, batch_idx: int, last: bool) -> tuple[bool, bool, int]:
    """Whether this batch opens and closes an accumulation window, and what its loss is divided by.

    The last window of an epoch may be short; it is divided by its own length where the epoch's length is known.
    """
    size = run.plan.accumulate
    place = batch_idx % size
    divisor = size
    if not run.plan.full_divisor and run.train is not None and run.train.sized and not math.isinf(run.count):
        divisor = min(size, int(run.count) - (batch_idx - place))
    return place == 0, place == size - 1 or last, divisor


def mend_short_window(run: Run, batch_idx: int, divisor: int) -> None:
    """Scales the gradients of a window that ended before it was full, so that they are the mean over its batches."""
    length = batch_idx % run.plan.accumulate + 1
    if length == divisor or run.plan.full_divisor:
        return
    run.strategy.scale_gradients(run.plan.optimizer, divisor / length)


def flush_window(run: Run, batch_idx: int) -> None:
    """Steps on a window that the epoch's end left open: the loader was shorter than it said."""
    plan, optimizer = run.plan, run.plan.optimizer
    mend_short_window(run, batch_idx, window(run, batch_idx, False)[2])
    before_step(run, optimizer)
    if run.precision.scaler is None:
        step_of(optimizer)()
    else:
        run.precision.scaler.step(optimizer)
        run.precision.scaler.update()
    run.progress.commit_step()
    run.progress.stepped_batches += 1
    if plan.has_schedulers:
        step_schedulers(run, "step", batch_idx)


def loss_of(output: Any) -> Tensor | None:
    """The loss in what `training_step` returned: a tensor, a mapping with "loss", or None to skip the batch.

    Raises:
        UserCodeError: anything else.
    """
    if isinstance(output, Tensor):
        return output
    if isinstance(output, Mapping):
        loss = output.get("loss")
        if isinstance(loss, Tensor):
            return loss
        raise UserCodeError(
            f"`training_step` returned a dictionary with the keys {sorted(map(str, output))}, in which 'loss' is "
            f"{'missing' if 'loss' not in output else f'a {type(loss).__name__}'}; return "
            '{"loss": loss, ...} with a tensor'
        )
    if output is None:
        warn_once("`training_step` returned None: that batch is left out.")
        return None
    raise UserCodeError(
        f"`training_step` returned a {type(output).__name__}; return the loss (a tensor), a dictionary with 'loss', or "
        "None to leave the batch out"
    )


def check_loss(loss: Tensor) -> None:
    """Refuses a loss that cannot be gone back from.

    Raises:
        UserCodeError: several elements, or no parameter had a part in it.
    """
    if loss.numel() != 1:
        raise UserCodeError(
            f"The loss that `training_step` returned has the shape {tuple(loss.shape)}; return one number, such as "
            "loss.mean()"
        )
    if loss.requires_grad:
        return
    raise UserCodeError(
        "The loss that `training_step` returned has no gradient: no trainable parameter had a part in it. Compute it "
        "from the module's output without .detach(), .item() or torch.no_grad(), and see that some parameter has "
        "requires_grad=True"
    )


def outputs_of(output: Any, loss: Tensor | None) -> dict[str, Any]:
    """What the end-of-batch hooks are told: the loss, detached, and all else as it was returned."""
    if loss is None:
        return {}
    if not isinstance(output, Mapping):
        return {"loss": loss.detach()}
    return {**output, "loss": loss.detach()}

"""Prediction: the module over the loaders, its outputs kept in order.

Who calls: engine/session, for `Trainer.predict`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

from bolide.core.hooks import OVERRIDES, Hooks
from bolide.data.batches import batches
from bolide.engine.evaluate import Handed, from_eval, no_gradients, to_eval
from bolide.engine.ordered import in_order
from bolide.engine.plan import check_loader_idx, transfer_of, user_step
from bolide.engine.ranks import beating, in_company
from bolide.launch.group import is_watched

if TYPE_CHECKING:
    from bolide.engine.run import EvalData, Run


def predict(
    run: Run, hooks: Hooks, data: EvalData, open_data: Callable[[], None], keep: bool | Literal["ordered"]
) -> Any:
    """Runs `predict_step` over the loaders.

    Returns:
        What it returned, a list for one loader, a list of lists for several; None unless `keep`. With "ordered" what
        all ranks have, in the order of the samples, on the first one.
    """
    log = run.log
    with no_gradients(run, standalone=True):
        if run.strategy.distributed:
            run.strategy.sync_buffers()  # type: ignore[attr-defined]
        open_data()
        several = len(data.sources) > 1
        check_loader_idx(run, "predict_step", several)
        user = user_step(run, "predict_step")
        transfer = transfer_of(run)
        first = next((i for i, source in enumerate(data.sources) if source.count > 0), None)
        iterator = data.sources[first].iterate() if first is not None else iter(())
        flags = to_eval(run, "predict")
        for hook in hooks.on_predict_start:
            hook()
        for hook in hooks.on_predict_epoch_start:
            hook()
        run.predictions = [[] for _ in data.sources]
        for i, source in enumerate(data.sources):
            if i != first:
                iterator = source.iterate() if source.count > 0 else iter(())
            which = (i,) if several else ()
            pairs = batches(source, iterator, look_ahead=False)
            if is_watched():
                pairs = beating(run, pairs)

            def ghost(batch: Any, which: tuple[int, ...] = which, i: int = i) -> None:
                batch = batch if transfer is None else transfer(batch, i)
                args = (batch, 0) if user.wants_batch_idx else (batch,)
                user.call(*args, *(which if user.wants_loader_idx else ()))

            if run.strategy.distributed:
                pairs = in_company(run, pairs, ghost)
            for batch_idx, (batch, _) in enumerate(Handed.over(pairs, source) if user.takes_iterator else pairs):
                if transfer is not None and not user.takes_iterator:
                    batch = transfer(batch, i)
                for hook in hooks.on_predict_batch_start:
                    hook(batch, batch_idx, *which)
                log.scope = OVERRIDES["predict_step"]
                if user.takes_iterator:
                    try:
                        output = user.call(batch)
                    except StopIteration:  # the step drew more than there was
                        log.scope = None
                        break
                else:
                    args = (batch, batch_idx) if user.wants_batch_idx else (batch,)
                    output = user.call(*args, *(which if user.wants_loader_idx else ()))
                log.scope = None
                for hook in hooks.on_predict_batch_end:
                    hook(output, batch, batch_idx, *which)
                if keep:
                    run.predictions[i].append(output)
            if keep == "ordered":
                run.predictions[i] = in_order(run, run.predictions[i], source.loader)
        for hook in hooks.on_predict_epoch_end:
            hook()
        for hook in hooks.on_predict_end:
            hook()
        from_eval(run, "predict", flags)
    if not keep:
        return None
    return run.predictions if several else (run.predictions[0] if run.predictions else [])

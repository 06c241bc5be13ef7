"""Batches that a callback leaves out: asked with the loss, before the backward pass.

Owns what "left out" means: as if `training_step` had returned None, and what it logged does not count in the epoch's
mean. Who calls: engine/plan, once, and only where a callback asks for it; the step itself does not change.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor

from bolide.collectives import any_rank
from bolide.engine.step import loss_of

if TYPE_CHECKING:
    from bolide.engine.run import Run

Veto = Callable[[Tensor], bool]


def vetoes_of(run: Run) -> tuple[Veto, ...]:
    """What the callbacks are asked: each that has `may_veto` set answers `vetoes_loss(trainer, module, loss)`."""
    return tuple(
        partial(callback.vetoes_loss, run.trainer, run.module)
        for callback in run.trainer.callbacks
        if getattr(callback, "may_veto", False)
    )


def with_vetoes(run: Run, training_step: Callable[..., Any], vetoes: tuple[Veto, ...]) -> Callable[..., Any]:
    """`training_step`, which returns None where a callback says so about the loss (0-dim, not scaled, with a graph)."""
    log = run.log

    def asked(*args: Any) -> Any:
        outer, log.journal = log.journal, []
        output = training_step(*args)
        loss = output if output.__class__ is Tensor else loss_of(output)
        if loss is not None:
            left_out = False
            for veto in vetoes:  # all are asked: each keeps its own account
                left_out = veto(loss) or left_out
            if run.strategy.world_size > 1:
                left_out = any_rank("leaving a batch out", left_out)
            if left_out:
                log.rewind()
                output = None
        if outer is None:
            log.close_journal()
        else:
            outer += log.journal
            log.journal = outer
        return output

    return asked

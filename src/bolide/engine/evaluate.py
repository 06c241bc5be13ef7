"""Validation and testing: one function, for both, within a fit and alone.

Owns the order of an evaluation's hooks and its result, one dictionary a loader. Who calls: engine/fit for validation
and the sanity check, engine/session for `validate` and `test`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from bolide.core.errors import UserCodeError
from bolide.core.hooks import OVERRIDES, Hook, Hooks, HookSpec, overrides
from bolide.core.messages import warn_once
from bolide.core.states import RunningStage
from bolide.data.batches import batches, started
from bolide.data.loaders import Source, length_of
from bolide.engine import rank_log, ranks
from bolide.engine.plan import UserStep, check_loader_idx, transfer_of, user_step
from bolide.engine.signals import StopAsked
from bolide.launch.group import is_watched
from bolide.log import to_numbers

if TYPE_CHECKING:
    from bolide.engine.run import EvalData, Run


@dataclass(frozen=True, slots=True)
class EvalHooks:
    """The hooks of one kind of evaluation, by what they tell."""

    start: tuple[Hook, ...]
    epoch_start: tuple[Hook, ...]
    batch_start: tuple[Hook, ...]
    batch_end: tuple[Hook, ...]
    epoch_end: tuple[Hook, ...]
    end: tuple[Hook, ...]

    @classmethod
    def of(cls, hooks: Hooks, name: str) -> EvalHooks:
        """The hooks named `on_<name>_...`."""
        kinds = ("start", "epoch_start", "batch_start", "batch_end", "epoch_end", "end")
        return cls(*(getattr(hooks, f"on_{name}_{kind}") for kind in kinds))


def no_gradients(run: Run, standalone: bool) -> AbstractContextManager[Any]:
    """The context of an evaluation: inference mode where asked for and alone, else no_grad."""
    if standalone and run.config.inference_mode:
        return torch.inference_mode()
    return torch.no_grad()


def evaluate(
    run: Run,
    hooks: Hooks,
    name: str,
    data: EvalData,
    open_data: Callable[[], None],
    *,
    standalone: bool,
    limit: float | None = None,
    log_results: bool = True,
) -> list[dict[str, float]]:
    """Runs the module over the loaders of `data`.

    Args:
        run: the run.
        hooks: who listens.
        name: "validation" or "test".
        data: the loaders; `open_data` brings them up to date, without gradients, before the module is in eval mode.
        open_data: as above.
        standalone: whether this is `validate` or `test`, not validation within a fit.
        limit: at most so many batches of each loader (the sanity check's).
        log_results: whether loggers are told.

    Returns:
        One dictionary of plain numbers for each loader.
    """
    told = EvalHooks.of(hooks, name)
    loop = "validate" if name == "validation" else "test"
    step_name = f"{name}_step" if name == "validation" else "test_step"
    log = run.log
    progress = run.progress
    # within a fit the batch that was just trained on is not counted yet, where it ended in a step
    axis = progress.stepped_batches - (0 if standalone or not run.batch_stepped else 1)
    with no_gradients(run, standalone):
        if run.strategy.distributed:
            run.strategy.sync_buffers()  # type: ignore[attr-defined]
        open_data()
        sources = [s if limit is None else Source(s.loader, min(s.count, limit), s.sized) for s in data.sources]
        several = len(sources) > 1
        check_loader_idx(run, step_name, several)
        user = user_step(run, step_name)
        first = next((i for i, source in enumerate(sources) if source.count > 0), None)
        iterator = open_pass(sources[first]) if first is not None else iter(())
        flags = to_eval(run, name)
        before = log.enter(loop, len(sources))
        fetched: list[int] = []
        try:
            for hook in told.start:
                hook()
            for hook in told.epoch_start:
                hook()
            for i, source in enumerate(sources):
                if i != first:
                    iterator = open_pass(source)
                log.select_loader(i)
                counter = data.steps_logged if log_results else {}
                fetched.append(
                    evaluate_loader(run, told, source, iterator, i, several, user, OVERRIDES[step_name], counter)
                )
                if ranks.several(run):
                    if ranks.agree_on_break(run, f"the end of {name} loader {i}"):
                        raise StopAsked
                    rank_log.reduce_epoch_values(run, f"{name} loader {i}", fetched[-1])
                log.close_epoch_values()
                if several and run.state.stage != RunningStage.SANITY_CHECKING:
                    log.publish()
            refuse_empty(sources, ranks.fetched_by_any(run, fetched), name)
            log.in_batch = False
            log.select_loader(None)
            for hook in told.epoch_end:
                hook()
            rank_log.reduce_epoch_values(run, f"the end of {name}")
            log.publish()
            results = [to_numbers(found) for found in log.by_loader()] if sources else []
            if name == "validation":
                run.validation_names |= {n for s in log.active.all_slots() for n in (s.name, s.epoch_name)}
            if log_results:
                log.write(log.current_of_all(), None, axis, save=True)
            for hook in told.end:
                hook()
        finally:
            log.leave(before)
            from_eval(run, name, flags)
    return results


def open_pass(source: Source) -> Any:
    """A new pass over a loader; the first batch of one without a length is fetched at once."""
    if source.count <= 0:
        return iter(())
    return started(source, source.iterate()) if math.isinf(source.count) else source.iterate()


def evaluate_loader(
    run: Run,
    told: EvalHooks,
    source: Source,
    iterator: Any,
    loader_idx: int,
    several: bool,
    user: UserStep,
    spec: HookSpec,
    steps_logged: dict[int, int],
) -> int:
    """One pass over one loader, with its batch hooks; returns how many batches there were."""
    log, transfer = run.log, transfer_of(run)
    pairs = batches(source, iterator, look_ahead=math.isinf(source.count))
    if is_watched():
        pairs = ranks.beating(run, pairs)
    which = (loader_idx,) if several else ()
    batch_idx = -1

    def ghost(batch: Any) -> None:
        log.scope = spec
        batch = batch if transfer is None else transfer(batch, loader_idx)
        args = (batch, batch_idx) if user.wants_batch_idx else (batch,)
        user.call(*args, *(which if user.wants_loader_idx else ()))

    if run.strategy.distributed:
        pairs = ranks.in_company(run, pairs, ghost)
    if user.takes_iterator:
        pairs = Handed.over(pairs, source)
    for batch_idx, (batch, _) in enumerate(pairs):
        if transfer is not None and not user.takes_iterator:
            batch = transfer(batch, loader_idx)
        log.open_batch(batch)
        for hook in told.batch_start:
            hook(batch, batch_idx, *which)
        log.scope = spec
        if user.takes_iterator:
            try:
                output = user.call(batch)
            except StopIteration:  # the step drew more than there was: the pass ends with what it did before
                log.scope = None
                log.close_batch()
                return batch_idx
        else:
            args = (batch, batch_idx) if user.wants_batch_idx else (batch,)
            output = user.call(*args, *(which if user.wants_loader_idx else ()))
        log.scope = None
        for hook in told.batch_end:
            hook(output, batch, batch_idx, *which)
        if any(slot.on_step for slot in log.slots.values()) and run.state.stage != RunningStage.SANITY_CHECKING:
            count = steps_logged.get(loader_idx, 0)
            log.publish()
            log.write(log.current(), count, count)
            steps_logged[loader_idx] = count + 1
        log.close_batch()
        if run.signals.heard is not None and not run.signals.at_once:
            if not run.signals.shared:
                raise StopAsked
            if not run.strategy.sharded:
                break  # the others are told at the end of the pass, and break it off, too
    return batch_idx + 1


def refuse_empty(sources: list[Source], fetched: list[int], name: str) -> None:
    """Refuses loaders that gave no batch, all of them; warns of one among others. A limit of zero is meant.

    Raises:
        UserCodeError: nothing was evaluated.
    """
    empty = [
        i for i, source in enumerate(sources)
        if not fetched[i] and (source.count > 0 or length_of(source.loader) == 0)
    ]  # fmt: skip
    if not empty:
        return
    which = f"The {name} loader" if len(sources) == 1 else f"The {name} loader(s) {', '.join(map(str, empty))}"
    text = (
        f"{which} gave no batch. Look at what it iterates over: an empty dataset, an iterator that was used up, or "
        "drop_last=True with fewer samples than a batch"
    )
    if len(empty) == len(sources):
        raise UserCodeError(text)
    warn_once(text)


class Handed:
    """The iterator that a step with `dataloader_iter` is given: `next` gives (batch, batch_idx, dataloader_idx)."""

    def __init__(self, pairs: Any, source: Source) -> None:
        self._pairs, self._source = pairs, source
        self.fetched = 0
        self.done = source.count <= 0

    def __iter__(self) -> Handed:
        return self

    def __next__(self) -> tuple[Any, int, int]:
        if self.done:
            raise StopIteration
        try:
            batch, self.done = next(self._pairs)
        except StopIteration:
            self.done = True
            raise
        self.fetched += 1
        return batch, self.fetched - 1, 0

    @classmethod
    def over(cls, pairs: Any, source: Source) -> Any:
        """Pairs (iterator, is_last), until the source is exhausted."""
        handed = cls(pairs, source)
        while not handed.done:
            yield handed, handed.fetched + 1 >= source.count


def to_eval(run: Run, name: str) -> dict[Any, bool] | None:
    """Brings the module to eval mode, by its own hook where it has one; returns the flags to put back."""
    module = run.module
    flags = {sub: sub.training for sub in module.modules()}
    if overrides(module, f"on_{name}_model_eval"):
        getattr(module, f"on_{name}_model_eval")()
    else:
        module.eval()
    return flags


def from_eval(run: Run, name: str, flags: dict[Any, bool] | None) -> None:
    """Puts the training flags back, or lets the module's own hook do it."""
    module = run.module
    if overrides(module, f"on_{name}_model_train"):
        getattr(module, f"on_{name}_model_train")()
        return
    for sub, training in (flags or {}).items():
        sub.training = training

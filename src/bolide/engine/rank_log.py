"""What is logged, reduced over ranks: in bulk, at the moments that all ranks reach, none of them a step's own.

Epoch values with `sync_dist=True` are reduced at the end of a pass, step values when a logger is due. Ranks tell each
other which metrics they have first, so that one which only some log is an error with its name, not a wait. Who calls:
engine/fit and engine/evaluate.
"""

from __future__ import annotations

import math
import zlib
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from bolide import collectives
from bolide.collectives import RankDisagreement
from bolide.core.hooks import HOOKS, HookSpec
from bolide.core.messages import PossibleUserWarning, warn_once
from bolide.log import Slot, as_metric_tensor, path_of

if TYPE_CHECKING:
    from bolide.engine.run import Run

Key = tuple[HookSpec | None, str]


def connect(run: Run) -> None:
    """Has step values reduced before they go to the loggers."""
    if run.strategy.world_size > 1:
        run.log.over_ranks = partial(reduce_step_values, run)


def _described(key: Key, slot: Slot, run: Run) -> tuple[Any, ...]:
    scope, name = key
    return (
        scope.name if scope is not None else "", name, slot.name.removeprefix(name), slot.on_step, slot.on_epoch,
        slot.prog_bar, slot.logger, slot.reduction, slot.synced, path_of(slot.metric, run.module),
    )  # fmt: skip


def _shared(run: Run) -> dict[Key, Slot]:
    """What ranks must have in common: the slots that are reduced over them, by us or by torchmetrics."""
    return {
        key: slot
        for key, slot in run.log.slots.items()
        if slot.on_epoch and slot.last is not None and slot.agreed is None and (slot.synced or slot.metric is not None)
    }


def reduce_epoch_values(run: Run, where: str, batches: int = 1) -> None:
    """Reduces the epoch values of the selected loader's slots over ranks. All ranks must call it.

    Args:
        run: the run.
        where: the moment, for errors.
        batches: how many batches this rank had; one that had none takes over what the others have logged.

    Raises:
        RankDisagreement: a metric that only some of the ranks have logged.
    """
    if run.strategy.world_size == 1:
        return
    if not batches:  # as if a batch had just ended: what is published, and computed, comes in the others' order
        run.log.in_batch, run.log.unpublished = True, False
    slots = _shared(run)
    _advise(run, where)
    mine = [_described(key, slot, run) for key, slot in slots.items()]
    number = float(zlib.crc32(repr(mine).encode()))
    rows = collectives.gather_numbers(f"metrics of {where}", [number, float(len(mine)), float(batches)])
    if any(row[0] != rows[0][0] for row in rows):
        slots = _completed(run, where, slots, mine, batches)
    elif not mine:
        return
    own = [slot for slot in slots.values() if slot.metric is None]
    values: list[float] = []
    for slot in own:
        total, weight = slot._reduced()
        values += [math.nan if total is None else float(total), float(weight)]
    gathered = collectives.gather_numbers(f"values of {where}", values)
    counted = [gathered[rank] for rank in run.strategy.counting_ranks]  # type: ignore[attr-defined]
    for i, slot in enumerate(own):
        slot.agreed = _combined(slot, [(row[2 * i], row[2 * i + 1]) for row in counted], run)


def _combined(slot: Slot, parts: list[tuple[float, float]], run: Run) -> torch.Tensor:
    """The value of all ranks; a rank that has logged nothing has no weight."""
    present = [(total, weight) for total, weight in parts if weight > 0]
    totals = [total for total, _ in present]
    if slot.reduction == "mean":
        value = sum(totals) / sum(weight for _, weight in present) if present else math.nan
    elif slot.reduction == "sum":
        value = sum(totals)
    else:  # NaN counts, as in torch
        value = math.nan if any(map(math.isnan, totals)) else (min if slot.reduction == "min" else max)(totals)
    like = as_metric_tensor(slot.last)
    return torch.tensor(value, dtype=like.dtype, device=run.strategy.root_device)


def _completed(
    run: Run, where: str, slots: dict[Key, Slot], mine: list[tuple[Any, ...]], batches: int
) -> dict[Key, Slot]:
    """The slots of a rank that had no batch, made after those of the others; ranks that differ otherwise are refused.

    Raises:
        RankDisagreement: a metric that only some of the ranks have logged.
    """
    everyone: list[tuple[list[tuple[Any, ...]], int]] = collectives.gather_objects((mine, batches))
    full = [(rank, metrics) for rank, (metrics, count) in enumerate(everyone) if count > 0]
    known = max((metrics for metrics, _ in everyone), key=len) if not full else max((m for _, m in full), key=len)
    for metric in dict.fromkeys(metric for _, metrics in full for metric in metrics):
        having = [rank for rank, metrics in full if metric in metrics]
        lacking = [rank for rank, metrics in full if metric not in metrics]
        if lacking:
            hook, name = metric[0], metric[1]
            raise RankDisagreement(
                f"self.log({name!r}, sync_dist=True) in `{hook}` was called on rank(s) {having} and not, or with other "
                f"options, on rank(s) {lacking} ({where}). It is reduced over all ranks, so all must log it; for the "
                "first rank's own value write self.log(..., rank_zero_only=True) without sync_dist"
            )
    found: dict[Key, Slot] = {}
    for hook, name, suffix, on_step, on_epoch, prog_bar, logger, reduction, synced, path in known:
        key = (HOOKS.get(hook), name)
        slot = slots.get(key)
        if slot is None:
            options = (prog_bar, logger, None, None, reduction, False, True, synced, False)
            slot = Slot(name, options, on_step, on_epoch, suffix)
            slot.last = math.nan
            slot.metric = run.module.get_submodule(path) if path is not None else None
            run.log.slots[key] = slot
        found[key] = slot
    return found


def _advise(run: Run, where: str) -> None:
    """Says once of a metric of an evaluation that it is one rank's own."""
    if run.log.active.training:
        return
    for slot in run.log.slots.values():
        if slot.on_epoch and not slot.synced and slot.metric is None and slot.last is not None:
            warn_once(
                f"{slot.epoch_name!r} is each rank's own value, of its part of the data. For that of all the data "
                f"write self.log({slot.epoch_name!r}, ..., sync_dist=True).",
                PossibleUserWarning,
            )


def reduce_step_values(run: Run) -> None:
    """Reduces the last values of a step's synced slots over ranks, before they go to the loggers.

    Raises:
        RankDisagreement: a metric that only some of the ranks have logged.
    """
    slots = {
        key: slot
        for key, slot in run.log.slots.items()
        if slot.synced and slot.on_step and slot.metric is None and slot.last is not None
    }
    mine = [f"{scope.name if scope is not None else ''}: {name}" for scope, name in slots]
    number = float(zlib.crc32(repr(mine).encode()))
    rows = collectives.gather_numbers("step metrics", [number, float(len(mine))])
    if any(row[0] != rows[0][0] for row in rows):
        everyone = collectives.gather_objects(mine)
        odd = next(m for names in everyone for m in names if any(m not in others for others in everyone))
        having = [rank for rank, names in enumerate(everyone) if odd in names]
        hook, _, name = odd.partition(": ")
        raise RankDisagreement(
            f"self.log({name!r}, sync_dist=True) in `{hook}` was called on rank(s) {having} only. It is reduced over "
            "all ranks, so all must log it; for the first rank's own value write rank_zero_only=True without sync_dist"
        )
    if not mine:
        return
    values = [float(as_metric_tensor(slot.last)) for slot in slots.values()]
    gathered = collectives.gather_numbers("step values", values)
    gathered = [gathered[rank] for rank in run.strategy.counting_ranks]  # type: ignore[attr-defined]
    for i, slot in enumerate(slots.values()):
        column = [row[i] for row in gathered]
        made = {"mean": sum(column) / len(column), "sum": sum(column), "min": min(column), "max": max(column)}
        like = as_metric_tensor(slot.last)
        slot.last = torch.tensor(made[slot.reduction], dtype=like.dtype, device=run.strategy.root_device)

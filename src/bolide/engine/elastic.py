"""How a run goes on from a checkpoint of another number of processes, or of another batch size: with the same samples.

Owns which part of a saved state is this rank's, and the count of batches and of accumulation that keep the samples of
each step. Where the pass over the data begins is data/position's. Who calls: engine/session, when it restores.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bolide.core.errors import CheckpointError
from bolide.core.messages import info

if TYPE_CHECKING:
    from bolide.engine.run import Run

PER_RANK = ("rng", "data", "log", "gradients")
"""The entries of a run's state that differ from rank to rank."""


def batch_size_of(run: Run) -> int | None:
    """How many samples a batch of one rank has, where the training loader says so."""
    loader = getattr(run.train, "loader", None)
    sampler = getattr(loader, "batch_sampler", None)
    size = getattr(sampler if sampler is not None else loader, "batch_size", None)
    return size if isinstance(size, int) else None


def other_size(run: Run, saved: dict[str, Any] | None) -> bool:
    """Whether a state was saved by another number of processes than there are now."""
    return saved is not None and "rng" in saved and saved.get("world_size", 1) != run.strategy.world_size


def of_this_rank(run: Run, saved: dict[str, Any] | None) -> dict[str, Any] | None:
    """This rank's part of a saved state; on another number of ranks, the same samples consumed.

    Raises:
        CheckpointError: the global batch cannot be kept, or the place in the data not be found again.
    """
    if saved is None or "rng" not in saved:
        return saved
    before, now = saved.get("world_size", 1), run.strategy.world_size
    parts = saved.get("ranks") or [{name: saved[name] for name in PER_RANK}]
    if before == now:
        return {**saved, **parts[run.strategy.global_rank]}
    rescale(run, saved)
    if run.progress.mid_epoch:
        refuse_places_of_ranks(parts[0]["data"], before, now)
    return {**saved, **parts[run.strategy.global_rank % before], "data": parts[0]["data"], "gradients": None}


def refuse_places_of_ranks(data: dict[str, Any] | None, before: int, now: int) -> None:
    """Refuses a place in the data that only as many ranks as saved it can come back to.

    Raises:
        CheckpointError: loaders keep their own position, or several are read side by side.
    """
    position = (data or {}).get("position")
    if position is None:
        return
    why = None
    if position["together"] is not None:
        why = "several training loaders are read side by side"
    elif any(reader.get("loader") is not None for reader in position["readers"]):
        why = "its training loader keeps a position of its own on each rank"
    if why is not None:
        raise CheckpointError(
            f"The checkpoint was saved by {before} process(es) in the midst of an epoch, and {why}: {now} process(es) "
            f"cannot find that place. Go on with {before}, or from a checkpoint of the end of an epoch"
        )


def rescale(run: Run, saved: dict[str, Any]) -> None:
    """Goes on with another number of ranks: batches are counted anew, and accumulated so that a step's samples stay.

    Gradients of an accumulation window that was open are those of other ranks: its batches are trained on again.

    Raises:
        CheckpointError: they do not divide.
    """
    trainer, progress = run.trainer, run.progress
    before, now = saved.get("world_size", 1), run.strategy.world_size
    accumulate = saved.get("accumulate", 1)
    size, size_now = saved.get("batch_size"), batch_size_of(run)
    if size is None or size_now is None:
        size = size_now = 1  # batches whose size nobody knows are taken to be alike
    again = progress.batch % accumulate if progress.mid_epoch and not progress.is_last_batch else 0
    step, done, each = accumulate * before * size, (progress.batch - again) * before * size, now * size_now
    done = done if progress.mid_epoch else 0
    if step % each:
        raise CheckpointError(
            f"The checkpoint was saved by {before} process(es) with batches of {size} and "
            f"accumulate_grad_batches={accumulate}, which makes {step} to a step; {done} were done in its epoch. {now} "
            f"process(es) with batches of {size_now} take {each} at a time, which does not divide that. Change the "
            "batch size or the number of processes so that it does, or start a new fit from its weights"
        )
    trainer.accumulate_grad_batches = step // each
    if progress.mid_epoch:
        progress.batch = done // each
    progress.total_batches = (progress.total_batches - again) * before * size // each
    info(
        f"The checkpoint was saved by {before} process(es), and now there are {now}: "
        f"accumulate_grad_batches={step // each} keeps the samples of each step."
    )

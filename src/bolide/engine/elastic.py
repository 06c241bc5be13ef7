"""How a run goes on from a checkpoint of another number of processes: with the same samples, in steps of as many.

Owns which part of a saved state is this rank's, how batches are counted and accumulated so that a step's samples stay,
and with `elastic_batch="scale"` what follows where they cannot. Where a pass over the data begins is data/position's.
Who calls: engine/session when it restores, engine/ranks when a checkpoint is made.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from torch.optim import Optimizer

from bolide.core.errors import CheckpointError
from bolide.core.messages import info
from bolide.data.position import Behind, dealer_of

if TYPE_CHECKING:
    from bolide.engine.run import Run

PER_RANK = ("rng", "data", "log", "gradients")
"""The entries of a run's state that differ from rank to rank."""


@dataclass(frozen=True)
class Elastic:
    """What a run that changed its number of processes keeps of how it began.

    `batch` is the number of samples of a step then, `given` the `accumulate_grad_batches` that the user gave, and
    `rate` what learning rates are multiplied by since.
    """

    batch: int
    given: int
    rate: float = 1.0


def scales(run: Run) -> bool:
    """Whether the global batch may change with the number of processes."""
    return run.config.resilience.elastic_batch == "scale"


def data_place(run: Run) -> tuple[int, int]:
    """Which part of each global batch this process has, and how many parts there are."""
    return getattr(run.strategy, "data_rank", 0), getattr(run.strategy, "data_size", 1)


def batch_size_of(run: Run) -> int | None:
    """How many samples a batch of one rank has, where the training loader says so."""
    loader = getattr(run.train, "loader", None)
    sampler = getattr(loader, "batch_sampler", None)
    size = getattr(sampler if sampler is not None else loader, "batch_size", None)
    return size if isinstance(size, int) else None


def shape_of(run: Run) -> dict[str, Any]:
    """What a checkpoint keeps of how many processes there are, and of a step's samples."""
    return {
        "world_size": run.strategy.world_size,
        "data_size": data_place(run)[1],
        "accumulate": run.trainer.accumulate_grad_batches,
        "batch_size": batch_size_of(run),
        "elastic": asdict(run.elastic) if run.elastic is not None else None,
    }


def sizes_of(saved: dict[str, Any]) -> tuple[int, int]:
    """By how many processes a state was saved, and into how many parts their global batches were split."""
    world = saved.get("world_size", 1)
    return world, saved.get("data_size", world)


def other_size(run: Run, saved: dict[str, Any] | None) -> bool:
    """Whether a state was saved by another number of processes than there are now, or with its data split otherwise."""
    return saved is not None and "rng" in saved and sizes_of(saved) != (run.strategy.world_size, data_place(run)[1])


def of_this_rank(run: Run, saved: dict[str, Any] | None) -> dict[str, Any] | None:
    """This rank's part of a saved state; on another number of ranks, the same samples consumed.

    Raises:
        CheckpointError: the global batch cannot be kept, or the place in the data not be found again.
    """
    if saved is None or "rng" not in saved:
        return saved
    before, now = saved.get("world_size", 1), run.strategy.world_size
    parts = saved.get("ranks") or [{name: saved[name] for name in PER_RANK}]
    if not other_size(run, saved):
        keep(run, saved)
        return {**saved, **parts[run.strategy.global_rank]}
    data = parts[0]["data"]
    if run.progress.mid_epoch:
        refuse_places_of_ranks(data, before, now)
    behind = rescale(run, saved, data)
    if data is not None and data["position"] is not None:
        reader, *others = data["position"]["readers"]
        moved = {**reader, "behind": list(behind) if behind is not None else None}
        data = {**data, "position": {**data["position"], "readers": [moved, *others]}}
    return {**saved, **parts[run.strategy.global_rank % len(parts)], "data": data, "gradients": None}


def keep(run: Run, saved: dict[str, Any]) -> None:
    """Goes on as a run that had changed its number of processes did, on as many as it had last."""
    kept, trainer = saved.get("elastic"), run.trainer
    if kept is None or kept["given"] != trainer.accumulate_grad_batches:
        return  # what the user set anew holds
    run.elastic = Elastic(**kept)
    if run.module.automatic_optimization:
        trainer.accumulate_grad_batches = saved["accumulate"]
    scale_rates(run, run.elastic.rate)


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


# ---------------------------------------------------------------------- the samples of a step


def rescale(run: Run, saved: dict[str, Any], data: dict[str, Any] | None) -> Behind | None:
    """Goes on with another number of ranks: batches are counted anew, and accumulated so that a step's samples stay.

    Where they cannot, with `elastic_batch="scale"`, a step has about as many, and the learning rate goes with them.
    Gradients of an accumulation window that was open are those of other ranks: its batches are trained on again.

    Returns:
        Where the pass goes on, where that is no batch of this number of ranks; else None.

    Raises:
        CheckpointError: they do not divide, and the global batch may not change.
    """
    trainer, progress, automatic = run.trainer, run.progress, run.module.automatic_optimization
    (_, before), (_, now) = sizes_of(saved), data_place(run)
    accumulate = saved.get("accumulate", 1)
    size, size_now = saved.get("batch_size"), batch_size_of(run)
    if size is None or size_now is None:
        size = size_now = 1  # batches whose size nobody knows are taken to be alike
    began_with = saved.get("elastic") or {"batch": accumulate * before * size, "given": trainer.accumulate_grad_batches}
    kept = Elastic(**began_with)
    ended = progress.mid_epoch and progress.is_last_batch  # its last window was stepped on, full or not
    again = progress.batch % accumulate if progress.mid_epoch and automatic and not ended else 0
    began = _behind_of(data) if progress.mid_epoch else (0, 0)
    done = began[0] + (progress.batch - again - began[1]) * before * size if progress.mid_epoch else 0
    each = now * size_now
    divides = kept.batch % each == 0 if automatic else kept.batch == each
    if not divides and not scales(run):
        how = f"accumulate_grad_batches={accumulate}" if automatic else "manual optimization"
        raise CheckpointError(
            f"The checkpoint was saved by {before} process(es) with batches of {size} and {how}, which makes "
            f"{kept.batch} to a step; {done} were done in its epoch. {now} process(es) with batches of {size_now} take "
            f"{each} at a time, which does not {'divide' if automatic else 'make'} that. Change the batch size or the "
            "number of processes so that it does, write Trainer(resilience={'elastic_batch': 'scale'}) to go on with "
            "another global batch and a learning rate that is scaled with it, or start a new fit from its weights"
        )
    accumulate_now = max(1, round(kept.batch / each)) if automatic else 1
    run.elastic = Elastic(kept.batch, kept.given, accumulate_now * each / kept.batch)
    if automatic:
        trainer.accumulate_grad_batches = accumulate_now
    scale_rates(run, run.elastic.rate)
    behind: Behind | None = None
    batch = done // each
    if ended:
        batch = -(-done // each)
    elif done % each or batch % accumulate_now:
        # it begins with a window of its own: the number of its first batch is one at which a window begins
        batch = max(-(-done // (each * accumulate_now)), 1) * accumulate_now
        behind = (done, batch)
        progress.is_last_batch = _count_behind(run, behind, before, now) == batch  # what is left may be dropped
    progress.total_batches = (progress.total_batches - again) * before * size // each
    if progress.mid_epoch:
        progress.batch = batch
    told = f"accumulate_grad_batches={accumulate_now} keeps the samples of each step."
    if run.elastic.rate != 1.0:
        told = (
            f"with accumulate_grad_batches={accumulate_now} a step has {accumulate_now * each} samples instead of "
            f"{kept.batch}, and learning rates are multiplied by {run.elastic.rate:g} (elastic_batch='scale')."
        )
    info(f"The checkpoint was saved by {before} process(es), and now there are {now}: {told}")
    return behind


def _behind_of(data: dict[str, Any] | None) -> Behind:
    """Where the pass of a saved place in the data began."""
    position = (data or {}).get("position")
    found = position["readers"][0].get("behind") if position is not None else None
    return (int(found[0]), int(found[1])) if found else (0, 0)


def _count_behind(run: Run, behind: Behind, before: int, now: int) -> float:
    """How many batches the epoch has that goes on there.

    Raises:
        CheckpointError: the loader's samples are not dealt out by index, so no pass can begin within a batch.
    """
    train = run.train
    dealer = dealer_of(train.readers[0].loader) if train is not None and train.readers else None
    if train is None or dealer is None:
        raise CheckpointError(
            f"The checkpoint was saved by {before} process(es) behind {behind[0]} samples of its epoch, and {now} "
            "cannot begin there: the training loader is not shared out by index. Go on with as many processes as "
            "before, or from a checkpoint of the end of an epoch"
        )
    return dealer.count_behind(train.count, behind)


def scale_rates(run: Run, factor: float) -> None:
    """Multiplies learning rates by `factor` within each optimizer step: schedulers and checkpoints see their own.

    Raises:
        CheckpointError: an optimizer that is not torch's.
    """
    if factor == 1.0:
        return
    for optimizer in map(run.strategy.stepping, run.optimizers):
        if not isinstance(optimizer, Optimizer):
            raise CheckpointError(
                f"elastic_batch='scale' multiplies the learning rates of a torch.optim.Optimizer, and "
                f"{type(optimizer).__name__} is none: go on with as many processes as before"
            )
        before, after = _scaled_within(factor)
        run.rate_hooks += [optimizer.register_step_pre_hook(before), optimizer.register_step_post_hook(after)]


def _scaled_within(factor: float) -> tuple[Callable[..., None], Callable[..., None]]:
    """What comes before and after each step. A step that calls its parent's has torch call them once more within."""
    kept: list[list[Any]] = []

    def before(optimizer: Optimizer, *_: Any) -> None:
        kept.append([group["lr"] for group in optimizer.param_groups])
        if len(kept) == 1:
            for group in optimizer.param_groups:
                group["lr"] = group["lr"] * factor

    def after(optimizer: Optimizer, *_: Any) -> None:
        own = kept.pop()
        if not kept:
            for group, rate in zip(optimizer.param_groups, own, strict=True):
                group["lr"] = rate

    return before, after

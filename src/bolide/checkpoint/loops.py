"""Progress in the words of Lightning's checkpoint files, both ways.

Lightning reads its counters from `loops`, so a file that it can go on from must fill them; a file of Lightning's is
read by them. With several optimizers Lightning counts the steps of each, Bolide the batches that stepped: the file
holds the first, the second is found again by the number of optimizers.
"""

from __future__ import annotations

from typing import Any

from bolide.core.progress import Progress


def to_loops(progress: Progress, automatic: bool, val_batches: int) -> dict[str, Any]:
    """The `loops` entry that tells Lightning where the run stands."""
    batch, total, step = progress.batch, progress.total_batches, progress.step
    started_epochs = progress.epoch + (1 if progress.epoch_open else 0)
    in_epoch = step - progress.step_before_epoch
    schedulers = progress.scheduler_steps - progress.scheduler_steps_before_epoch
    steps = {"total": _two(step if automatic else 0), "current": _two(in_epoch if automatic else 0)}
    by_hand = 0 if automatic else progress.optimizer_steps
    manual = {"total": _two(by_hand), "current": _two(by_hand)}
    return {
        "fit_loop": {
            "state_dict": {},
            "epoch_loop.state_dict": {"_batches_that_stepped": progress.stepped_batches},
            "epoch_loop.batch_progress": {
                "total": _four(total), "current": _four(batch), "is_last_batch": progress.is_last_batch,
            },
            "epoch_loop.scheduler_progress": {"total": _two(progress.scheduler_steps), "current": _two(schedulers)},
            "epoch_loop.automatic_optimization.state_dict": {},
            "epoch_loop.automatic_optimization.optim_progress": {
                "optimizer": {
                    "step": steps,
                    "zero_grad": {
                        kind: {**counts, "started": counts["completed"]} for kind, counts in steps.items()
                    },
                }
            },
            "epoch_loop.manual_optimization.state_dict": {},
            "epoch_loop.manual_optimization.optim_step_progress": manual,
            "epoch_loop.val_loop.state_dict": {},
            "epoch_loop.val_loop.batch_progress": {
                "total": _four(val_batches), "current": _four(val_batches), "is_last_batch": val_batches > 0,
            },
            "epoch_progress": {kind: _epochs(progress, started_epochs) for kind in ("total", "current")},
        },
        "validate_loop": {"state_dict": {}, "batch_progress": _nothing(last=True)},
        "test_loop": {"state_dict": {}, "batch_progress": _nothing(last=True)},
        "predict_loop": {"state_dict": {}, "batch_progress": _nothing(last=False)},
    }  # fmt: skip


def _two(count: int) -> dict[str, int]:
    return {"ready": count, "completed": count}


def _four(count: int) -> dict[str, int]:
    return {"ready": count, "completed": count, "started": count, "processed": count}


def _nothing(last: bool) -> dict[str, Any]:
    empty: dict[str, Any] = {"total": _four(0), "current": _four(0)}
    return {**empty, "is_last_batch": False} if last else empty


def _epochs(progress: Progress, started: int) -> dict[str, int]:
    processed = progress.epoch + 1 if progress.epoch_done else progress.epoch
    return {"ready": started, "completed": progress.epoch, "started": started, "processed": processed}


def from_loops(checkpoint: dict[str, Any], optimizers: int) -> Progress:
    """Progress from a file of Lightning's; from its two top-level counters where it has no `loops`."""
    progress = Progress()
    loop = (checkpoint.get("loops") or {}).get("fit_loop")
    if loop is None:
        progress.epoch = int(checkpoint.get("epoch", 0))
        progress.step = progress.optimizer_steps = progress.stepped_batches = int(checkpoint.get("global_step", 0))
        return progress
    epochs = loop["epoch_progress"]["current"]
    batches = loop["epoch_loop.batch_progress"]
    progress.epoch = int(epochs["completed"])
    progress.epoch_open = int(epochs["started"]) > int(epochs["completed"])
    # a file saved by a hook at the epoch's end has it processed and not yet completed
    progress.epoch_done = int(epochs["processed"]) > int(epochs["completed"])
    # and one saved in a batch's end hook has that batch processed
    progress.batch = int(batches["current"]["processed"])
    progress.is_last_batch = bool(batches.get("is_last_batch", False))
    progress.total_batches = int(batches["total"]["processed"])
    automatic = loop["epoch_loop.automatic_optimization.optim_progress"]["optimizer"]["step"]["total"]["completed"]
    manual = loop["epoch_loop.manual_optimization.optim_step_progress"]["total"]["completed"]
    progress.optimizer_steps = int(automatic) + int(manual)
    progress.step = int(automatic) + int(manual) // max(optimizers, 1)
    stepped = int((loop.get("epoch_loop.state_dict") or {}).get("_batches_that_stepped", progress.step))
    unfinished = int(batches["total"]["processed"]) - int(batches["total"]["completed"])
    progress.stepped_batches = stepped + (unfinished if stepped < progress.step else 0)
    return progress

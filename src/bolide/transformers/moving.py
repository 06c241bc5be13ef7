"""Going on from a checkpoint folder with other processes or batches, where an optimizer step keeps its samples.

A batch of the engine is one optimizer step here, so the counts of a run stay; what changes is how many batches each
process takes for a step, and whose random states it has. Who calls: folders.py.
"""

from __future__ import annotations

from typing import Any

from bolide.core.messages import info, warn
from bolide.data.position import generator_states
from bolide.engine.elastic import PER_RANK
from bolide.transformers.data import Windows

SAMPLES = "samples_of_step"
"""The key of a saved state: how many samples an optimizer step of all processes had."""


class OtherStepError(ValueError):
    """A step of now would have other samples than one of the run that saved."""


def for_processes_of_now(own: dict[str, Any], owner: Any) -> dict[str, Any]:
    """The engine's own state as the processes of now go on from it, behind the samples that were trained on.

    Raises:
        OtherStepError: an optimizer step has another number of samples than when it was saved.
    """
    args = owner.args
    before, now = own.get(SAMPLES), owner.get_total_train_batch_size()
    if before != now:
        was = f"of {before} samples" if before is not None else "of a number of samples that it does not tell"
        raise OtherStepError(
            f"its steps are {was}, and those of now of {now}. Change per_device_train_batch_size or "
            f"gradient_accumulation_steps (they are {args.per_device_train_batch_size} and "
            f"{args.gradient_accumulation_steps}) so that it stays, or load the model from it and start a new run"
        )
    parts = own.get("ranks") or [{name: own[name] for name in PER_RANK}]
    data = _data_of_now(parts[0]["data"], own["progress"]["batch"], owner)
    ranks = [{**parts[i % len(parts)], "data": data, "gradients": None} for i in range(args.world_size)]
    info(
        f"The checkpoint was saved by {own.get('world_size', 1)} process(es), and there are {args.world_size}: its "
        "steps keep their samples; dropout draws other numbers from here on."
    )
    return {
        **own, **ranks[args.process_index], "ranks": ranks, "world_size": args.world_size,
        "data_size": args.world_size,
    }  # fmt: skip


def for_batches_of_now(own: dict[str, Any], owner: Any) -> dict[str, Any]:
    """The engine's own state as it goes on with batches of now: as many processes, maybe other windows of batches."""
    before, now = own.get(SAMPLES), owner.get_total_train_batch_size()
    data, steps = own["data"], own["progress"]["batch"]
    if before not in (None, now):
        warn(
            f"The checkpoint's optimizer steps were of {before} samples, and those of now are of {now}: training goes "
            f"on behind as many steps as were done, to the {owner.state.max_steps} of now, so that samples are trained "
            "on twice, or left out. Change per_device_train_batch_size or gradient_accumulation_steps so that a step "
            "keeps its samples."
        )
    if data is None or data["position"] is None or before != now:
        return own
    windowed, saved = isinstance(owner._engine_loader, Windows), data["position"]["readers"][0]
    place = saved.get("loader")
    was_windowed = isinstance(place, dict) and set(place) == {"reader", "taken"}
    if was_windowed == windowed:
        taken = steps * owner.args.gradient_accumulation_steps
        # the last window of an epoch may be short, and nothing follows it there
        if not windowed or own["progress"]["is_last_batch"] or place["taken"] == taken:
            return own
    parts = own.get("ranks") or []
    return {
        **own, "data": _data_of_now(data, steps, owner),
        "ranks": [{**part, "data": _data_of_now(part["data"], steps, owner)} for part in parts],
    }  # fmt: skip


def _data_of_now(data: dict[str, Any] | None, steps: int, owner: Any) -> dict[str, Any] | None:
    """The place in the data, behind so many steps of the epoch, as the loader of now takes it."""
    if data is None or data["position"] is None:
        return data
    loader: Any = owner._engine_loader
    saved = data["position"]["readers"][0]
    place = saved["loader"]["reader"] if saved.get("loader") is not None else saved  # that of the loader of batches
    place = {name: place[name] for name in ("at_iter", "at_first", "taken", "pooled")}
    reader = {**place, "taken": steps}
    if isinstance(loader, Windows):
        taken = steps * owner.args.gradient_accumulation_steps
        reader["at_iter"] = {**place["at_iter"], "own": generator_states(loader)}
        reader["loader"] = {"reader": {**place, "taken": taken}, "taken": taken}
    return {**data, "position": {"readers": [reader], "together": None}}

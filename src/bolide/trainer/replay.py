"""Computes a step of a run again, twice, and compares the bits: is it the machine, an operation, or the model?

Owns which checkpoint is started from, what is compared and what is said. Who calls: `Trainer.replay_step`.
"""

from __future__ import annotations

import copy
import hashlib
import warnings
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from bolide.callbacks.checkpoint import Checkpoint
from bolide.callbacks.lr_monitor import LearningRateMonitor
from bolide.callbacks.model_summary import ModelSummary
from bolide.callbacks.preemption import PreemptionWatch
from bolide.callbacks.progress import ProgressBar
from bolide.callbacks.step_record import StepRecord
from bolide.callbacks.timer import Timer
from bolide.checkpoint import io, store
from bolide.checkpoint.digest import About
from bolide.checkpoint.read import about_at, read_checkpoint
from bolide.core.config import RunConfig
from bolide.core.errors import CheckpointError, MisconfigurationException
from bolide.data.position import generator_states, set_generator_states
from bolide.monitor.goodput import GoodputMonitor
from bolide.seed import isolate_rng

LEFT_OUT = (
    Checkpoint, GoodputMonitor, LearningRateMonitor, ModelSummary, PreemptionWatch, ProgressBar, StepRecord, Timer,
)  # fmt: skip
"""Callbacks that have no part in what a step computes."""


@dataclass(frozen=True)
class Replay:
    """What became of computing a step again.

    Attributes:
        step: the optimizer step.
        checkpoint: the file that was started from.
        repeatable: whether computing it twice gave the same bits: losses, weights and optimizer state.
        same: whether those are the bits of the run itself; None where the run left nothing to compare with.
        compared_with: what was compared with: "the checkpoint of this step", "the recorded losses", or "".
        differs_at: the first batch whose loss is another one, counted from 1 over the whole run; or None.
        loss: the loss of the step's last batch.
        digest: SHA-256 of weights and optimizer state after the step.
    """

    step: int
    checkpoint: str
    repeatable: bool
    same: bool | None
    compared_with: str
    differs_at: int | None
    loss: float | None
    digest: str

    def __str__(self) -> str:
        loss = "" if self.loss is None else f", loss {self.loss:g}"
        text = f"Step {self.step}, computed twice from {self.checkpoint!r}{loss}: "
        place = "" if self.differs_at is None else f", from batch {self.differs_at} on"
        if not self.repeatable:
            return (
                f"{text}two results{place}. An operation is not deterministic, or the hardware is at fault. Write "
                "Trainer(deterministic=True) and replay again: if it still differs, try another machine."
            )
        if self.same is None:
            return (
                f"{text}one result, and the run left nothing to compare it with. Write "
                "Trainer(resilience={'replay': True}) to record its losses."
            )
        if self.same:
            return f"{text}the same bits as {self.compared_with}. Look at the model and its data, not at the machine."
        return (
            f"{text}one result, and other bits than {self.compared_with}{place}. The hardware was at fault then, or "
            "code, data or environment are not what they were."
        )


@dataclass(frozen=True)
class Attempt:
    """One computation: the losses by batch, and the digests after the step."""

    losses: dict[int, float]
    state: dict[str, str]


def replay_step(trainer: Any, step: int, module: Any, train: Any, val: Any, datamodule: Any, ckpt_path: Any) -> Replay:
    """Finds the checkpoint before `step`, computes up to it twice, and compares; see `Trainer.replay_step`."""
    if isinstance(step, bool) or not isinstance(step, int) or step < 1:
        raise MisconfigurationException(f"trainer.replay_step({step!r}) needs the number of an optimizer step, from 1")
    own_module = module is None
    if module is None:
        run = trainer._run
        if run is None or run.state.fn != "fit":
            raise MisconfigurationException(
                f"trainer.replay_step({step}) needs a module: write trainer.replay_step({step}, module, loader), or "
                "call it after trainer.fit"
            )
        module, train, val, datamodule = run.module, run.train_given, run.val.given, run.datamodule
    known = checkpoints(trainer)
    path = str(ckpt_path) if ckpt_path is not None else before(known, step)
    places = [(leaf, generator_states(leaf)) for leaf in tree_leaves([train, val])]
    first, second = (compute(trainer, step, module, train, val, datamodule, path) for _ in range(2))
    for leaf, states in places:
        set_generator_states(leaf, states)
    repeatable = first == second
    compared_with, same, differs_at = "", None, first_difference(first.losses, second.losses)
    if repeatable and (own_module or not lacks_weights(path, module)):
        compared_with, same, differs_at = compare(
            first, recorded(trainer, known), saved_at(known, step, max(first.losses, default=0))
        )
    loss = first.losses[max(first.losses)] if first.losses else None
    return Replay(step, path, repeatable, same, compared_with, differs_at, loss, digest_of(first.state))


# ---------------------------------------------------------------------- which checkpoint


def checkpoints(trainer: Any) -> dict[str, About]:
    """The files of this run that a fit can go on from, and what each says of itself.

    They lie in the folders of the trainer's checkpoint callbacks. In another process than the run's, the run is that of
    the youngest file.
    """
    found: dict[str, About] = {}
    for callback in trainer.checkpoint_callbacks:
        for path in store.checkpoints_in(str(getattr(callback, "dirpath", None) or "")):
            try:
                about = about_at(path)
            except CheckpointError:
                continue  # damaged: another one will do
            if about is not None and about.step is not None and not about.weights_only:
                found[path] = about
    if not found:
        return found
    run = trainer._run
    youngest = max(found, key=io.modified_s)
    run_id = run.run_id if run is not None and run.state.fn == "fit" else found[youngest].run_id
    return {path: about for path, about in found.items() if about.run_id == run_id}


def before(known: dict[str, About], step: int) -> str:
    """The newest one before `step`.

    Raises:
        MisconfigurationException: there is none.
    """
    earlier = {path: about for path, about in known.items() if _step(about) < step}
    if not earlier:
        steps = sorted({_step(about) for about in known.values()})
        there = f"there are those of step {', '.join(map(str, steps))}" if steps else "there is none"
        raise MisconfigurationException(
            f"trainer.replay_step({step}) needs a checkpoint from before that step; {there}. Keep more of them with "
            "ModelCheckpoint(every_n_train_steps=..., save_top_k=-1), or give one by ckpt_path=..."
        )
    return max(earlier, key=lambda path: (_step(earlier[path]), earlier[path].batches or 0, path))


def _step(about: About) -> int:
    return -1 if about.step is None else about.step


def lacks_weights(path: str, module: Any) -> bool:
    """Whether the file leaves out weights that the module has: whoever made the module decides those."""
    return not module.state_dict().keys() <= read_checkpoint(path)["state_dict"].keys()


def saved_at(known: dict[str, About], step: int, batches: int) -> dict[str, str] | None:
    """The digests of what the run itself saved right after the batch that ended `step`, or None.

    Files of the same step from later on do not count: batches of an open window, or what hooks did at an epoch's end,
    are in them.
    """
    for path, about in sorted(known.items()):
        if _step(about) == step and about.batches == batches:
            checkpoint = read_checkpoint(path)
            if (checkpoint["bolide"].get("boundary") or {}).get("kind") == "batch":
                return digests(checkpoint["state_dict"], checkpoint["optimizer_states"])
    return None


def recorded(trainer: Any, known: dict[str, About]) -> dict[int, float]:
    """The losses that the run recorded: those of the trainer, else of its newest checkpoint."""
    for callback in trainer.callbacks:
        if isinstance(callback, StepRecord) and callback.losses():
            return callback.losses()
    for path in sorted(known, key=lambda path: known[path].batches or 0, reverse=True):
        state = read_checkpoint(path)["callbacks"].get(StepRecord().state_key)
        if state is not None:
            record = StepRecord()
            record.load_state_dict(state)
            return record.losses()
    return {}


# ---------------------------------------------------------------------- computing


def compute(trainer: Any, step: int, module: Any, train: Any, val: Any, datamodule: Any, path: str) -> Attempt:
    """Goes on from `path` up to `step`, with copies of module and callbacks; nothing is logged or saved.

    Raises:
        MisconfigurationException: the run ended before `step`.
    """
    callbacks = [one for one in trainer.callbacks if not isinstance(one, LEFT_OUT)]
    record = StepRecord()
    with isolate_rng(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The checkpoint holds the state of callbacks")  # of those left out
        made = type(trainer)(**{
            **{field.name: getattr(trainer.config, field.name) for field in fields(RunConfig)},
            "logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False,
            "callbacks": [*copied(callbacks), record], "num_sanity_val_steps": 0,
            "max_epochs": trainer.max_epochs, "max_steps": trainer.max_steps, "max_time": None,
        })  # fmt: skip
        (module,), datamodule = copied([module]), copy.copy(datamodule)
        reached, start = 0, None
        steps = made.steps(module, train, val, datamodule, ckpt_path=path)
        for progress in steps:
            reached = progress.step
            start = progress.total_batches if start is None else start
            if reached >= step:
                state = digests(made.strategy.state(), [one.state_dict() for one in made.optimizers])
                steps.close()
                return Attempt({at: loss for at, loss in record.losses().items() if at >= start}, state)
    raise MisconfigurationException(
        f"trainer.replay_step({step}): going on from {path!r}, the run ended at step {reached}. The step must be one "
        "that this trainer's limits (max_epochs, max_steps) allow"
    )


def copied(originals: list[Any]) -> list[Any]:
    """Copies, which share what the originals share.

    Raises:
        MisconfigurationException: one of them holds what cannot be copied.
    """
    known: dict[int, Any] = {}
    copies = []
    for one in originals:
        try:
            copies.append(copy.deepcopy(one, known))
        except (TypeError, RuntimeError) as error:  # locks, open files; tensors within a graph
            raise MisconfigurationException(
                f"trainer.replay_step computes with a copy, and {type(one).__name__} cannot be copied: {error}. Give "
                "the class a __deepcopy__, or keep such objects out of it"
            ) from error
    return copies


def compare(
    attempt: Attempt, losses: dict[int, float], saved: dict[str, str] | None
) -> tuple[str, bool | None, int | None]:
    """What there was to compare with, whether it is the same, and the first batch that is not."""
    differs_at = first_difference(attempt.losses, losses)
    if saved is not None:
        both = saved.keys() & attempt.state.keys()
        alike = all(saved[key] == attempt.state[key] for key in both)
        return "the checkpoint of this step", alike and differs_at is None, differs_at
    if attempt.losses.keys() & losses.keys():
        return "the recorded losses", differs_at is None, differs_at
    return "", None, None


def first_difference(one: dict[int, float], other: dict[int, float]) -> int | None:
    """The first batch that both have and whose losses differ; NaN is equal to NaN."""
    both = sorted(one.keys() & other.keys())
    return next(
        (at for at in both if one[at] != other[at] and not (one[at] != one[at] and other[at] != other[at])), None
    )


def digests(weights: dict[str, Any], optimizers: list[Any]) -> dict[str, str]:
    """SHA-256 of each tensor's bytes, by its place."""
    found: dict[str, str] = {}

    def walk(value: Any, place: str) -> None:
        if isinstance(value, torch.Tensor):
            raw = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
            found[place] = hashlib.sha256(raw).hexdigest()
        elif isinstance(value, dict):
            for key, item in value.items():
                walk(item, f"{place}.{key}")
        elif isinstance(value, (list, tuple)):
            for i, item in enumerate(value):
                walk(item, f"{place}.{i}")

    walk(weights, "weights")
    walk(optimizers, "optimizers")
    return found


def digest_of(state: dict[str, str]) -> str:
    """One digest of all."""
    return hashlib.sha256("\n".join(f"{place} {state[place]}" for place in sorted(state)).encode()).hexdigest()

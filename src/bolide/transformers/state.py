"""The record of a run and the flags of its flow, as callbacks see them.

Where transformers is installed these are its own classes, so that callbacks written for it, and isinstance, hold;
else the ones below, with the same fields. Who reads them: everything of the second door.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields
from typing import Any, NamedTuple

from bolide.checkpoint import io

EVENTS = (
    "on_init_end", "on_train_begin", "on_train_end", "on_epoch_begin", "on_epoch_end", "on_step_begin",
    "on_pre_optimizer_step", "on_optimizer_step", "on_substep_end", "on_step_end", "on_evaluate", "on_predict",
    "on_save", "on_log", "on_prediction_step", "on_push_begin",
)  # fmt: skip
"""What callbacks are told of."""


def has_transformers() -> bool:
    """Whether transformers is installed."""
    try:
        return importlib.util.find_spec("transformers") is not None
    except ValueError:  # a stand-in without a spec was put into sys.modules
        return False


class _Callback:
    """Hears the events of a run: `on_train_begin`, `on_step_end`, ... Each is given (args, state, control, **more).

    A subclass overrides those that it wants, and may change `control`; what it returns, if anything, replaces it.
    """


def _no_event(self: Any, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
    """Does nothing."""


for _event in EVENTS:
    setattr(_Callback, _event, _no_event)


@dataclass
class _Control:
    """What callbacks ask for. The last three are taken back before each step."""

    should_training_stop: bool = False
    should_epoch_stop: bool = False
    should_save: bool = False
    should_evaluate: bool = False
    should_log: bool = False

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps of it."""
        return {"args": asdict(self), "attributes": {}}


@dataclass
class _State:
    """Where a run stands; written to trainer_state.json with each checkpoint."""

    epoch: float | None = None
    global_step: int = 0
    max_steps: int = 0
    logging_steps: int = 500
    eval_steps: int = 500
    save_steps: int = 500
    train_batch_size: int | None = None
    num_train_epochs: int = 0
    num_input_tokens_seen: int = 0
    total_flos: float = 0
    log_history: list[dict[str, float]] = field(default_factory=list)
    best_metric: float | None = None
    best_global_step: int | None = None
    best_model_checkpoint: str | None = None
    is_local_process_zero: bool = True
    is_world_process_zero: bool = True
    is_hyper_param_search: bool = False
    trial_name: str | None = None
    trial_params: dict[str, Any] | None = None
    stateful_callbacks: Any = None

    def save_to_json(self, json_path: str) -> None:
        """Writes the record to a file."""
        save_state(self, json_path)

    @classmethod
    def load_from_json(cls, json_path: str) -> _State:
        """Reads the record of a file."""
        found = read_state(json_path)
        return cls(**{f.name: found[f.name] for f in fields(cls) if f.name in found})


class _Exportable:
    """Mixed into a callback whose state a checkpoint keeps: `state` gives it as {"args": ..., "attributes": ...}."""

    def state(self) -> dict[str, Any]:
        """What is kept: arguments to make the callback of, and what it has counted."""
        raise NotImplementedError(f"{type(self).__name__} derives from ExportableState: write its state()")

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Any:
        """A callback of what `state` gave."""
        made = cls(**state["args"])
        for name, value in state["attributes"].items():
            setattr(made, name, value)
        return made


class _Prediction:
    """What compute_metrics is given: predictions and labels, and inputs and losses where they were asked for.

    Unpacks as (predictions, label_ids) and what else there is.
    """

    def __init__(self, predictions: Any, label_ids: Any, inputs: Any = None, losses: Any = None) -> None:
        self.predictions, self.label_ids, self.inputs, self.losses = predictions, label_ids, inputs, losses

    def _parts(self) -> list[Any]:
        more = [part for part in (self.inputs, self.losses) if part is not None]
        return [self.predictions, self.label_ids, *more]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._parts())

    def __getitem__(self, i: int) -> Any:
        return self._parts()[i]


TrainerCallback: Any = _Callback
TrainerControl: Any = _Control
TrainerState: Any = _State
EvalPrediction: Any = _Prediction
ExportableState: Any = _Exportable
if has_transformers():
    import transformers.trainer_callback as their_callbacks
    import transformers.trainer_utils as their_utils

    TrainerCallback = their_callbacks.TrainerCallback
    TrainerControl, TrainerState = their_callbacks.TrainerControl, their_callbacks.TrainerState
    EvalPrediction = their_utils.EvalPrediction
    ExportableState = their_callbacks.ExportableState


class TrainOutput(NamedTuple):
    """What `train` returns: steps done, the mean loss of the steps of this call, and the figures of the run."""

    global_step: int
    training_loss: float
    metrics: dict[str, float]


class PredictionOutput(NamedTuple):
    """What `predict` returns: numpy arrays (or None), and the metrics."""

    predictions: Any
    label_ids: Any
    metrics: dict[str, float]


class EvalLoopOutput(NamedTuple):
    """What `evaluation_loop` returns."""

    predictions: Any
    label_ids: Any
    metrics: dict[str, float] | None
    num_samples: int | None


class BestRun(NamedTuple):
    """The best trial of a search.

    Attributes:
        run_id: the trial's number, as text.
        objective: its value, or values.
        hyperparameters: what the search chose.
        run_summary: the study.
        metrics: its last evaluation.
        history: everything it logged.
        checkpoint: the folder of its best checkpoint, or None where nothing was saved.
    """

    run_id: str
    objective: float | list[float]
    hyperparameters: dict[str, Any]
    run_summary: Any = None
    metrics: dict[str, float] | None = None
    history: list[dict[str, float]] | None = None
    checkpoint: str | None = None


# ---------------------------------------------------------------------- files


def save_state(state: Any, path: str) -> None:
    """Writes a record as JSON, keys sorted, wholly or not at all."""
    text = json.dumps(asdict(state), indent=2, sort_keys=True, default=_plain) + "\n"
    io.write_atomically(path, lambda file: file.write(text.encode()))


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()  # of an array its entries, of a number that number
    return str(value)


def read_state(path: str) -> dict[str, Any]:
    """The fields of a record's file, as they stand there."""
    found = json.loads(io.read_bytes(path))
    if not isinstance(found, dict):
        raise ValueError(f"{path!r} holds no record of a run")
    return found


def exported(callbacks: list[Any], control: Any) -> dict[str, Any]:
    """What callbacks with a `state()` keep, by class name; several of one class as a list."""
    found: dict[str, Any] = {}
    for item in [control, *callbacks]:
        own = getattr(item, "state", None)
        if not callable(own):
            continue
        name, value = type(item).__name__, own()
        if name in found:
            found[name] = [*(found[name] if isinstance(found[name], list) else [found[name]]), value]
        else:
            found[name] = value
    return found


def imported(callbacks: list[Any], saved: Any) -> None:
    """Gives callbacks back what `exported` took, in order."""
    if not isinstance(saved, dict):
        return
    taken: dict[str, int] = {}
    for item in callbacks:
        name = type(item).__name__
        if not callable(getattr(item, "state", None)) or name not in saved:
            continue
        entries = saved[name] if isinstance(saved[name], list) else [saved[name]]
        place = taken.get(name, 0)
        taken[name] = place + 1
        if place < len(entries):
            for attribute, value in (entries[place].get("attributes") or {}).items():
                setattr(item, attribute, value)

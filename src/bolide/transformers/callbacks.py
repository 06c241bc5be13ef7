"""The callbacks of the second door: who hears which event, and the ones that come with it.

`CallbackHandler` keeps the list and tells events to those that override them. `DefaultFlowCallback` decides when to
log, evaluate, save and stop. Who calls: the trainer and its adapter.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

from tqdm import tqdm

from bolide.callbacks.checkpoint import Rest
from bolide.core.errors import ConfigError
from bolide.core.messages import warn
from bolide.trainer.settings import WatchedList
from bolide.transformers.state import EVENTS, ExportableState, TrainerCallback

Hear = Callable[..., Any]

TAKEN_BACK = {
    "on_train_begin": ("should_training_stop",), "on_epoch_begin": ("should_epoch_stop",),
    "on_step_begin": ("should_log", "should_evaluate", "should_save"), "on_log": ("should_log",),
    "on_evaluate": ("should_evaluate",), "on_save": ("should_save",),
}  # fmt: skip
"""Wishes that are over once a script tells of an event by its method."""


class Given:
    """An entry of what callbacks are given, as an attribute of their handler: the one in `more`."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, handler: Any, kind: Any = None) -> Any:
        return self if handler is None else handler.more.get(self.name)

    def __set__(self, handler: Any, value: Any) -> None:
        handler.more[self.name] = value


class CallbackHandler:
    """The callbacks in their order, and what each is given with an event.

    `callbacks` may be changed at any time. `more` holds what goes to every event: model, optimizer, loaders. `rest` is
    until when nobody needs to hear that a step is over. Each event is a method, too, for scripts that tell of one
    themselves: `self.control = self.callback_handler.on_log(self.args, self.state, self.control, logs)`.
    """

    model, processing_class, optimizer, lr_scheduler = Given(), Given(), Given(), Given()
    train_dataloader, eval_dataloader = Given(), Given()

    def __init__(self, callbacks: Iterable[Any], **more: Any) -> None:
        self._heard: dict[str, tuple[Hear, ...]] = {}
        self.rest = Rest()
        self._callbacks: list[Any] = WatchedList([], self._changed)
        self.more = more
        for callback in callbacks:
            self.add_callback(callback)

    def __getstate__(self) -> dict[str, Any]:
        return {"callbacks": list(self.callbacks), "more": self.more}

    def __setstate__(self, state: dict[str, Any]) -> None:  # a copy watches a list of its own
        self._heard, self.rest, self.more = {}, Rest(), state["more"]
        self._callbacks = WatchedList(state["callbacks"], self._changed)

    @property
    def callbacks(self) -> list[Any]:
        """Who hears the events, in order; may be changed, and set to another list."""
        return self._callbacks

    @callbacks.setter
    def callbacks(self, callbacks: Iterable[Any]) -> None:
        self._callbacks = WatchedList(callbacks, self._changed)
        self._changed()

    def _changed(self) -> None:
        self._heard.clear()
        self.rest.until = 0

    @property
    def hears_within_steps(self) -> bool:
        """Whether anybody hears an event within a step."""
        within = ("on_step_begin", "on_substep_end", "on_pre_optimizer_step", "on_optimizer_step")
        return any(self.listeners(event) for event in within)

    def look_ahead(self, args: Any, state: Any) -> None:
        """Finds the next step whose end somebody must hear of: those that come with the trainer say so themselves."""
        step = state.global_step
        found = [state.max_steps]
        for hear in self.listeners("on_step_end"):
            callback = getattr(hear, "__self__", None)
            known = type(callback).__dict__.get("next_step")
            found.append(known(callback, args, state) if known is not None else step + 1)
        self.rest.until = max(step + 1, min(found))

    def add_callback(self, callback: Any) -> None:
        """Adds a callback, or one made from a class; a second of the same class is told of, and added all the same."""
        made = callback() if isinstance(callback, type) else callback
        if not isinstance(made, LoggerCallback) and any(type(made) is type(known) for known in self.callbacks):
            warn(f"There are two callbacks of the class {type(made).__name__} now; both hear every event.")
        self.callbacks.append(made)

    @property
    def loggers(self) -> list[LoggerCallback]:
        """The callbacks that write a history with loggers of Bolide's."""
        return [callback for callback in self.callbacks if isinstance(callback, LoggerCallback)]

    def find(self, callback: Any) -> Any:
        """The callback itself, or the first of a class; None where there is none.

        A class of transformers stands for the one of the same name here.
        """
        for known in self.callbacks:
            if isinstance(callback, type):
                if isinstance(known, callback) or type(known).__name__ == callback.__name__:
                    return known
            elif known is callback:
                return known
        return None

    def pop_callback(self, callback: Any) -> Any:
        """Removes a callback, named by itself or its class, and returns it; None where there is none."""
        found = self.find(callback)
        if found is not None:
            self.callbacks.remove(found)
        return found

    remove_callback = pop_callback

    @property
    def callback_list(self) -> str:
        """The classes of the callbacks, one a line."""
        return "\n".join(type(callback).__name__ for callback in self.callbacks)

    def listeners(self, event: str) -> tuple[Hear, ...]:
        """The bound methods of those that override `event`, in order."""
        found = self._heard.get(event)
        if found is None:
            nothing = getattr(TrainerCallback, event, None)
            found = tuple(
                getattr(callback, event) for callback in self.callbacks
                if getattr(type(callback), event, nothing) is not nothing or event in vars(callback)
            )  # fmt: skip
            self._heard[event] = found
        return found

    def tell(self, event: str, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        """Tells an event to all that hear it; returns the control that holds from then on."""
        for hear in self.listeners(event):
            answer = hear(args, state, control, **self.more, **kwargs)
            control = control if answer is None else answer
        return control

    def call_event(self, event: str, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        """`tell`, by the name that scripts know."""
        return self.tell(event, args, state, control, **kwargs)


def _method(event: str) -> Hear:
    """The handler's method of an event."""
    flags = TAKEN_BACK.get(event, ())

    def told(self: CallbackHandler, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        for flag in flags:
            setattr(control, flag, False)
        return self.tell(event, args, state, control, **kwargs)

    def with_logs(self: CallbackHandler, args: Any, state: Any, control: Any, logs: Any, **kwargs: Any) -> Any:
        return told(self, args, state, control, logs=logs, **kwargs)

    def with_metrics(self: CallbackHandler, args: Any, state: Any, control: Any, metrics: Any, **kwargs: Any) -> Any:
        return told(self, args, state, control, metrics=metrics, **kwargs)

    named: dict[str, Hear] = {"on_log": with_logs, "on_evaluate": with_metrics, "on_predict": with_metrics}
    found = named.get(event, told)
    found.__name__, found.__doc__ = event, f"Tells of {event}; returns the control that holds from then on."
    return found


for _event in EVENTS:
    setattr(CallbackHandler, _event, _method(_event))


def refuse_unknown(callbacks: Any) -> list[str]:
    """What is wrong with a list of callbacks: things that hear no event."""
    if not isinstance(callbacks, Iterable):
        return [f"callbacks is one {type(callbacks).__name__}; give a list of them: callbacks=[...]"]
    wrong = []
    for item in callbacks:
        kind = item if isinstance(item, type) else type(item)
        if not any(callable(getattr(kind, event, None)) for event in EVENTS):
            wrong.append(
                f"callbacks holds {item!r}, which hears no event; derive it from TrainerCallback "
                "(bolide.callbacks are for the first door's Trainer)"
            )
    return wrong


class DefaultFlowCallback(TrainerCallback):
    """Decides when to log, evaluate and save, and that training ends at the last step."""

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        """Looks at the steps."""
        step = state.global_step
        if args.logging_strategy == "steps" and step % state.logging_steps == 0:
            control.should_log = True
        if step == 1 and args.logging_first_step:
            control.should_log = True
        if args.eval_strategy == "steps" and step % state.eval_steps == 0 and args.eval_delay <= step:
            control.should_evaluate = True
        if args.save_strategy == "steps" and step % state.save_steps == 0:
            control.should_save = True
        if step >= state.max_steps:
            control.should_training_stop = True
            if args.save_strategy == "steps":
                control.should_save = True
            if args.eval_strategy == "steps":
                control.should_evaluate = True

    def next_step(self, args: Any, state: Any) -> int:
        """The next step at which something may be due."""
        step = state.global_step
        found = [state.max_steps]
        if args.logging_first_step:
            found.append(max(step, 0) + 1 if step < 1 else state.max_steps)
        for name in ("logging", "eval", "save"):
            if getattr(args, f"{name}_strategy") == "steps":
                every = getattr(state, f"{name}_steps")
                found.append((step // every + 1) * every)
        return int(min(found))

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        """Looks at the epochs."""
        if args.logging_strategy == "epoch":
            control.should_log = True
        if args.eval_strategy == "epoch" and args.eval_delay <= state.epoch:
            control.should_evaluate = True
        if args.save_strategy == "epoch":
            control.should_save = True


class ProgressCallback(TrainerCallback):
    """A bar over the steps, one over an evaluation, and what is logged printed above them."""

    def __init__(self, max_str_len: int = 100) -> None:
        self.training_bar: Any = None
        self.shown_s = self.written_s = 0.0
        self.stride = 1
        self.prediction_bar: Any = None
        self.max_str_len = max_str_len

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        """Opens the bar."""
        if state.is_world_process_zero:
            self.training_bar = tqdm(
                total=state.max_steps, initial=state.global_step, dynamic_ncols=True, file=sys.stderr
            )

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        """Moves it on."""
        if self.training_bar is not None:
            self.training_bar.update(state.global_step - self.training_bar.n)

    def next_step(self, args: Any, state: Any) -> int:
        """The step at which the bar moves next: about ten times a second."""
        now_s = time.monotonic()
        passed_s, self.shown_s = now_s - self.shown_s, now_s
        self.stride = min(self.stride * 2, 1000) if passed_s < REFRESH_S else max(1, self.stride // 2)
        return int(state.global_step + self.stride)

    def on_prediction_step(
        self, args: Any, state: Any, control: Any, eval_dataloader: Any = None, **kwargs: Any
    ) -> Any:
        """Moves the bar of an evaluation on."""
        if not state.is_world_process_zero:
            return
        if self.prediction_bar is None:
            total = len(eval_dataloader) if hasattr(type(eval_dataloader), "__len__") else None
            self.prediction_bar = tqdm(
                total=total, leave=self.training_bar is None, dynamic_ncols=True, file=sys.stderr
            )
        self.prediction_bar.update()

    def _close_eval(self) -> None:
        if self.prediction_bar is not None:
            self.prediction_bar.close()
            self.prediction_bar = None

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        """Closes the evaluation's bar."""
        self._close_eval()

    on_predict = on_evaluate

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> Any:
        """Prints what is logged above the bar, which is drawn again at once, or at its next move where that is near."""
        if self.training_bar is None or not logs:
            return
        values = {key: _short(value) for key, value in logs.items() if key != "total_flos"}
        text, now_s = str(values)[: 100 * self.max_str_len], time.monotonic()
        if now_s - self.written_s < REFRESH_S:
            self.training_bar.clear()
            print(text, file=sys.stdout)
            return
        self.written_s = now_s
        self.training_bar.write(text, file=sys.stdout)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        """Closes the bar."""
        self._close_eval()
        if self.training_bar is not None:
            self.training_bar.update(state.global_step - self.training_bar.n)
            self.training_bar.close()
            self.training_bar = None


def _short(value: Any) -> Any:
    return float(f"{value:.4g}") if isinstance(value, float) else value


class PrinterCallback(TrainerCallback):
    """Prints what is logged, where there is no bar."""

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> Any:
        """Prints it."""
        if state.is_local_process_zero and logs:
            print({key: value for key, value in logs.items() if key != "total_flos"})


class EarlyStoppingCallback(TrainerCallback, ExportableState):
    """Stops when the metric has not become better by more than a threshold in so many evaluations.

    Its count survives an interruption.

    Args:
        early_stopping_patience: evaluations without an improvement after which training stops.
        early_stopping_threshold: by how much the metric must become better.
    """

    def __init__(self, early_stopping_patience: int = 1, early_stopping_threshold: float | None = 0.0) -> None:
        self.early_stopping_patience = early_stopping_patience
        self.early_stopping_threshold = early_stopping_threshold
        self.early_stopping_patience_counter = 0

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps of it."""
        return {
            "args": {
                "early_stopping_patience": self.early_stopping_patience,
                "early_stopping_threshold": self.early_stopping_threshold,
            },
            "attributes": {"early_stopping_patience_counter": self.early_stopping_patience_counter},
        }

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        """Checks that there is something to look at."""
        wrong = []
        if args.eval_strategy == "no":
            wrong.append("EarlyStoppingCallback needs evaluations: write eval_strategy='epoch' or 'steps'")
        if args.metric_for_best_model is None:
            wrong.append("EarlyStoppingCallback needs a metric: write metric_for_best_model='loss', for example")
        if wrong:
            raise ConfigError(wrong)

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **kwargs: Any) -> Any:
        """Looks at the metric, and stops where it has been no better for too long."""
        name = args.metric_for_best_model
        name = name if name.startswith("eval_") else f"eval_{name}"
        value = (metrics or {}).get(name)
        if value is None:
            warn(f"EarlyStoppingCallback looks at {name!r}, which this evaluation did not give; it does not count.")
            return
        self.check_metric_value(args, state, control, value)
        if self.early_stopping_patience_counter >= self.early_stopping_patience:
            control.should_training_stop = True

    def check_metric_value(self, args: Any, state: Any, control: Any, metric_value: float) -> None:
        """Compares a value with the best so far, and counts."""
        best, least = state.best_metric, self.early_stopping_threshold or 0.0
        greater = bool(args.greater_is_better)
        better = best is None or (
            (metric_value > best if greater else metric_value < best) and abs(metric_value - best) > least
        )
        self.early_stopping_patience_counter = 0 if better else self.early_stopping_patience_counter + 1


class LoggerCallback(TrainerCallback):
    """Hands what is logged to a logger of Bolide's, under the names that trackers know: train/..., eval/...

    Args:
        make: (args, the folder below output_dir in which the history so far lies, or None) -> the logger.
    """

    def __init__(self, make: Callable[[Any, str | None], Any]) -> None:
        self.make = make
        self.logger: Any = None
        self.then: dict[str, Any] = {}

    def position(self, args: Any) -> dict[str, Any]:
        """Where the history stands, and its folder below output_dir; empty where this process writes none."""
        found = self.logger.position() if self.logger is not None else {}
        return {"folder": os.path.relpath(self.logger.log_dir, args.output_dir), "at": found} if found else {}

    def go_on(self, position: dict[str, Any]) -> None:
        """Training goes on from a checkpoint that was saved at `position`: what was logged later goes."""
        self.then = position

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> Any:
        """Opens the logger, and gives it the settings."""
        if not state.is_world_process_zero:
            return
        then, self.then = self.then, {}
        if self.logger is None:
            self.logger = self.make(args, then.get("folder"))
        if then and os.path.relpath(self.logger.log_dir, args.output_dir) == then["folder"]:
            self.logger.go_on(then["at"])
            return  # the settings are there already
        writer: Any = getattr(self.logger, "experiment", None)
        if hasattr(writer, "add_text"):
            writer.add_text("args", args.to_json_string())
            config: Any = getattr(model, "config", None)
            if hasattr(config, "to_json_string"):
                writer.add_text("model_config", config.to_json_string())

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> Any:
        """Hands it on."""
        if not state.is_world_process_zero:
            return
        if self.logger is None:  # an evaluation without training
            self.logger = self.make(args, None)
        numbers = {key: float(value) for key, value in (logs or {}).items() if isinstance(value, (int, float))}
        self.logger.log_metrics({tracker_name(key): value for key, value in numbers.items()}, state.global_step)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        """Writes out what is buffered."""
        if self.logger is not None:
            self.logger.save()
            self.logger.finalize("success")


def tracker_name(key: str) -> str:
    """A logged name as trackers know it."""
    for prefix in ("eval", "test"):
        if key.startswith(f"{prefix}_"):
            return f"{prefix}/{key[len(prefix) + 1 :]}"
    return f"train/{key}"


REFRESH_S = 0.1
"""How often a bar moves, about."""

DEFAULT_CALLBACKS = [DefaultFlowCallback]
DEFAULT_PROGRESS_CALLBACK = ProgressCallback

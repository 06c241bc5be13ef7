"""What a conformance script records: hook trace, metrics, weights, values.

Owns `Record`, which a script uses to build traced modules, callbacks, loggers, data modules and trainers. It compares
nothing (see `compare.py`) and knows no script. Used by every `scripts_*.py`.
"""

from __future__ import annotations

import importlib
import inspect
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

_STEP_HOOKS = ("training_step", "validation_step", "test_step", "predict_step")
_SHARED_HOOKS = tuple(
    """setup teardown on_fit_start on_fit_end on_train_start on_train_end on_train_epoch_start on_train_epoch_end
    on_train_batch_start on_train_batch_end on_validation_start on_validation_end on_validation_epoch_start
    on_validation_epoch_end on_validation_batch_start on_validation_batch_end on_test_start on_test_end
    on_test_epoch_start on_test_epoch_end on_test_batch_start on_test_batch_end on_predict_start on_predict_end
    on_predict_epoch_start on_predict_epoch_end on_predict_batch_start on_predict_batch_end on_before_backward
    on_after_backward on_before_optimizer_step on_before_zero_grad on_save_checkpoint on_load_checkpoint state_dict
    load_state_dict""".split()
)
_TRANSFER_HOOKS = ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer")
_LOADER_HOOKS = ("train_dataloader", "val_dataloader", "test_dataloader", "predict_dataloader")
_MODULE_HOOKS = (
    *_SHARED_HOOKS,
    *_STEP_HOOKS,
    *_TRANSFER_HOOKS,
    *_LOADER_HOOKS,
    *"""configure_callbacks configure_model configure_optimizers prepare_data on_validation_model_eval
    on_validation_model_zero_grad on_test_model_eval on_predict_model_eval backward optimizer_zero_grad optimizer_step
    lr_scheduler_step configure_gradient_clipping clip_gradients zero_grad""".split(),
)
_CALLBACK_HOOKS = (*_SHARED_HOOKS, "on_sanity_check_start", "on_sanity_check_end", "on_exception")
_DATA_HOOKS = (
    *_TRANSFER_HOOKS,
    *_LOADER_HOOKS,
    *"prepare_data setup teardown state_dict load_state_dict on_exception".split(),
)
_SNAPSHOT_AFTER = ("_batch_end", "_epoch_end", "_end")


def describe(value: Any, depth: int = 0) -> str:
    """A text that is equal on both sides exactly when the values mean the same to a user."""
    value = getattr(value, "value", value) if isinstance(value, str) else value
    if value is None or isinstance(value, (bool, int, str)):
        return repr(value)
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, torch.Tensor):
        flags = f"{' grad_fn' if value.grad_fn is not None else ''}{' inference' if value.is_inference() else ''}"
        content = value.detach().double().sum().item()
        return f"tensor({content!r} {list(value.shape)} {str(value.dtype)[6:]}{flags})"
    if isinstance(value, Mapping):
        if "state_dict" in value and "global_step" in value:
            names = sorted(name for name in value if not str(name).startswith("bolide"))
            return f"checkpoint(epoch={value['epoch']} global_step={value['global_step']} {' '.join(names)})"
        if depth > 1:
            return f"mapping of {len(value)}"
        return "{" + ", ".join(f"{name}: {describe(item, depth + 1)}" for name, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        if hasattr(value, "missing_keys"):
            return "keys"
        return type(value).__name__ + "[" + ", ".join(describe(item, depth + 1) for item in value) + "]"
    if isinstance(value, torch.device):
        return str(value)
    if hasattr(value, "param_groups"):
        wrapped = getattr(value, "optimizer", value)
        name = type(wrapped).__name__
        name = "no optimizer" if name in ("_MockOptimizer", "NoOptimizer") else name
        return name if wrapped is value else f"wrapped {name}"
    if inspect.isfunction(value) or inspect.ismethod(value):
        return "function"
    if isinstance(value, BaseException):
        return type(value).__name__
    return "closure" if type(value).__name__ == "Closure" else type(value).__name__


def _bound(signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """The arguments in the order of the signature, however they were passed; the closure by its role."""
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()
    texts = []
    for name, value in list(bound.arguments.items())[1:]:
        if name == "optimizer_closure":
            texts.append("closure" if callable(value) else repr(value))
        elif isinstance(value, torch.nn.Module) or (name in ("trainer", "args", "kwargs", "destination") or not name):
            continue
        else:
            texts.append(describe(value))
    return ", ".join(texts)


def _attempt(read: Callable[[], Any]) -> str:
    try:
        return str(read())
    except Exception as error:  # what a property raises at that point is part of the trace
        return type(error).__name__


class Record:
    """One side's recording of one script.

    Attributes:
        trace: the lines of the hook trace.
        metrics: label, step, metrics: what loggers got and what the three metric dictionaries held.
        values: what the script recorded by name.
        modules: every module that was built with `module()`, in order.
    """

    def __init__(self, pl: ModuleType, mode: str, out_dir: Path) -> None:
        self.pl = pl
        self.mode = mode
        self.out_dir = out_dir
        self.trace: list[str] = []
        self.metrics: list[tuple[str, int | None, dict[str, Any]]] = []
        self.values: dict[str, Any] = {}
        self.modules: list[torch.nn.Module] = []
        self.trainers: list[Any] = []
        self._depth = 0
        self._trainer: Any = None
        self._module: torch.nn.Module | None = None

    # -- what a script builds ------------------------------------------------------------------------------------

    def part(self, name: str) -> Any:
        """`part("callbacks")` is `lightning.pytorch.callbacks` or `bolide.callbacks`."""
        return importlib.import_module(f"{self.pl.__name__}.{name}")

    def trainer(self, *callbacks: Any, trace_callback: Any = None, logger: Any = True, **arguments: Any) -> Any:
        """A Trainer on the CPU, without bars; checkpoints only where asked. The trace callback comes first.

        `logger=True` is the recording logger; pass anything else as the Trainer takes it.
        """
        defaults: dict[str, Any] = {
            "accelerator": "cpu",
            "devices": 1,
            "max_epochs": 2,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "enable_checkpointing": any(callback.__class__.__name__ == "ModelCheckpoint" for callback in callbacks),
            "log_every_n_steps": 1,
            "default_root_dir": str(self.out_dir),
        }
        if self.pl.__name__ == "bolide":
            defaults["compat"] = "lightning"
        chosen = list(callbacks)
        if trace_callback is not None:
            chosen.insert(0, trace_callback)
        elif self.mode != "bare":
            chosen.insert(0, self.callback())
        trainer = self.pl.Trainer(
            callbacks=chosen, logger=self.logger() if logger is True else logger, **{**defaults, **arguments}
        )
        self.trainers.append(trainer)
        self._trainer = trainer
        return trainer

    def module(self, module_class: type, *args: Any, **kwargs: Any) -> Any:
        """Builds the module, traced as the mode says. Its final weights are compared."""
        built = self.traced(module_class)(*args, **kwargs)
        self.modules.append(built)
        self._module = built
        return built

    def traced(self, module_class: type) -> type:
        """The class with every hook overridden to record itself and call on."""
        if self.mode == "bare":
            return module_class
        left_out = {"optimizer_step"} if self.mode == "plain" else set()
        return self._subclass(module_class, "module", [hook for hook in _MODULE_HOOKS if hook not in left_out])

    def datamodule(self, datamodule_class: type, *args: Any, **kwargs: Any) -> Any:
        if self.mode == "bare":
            return datamodule_class(*args, **kwargs)
        return self._subclass(datamodule_class, "datamodule", list(_DATA_HOOKS))(*args, **kwargs)

    def callback(self, name: str = "callback", state: dict[str, Any] | None = None, **actions: Any) -> Any:
        """A callback that records every hook; `actions` are functions called in place of the named hooks.

        In mode `bare` it has only the actions.
        """
        base = self.pl.Callback
        namespace: dict[str, Any] = dict(actions)
        if state is not None:
            namespace["state_dict"] = lambda self: dict(state)
        acting = type(name, (base,), namespace)
        if self.mode == "bare":
            return acting()
        return self._subclass(acting, name, list(_CALLBACK_HOOKS))()

    def logger(self) -> Any:
        """A logger that records every call."""
        record = self

        class RecordingLogger(self.part("loggers").Logger):  # type: ignore[misc]
            @property
            def name(self) -> str:
                return "recording"

            @property
            def version(self) -> int:
                return 0

            @property
            def experiment(self) -> None:
                return None

            def log_hyperparams(self, params: Any = None, *args: Any, **kwargs: Any) -> None:
                names = sorted(params if isinstance(params, Mapping) else vars(params))
                record.note(f"logger.log_hyperparams {names}")

            def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
                record.note(f"logger.log_metrics step={step} {sorted(metrics)} {sorted(map(_kind, metrics.values()))}")
                record.metrics.append(("logger", step, dict(metrics)))

            def log_graph(self, *args: Any, **kwargs: Any) -> None:
                record.note("logger.log_graph")

            def save(self) -> None:
                record.note("logger.save")

            def finalize(self, status: str) -> None:
                record.note(f"logger.finalize {status}")

            def after_save_checkpoint(self, checkpoint_callback: Any) -> None:
                record.note(f"logger.after_save_checkpoint {os.path.basename(checkpoint_callback.best_model_path)}")

        return RecordingLogger()

    # -- what a script notes -------------------------------------------------------------------------------------

    def note(self, text: str) -> None:
        """Adds a line to the trace."""
        self.trace.append("  " * self._depth + text)

    def value(self, name: str, value: Any) -> None:
        """Records a value to compare: tensors to the bit, floats to 1e-6, all else equal."""
        assert name not in self.values, f"a value named {name!r} was recorded already"
        self.values[name] = value

    def raised(self, name: str, call: Callable[[], Any]) -> None:
        """Records that `call` is refused. Which type says so, and how far the run came, are each package's own."""
        refusals = (self.part("utilities.exceptions").MisconfigurationException, ValueError, RuntimeError, TypeError)
        lines, entries, trainers = len(self.trace), len(self.metrics), len(self.trainers)
        depth, generator = self._depth, torch.get_rng_state()
        try:
            call()
        except (*refusals, NotImplementedError, FileNotFoundError, KeyError) as error:
            self.value(name, "refused" if isinstance(error, (*refusals, FileNotFoundError)) else type(error).__name__)
        else:
            self.value(name, "nothing raised")
        del self.trace[lines:], self.metrics[entries:], self.trainers[trainers:]
        self._depth = depth
        torch.set_rng_state(generator)

    def files(self, name: str, folder: Path) -> None:
        """Records the relative names of all files below the folder."""
        self.value(name, sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()))

    def checkpoint_callback(self, name: str, callback: Any) -> None:
        """Records the public state of a ModelCheckpoint, paths relative to the output folder."""
        base = str(self.out_dir)

        def relative(path: Any) -> str:
            return os.path.relpath(path, base) if path else ""

        self.value(
            name,
            {
                "best_model_path": relative(callback.best_model_path),
                "best_model_score": callback.best_model_score,
                "last_model_path": relative(callback.last_model_path),
                "kth_best_model_path": relative(callback.kth_best_model_path),
                "kth_value": callback.kth_value,
                "current_score": callback.current_score,
                "best_k_models": {relative(path): score for path, score in callback.best_k_models.items()},
                "dirpath": relative(callback.dirpath),
                "state_key": callback.state_key,
            },
        )

    def finish(self) -> None:
        """Called by the runner after the script: the end state of every trainer."""
        for index, trainer in enumerate(self.trainers):
            self._trainer, self._module = trainer, None
            self._snapshot(f"end of trainer {index}")
            self.note(f"end of trainer {index} {self._state()} status={describe(trainer.state.status)}")
            for name in ("num_training_batches", "num_val_batches", "num_sanity_val_batches", "num_test_batches"):
                self.note(f"{name} {_attempt(lambda name=name, trainer=trainer: getattr(trainer, name))}")

    # -- inside --------------------------------------------------------------------------------------------------

    def _state(self) -> str:
        trainer, module = self._trainer, self._module
        if trainer is None:
            return ""
        stage = _attempt(lambda: describe(trainer.state.stage))
        return (
            f"[step {_attempt(lambda: trainer.global_step)} epoch {_attempt(lambda: trainer.current_epoch)} {stage}"
            f"{' last' if _attempt(lambda: trainer.is_last_batch) == 'True' else ''}"
            f"{' grad' if torch.is_grad_enabled() else ''}{' inference' if torch.is_inference_mode_enabled() else ''}"
            f"{' training' if module is not None and module.training else ''}]"
        )

    def _snapshot(self, label: str) -> None:
        for name in ("callback_metrics", "logged_metrics", "progress_bar_metrics"):
            self.metrics.append((f"{name} at {label}", None, dict(getattr(self._trainer, name))))

    def _subclass(self, original_class: type, who: str, hooks: list[str]) -> type:
        own = {name for base in original_class.__mro__ for name in vars(base) if not _is_framework(base)}
        namespace: dict[str, Any] = {"__module__": original_class.__module__, "__doc__": original_class.__doc__}
        for hook in hooks:
            original = getattr(original_class, hook, None)
            if original is None or ((hook in _LOADER_HOOKS or hook in _STEP_HOOKS) and hook not in own):
                continue
            if hook in ("on_exception", "on_load_checkpoint") or callable(original):
                namespace[hook] = self._recording(who, hook, original)
        return type(original_class.__name__, (original_class,), namespace)

    def _recording(self, who: str, hook: str, original: Callable[..., Any]) -> Callable[..., Any]:
        record = self
        signature = inspect.signature(original)

        def recorded(receiver: Any, *args: Any, **kwargs: Any) -> Any:
            trainer_argument = [argument for argument in args if isinstance(argument, record.pl.Trainer)]
            if trainer_argument:
                record._trainer = trainer_argument[0]
            if isinstance(receiver, torch.nn.Module):
                record._module = receiver
            shown = _bound(signature, (receiver, *args), kwargs)
            record.note(f"{who}.{hook}({shown}) {record._state()}")
            record._depth += 1
            try:
                returned = original(receiver, *args, **kwargs)
            finally:
                record._depth -= 1
            if returned is not None and hook != "zero_grad":
                record.note(f"-> {_returned(hook, returned)}")
            if trainer_argument and hook.endswith(_SNAPSHOT_AFTER):
                record._snapshot(f"{who}.{hook} {len(record.trace)}")
            return returned

        recorded.__name__ = hook
        recorded.__signature__ = signature  # type: ignore[attr-defined]
        return recorded


def _kind(value: Any) -> str:
    return type(value).__name__


def _returned(hook: str, value: Any) -> str:
    if hook == "configure_callbacks":
        return str([type(item).__name__ for item in value]) if isinstance(value, (list, tuple)) else _kind(value)
    return _kind(value) if hook in ("configure_optimizers", "load_state_dict") else describe(value)


def _is_framework(base: type) -> bool:
    return base.__module__.split(".")[0] in ("lightning", "bolide", "torch", "builtins", "lightning_fabric", "abc")


def is_same_number(left: float, right: float, relative: float = 1e-6) -> bool:
    """Equal to the relative tolerance; NaN equals NaN."""
    return (math.isnan(left) and math.isnan(right)) or math.isclose(left, right, rel_tol=relative, abs_tol=1e-12)

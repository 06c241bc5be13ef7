"""Hooks, hook arguments and Trainer attributes that went between Lightning 0.x and 2.x, and what to write instead.

`check_module`, `check_datamodule` and `check_callback` give one error text for each method that nobody calls any
more, `misspelt_hooks` one warning for each that looks like a hook and is none. Who calls: the Trainer, before a run.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from difflib import SequenceMatcher
from typing import Any

_ARGPARSE = "Write the arguments out, or read them with argparse of your own."
_PROPERTY = "it is trainer.{0} today."

REMOVED_TRAINER_ATTRIBUTES: dict[str, str] = {
    "tune": "Lightning 2 has Tuner(trainer) for it, which this version of Bolide does not build yet.",
    "add_argparse_args": _ARGPARSE,
    "from_argparse_args": _ARGPARSE,
    "parse_argparser": _ARGPARSE,
    "match_env_arguments": _ARGPARSE,
    "default_attributes": _ARGPARSE,
    "get_deprecated_arg_names": _ARGPARSE,
    "lr_schedulers": "it is trainer.lr_scheduler_configs today, whose items have attributes: config.scheduler.",
    "num_gpus": _PROPERTY.format("num_devices"),
    "gpus": _PROPERTY.format("device_ids"),
    "num_processes": _PROPERTY.format("num_devices"),
    "ipus": _PROPERTY.format("num_devices"),
    "tpu_cores": _PROPERTY.format("num_devices"),
    "root_gpu": _PROPERTY.format("strategy.root_device.index"),
    "data_parallel_device_ids": _PROPERTY.format("device_ids"),
    "devices": _PROPERTY.format("num_devices"),
    "training_type_plugin": _PROPERTY.format("strategy"),
    "accelerator_backend": _PROPERTY.format("strategy"),
    "train_loop": _PROPERTY.format("fit_loop"),
    "validated_ckpt_path": _PROPERTY.format("ckpt_path"),
    "tested_ckpt_path": _PROPERTY.format("ckpt_path"),
    "predicted_ckpt_path": _PROPERTY.format("ckpt_path"),
    "resume_from_checkpoint": "write: trainer.fit(model, ckpt_path=path).",
    "running_sanity_check": _PROPERTY.format("sanity_checking"),
    "disable_validation": "it is `not trainer.enable_validation` today.",
    "progress_bar_dict": "it is trainer.progress_bar_callback.get_metrics(trainer, model) today.",
    "logger_connector": "the metrics are trainer.callback_metrics, logged_metrics and progress_bar_metrics.",
    "reset_train_dataloader": "set Trainer(reload_dataloaders_every_n_epochs=1), or start another fit.",
    "reset_val_dataloader": "set Trainer(reload_dataloaders_every_n_epochs=1), or start another fit.",
    "reset_test_dataloader": "call trainer.test again.",
    "reset_predict_dataloader": "call trainer.predict again.",
    "reset_train_val_dataloaders": "set Trainer(reload_dataloaders_every_n_epochs=1), or start another fit.",
    "use_amp": _PROPERTY.format("precision"),
    "amp_backend": _PROPERTY.format("precision"),
    "using_native_amp": _PROPERTY.format("precision"),
    "optimizer_frequencies": "step the optimizers yourself, with self.automatic_optimization = False.",
    "lightning_optimizers": "write: module.optimizers().",
    "data_parallel": "nothing runs in DataParallel today.",
    "verbose_evaluate": "write: trainer.validate(..., verbose=True).",
    "should_rank_save_checkpoint": _PROPERTY.format("is_global_zero"),
    "weights_save_path": "it is trainer.checkpoint_callback.dirpath today.",
    "prediction_writer_callbacks": "they are among trainer.callbacks.",
    "call_hook": "call the method of the module or callback itself.",
    "run_stage": "call trainer.fit, validate, test or predict.",
    "run_evaluation": "call trainer.validate(model).",
    "get_model": _PROPERTY.format("lightning_module"),
}
"""What `trainer.NAME` became; the text follows "Trainer has no attribute NAME: "."""

_KEEP_OUTPUTS = "Keep what the steps return yourself: append it to a list of the module, and clear that at the end."
_SPLIT = "Set self.automatic_optimization = False and split the sequence in training_step."

REMOVED_MODULE_HOOKS: dict[str, str] = {
    "training_epoch_end": f"Write: def on_train_epoch_end(self). {_KEEP_OUTPUTS}",
    "validation_epoch_end": f"Write: def on_validation_epoch_end(self). {_KEEP_OUTPUTS}",
    "test_epoch_end": f"Write: def on_test_epoch_end(self). {_KEEP_OUTPUTS}",
    "predict_epoch_end": f"Write: def on_predict_epoch_end(self). {_KEEP_OUTPUTS}",
    "training_step_end": "Do it at the end of training_step, or write: "
    "def on_train_batch_end(self, outputs, batch, batch_idx).",
    "validation_step_end": "Do it at the end of validation_step, or write: "
    "def on_validation_batch_end(self, outputs, batch, batch_idx).",
    "test_step_end": "Do it at the end of test_step, or write: def on_test_batch_end(self, outputs, batch, batch_idx).",
    "validation_end": "Write: def on_validation_epoch_end(self).",
    "test_end": "Write: def on_test_epoch_end(self).",
    "training_end": "Do it at the end of training_step.",
    "on_epoch_start": "Write: def on_train_epoch_start(self) (and on_validation_epoch_start, on_test_epoch_start).",
    "on_epoch_end": "Write: def on_train_epoch_end(self) (and on_validation_epoch_end, on_test_epoch_end).",
    "on_batch_start": "Write: def on_train_batch_start(self, batch, batch_idx).",
    "on_batch_end": "Write: def on_train_batch_end(self, outputs, batch, batch_idx).",
    "on_pretrain_routine_start": "Write: def on_fit_start(self).",
    "on_pretrain_routine_end": "Write: def on_fit_start(self).",
    "on_post_move_to_device": "Tie weights in __init__ or in configure_model.",
    "on_hpc_save": "Write: def on_save_checkpoint(self, checkpoint).",
    "on_hpc_load": "Write: def on_load_checkpoint(self, checkpoint).",
    "on_train_dataloader": "Do it in train_dataloader or in setup.",
    "on_val_dataloader": "Do it in val_dataloader or in setup.",
    "on_test_dataloader": "Do it in test_dataloader or in setup.",
    "on_predict_dataloader": "Do it in predict_dataloader or in setup.",
    "get_progress_bar_dict": "Write: a progress bar callback with its own get_metrics(self, trainer, pl_module).",
    "tbptt_split_batch": _SPLIT,
    "log_grad_norm": "Write: self.log_dict(grad_norm(self, norm_type=2)) in on_before_optimizer_step "
    "(from bolide.utilities import grad_norm).",
    "add_to_queue": "Nothing is passed between processes by queue any more.",
    "get_from_queue": "Nothing is passed between processes by queue any more.",
    "tng_dataloader": "Write: def train_dataloader(self).",
}
"""Methods of a module that nobody calls any more."""

REMOVED_DATAMODULE_HOOKS: dict[str, str] = {
    "on_save_checkpoint": "Write: def state_dict(self), which returns what to save.",
    "on_load_checkpoint": "Write: def load_state_dict(self, state_dict).",
    "on_train_dataloader": "Do it in train_dataloader or in setup.",
    "on_val_dataloader": "Do it in val_dataloader or in setup.",
    "on_test_dataloader": "Do it in test_dataloader or in setup.",
    "on_predict_dataloader": "Do it in predict_dataloader or in setup.",
}
"""Methods of a datamodule that nobody calls any more."""

REMOVED_CALLBACK_HOOKS: dict[str, str] = {
    "on_init_start": "Write: def setup(self, trainer, pl_module, stage).",
    "on_init_end": "Write: def setup(self, trainer, pl_module, stage).",
    "on_keyboard_interrupt": "Write: def on_exception(self, trainer, pl_module, exception).",
    "on_configure_sharded_model": "Write: def setup(self, trainer, pl_module, stage).",
    "on_before_accelerator_backend_setup": "Write: def setup(self, trainer, pl_module, stage).",
    "on_batch_start": "Write: def on_train_batch_start(self, trainer, pl_module, batch, batch_idx).",
    "on_batch_end": "Write: def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx).",
    "on_epoch_start": "Write: def on_train_epoch_start(self, trainer, pl_module) (and on_validation_epoch_start).",
    "on_epoch_end": "Write: def on_train_epoch_end(self, trainer, pl_module) (and on_validation_epoch_end).",
    "on_pretrain_routine_start": "Write: def on_fit_start(self, trainer, pl_module).",
    "on_pretrain_routine_end": "Write: def on_fit_start(self, trainer, pl_module).",
    "on_validation_end_epoch": "Write: def on_validation_epoch_end(self, trainer, pl_module).",
}
"""Methods of a callback that nobody calls any more."""

_NO_INDEX = "With several optimizers set self.automatic_optimization = False and step each of them in training_step."
_SIGNATURES: dict[str, tuple[tuple[str, ...], str, str]] = {
    "training_step": (("optimizer_idx", "hiddens"), "training_step(self, batch, batch_idx)", _NO_INDEX),
    "optimizer_step": (
        ("optimizer_idx", "on_tpu", "using_native_amp", "using_lbfgs", "second_order_closure", "optimizer_i"),
        "optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure)",
        _NO_INDEX,
    ),
    "optimizer_zero_grad": (("optimizer_idx",), "optimizer_zero_grad(self, epoch, batch_idx, optimizer)", _NO_INDEX),
    "backward": (("optimizer", "optimizer_idx"), "backward(self, loss, *args, **kwargs)", ""),
    "on_before_optimizer_step": (("optimizer_idx", "opt_idx"), "on_before_optimizer_step(self, optimizer)", ""),
    "configure_gradient_clipping": (
        ("optimizer_idx",),
        "configure_gradient_clipping(self, optimizer, gradient_clip_val, gradient_clip_algorithm)",
        "",
    ),
    "lr_scheduler_step": (("optimizer_idx", "optimizer_i"), "lr_scheduler_step(self, scheduler, metric)", ""),
    "toggle_optimizer": (("optimizer_idx", "optimizer_i"), "toggle_optimizer(self, optimizer)", ""),
    "on_train_batch_start": (("dataloader_idx",), "on_train_batch_start(self, batch, batch_idx)", ""),
    "on_train_batch_end": (("dataloader_idx",), "on_train_batch_end(self, outputs, batch, batch_idx)", ""),
    "on_train_epoch_end": (("outputs", "unused"), "on_train_epoch_end(self)", _KEEP_OUTPUTS),
    "on_validation_epoch_end": (("outputs",), "on_validation_epoch_end(self)", _KEEP_OUTPUTS),
    "on_test_epoch_end": (("outputs",), "on_test_epoch_end(self)", _KEEP_OUTPUTS),
    "on_predict_epoch_end": (("results", "outputs"), "on_predict_epoch_end(self)", _KEEP_OUTPUTS),
    "finetune_function": (("opt_idx", "optimizer_idx"), "finetune_function(self, pl_module, epoch, optimizer)", ""),
}
"""For each hook: arguments that are not passed any more, how it is called, and what to do instead."""

_ALWAYS_WRONG = {"optimizer_idx", "opt_idx", "optimizer_i", "hiddens"}
"""Arguments that are wrong even with a default: they stand before others, or mean that the code relies on them."""

_OURS = ("bolide", "torch", "builtins", "abc", "typing", "torchmetrics")


def check_module(module: Any) -> list[str]:
    """One error text for each method of a LightningModule that is no longer called, or not as it is written."""
    return [
        *_removed(module, REMOVED_MODULE_HOOKS),
        *_old_arguments(module),
        *_stage_missing(module, (), ("setup", "teardown")),
    ]


def check_datamodule(datamodule: Any) -> list[str]:
    """One error text for each method of a LightningDataModule that is no longer called, or not as it is written."""
    return [
        *_removed(datamodule, REMOVED_DATAMODULE_HOOKS),
        *_stage_missing(datamodule, (), ("setup", "teardown")),
    ]


def check_callback(callback: Any) -> list[str]:
    """One error text for each method of a Callback that is no longer called, or not as it is written."""
    before = ("trainer", "pl_module")
    return [
        *_removed(callback, REMOVED_CALLBACK_HOOKS),
        *_old_arguments(callback, before),
        *_stage_missing(callback, before, ("setup", "teardown")),
    ]


def misspelt_hooks(obj: Any, known: Iterable[str]) -> list[str]:
    """One warning for each method that looks like a hook of `known` and is none.

    Only methods that the user's own classes define count, and none that those classes use themselves.
    """
    names = set(known)
    removed = {*REMOVED_MODULE_HOOKS, *REMOVED_DATAMODULE_HOOKS, *REMOVED_CALLBACK_HOOKS}
    own = own_methods(obj)
    bases = {name for cls in type(obj).__mro__ if _is_ours(cls) for name in vars(cls)}
    used = _names_used(own.values())
    texts = []
    for name in own:
        if name.startswith("_") or name in names | bases | removed | used or not _looks_like_a_hook(name):
            continue
        close = _nearest_hook(name, names)
        if close:
            texts.append(
                f"{type(obj).__name__}.{name} is never called, because there is no such hook. Did you mean {close!r}?"
            )
    return texts


def own_methods(obj: Any) -> dict[str, Callable[..., Any]]:
    """The functions that the user's classes of `obj` define, by name; the most derived counts."""
    found: dict[str, Callable[..., Any]] = {}
    for cls in type(obj).__mro__:
        if _is_ours(cls):
            continue
        for name, member in vars(cls).items():
            member = inspect.unwrap(member) if callable(member) else member
            if inspect.isfunction(member):
                found.setdefault(name, member)
    return found


def _is_ours(cls: type) -> bool:
    return cls.__module__.partition(".")[0] in _OURS


def _names_used(functions: Iterable[Callable[..., Any]]) -> set[str]:
    """Attributes that the code of `functions` reads: a method among them is called by the user's own code."""
    used: set[str] = set()
    codes = [function.__code__ for function in functions if inspect.isfunction(function)]
    while codes:
        code = codes.pop()
        used.update(code.co_names)
        codes += [constant for constant in code.co_consts if inspect.iscode(constant)]
    return used


def _looks_like_a_hook(name: str) -> bool:
    return name.startswith(("on_", "configure_")) or name.endswith(("_step", "_dataloader", "_dataloaders"))


_SYNONYMS = {"val": "validation", "valid": "validation", "validate": "validation", "begin": "start", "finish": "end"}
_SAME_HOOK = 0.9
"""From which likeness on two names are one but for a slip: "configure_optimizer" has 0.97."""


def _nearest_hook(name: str, hooks: Iterable[str]) -> str | None:
    """The hook that `name` is but for a few letters, the order of its words, or a word of the same meaning."""
    words = [_SYNONYMS.get(word, word) for word in name.split("_")]
    if words == ["train", "step"]:
        words = ["training", "step"]
    as_word_sets = {frozenset(hook.split("_")): hook for hook in hooks}
    if frozenset(words) in as_word_sets:
        return as_word_sets[frozenset(words)]
    likeness = {hook: SequenceMatcher(None, name, hook).ratio() for hook in as_word_sets.values()}
    best = max(likeness, key=lambda hook: likeness[hook], default=None)
    return best if best is not None and likeness[best] >= _SAME_HOOK else None


def _removed(obj: Any, table: Mapping[str, str]) -> list[str]:
    own = own_methods(obj)
    used = _names_used(own.values())
    owner = type(obj).__name__
    return [
        f"{owner}.{name} is no longer called. {advice}"
        for name, advice in table.items()
        if name in own and name not in used
    ]


def _old_arguments(obj: Any, before: tuple[str, ...] = ()) -> list[str]:
    own = own_methods(obj)
    owner = type(obj).__name__
    texts = []
    for name, (gone, called, advice) in _SIGNATURES.items():
        if name not in own:
            continue
        parameters = inspect.signature(own[name]).parameters
        wrong = [
            argument
            for argument in gone
            if argument in parameters
            and (parameters[argument].default is inspect.Parameter.empty or argument in _ALWAYS_WRONG)
        ]
        if name == "training_step" and "dataloader_iter" in parameters and "batch_idx" in parameters:
            wrong.append("batch_idx")
            called = "training_step(self, dataloader_iter)"
            advice = "next(dataloader_iter) gives batch, batch_idx, dataloader_idx."
        if wrong:
            shown = called
            if before and name != "finetune_function":
                shown = called.replace("(self", f"(self, {', '.join(before)}", 1)
            texts.append(
                f"{owner}.{name} has the argument {wrong[0]!r}, which is no longer passed. Write: def {shown}."
                + (f" {advice}" if advice else "")
            )
    return texts


def _stage_missing(obj: Any, before: tuple[str, ...], names: tuple[str, ...]) -> list[str]:
    own = own_methods(obj)
    texts = []
    for name in names:
        if name not in own:
            continue
        try:
            inspect.signature(own[name]).bind(obj, *before, "fit")
        except TypeError:
            arguments = ", ".join(("self", *before, "stage"))
            texts.append(
                f"{type(obj).__name__}.{name} is always told the stage. Write: def {name}({arguments}), where stage is "
                '"fit", "validate", "test" or "predict".'
            )
    return texts

"""What may be wrong with TrainingArguments: one pure function a rule, all of them run at construction.

`converted` brings text to its kinds first, `fill` puts in what follows from other settings last. Who calls:
arguments.py.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import math
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, fields, is_dataclass
from typing import Any

import torch

from bolide.core.errors import MissingPackageError, did_you_mean
from bolide.transformers.choices import (
    NOT_BUILT_OPTIMIZERS,
    AcceleratorConfig,
    Choice,
    HubStrategy,
    IntervalStrategy,
    OptimizerNames,
    SamplingStrategy,
    SaveStrategy,
    SchedulerType,
    TokenCounting,
)

Rule = Callable[[Any], Iterator[str]]

CHOICES: dict[str, type[Choice]] = {
    "eval_strategy": IntervalStrategy, "logging_strategy": IntervalStrategy, "save_strategy": SaveStrategy,
    "hub_strategy": HubStrategy, "lr_scheduler_type": SchedulerType, "optim": OptimizerNames,
    "train_sampling_strategy": SamplingStrategy, "include_num_input_tokens_seen": TokenCounting,
}  # fmt: skip
DICTIONARIES = (
    "lr_scheduler_kwargs", "activation_checkpointing_kwargs", "gradient_checkpointing_kwargs", "fsdp_config",
    "deepspeed", "accelerator_config", "liger_kernel_config",
)  # fmt: skip
LOG_LEVELS = {
    "detail": logging.DEBUG, "debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING,
    "error": logging.ERROR, "critical": logging.CRITICAL, "passive": -1,
}  # fmt: skip
NUMBERS: dict[str, type] = {
    "num_train_epochs": float, "max_steps": int, "per_device_train_batch_size": int, "per_device_eval_batch_size": int,
    "learning_rate": float, "weight_decay": float, "adam_beta1": float, "adam_beta2": float, "adam_epsilon": float,
    "max_grad_norm": float, "warmup_steps": float, "gradient_accumulation_steps": int, "label_smoothing_factor": float,
    "logging_steps": float, "eval_steps": float, "save_steps": float, "save_total_limit": int, "seed": int,
    "data_seed": int, "dataloader_num_workers": int, "eval_delay": float, "neftune_noise_alpha": float,
}  # fmt: skip
"""Settings that a configuration file may give as text ("5e-5" is text in YAML)."""

NOT_BUILT: dict[str, str] = {
    "optim_target_modules": (
        "GaLore and APOLLO are not built; leave it out, and give their package's optimizer as "
        "Trainer(optimizers=(optimizer, None))"
    ),
    "use_liger_kernel": (
        "Liger kernels are not built in; leave it out, and call liger_kernel.transformers.apply_liger_kernel_to_...() "
        "before the model is made"
    ),
    "parallelism_config": (
        "tensor and context parallelism are not built for this door; leave it out, and write fsdp=True or deepspeed=..."
    ),
}
"""Settings that ask for what is not there, and what to do instead."""


def converted(args: Any) -> list[str]:
    """Brings text to enumerations, numbers, dictionaries and lists, in place; returns what could not be."""
    wrong: list[str] = []
    if isinstance(args.include_num_input_tokens_seen, bool):
        args.include_num_input_tokens_seen = "all" if args.include_num_input_tokens_seen else "no"
    for name, kind in CHOICES.items():
        value = getattr(args, name)
        value = "no" if value is None or value is False else value
        word = str(getattr(value, "value", value))
        if name == "optim" and word in NOT_BUILT_OPTIMIZERS:
            wrong.append(
                f"optim={word!r} is not built; write optim='adamw_torch', or give its optimizer as "
                "Trainer(optimizers=(optimizer, None)) or optimizer_cls_and_kwargs=(class, arguments)"
            )
            continue
        try:
            setattr(args, name, kind(word))
        except ValueError as error:
            wrong.append(f"{name}={value!r} {error}")
    for name, number in NUMBERS.items():
        value = getattr(args, name)
        if isinstance(value, str):
            try:
                setattr(args, name, number(value))
            except ValueError:
                wrong.append(f"{name}={value!r} must be a number")
    for name in DICTIONARIES:
        value = getattr(args, name)
        if isinstance(value, str):
            try:
                setattr(args, name, _read(value))
            except (OSError, ValueError) as error:
                wrong.append(f"{name}={value!r} must be a dictionary, JSON text or the path of a JSON file: {error}")
    wrong += _accelerator_config(args)
    for name in ("report_to", "debug"):
        value = getattr(args, name)
        if value is None:
            setattr(args, name, [])
        elif isinstance(value, str):
            setattr(args, name, [word for word in value.replace(",", " ").split() if word != "none"])
        else:
            setattr(args, name, [word for word in value if word != "none"])
    return wrong


def _accelerator_config(args: Any) -> list[str]:
    """Makes the object of what was given; returns what is wrong with that."""
    given = args.accelerator_config
    if given is None:
        args.accelerator_config = AcceleratorConfig()
        return []
    if is_dataclass(given) and not isinstance(given, (type, AcceleratorConfig)):  # transformers' own
        given = asdict(given)
    if not isinstance(given, dict):
        wrong = not isinstance(given, (AcceleratorConfig, str))  # of text that cannot be read is told already
        return [f"accelerator_config={given!r} must be a dictionary"] if wrong else []
    known = [field.name for field in fields(AcceleratorConfig)]
    unknown = [name for name in given if name not in known]
    if not unknown:
        args.accelerator_config = AcceleratorConfig(**given)
    return [f"accelerator_config has no {name!r}." + did_you_mean(name, known) for name in unknown]


def _read(text: str) -> Any:
    if text.lstrip().startswith("{"):
        return json.loads(text)
    with open(text, encoding="utf-8") as file:
        return json.load(file)


def fill(args: Any) -> None:
    """Puts in what follows from other settings."""
    args.output_dir = os.path.expanduser(os.fspath(args.output_dir)) if args.output_dir else "trainer_output"
    if args.logging_dir is not None:
        args.logging_dir = os.path.expanduser(os.fspath(args.logging_dir))
    if args.disable_tqdm is None:
        args.disable_tqdm = logging.getLogger("bolide").getEffectiveLevel() > logging.WARNING
    if args.eval_strategy == IntervalStrategy.STEPS and not args.eval_steps:
        args.eval_steps = args.logging_steps
    for name in ("logging_steps", "eval_steps", "save_steps"):
        value = getattr(args, name)
        if value is not None and value > 1:
            setattr(args, name, int(value))
    if args.warmup_steps >= 1:
        args.warmup_steps = int(args.warmup_steps)
    plateau = args.lr_scheduler_type == SchedulerType.REDUCE_ON_PLATEAU
    if (args.load_best_model_at_end or plateau) and args.metric_for_best_model is None:
        args.metric_for_best_model = "loss"
    if args.greater_is_better is None and args.metric_for_best_model is not None:
        args.greater_is_better = not args.metric_for_best_model.endswith("loss")
    if args.eval_strategy != IntervalStrategy.NO:
        args.do_eval = True
    if args.torch_compile_backend is not None or args.torch_compile_mode is not None:
        args.torch_compile = True
    if args.torch_compile and args.torch_compile_backend is None:
        args.torch_compile_backend = "inductor"
    args.lr_scheduler_kwargs = args.lr_scheduler_kwargs or {}


# ---------------------------------------------------------------------- the rules


def _bounds(a: Any) -> Iterator[str]:
    whole = {
        "per_device_train_batch_size": 1, "per_device_eval_batch_size": 1, "gradient_accumulation_steps": 1,
        "dataloader_num_workers": 0,
    }  # fmt: skip
    for name, least in whole.items():
        value = getattr(a, name)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            yield f"{name}={value!r} must be a whole number of at least {least}"
    least_numbers = {
        "learning_rate": 0.0, "weight_decay": 0.0, "adam_epsilon": 0.0, "label_smoothing_factor": 0.0, "eval_delay": 0.0
    }  # fmt: skip
    for name, least_number in least_numbers.items():
        value = getattr(a, name)
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not value >= least_number:
            yield f"{name}={value!r} must be a number of at least {least_number:g}"
    for name in ("adam_beta1", "adam_beta2"):
        if not 0 <= getattr(a, name) < 1:
            yield f"{name}={getattr(a, name)!r} must be from 0 up to, not including, 1"
    if a.max_grad_norm is not None and not a.max_grad_norm >= 0:
        yield f"max_grad_norm={a.max_grad_norm!r} must be a number of at least 0; 0 turns clipping off"
    if a.max_steps <= 0 and not a.num_train_epochs >= 0:
        yield f"num_train_epochs={a.num_train_epochs!r} must be a number of at least 0"
    if not isinstance(a.max_steps, int) or isinstance(a.max_steps, bool) or math.isnan(a.max_steps):
        yield f"max_steps={a.max_steps!r} must be a whole number (-1: as many as num_train_epochs needs)"
    if not a.warmup_steps >= 0:
        yield f"warmup_steps={a.warmup_steps!r} must be 0 or more; below 1 it is the share of all steps"


def _intervals(a: Any) -> Iterator[str]:
    strategies = {"logging_steps": "logging_strategy", "eval_steps": "eval_strategy", "save_steps": "save_strategy"}
    for name, strategy in strategies.items():
        value = getattr(a, name)
        if value is None or getattr(a, strategy) != "steps":
            continue
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
            yield f"{name}={value!r} must be more than 0: a number of steps, or a share below 1 of all steps"
        elif value > 1 and value != int(value):
            yield f"{name}={value!r} must be a whole number of steps, or a share below 1 of all steps"
    if a.save_total_limit is not None and a.save_total_limit < 1:
        yield f"save_total_limit={a.save_total_limit!r} must be at least 1, or None to keep all"
    if a.torch_empty_cache_steps is not None and (
        not isinstance(a.torch_empty_cache_steps, int) or a.torch_empty_cache_steps < 1
    ):
        yield f"torch_empty_cache_steps={a.torch_empty_cache_steps!r} must be a whole number of at least 1"


def _precision(a: Any) -> Iterator[str]:
    if a.fp16 and a.bf16:
        yield "fp16=True and bf16=True contradict each other; leave one of them out"
    if a.fp16_full_eval and a.bf16_full_eval:
        yield "fp16_full_eval=True and bf16_full_eval=True contradict each other; leave one of them out"
    if a.bf16 and not a.use_cpu and torch.cuda.is_available() and not torch.cuda.is_bf16_supported():
        yield "bf16=True: this GPU has no bfloat16; write fp16=True"


def _best(a: Any) -> Iterator[str]:
    if a.save_strategy == "best" and a.metric_for_best_model is None and not a.load_best_model_at_end:
        yield 'save_strategy="best" needs the metric to compare: write metric_for_best_model="loss", for example'
    if a.lr_scheduler_type == SchedulerType.REDUCE_ON_PLATEAU and a.eval_strategy == "no":
        yield 'lr_scheduler_type="reduce_lr_on_plateau" looks at evaluations: write eval_strategy="epoch" or "steps"'
    if not a.load_best_model_at_end:
        return
    if a.eval_strategy == "no":
        yield 'load_best_model_at_end=True needs evaluations: write eval_strategy="epoch" or "steps"'
        return
    if a.save_strategy == "best":
        return
    if a.eval_strategy != a.save_strategy:
        yield (
            f'load_best_model_at_end=True needs a checkpoint of each evaluation, and eval_strategy="{a.eval_strategy}" '
            f'and save_strategy="{a.save_strategy}" differ; write save_strategy="{a.eval_strategy}", or "best"'
        )
    elif a.eval_strategy == "steps":
        every = a.eval_steps or a.logging_steps
        if (a.save_steps < 1) != (every < 1):
            yield f"save_steps={a.save_steps!r} and eval_steps={every!r} must both be steps, or both be shares"
        elif abs(a.save_steps / every - round(a.save_steps / every)) > 1e-9:
            yield f"save_steps={a.save_steps!r} must be a multiple of eval_steps={every!r} to load the best model"


def _loading(a: Any) -> Iterator[str]:
    if a.dataloader_num_workers == 0:
        for name in ("dataloader_prefetch_factor", "dataloader_multiprocessing_context"):
            if getattr(a, name) is not None:
                yield f"{name}={getattr(a, name)!r} needs workers; write dataloader_num_workers=1 or more"
        if a.dataloader_persistent_workers:
            yield "dataloader_persistent_workers=True needs workers; write dataloader_num_workers=1 or more"


def _names(a: Any) -> Iterator[str]:
    for name in ("log_level", "log_level_replica"):
        if getattr(a, name) not in LOG_LEVELS:
            yield f"{name}={getattr(a, name)!r} must be one of {', '.join(LOG_LEVELS)}"
    for name in a.include_for_metrics:
        if name not in ("inputs", "loss"):
            yield f"include_for_metrics holds {name!r}; there are 'inputs' and 'loss'"


def _activations(a: Any) -> Iterator[str]:
    if a.activation_checkpointing is not None and a.gradient_checkpointing is not None:
        if a.activation_checkpointing != a.gradient_checkpointing:
            yield (
                "activation_checkpointing and gradient_checkpointing are two names of one setting and differ; leave "
                "one of them out"
            )


def _not_built(a: Any) -> Iterator[str]:
    for name, text in NOT_BUILT.items():
        value = getattr(a, name)
        if value not in (None, False, "", [], ()):
            yield f"{name}={value!r}: {text}"
    for word in a.debug:
        if word != "underflow_overflow":
            yield f"debug={word!r} is not built; there is 'underflow_overflow'"
    if not a.skip_memory_metrics and importlib.util.find_spec("psutil") is None:
        yield str(MissingPackageError("skip_memory_metrics=False", "psutil"))
    if not a.dataloader_in_order:
        yield (
            "dataloader_in_order=False: a run could not go on with the same batches; leave it out, and write "
            "dataloader_prefetch_factor=... where a worker's slow batch holds the others up"
        )
    config = a.accelerator_config
    if not isinstance(config, AcceleratorConfig):
        return
    if config.use_configured_state:
        yield "accelerator_config={'use_configured_state': True}: there is no state of Accelerate; leave it out"
    accumulation = config.gradient_accumulation_kwargs or {}
    for key, value in accumulation.items():
        if key not in ("num_steps", "sync_each_batch", "sync_with_dataloader", "adjust_scheduler"):
            yield f"accelerator_config: gradient_accumulation_kwargs={{{key!r}: {value!r}}}: there is no such name"
    if accumulation.get("num_steps", a.gradient_accumulation_steps) != a.gradient_accumulation_steps:
        yield (
            f"accelerator_config: gradient_accumulation_kwargs={{'num_steps': {accumulation['num_steps']!r}}}: "
            f"write gradient_accumulation_steps={accumulation['num_steps']!r} in its place"
        )


def _sharding(a: Any) -> Iterator[str]:
    if a.fsdp:
        from bolide.transformers import sharding  # torch's FSDP takes its time to import

        yield from sharding.wrong_settings(a)
    if a.deepspeed:
        from bolide.transformers import zero

        yield from zero.wrong_settings(a)


RULES: tuple[Rule, ...] = (
    _bounds,
    _intervals,
    _precision,
    _best,
    _loading,
    _names,
    _activations,
    _not_built,
    _sharding,
)

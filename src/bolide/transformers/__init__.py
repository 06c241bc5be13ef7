"""The second door: TrainingArguments and Trainer, by the names and with the behaviour of Hugging Face's transformers.

`from bolide.transformers import TrainingArguments, Trainer` is the import; what scripts import beside it from
transformers' `trainer`, `trainer_utils`, `trainer_callback`, `trainer_pt_utils`, `training_args` and `optimization` is
here, too. Names are loaded when they are first used; transformers itself is needed for what is its own: tokenizers,
pre-trained models, the command-line parser, and the names of `_THEIRS`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bolide.transformers.arguments import Seq2SeqTrainingArguments, TrainingArguments
    from bolide.transformers.callbacks import (
        DefaultFlowCallback,
        EarlyStoppingCallback,
        PrinterCallback,
        ProgressCallback,
    )
    from bolide.transformers.choices import IntervalStrategy, SchedulerType
    from bolide.transformers.data import default_data_collator
    from bolide.transformers.folders import get_last_checkpoint
    from bolide.transformers.parser import HfArgumentParser
    from bolide.transformers.schedules import get_scheduler
    from bolide.transformers.seq2seq import Seq2SeqTrainer
    from bolide.transformers.state import (
        BestRun,
        EvalPrediction,
        TrainerCallback,
        TrainerControl,
        TrainerState,
        TrainOutput,
    )
    from bolide.transformers.trainer import Trainer
    from bolide.transformers.utilities import enable_full_determinism, set_seed

_OWN = {
    "arguments": ("Seq2SeqTrainingArguments", "TrainingArguments"),
    "callbacks": (
        "CallbackHandler", "DEFAULT_CALLBACKS", "DEFAULT_PROGRESS_CALLBACK", "DefaultFlowCallback",
        "EarlyStoppingCallback", "PrinterCallback", "ProgressCallback",
    ),
    "choices": (
        "AcceleratorConfig", "DebugOption", "FSDPOption", "HPSearchBackend", "HubStrategy", "IntervalStrategy",
        "OptimizerNames", "ParallelMode", "SaveStrategy", "SchedulerType",
    ),
    "data": ("default_data_collator",),
    "folders": (
        "OPTIMIZER_NAME", "PREFIX_CHECKPOINT_DIR", "SCALER_NAME", "SCHEDULER_NAME", "TRAINER_STATE_NAME",
        "get_last_checkpoint", "rotate_checkpoints", "sort_checkpoints",
    ),
    "loss": ("LabelSmoother",),
    "parser": ("HfArgumentParser",),
    "schedules": ("get_scheduler",),
    "search": ("default_compute_objective",),
    "seq2seq": ("Seq2SeqTrainer",),
    "state": (
        "BestRun", "EvalLoopOutput", "EvalPrediction", "ExportableState", "PredictionOutput", "TrainOutput",
        "TrainerCallback", "TrainerControl", "TrainerState",
    ),
    "trainer": ("Trainer",),
    "utilities": (
        "denumpify_detensorize", "enable_full_determinism", "find_executable_batch_size", "get_constant_schedule",
        "get_constant_schedule_with_warmup", "get_cosine_schedule_with_warmup",
        "get_cosine_with_hard_restarts_schedule_with_warmup", "get_cosine_with_min_lr_schedule_with_warmup",
        "get_inverse_sqrt_schedule", "get_linear_schedule_with_warmup", "get_polynomial_decay_schedule_with_warmup",
        "get_reduce_on_plateau_schedule", "get_wsd_schedule", "has_length", "log_levels", "number_of_arguments",
        "set_seed", "speed_metrics", "trainer_log_levels",
    ),
    "weights": ("SAFE_WEIGHTS_INDEX_NAME", "SAFE_WEIGHTS_NAME", "WEIGHTS_INDEX_NAME", "WEIGHTS_NAME"),
}  # fmt: skip
"""Bolide's own names, by the module that has them."""

_NAMES = {name: module for module, names in _OWN.items() for name in names}

_THEIRS = {
    "transformers": (
        "Adafactor", "DataCollator", "DataCollatorForLanguageModeling", "DataCollatorForSeq2Seq",
        "DataCollatorForTokenClassification", "DataCollatorWithFlattening", "DataCollatorWithPadding",
        "DefaultDataCollator",
    ),
    "transformers.trainer_pt_utils": (
        "EvalLoopContainer", "IterableDatasetShard", "LengthGroupedSampler", "find_batch_size", "get_parameter_names",
        "nested_concat", "nested_detach", "nested_numpify", "nested_truncate", "torch_distributed_zero_first",
    ),
    "transformers.trainer_utils": (
        "RemoveColumnsCollator", "TrainerMemoryTracker", "is_main_process", "load_sharded_checkpoint", "seed_worker",
        "total_processes_number", "unwrap_peft_model",
    ),
}  # fmt: skip
"""Names that are transformers' own, for scripts that import all from one place; each needs it installed."""

_MODULES = ("search",)

__all__ = [
    "BestRun", "DefaultFlowCallback", "EarlyStoppingCallback", "EvalPrediction", "HfArgumentParser", "IntervalStrategy",
    "PrinterCallback", "ProgressCallback", "SchedulerType", "Seq2SeqTrainer", "Seq2SeqTrainingArguments", "TrainOutput",
    "Trainer", "TrainerCallback", "TrainerControl", "TrainerState", "TrainingArguments", "default_data_collator",
    "enable_full_determinism", "get_last_checkpoint", "get_scheduler", "set_seed",
]  # fmt: skip


def own_names() -> tuple[str, ...]:
    """The names that need no transformers, but the command-line parser."""
    return tuple(_NAMES)


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name in _NAMES:
        return getattr(import_module(f"bolide.transformers.{_NAMES[name]}"), name)
    if name in _MODULES:
        return import_module(f"bolide.transformers.{name}")
    for module, names in _THEIRS.items():
        if name in names:
            return _of_transformers(module, name)
    raise AttributeError(f"module 'bolide.transformers' has no attribute {name!r}; there are {', '.join(__all__)}")


def _of_transformers(module: str, name: str) -> Any:
    from importlib import import_module

    from bolide.core.errors import MissingPackageError
    from bolide.transformers.state import has_transformers

    if not has_transformers():
        raise MissingPackageError(name, "transformers")
    return getattr(import_module(module), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_NAMES})

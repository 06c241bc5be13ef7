"""The second door: TrainingArguments and Trainer, by the names and with the behaviour of Hugging Face's transformers.

`from bolide.transformers import TrainingArguments, Trainer` is the import. Names are loaded when they are first used;
transformers itself is needed for what is its own: tokenizers, pre-trained models, the command-line parser.
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
    from bolide.transformers.data import default_data_collator
    from bolide.transformers.folders import get_last_checkpoint
    from bolide.transformers.parser import HfArgumentParser
    from bolide.transformers.schedules import get_scheduler
    from bolide.transformers.seq2seq import Seq2SeqTrainer
    from bolide.transformers.state import EvalPrediction, TrainerCallback, TrainerControl, TrainerState
    from bolide.transformers.trainer import Trainer

_NAMES = {
    "BestRun": "state", "DEFAULT_CALLBACKS": "callbacks", "DefaultFlowCallback": "callbacks",
    "EarlyStoppingCallback": "callbacks", "EvalLoopOutput": "state", "EvalPrediction": "state",
    "HfArgumentParser": "parser", "HubStrategy": "choices", "IntervalStrategy": "choices",
    "PREFIX_CHECKPOINT_DIR": "folders", "PredictionOutput": "state", "PrinterCallback": "callbacks",
    "ProgressCallback": "callbacks", "SAFE_WEIGHTS_NAME": "weights", "SaveStrategy": "choices",
    "SchedulerType": "choices", "Seq2SeqTrainer": "seq2seq", "Seq2SeqTrainingArguments": "arguments",
    "TRAINER_STATE_NAME": "folders", "TrainOutput": "state", "Trainer": "trainer", "TrainerCallback": "state",
    "TrainerControl": "state", "TrainerState": "state", "TrainingArguments": "arguments",
    "default_data_collator": "data", "get_last_checkpoint": "folders", "get_scheduler": "schedules",
    "set_seed": "seeds", "sort_checkpoints": "folders",
}  # fmt: skip
_MODULES = ("search",)

__all__ = [
    "BestRun", "DefaultFlowCallback", "EarlyStoppingCallback", "EvalPrediction", "HfArgumentParser", "IntervalStrategy",
    "PrinterCallback", "ProgressCallback", "SchedulerType", "Seq2SeqTrainer", "Seq2SeqTrainingArguments", "TrainOutput",
    "Trainer", "TrainerCallback", "TrainerControl", "TrainerState", "TrainingArguments", "default_data_collator",
    "get_last_checkpoint", "get_scheduler", "set_seed",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name in _NAMES:
        return getattr(import_module(f"bolide.transformers.{_NAMES[name]}"), name)
    if name in _MODULES:
        return import_module(f"bolide.transformers.{name}")
    raise AttributeError(f"module 'bolide.transformers' has no attribute {name!r}; there are {', '.join(__all__)}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])

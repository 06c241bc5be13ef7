"""Callbacks, under the names and module paths that Lightning's users import. Loaded when they are asked for."""

from __future__ import annotations

from typing import Any

from bolide.core.lazy import submodule

_HOME = {
    "Callback": "callback",
    "Checkpoint": "checkpoint",
    "EarlyStopping": "early_stopping",
    "GradientAccumulationScheduler": "gradient_accumulation_scheduler",
    "LambdaCallback": "lambda_function",
    "LearningRateMonitor": "lr_monitor",
    "ModelCheckpoint": "model_checkpoint",
    "ModelSummary": "model_summary",
    "NonFinite": "non_finite",
    "NonFiniteError": "non_finite",
    "OnExceptionCheckpoint": "on_exception_checkpoint",
    "PlainProgressBar": "progress",
    "PreemptionWatch": "preemption",
    "ProgressBar": "progress",
    "RichModelSummary": "rich_model_summary",
    "RichProgressBar": "progress",
    "SpikeDetection": "spike",
    "StepRecord": "step_record",
    "TQDMProgressBar": "progress",
    "Timer": "timer",
}
_NOT_BUILT = {
    "BackboneFinetuning": "freeze and unfreeze in LightningModule.on_train_epoch_start",
    "BaseFinetuning": "freeze and unfreeze in LightningModule.on_train_epoch_start",
    "BasePredictionWriter": "write the outputs in Callback.on_predict_batch_end",
    "BatchSizeFinder": "give the batch size to the loader",
    "DeviceStatsMonitor": "log torch.cuda.memory_stats() in Callback.on_train_batch_end",
    "EMAWeightAveraging": "update a torch.optim.swa_utils.AveragedModel in Callback.on_train_batch_end",
    "LearningRateFinder": "give the rate to configure_optimizers",
    "ModelPruning": "call torch.nn.utils.prune in Callback.on_train_epoch_end",
    "StochasticWeightAveraging": "update a torch.optim.swa_utils.AveragedModel in Callback.on_train_epoch_end",
    "ThroughputMonitor": "the progress bar shows batches a second",
    "WeightAveraging": "update a torch.optim.swa_utils.AveragedModel in Callback.on_train_batch_end",
}

__all__ = [
    "Callback",
    "Checkpoint",
    "EarlyStopping",
    "GradientAccumulationScheduler",
    "LambdaCallback",
    "LearningRateMonitor",
    "ModelCheckpoint",
    "ModelSummary",
    "NonFinite",
    "NonFiniteError",
    "OnExceptionCheckpoint",
    "PlainProgressBar",
    "PreemptionWatch",
    "ProgressBar",
    "RichModelSummary",
    "RichProgressBar",
    "SpikeDetection",
    "StepRecord",
    "TQDMProgressBar",
    "Timer",
]


def __getattr__(name: str) -> Any:
    import sys
    from importlib import import_module

    if name in _HOME:
        return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    if name not in _NOT_BUILT:
        found = submodule(__name__, name)
        if found is not None:
            return found
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    text = f"{name} is not in this version of Bolide. Instead, {_NOT_BUILT[name]}."
    # `from ... import name` asks through this function of the import system, and keeps the text of an ImportError only
    if sys._getframe(1).f_code.co_name == "_handle_fromlist":
        raise ImportError(text, name=__name__)
    raise AttributeError(text)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])

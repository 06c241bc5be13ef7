"""The table of the drop-in: which of Bolide's modules answer for each of Lightning's, and what is said of the rest.

A row is a path below `lightning.pytorch` (or `lightning.fabric`) and the modules in which its names are looked up, in
that order; "module:Name" offers that one name only.
"""

from __future__ import annotations

import functools

ROOTS = ("lightning", "pytorch_lightning", "lightning_fabric")

PRETENDED_VERSION = "2.6.6"
"""What `lightning.__version__` says: the release whose names and behaviour Bolide follows."""

_CALLBACKS = "bolide.callbacks"
_LOGGERS = "bolide.loggers"
_STRATEGIES = "bolide.strategies"
_PROGRESS = "bolide.callbacks.progress"

PYTORCH: dict[str, tuple[str, ...]] = {
    "": ("bolide",),
    "accelerators": ("bolide.accelerators",),
    "accelerators.accelerator": ("bolide.accelerators",),
    "accelerators.cpu": ("bolide.accelerators",),
    "accelerators.cuda": ("bolide.accelerators",),
    "accelerators.mps": ("bolide.accelerators",),
    "callbacks": (_CALLBACKS,),
    "callbacks.base": (_CALLBACKS,),
    "callbacks.batch_size_finder": (_CALLBACKS,),
    "callbacks.callback": ("bolide.callbacks.callback",),
    "callbacks.checkpoint": ("bolide.callbacks.checkpoint",),
    "callbacks.device_stats_monitor": (_CALLBACKS,),
    "callbacks.early_stopping": ("bolide.callbacks.early_stopping",),
    "callbacks.finetuning": (_CALLBACKS,),
    "callbacks.gradient_accumulation_scheduler": ("bolide.callbacks.gradient_accumulation_scheduler",),
    "callbacks.lambda_function": ("bolide.callbacks.lambda_function",),
    "callbacks.lr_finder": (_CALLBACKS,),
    "callbacks.lr_monitor": ("bolide.callbacks.lr_monitor",),
    "callbacks.model_checkpoint": ("bolide.callbacks.model_checkpoint",),
    "callbacks.model_summary": ("bolide.callbacks.model_summary",),
    "callbacks.on_exception_checkpoint": (_CALLBACKS,),
    "callbacks.prediction_writer": (_CALLBACKS,),
    "callbacks.progress": (_PROGRESS, _CALLBACKS),
    "callbacks.progress.base": (_PROGRESS, _CALLBACKS),
    "callbacks.progress.progress_bar": ("bolide.callbacks.progress.progress_bar",),
    "callbacks.progress.rich_progress": ("bolide.callbacks.progress.rich_progress",),
    "callbacks.progress.tqdm_progress": ("bolide.callbacks.progress.tqdm_progress",),
    "callbacks.pruning": (_CALLBACKS,),
    "callbacks.rich_model_summary": ("bolide.callbacks.rich_model_summary",),
    "callbacks.spike": (_CALLBACKS,),
    "callbacks.stochastic_weight_avg": (_CALLBACKS,),
    "callbacks.throughput_monitor": (_CALLBACKS,),
    "callbacks.timer": ("bolide.callbacks.timer",),
    "callbacks.weight_averaging": (_CALLBACKS,),
    "cli": ("bolide.cli",),
    "core": ("bolide.module:LightningModule", "bolide.datamodule:LightningDataModule"),
    "core.datamodule": ("bolide.datamodule",),
    "core.hooks": (),
    "core.lightning": ("bolide.module",),
    "core.mixins": ("bolide.hparams",),
    "core.mixins.hparams_mixin": ("bolide.hparams",),
    "core.module": ("bolide.module",),
    "core.optimizer": ("bolide.engine.optimizers",),
    "core.saving": ("bolide.utilities.saving",),
    "demos": ("bolide.demos",),
    "demos.boring_classes": ("bolide.demos.boring_classes",),
    "loggers": (_LOGGERS,),
    "loggers.base": (_LOGGERS,),
    "loggers.comet": (_LOGGERS,),
    "loggers.csv_logs": ("bolide.loggers.csv_logs",),
    "loggers.logger": ("bolide.loggers.logger",),
    "loggers.mlflow": (_LOGGERS,),
    "loggers.neptune": (_LOGGERS,),
    "loggers.tensorboard": ("bolide.loggers.tensorboard",),
    "loggers.utilities": ("bolide.loggers.utilities",),
    "loggers.wandb": (_LOGGERS,),
    "plugins": ("bolide.plugins",),
    "plugins.environments": ("bolide.plugins.environments",),
    "plugins.io": ("bolide.plugins.io", "bolide.plugins"),
    "plugins.io.async_plugin": ("bolide.plugins",),
    "plugins.io.checkpoint_plugin": ("bolide.plugins.io",),
    "plugins.io.torch_plugin": ("bolide.plugins.io",),
    "plugins.layer_sync": ("bolide.plugins",),
    "plugins.precision": ("bolide.plugins.precision", "bolide.plugins"),
    "plugins.precision.amp": ("bolide.plugins.precision.amp",),
    "plugins.precision.double": ("bolide.plugins.precision.double",),
    "plugins.precision.half": ("bolide.plugins.precision.half",),
    "plugins.precision.precision": ("bolide.plugins.precision.precision",),
    "profilers": ("bolide.profilers",),
    "profilers.advanced": ("bolide.profilers.advanced",),
    "profilers.base": ("bolide.profilers",),
    "profilers.profiler": ("bolide.profilers.profiler",),
    "profilers.pytorch": ("bolide.profilers.pytorch",),
    "profilers.simple": ("bolide.profilers.simple",),
    "strategies": (_STRATEGIES,),
    "strategies.ddp": (_STRATEGIES,),
    "strategies.deepspeed": (_STRATEGIES,),
    "strategies.fsdp": (_STRATEGIES,),
    "strategies.launchers": (),
    "strategies.model_parallel": (_STRATEGIES,),
    "strategies.parallel": (_STRATEGIES,),
    "strategies.single_device": (_STRATEGIES,),
    "strategies.strategy": (_STRATEGIES,),
    "trainer": ("bolide.trainer", "bolide.seed:seed_everything"),
    "trainer.states": ("bolide.trainer.states",),
    "trainer.trainer": ("bolide.trainer.trainer",),
    "tuner": ("bolide.tuner",),
    "tuner.lr_finder": (),
    "tuner.tuning": ("bolide.tuner.tuning",),
    "utilities": (
        "bolide.utilities",
        "bolide.utilities.model_summary:ModelSummary",
        "bolide.utilities.seed:seed_everything",
        "bolide.core.errors:MisconfigurationException",
    ),
    "utilities.apply_func": ("bolide.utilities.apply_func",),
    "utilities.cloud_io": ("bolide.utilities.cloud_io",),
    "utilities.combined_loader": ("bolide.utilities.combined_loader",),
    "utilities.compile": ("bolide.utilities.compile",),
    "utilities.data": ("bolide.utilities.data",),
    "utilities.distributed": ("bolide.utilities.rank_zero",),
    "utilities.enums": ("bolide.utilities.enums",),
    "utilities.exceptions": ("bolide.utilities.exceptions",),
    "utilities.grads": ("bolide.utilities.grads",),
    "utilities.imports": ("bolide.utilities.imports",),
    "utilities.memory": ("bolide.utilities.memory",),
    "utilities.model_helpers": ("bolide.utilities.model_helpers",),
    "utilities.model_summary": ("bolide.utilities.model_summary",),
    "utilities.model_summary.model_summary": ("bolide.utilities.model_summary",),
    "utilities.parsing": ("bolide.utilities.parsing",),
    "utilities.rank_zero": ("bolide.utilities.rank_zero",),
    "utilities.seed": ("bolide.utilities.seed",),
    "utilities.supporters": ("bolide.utilities.combined_loader",),
    "utilities.types": ("bolide.utilities.types",),
    "utilities.warnings": ("bolide.utilities.warnings", "bolide.utilities.rank_zero"),
}
"""Paths below `lightning.pytorch` and `pytorch_lightning`."""

FABRIC: dict[str, tuple[str, ...]] = {
    "": ("bolide.seed:seed_everything",),
    "accelerators": ("bolide.accelerators",),
    "plugins": ("bolide.plugins",),
    "plugins.environments": ("bolide.plugins.environments",),
    "plugins.io": ("bolide.plugins.io",),
    "utilities": ("bolide.utilities",),
    "utilities.apply_func": ("bolide.utilities.apply_func",),
    "utilities.cloud_io": ("bolide.utilities.cloud_io",),
    "utilities.data": ("bolide.utilities.data",),
    "utilities.enums": ("bolide.utilities.enums",),
    "utilities.exceptions": ("bolide.utilities.exceptions",),
    "utilities.imports": ("bolide.utilities.imports",),
    "utilities.logger": ("bolide.loggers.utilities",),
    "utilities.rank_zero": ("bolide.utilities.rank_zero",),
    "utilities.seed": ("bolide.utilities.seed",),
    "utilities.throughput": ("bolide.utilities.model_summary:measure_flops",),
    "utilities.types": ("bolide.utilities.types",),
    "utilities.warnings": ("bolide.utilities.warnings",),
}
"""Paths below `lightning.fabric` and `lightning_fabric`."""


@functools.cache
def foreign_modules() -> dict[str, tuple[str, ...]]:
    """All of Lightning's module names that are answered, and where their names are looked up."""
    table = {"lightning": PYTORCH[""]}
    roots = {"lightning.pytorch": PYTORCH, "pytorch_lightning": PYTORCH}
    roots |= {"lightning.fabric": FABRIC, "lightning_fabric": FABRIC}
    for root, paths in roots.items():
        for path, sources in paths.items():
            table[f"{root}.{path}" if path else root] = sources
    return table


_TORCHMETRICS = "Metrics are in the package torchmetrics. Write: import torchmetrics"
_STEPS = "Write your own loop around Trainer.steps(module, loader), which yields after each batch."

PATH_HINTS: dict[str, str] = {
    "metrics": _TORCHMETRICS,
    "metrics.functional": _TORCHMETRICS,
    "lite": _STEPS,
    "loops": _STEPS,
    "profiler": "Write: pytorch_lightning.profilers",
    "core.decorators": "Its decorators are gone; trainer.predict moves the data.",
    "utilities.argparse": "Read arguments with argparse of your own.",
    "utilities.cli": "Write: pytorch_lightning.cli",
    "lightning.app": "It is a package of its own.",
}
"""What is said of modules that Bolide lacks, by the path below `lightning.pytorch`."""

HINTS: dict[str, str] = {
    "Fabric": f"there is no Fabric in Bolide. {_STEPS}",
    "LightningLite": f"there is no LightningLite in Bolide. {_STEPS}",
    "LightningCLI": "LightningCLI is not built in this version of Bolide. Read arguments with argparse of your own.",
    "LearningRateLogger": "it is LearningRateMonitor today.",
    "GPUStatsMonitor": "it is DeviceStatsMonitor today.",
    "XLAStatsMonitor": "it is DeviceStatsMonitor today.",
    "ProgressBarBase": "it is ProgressBar today.",
    "LightningLoggerBase": "it is Logger today.",
    "LoggerCollection": "give the Trainer a list of loggers.",
    "TestTubeLogger": "use CSVLogger or TensorBoardLogger.",
    "QuantizationAwareTraining": "use torch.ao.quantization.",
    "EvalResult": "use self.log.",
    "TrainResult": "use self.log.",
    "data_loader": "write the method without the decorator.",
    "auto_move_data": "use trainer.predict.",
    "DDPPlugin": "it is DDPStrategy today, given as strategy=.",
    "DDPSpawnPlugin": 'it is strategy="ddp_spawn" today.',
    "DDPSpawnStrategy": 'it is DDPStrategy(start_method="spawn") today.',
    "DDPShardedPlugin": 'it is strategy="fsdp" today.',
    "DataParallelStrategy": "it is DDPStrategy today.",
    "DDPShardedStrategy": "it is FSDPStrategy today.",
    "DDPFullyShardedStrategy": "it is FSDPStrategy today.",
    "PrecisionPlugin": "it is Precision today.",
    "NativeMixedPrecisionPlugin": "it is MixedPrecision today.",
    "MixedPrecisionPlugin": "it is MixedPrecision today.",
    "ApexMixedPrecisionPlugin": "apex is not supported; use MixedPrecision.",
    "AbstractProfiler": "it is Profiler today.",
    "BaseProfiler": "it is Profiler today.",
    "GPUAccelerator": "it is CUDAAccelerator today.",
}
"""What is said of names that Bolide lacks: they were renamed, or other packages have them."""

"""Every module path and name that Lightning's users import, as far as Bolide offers it."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

from bolide.compat.foreign_paths import FABRIC, PYTORCH
from bolide.core.errors import ConfigError, NotBuiltError

OFFERED: dict[str, str] = {
    "": "Trainer LightningModule LightningDataModule Callback seed_everything",
    "accelerators": "Accelerator CPUAccelerator CUDAAccelerator MPSAccelerator find_usable_cuda_devices",
    "accelerators.cuda": "CUDAAccelerator find_usable_cuda_devices",
    "callbacks": "Callback Checkpoint EarlyStopping GradientAccumulationScheduler LambdaCallback LearningRateMonitor "
    "ModelCheckpoint ModelSummary ProgressBar RichModelSummary RichProgressBar TQDMProgressBar Timer",
    "callbacks.callback": "Callback",
    "callbacks.checkpoint": "Checkpoint",
    "callbacks.early_stopping": "EarlyStopping",
    "callbacks.gradient_accumulation_scheduler": "GradientAccumulationScheduler",
    "callbacks.lambda_function": "LambdaCallback",
    "callbacks.lr_monitor": "LearningRateMonitor",
    "callbacks.model_checkpoint": "ModelCheckpoint",
    "callbacks.model_summary": "ModelSummary",
    "callbacks.progress": "ProgressBar RichProgressBar TQDMProgressBar",
    "callbacks.progress.progress_bar": "ProgressBar",
    "callbacks.progress.rich_progress": "RichProgressBar",
    "callbacks.progress.tqdm_progress": "TQDMProgressBar",
    "callbacks.rich_model_summary": "RichModelSummary",
    "callbacks.timer": "Timer",
    "demos": "BoringModel BoringDataModule DemoModel",
    "demos.boring_classes": "BoringDataModule BoringDataModuleNoLen BoringModel DemoModel IterableBoringDataModule "
    "ManualOptimBoringModel Net RandomDataset RandomDictDataset RandomIterableDataset RandomIterableDatasetWithLen",
    "loggers": "CSVLogger Logger TensorBoardLogger",
    "loggers.csv_logs": "CSVLogger",
    "loggers.logger": "Logger DummyLogger",
    "loggers.tensorboard": "TensorBoardLogger",
    "loggers.utilities": "",
    "plugins": "CheckpointIO DoublePrecision HalfPrecision MixedPrecision Precision TorchCheckpointIO",
    "plugins.environments": "",
    "plugins.io": "CheckpointIO TorchCheckpointIO",
    "plugins.io.torch_plugin": "TorchCheckpointIO",
    "plugins.precision": "DoublePrecision HalfPrecision MixedPrecision Precision",
    "plugins.precision.amp": "MixedPrecision",
    "plugins.precision.double": "DoublePrecision",
    "plugins.precision.half": "HalfPrecision",
    "plugins.precision.precision": "Precision",
    "profilers": "AdvancedProfiler PassThroughProfiler Profiler PyTorchProfiler SimpleProfiler XLAProfiler",
    "profilers.advanced": "AdvancedProfiler",
    "profilers.profiler": "Profiler",
    "profilers.pytorch": "PyTorchProfiler",
    "profilers.simple": "SimpleProfiler",
    "strategies": "SingleDeviceStrategy Strategy",
    "trainer": "Trainer",
    "trainer.states": "RunningStage TrainerFn TrainerState TrainerStatus",
    "trainer.trainer": "Trainer",
    "tuner": "Tuner",
    "tuner.tuning": "Tuner",
    "utilities": "AttributeDict CombinedLoader GradClipAlgorithmType LightningEnum disable_possible_user_warnings "
    "find_shared_parameters grad_norm measure_flops move_data_to_device rank_zero_deprecation rank_zero_info "
    "rank_zero_only rank_zero_warn set_shared_parameters suggested_max_num_workers",
    "utilities.apply_func": "apply_to_collection move_data_to_device",
    "utilities.cloud_io": "get_filesystem",
    "utilities.combined_loader": "CombinedLoader sized_len",
    "utilities.compile": "from_compiled to_uncompiled",
    "utilities.data": "AttributeDict extract_batch_size has_iterable_dataset has_len has_len_all_ranks sized_len "
    "suggested_max_num_workers",
    "utilities.enums": "GradClipAlgorithmType LightningEnum",
    "utilities.exceptions": "MisconfigurationException SIGTERMException",
    "utilities.grads": "grad_norm",
    "utilities.imports": "RequirementCache compare_version module_available package_available",
    "utilities.memory": "garbage_collection_cuda is_cuda_out_of_memory is_cudnn_snafu is_oom_error "
    "is_out_of_cpu_memory recursive_detach",
    "utilities.model_helpers": "is_overridden",
    "utilities.model_summary": "LayerSummary ModelSummary get_formatted_model_size get_human_readable_count "
    "parse_batch_shape summarize",
    "utilities.parsing": "AttributeDict get_init_args lightning_getattr lightning_hasattr lightning_setattr "
    "parse_class_init_keys save_hyperparameters",
    "utilities.rank_zero": "rank_zero_debug rank_zero_deprecation rank_zero_info rank_zero_only rank_zero_warn",
    "utilities.saving": "load_hparams_from_tags_csv load_hparams_from_yaml save_hparams_to_yaml",
    "utilities.seed": "isolate_rng pl_worker_init_function reset_seed seed_everything",
    "utilities.types": "EVAL_DATALOADERS STEP_OUTPUT TRAIN_DATALOADERS LRSchedulerConfig LRSchedulerConfigType "
    "LRSchedulerPLType LRSchedulerTypeTuple LRSchedulerTypeUnion OptimizerConfig OptimizerLRScheduler "
    "OptimizerLRSchedulerConfig",
    "utilities.warnings": "PossibleUserWarning disable_possible_user_warnings",
}
"""Paths below `bolide`, as they stand below `lightning.pytorch`, and the names in them."""

NOT_BUILT = [
    ("callbacks", "StochasticWeightAveraging"),
    ("callbacks", "LearningRateFinder"),
    ("loggers", "WandbLogger"),
    ("plugins", "AsyncCheckpointIO"),
    ("plugins", "FSDPPrecision"),
    ("accelerators", "XLAAccelerator"),
]


def module_of(path):
    return importlib.import_module(f"bolide.{path}" if path else "bolide")


@pytest.mark.parametrize("path", OFFERED)
def test_the_module_offers(path):
    module = module_of(path)
    missing = [name for name in OFFERED[path].split() if getattr(module, name, None) is None]
    # types may be `Any`, which is something
    assert missing == []


@pytest.mark.parametrize(("path", "name"), NOT_BUILT)
def test_a_name_that_is_not_built_says_so(path, name):
    with pytest.raises(AttributeError, match=f"{name}.*(not built|not in this version|not supported)"):
        getattr(module_of(path), name)


@pytest.mark.parametrize(
    ("path", "name", "near"),
    [("accelerators", "CUDAAcelerator", "CUDAAccelerator"), ("utilities", "grad_norms", "grad_norm"),
     ("plugins", "Precisions", "Precision")],
)  # fmt: skip
def test_a_name_that_never_was_names_the_nearest(path, name, near):
    with pytest.raises(AttributeError, match=f"Did you mean '{near}'"):
        getattr(module_of(path), name)


@pytest.mark.parametrize("name", ["AdvancedProfiler", "PyTorchProfiler", "SimpleProfiler", "XLAProfiler"])
def test_profilers_that_are_not_built(name):
    with pytest.raises(NotBuiltError, match=f"{name} is not built"):
        getattr(module_of("profilers"), name)(dirpath=".")


def test_the_tuner_is_not_built():
    with pytest.raises(ConfigError, match="Tuner is not built"):
        module_of("tuner").Tuner(None)


@pytest.mark.parametrize("sources", [*PYTORCH.values(), *FABRIC.values()])
def test_the_table_of_the_drop_in_names_modules_that_are_there(sources):
    for source in sources:
        module, _, name = source.partition(":")
        assert not name or hasattr(importlib.import_module(module), name)
        importlib.import_module(module)


def test_everything_offered_is_answered_by_the_drop_in():
    own = {"utilities.saving", "utilities.cloud_io"}
    assert set(OFFERED) - own <= set(PYTORCH)


CHAINS = (
    "accelerators.cpu.CPUAccelerator", "callbacks.early_stopping.EarlyStopping", "callbacks.progress.TQDMProgressBar",
    "callbacks.progress.tqdm_progress.TQDMProgressBar", "demos.boring_classes.BoringModel",
    "loggers.csv_logs.CSVLogger", "plugins.io.TorchCheckpointIO", "plugins.precision.amp.MixedPrecision",
    "profilers.profiler.Profiler", "strategies.strategy.Strategy", "trainer.states.TrainerFn",
    "trainer.trainer.Trainer", "tuner.tuning.Tuner", "utilities.exceptions.MisconfigurationException",
    "utilities.rank_zero.rank_zero_only", "utilities.seed.seed_everything",
)  # fmt: skip


def test_submodules_are_reached_as_attributes_of_the_package_alone() -> None:
    script = "import functools, importlib, sys\nfor chain in sys.argv[1:]:\n" + (
        "    for name in [n for n in sys.modules if n.partition('.')[0] == 'bolide']:\n"
        "        del sys.modules[name]\n"
        "    functools.reduce(getattr, chain.split('.'), importlib.import_module('bolide'))\n"
    )
    ran = subprocess.run([sys.executable, "-c", script, *CHAINS], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize("package", ["accelerators", "callbacks", "callbacks.progress", "loggers", "utilities"])
def test_a_name_that_is_nowhere_is_still_no_attribute(package: str) -> None:
    module = importlib.import_module(f"bolide.{package}")
    assert not hasattr(module, "nowhere")
    assert not hasattr(module, "_private")

import subprocess
import sys

import pytest

import bolide.callbacks as callbacks


def test_every_name_is_there():
    for name in callbacks.__all__:
        assert getattr(callbacks, name).__name__ == name
    assert set(callbacks.__all__) <= set(dir(callbacks))


def test_what_is_not_built_says_so():
    with pytest.raises(ImportError, match="StochasticWeightAveraging is not in this version of Bolide. Instead, "):
        from bolide.callbacks import StochasticWeightAveraging  # noqa: F401
    with pytest.raises(AttributeError, match="BatchSizeFinder is not in this version"):
        _ = callbacks.BatchSizeFinder
    assert not hasattr(callbacks, "ModelPruning")


def test_what_does_not_exist_is_an_ordinary_error():
    with pytest.raises(ImportError, match="cannot import name 'NoSuch'"):
        from bolide.callbacks import NoSuch  # noqa: F401
    with pytest.raises(AttributeError, match="has no attribute 'NoSuch'"):
        _ = callbacks.NoSuch


def test_lightnings_names_are_all_known():
    theirs = pytest.importorskip("lightning.pytorch.callbacks").__all__
    unknown = [name for name in theirs if name not in callbacks.__all__ and name not in callbacks._NOT_BUILT]
    assert unknown == []


def test_nothing_heavy_is_imported_before_it_is_asked_for():
    code = "import sys, bolide.callbacks; print([m for m in ('rich', 'tqdm', 'yaml') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    "path",
    [
        "callback.Callback", "checkpoint.Checkpoint", "early_stopping.EarlyStopping", "timer.Timer",
        "gradient_accumulation_scheduler.GradientAccumulationScheduler", "lambda_function.LambdaCallback",
        "lr_monitor.LearningRateMonitor", "model_checkpoint.ModelCheckpoint", "model_summary.ModelSummary",
        "rich_model_summary.RichModelSummary", "progress.ProgressBar", "progress.TQDMProgressBar",
        "progress.RichProgressBar", "progress.progress_bar.ProgressBar", "progress.tqdm_progress.TQDMProgressBar",
        "progress.tqdm_progress.Tqdm", "progress.rich_progress.RichProgressBar",
        "progress.rich_progress.RichProgressBarTheme", "on_exception_checkpoint.OnExceptionCheckpoint",
        "spike.SpikeDetection",
        "step_record.StepRecord",
    ],
)  # fmt: skip
def test_lightnings_module_paths(path):
    from importlib import import_module

    module, _, name = path.rpartition(".")
    assert getattr(import_module(f"bolide.callbacks.{module}"), name).__name__ == name

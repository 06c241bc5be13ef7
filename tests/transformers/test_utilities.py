"""What scripts import beside the Trainer: it is there, and answers as transformers' own."""

from __future__ import annotations

import functools
import importlib
import os
import subprocess
import sys
import time
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
import torch

import bolide.transformers as ours
from bolide.core.errors import ConfigError

theirs = pytest.importorskip("transformers")
USUAL = {
    "trainer": "Trainer TRAINER_STATE_NAME OPTIMIZER_NAME SCHEDULER_NAME SCALER_NAME SAFE_WEIGHTS_NAME WEIGHTS_NAME "
    "SAFE_WEIGHTS_INDEX_NAME WEIGHTS_INDEX_NAME DEFAULT_CALLBACKS DEFAULT_PROGRESS_CALLBACK CallbackHandler "
    "EvalLoopContainer IterableDatasetShard LabelSmoother LengthGroupedSampler RemoveColumnsCollator find_batch_size "
    "get_parameter_names nested_detach DataCollatorWithPadding DataCollator default_data_collator get_scheduler",
    "trainer_utils": "BestRun EvalLoopOutput EvalPrediction FSDPOption HPSearchBackend HubStrategy IntervalStrategy "
    "PREFIX_CHECKPOINT_DIR PredictionOutput SaveStrategy SchedulerType TrainOutput TrainerMemoryTracker "
    "default_compute_objective denumpify_detensorize enable_full_determinism find_executable_batch_size "
    "get_last_checkpoint has_length is_main_process load_sharded_checkpoint number_of_arguments rotate_checkpoints "
    "seed_worker set_seed sort_checkpoints speed_metrics total_processes_number unwrap_peft_model",
    "trainer_callback": "CallbackHandler DefaultFlowCallback EarlyStoppingCallback ExportableState PrinterCallback "
    "ProgressCallback TrainerCallback TrainerControl TrainerState",
    "training_args": "OptimizerNames ParallelMode TrainingArguments trainer_log_levels DebugOption",
    "training_args_seq2seq": "Seq2SeqTrainingArguments",
    "trainer_seq2seq": "Seq2SeqTrainer",
    "trainer_pt_utils": "AcceleratorConfig nested_concat nested_numpify nested_truncate torch_distributed_zero_first",
    "hf_argparser": "HfArgumentParser",
    "optimization": "Adafactor get_constant_schedule get_constant_schedule_with_warmup get_wsd_schedule "
    "get_cosine_schedule_with_warmup get_cosine_with_hard_restarts_schedule_with_warmup get_inverse_sqrt_schedule "
    "get_cosine_with_min_lr_schedule_with_warmup get_linear_schedule_with_warmup get_reduce_on_plateau_schedule "
    "get_polynomial_decay_schedule_with_warmup get_scheduler",
}
"""What scripts import from modules of transformers."""


@pytest.mark.parametrize("module", USUAL)
def test_names_that_scripts_import(module):
    original = importlib.import_module(f"transformers.{module}")
    for name in USUAL[module].split():
        found, expected = getattr(ours, name), getattr(original, name)
        assert callable(found) == callable(expected), name
        if isinstance(found, str):
            assert found == expected, name
    assert set(ours.trainer_log_levels.items()) == set(theirs.training_args.trainer_log_levels.items())


def test_words_of_each_choice():
    for name in ("HPSearchBackend", "FSDPOption", "HubStrategy", "IntervalStrategy", "SaveStrategy"):
        expected = {member.name: member.value for member in getattr(theirs.trainer_utils, name)}
        assert {member.name: member.value for member in getattr(ours, name)} == expected
    assert {m.name: m.value for m in ours.ParallelMode} == {m.name: m.value for m in theirs.training_args.ParallelMode}
    assert {m.name: m.value for m in ours.OptimizerNames} == {
        m.name: m.value for m in theirs.training_args.OptimizerNames
    }


SCRIPT = """
from transformers import EarlyStoppingCallback, ProgressCallback, TrainingArguments, set_seed
from transformers.hf_argparser import HfArgumentParser
from transformers.trainer import TRAINER_STATE_NAME, Trainer, get_last_checkpoint
from transformers.trainer_utils import HPSearchBackend, IntervalStrategy, enable_full_determinism, speed_metrics
from transformers.trainer_callback import EarlyStoppingCallback as Early, TrainerCallback
from transformers.training_args import OptimizerNames, TrainingArguments as Arguments
from transformers.trainer_seq2seq import Seq2SeqTrainer
from transformers.optimization import get_linear_schedule_with_warmup

assert {x.__module__.partition(".")[0] for x in (Trainer, Seq2SeqTrainer, Arguments, HfArgumentParser, Early,
                                                 EarlyStoppingCallback, get_last_checkpoint)} == {"bolide"}
args = Arguments("out", evaluation_strategy=IntervalStrategy.STEPS, optim=OptimizerNames.SGD, use_cpu=True)
assert args.eval_strategy == "steps" and args.optim == "sgd"
print("done")
"""


@pytest.mark.parametrize("installed", [True, False])
def test_the_same_names_through_the_drop_in(installed, tmp_path):
    hidden = (
        "import importlib.util, sys\n"
        "real = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *more: None if name == 'transformers' else real(name, *more)\n"
    )
    start = "import bolide.compat.drop_in as d; d.install_transformers()\n"
    script = SCRIPT if installed else SCRIPT.replace(", HfArgumentParser, Early", ", Early").replace(
        "from transformers.hf_argparser import HfArgumentParser\n", ""
    )  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", ("" if installed else hidden) + start + script],
        capture_output=True, text=True, timeout=110, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert done.stdout.endswith("done\n"), done.stderr[-2000:]


def test_figures_numbers_and_lengths(monkeypatch):
    monkeypatch.setattr(time, "time", lambda: 12.0)
    utils = theirs.trainer_utils
    for given in (("train", 10.0, 10, 4, 100), ("x", 10.0), ("x", 12.0, 3, 3), ("x", 15.0, 3)):
        assert ours.speed_metrics(*given) == utils.speed_metrics(*given)

    class Has:
        def method(self, a, b=1):
            return a, b

    for function in (lambda a, b=1, *c, **d: 0, functools.partial(lambda a, b, c: 0, 1, c=2), Has().method, Has.method):
        assert ours.number_of_arguments(function) == utils.number_of_arguments(function)
    for value in ([1], iter([]), {}, object()):
        assert ours.has_length(value) == utils.has_length(value)
    nested = OrderedDict(a=np.float32(1.5), b=[torch.tensor(2), "x"], c=(np.int64(3), None), d=torch.tensor([4]))
    assert ours.denumpify_detensorize(nested) == utils.denumpify_detensorize(nested)
    assert type(ours.denumpify_detensorize(nested)["a"]) is float
    metrics = {"eval_loss": 1.0, "eval_a": 2.0, "eval_b": 3.0, "eval_runtime": 4.0, "epoch": 1.0}
    for given in (metrics, {"eval_loss": 1.0, "epoch": 1.0}):
        assert ours.default_compute_objective(dict(given)) == utils.default_compute_objective(dict(given))


def test_metrics_as_a_table_shows_them():
    metrics = {
        "train_runtime": 4000.257,
        "total_flos": 3.5e12,
        "a": 0.123456,
        "n": 3,
        "init_mem_cpu_alloc_delta": 5 << 21,
    }
    assert ours.Trainer.metrics_format(metrics) == theirs.Trainer.metrics_format(metrics)


def test_smaller_batches_until_memory_suffices():
    def tried(package, find=True):
        sizes = []

        @package.find_executable_batch_size(starting_batch_size=16, auto_find_batch_size=find)
        def run(batch_size, more):
            sizes.append(batch_size)
            if batch_size > 10:
                raise RuntimeError("CUDA out of memory.")
            return batch_size + more

        return run(1) if find else sizes, sizes, run

    assert tried(ours)[:2] == tried(theirs.trainer_utils)[:2]
    with pytest.raises(RuntimeError, match="out of memory"):
        tried(ours, find=False)[2](1)

    @ours.find_executable_batch_size(starting_batch_size=16, auto_find_batch_size=True)
    def wrong(batch_size):
        raise RuntimeError("another")

    with pytest.raises(RuntimeError, match="another"):
        wrong()


def test_which_folders_are_kept(tmp_path):
    def kept(package, out):
        for step in (2, 10, 5, 7):
            os.makedirs(out / f"checkpoint-{step}")
        best = str(out / "checkpoint-2")
        order = [os.path.basename(path) for path in package.sort_checkpoints(str(out), best_model_checkpoint=best)]
        package.rotate_checkpoints(str(out), save_total_limit=3, best_model_checkpoint=best)
        first = sorted(os.listdir(out))
        package.rotate_checkpoints(str(out), save_total_limit=1, best_model_checkpoint=best)
        second = sorted(os.listdir(out))
        package.rotate_checkpoints(str(out), save_total_limit=0)
        return order, first, second, sorted(os.listdir(out))

    assert kept(ours, tmp_path / "a") == kept(theirs.trainer_utils, tmp_path / "b")


@pytest.mark.parametrize("warn_only", [False, True])
def test_everything_deterministic(warn_only):
    done = subprocess.run(
        [sys.executable, "-c", f"""if True:
            import os, torch
            from bolide.transformers import enable_full_determinism
            enable_full_determinism(3, warn_only={warn_only})
            assert torch.are_deterministic_algorithms_enabled()
            assert torch.is_deterministic_algorithms_warn_only_enabled() is {warn_only}
            assert torch.backends.cudnn.deterministic and not torch.backends.cudnn.benchmark
            print(os.environ["CUBLAS_WORKSPACE_CONFIG"], torch.initial_seed())"""],
        capture_output=True, text=True, timeout=110, check=False,
    )  # fmt: skip
    assert done.stdout == ":16:8 3\n", done.stderr


SCHEDULES: list[tuple[str, dict[str, Any]]] = [
    ("constant_schedule", {}), ("constant_schedule_with_warmup", {"num_warmup_steps": 3}),
    ("linear_schedule_with_warmup", {"num_warmup_steps": 3, "num_training_steps": 12}),
    ("cosine_schedule_with_warmup", {"num_warmup_steps": 3, "num_training_steps": 12, "num_cycles": 1.0}),
    ("cosine_with_hard_restarts_schedule_with_warmup",
     {"num_warmup_steps": 2, "num_training_steps": 12, "num_cycles": 2}),
    ("polynomial_decay_schedule_with_warmup",
     {"num_warmup_steps": 2, "num_training_steps": 12, "lr_end": 0.01, "power": 2.0}),
    ("inverse_sqrt_schedule", {"num_warmup_steps": 2}),
    ("inverse_sqrt_schedule", {"num_warmup_steps": 2, "timescale": 4}),
    ("cosine_with_min_lr_schedule_with_warmup", {"num_warmup_steps": 2, "num_training_steps": 12, "min_lr": 0.01}),
    ("wsd_schedule", {"num_warmup_steps": 2, "num_decay_steps": 4, "num_training_steps": 12, "decay_type": "linear"}),
]  # fmt: skip


@pytest.mark.parametrize("last_epoch", [-1, 4])
@pytest.mark.parametrize(("name", "options"), SCHEDULES)
def test_schedules_by_functions(name, options, last_epoch):
    def rates(package):
        optimizer = torch.optim.SGD([{"params": [torch.nn.Parameter(torch.zeros(1))], "initial_lr": 0.1}], lr=0.1)
        schedule = getattr(package, f"get_{name}")(optimizer, **options, last_epoch=last_epoch)
        found = []
        for _ in range(8):
            found.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            schedule.step()
        return [*found, schedule.last_epoch]

    assert rates(ours) == pytest.approx(rates(theirs.optimization), rel=1e-12, abs=1e-15)


def test_a_schedule_that_goes_on_needs_to_know_from_where():
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    with pytest.raises(ConfigError, match="last_epoch=4: the optimizer's groups have no 'initial_lr'"):
        ours.get_constant_schedule(optimizer, last_epoch=4)
    assert type(ours.get_reduce_on_plateau_schedule(optimizer, patience=2)).__name__ == "ReduceLROnPlateau"


def test_state_of_callbacks_without_transformers():
    """The classes that stand in for transformers' own have the same parts."""
    from bolide.transformers import state

    control = state._Control(should_save=True)
    assert control.state() == theirs.TrainerControl(should_save=True).state()

    class Counts(state._Exportable):
        def __init__(self, step: int = 1) -> None:
            self.step, self.total = step, 0

        def state(self):
            return {"args": {"step": self.step}, "attributes": {"total": self.total}}

    counts = Counts(3)
    counts.total = 9
    again = Counts.from_state(counts.state())
    assert (again.step, again.total) == (3, 9)
    assert isinstance(ours.EarlyStoppingCallback(), theirs.trainer_callback.ExportableState)

"""TrainingArguments and the Trainer's constructor: fields, old names, everything that is wrong told at once."""

from __future__ import annotations

import dataclasses
import json
import math
import sys

import pytest
import torch

import bolide.transformers as door
from bolide.compat import hf_args
from bolide.core.errors import ConfigError, MissingPackageError
from bolide.transformers.choices import OptimizerNames
from bolide.transformers.rules import NOT_BUILT_OPTIMIZERS
from tests.transformers.models import Net, Stream, points

theirs = pytest.importorskip("transformers")


def test_every_field_of_the_original_is_there_with_its_default():
    ours = {f.name: f for f in dataclasses.fields(door.TrainingArguments)}
    original = dataclasses.fields(theirs.TrainingArguments)
    assert len(original) > 100
    missing = [f.name for f in original if f.init and f.name not in ours]
    assert missing == []
    a, b = door.TrainingArguments("out", use_cpu=True), theirs.TrainingArguments("out", use_cpu=True)
    differ = {
        f.name: (getattr(a, f.name), getattr(b, f.name)) for f in original
        if f.init and getattr(a, f.name) != getattr(b, f.name)
    }  # fmt: skip
    # what the original fills in with objects of its own, or for itself
    for name in ("accelerator_config", "fsdp_config", "fsdp", "lr_scheduler_kwargs", "deepspeed", "local_rank",
                 "activation_checkpointing", "gradient_checkpointing", "logging_dir", "disable_tqdm",
                 "dataloader_pin_memory"):  # fmt: skip
        differ.pop(name, None)
    assert differ == {}


VALUES = {
    "evaluation_strategy": ("steps", {"eval_strategy": "steps"}),
    "evaluate_during_training": (True, {"eval_strategy": "steps"}),
    "warmup_ratio": (0.1, {"warmup_steps": 0.1}),
    "group_by_length": (True, {"train_sampling_strategy": "group_by_length"}),
    "no_cuda": (True, {"use_cpu": True}),
    "per_gpu_train_batch_size": (3, {"per_device_train_batch_size": 3}),
    "per_gpu_eval_batch_size": (3, {"per_device_eval_batch_size": 3}),
    "push_to_hub_model_id": ("a/b", {"hub_model_id": "a/b"}),
    "push_to_hub_token": ("secret", {"hub_token": "secret"}),
    "include_inputs_for_metrics": (True, {"include_for_metrics": ["inputs"]}),
    "include_tokens_per_second": (True, {"include_num_input_tokens_seen": "all"}),
    "adafactor": (True, {"optim": "adafactor"}),
    "torchdynamo": ("eager", {"torch_compile_backend": "eager", "torch_compile": True}),
    "fsdp_min_num_params": (10, {"fsdp_config": {"min_num_params": 10}}),
    "fsdp_transformer_layer_cls_to_wrap": ("Block", {"fsdp_config": {"transformer_layer_cls_to_wrap": "Block"}}),
    "dispatch_batches": (False, {"accelerator_config": door.AcceleratorConfig(dispatch_batches=False)}),
    "split_batches": (False, {"accelerator_config": door.AcceleratorConfig(split_batches=False)}),
}
ASKED = {
    "push_to_hub_organization": "name", "jit_mode_eval": True, "use_ipex": True, "past_index": 2, "mp_parameters": "x",
    "tpu_num_cores": 8, "tpu_metrics_debug": True,
}  # fmt: skip


@pytest.mark.parametrize("name", hf_args.ROWS)
def test_an_old_name(name):
    row = hf_args.ROWS[name]
    if row.status == "error":
        with pytest.raises(ConfigError):
            door.TrainingArguments("out", **{name: ASKED[name]})
        with pytest.warns(FutureWarning, match=name):
            door.TrainingArguments("out", **{name: False})
        return
    value, expected = VALUES.get(name, (True, {}))
    assert expected or row.status == "ignored"
    with pytest.warns(FutureWarning, match=f"{name} is now") as warned:
        args = door.TrainingArguments("out", **{name: value})
    assert len(warned) == 1
    assert {key: getattr(args, key) for key in expected} == expected


def test_several_old_names_are_one_warning():
    with pytest.warns(FutureWarning) as warned:
        args = door.TrainingArguments(
            "out", evaluation_strategy="epoch", logging_dir="logs", no_cuda=True, warmup_ratio=1.0, optim="adamw_hf"
        )
    (only,) = warned
    for name in ("eval_strategy", "TENSORBOARD_LOGGING_DIR", "use_cpu", "warmup_steps", "adamw_torch"):
        assert name in str(only.message)
    assert args.get_warmup_steps(7) == 7
    assert (args.logging_dir, args.optim, args.evaluation_strategy) == ("logs", "adamw_torch", "epoch")


def test_a_subclass_with_fields_of_its_own():
    @dataclasses.dataclass
    class Mine(door.TrainingArguments):
        extra: int = 3

    with pytest.warns(FutureWarning, match="eval_strategy"):
        args = Mine("out", extra=4, evaluation_strategy="steps")
    assert (args.extra, args.eval_strategy, args.eval_steps) == (4, "steps", 500)


WRONG = [
    ({"fp16": True, "bf16": True}, "contradict"),
    ({"eval_strategy": "sometimes"}, "must be one of no, steps, epoch"),
    ({"optim": "adamw_tork"}, "Did you mean 'adamw_torch'"),
    ({"learning_rate": -1}, "learning_rate=-1"),
    ({"gradient_accumulation_steps": 0}, "gradient_accumulation_steps=0"),
    ({"logging_steps": 0}, "logging_steps=0"),
    ({"eval_steps": 2.5, "eval_strategy": "steps"}, "whole number of steps"),
    ({"load_best_model_at_end": True}, "needs evaluations"),
    ({"load_best_model_at_end": True, "eval_strategy": "epoch"}, "differ"),
    (
        {"load_best_model_at_end": True, "eval_strategy": "steps", "eval_steps": 3, "save_steps": 4},
        "multiple of eval_steps",
    ),
    ({"lr_scheduler_type": "reduce_lr_on_plateau"}, "looks at evaluations"),
    ({"save_strategy": "best"}, "metric_for_best_model"),
    ({"warmup_steps": -1}, "warmup_steps=-1"),
    ({"dataloader_prefetch_factor": 2}, "needs workers"),
    ({"torch_empty_cache_steps": 0}, "torch_empty_cache_steps=0"),
    ({"use_liger_kernel": True}, "Liger"),
    ({"fsdp": "full_shard"}, "start the script with"),
    ({"deepspeed": {"zero_optimization": {}}}, "zero_optimization.stage=None must be 1, 2 or 3"),
    ({"debug": "tpu_metrics_debug"}, "there is 'underflow_overflow'"),
    ({"optim": "galore_adamw"}, "is not built; write optim='adamw_torch'"),
    ({"accelerator_config": {"split_batch": True}}, "Did you mean 'split_batches'"),
    ({"accelerator_config": {"gradient_accumulation_kwargs": {"num_steps": 2}}}, "write gradient_accumulation_steps"),
    ({"dataloader_in_order": False}, "could not go on with the same batches"),
    ({"optim_target_modules": ["attn"]}, "GaLore and APOLLO are not built"),
    ({"parallelism_config": {"tp_size": 2}}, "write fsdp=True or deepspeed"),
    ({"log_level": "loud"}, "log_level"),
    ({"include_for_metrics": ["outputs"]}, "there are 'inputs' and 'loss'"),
    ({"activation_checkpointing": True, "gradient_checkpointing": False}, "two names of one setting"),
    ({"lr_scheduler_kwargs": "{not json"}, "JSON"),
    ({"lern_rate": 1.0}, "Did you mean 'learning_rate'"),
]


@pytest.mark.parametrize(("given", "text"), WRONG, ids=lambda x: str(x)[:40])
def test_what_is_wrong_is_told(given, text):
    with pytest.raises(ConfigError, match=text.replace("[", r"\[")):
        door.TrainingArguments("out", **given)


def test_two_spellings_of_one_setting():
    with pytest.warns(FutureWarning), pytest.raises(ConfigError, match="two spellings"):
        door.TrainingArguments("out", eval_strategy="epoch", evaluation_strategy="steps")


def test_all_that_is_wrong_is_told_at_once():
    with pytest.raises(ConfigError) as told:
        door.TrainingArguments("out", fp16=True, bf16=True, learning_rate=-1, no_such=1, optim="x", logging_steps=0)
    assert len(told.value.problems) == 5
    assert isinstance(told.value, (ValueError, TypeError))


def test_text_of_configuration_files_is_read():
    args = door.TrainingArguments(
        "~/x", learning_rate="5e-5", max_steps="10", lr_scheduler_kwargs='{"num_cycles": 2}', report_to="all, csv"
    )
    assert args.learning_rate == 5e-5
    assert args.max_steps == 10
    assert args.lr_scheduler_kwargs == {"num_cycles": 2}
    assert args.report_to == ["all", "csv"]
    assert not args.output_dir.startswith("~")


def test_dictionaries_and_text():
    args = door.TrainingArguments("out", hub_token="secret", lr_scheduler_type="cosine")
    assert "secret" not in args.to_json_string() + str(args)
    assert json.loads(args.to_json_string())["lr_scheduler_type"] == "cosine"
    kinds = {type(value) for value in args.to_sanitized_dict().values()}
    assert kinds <= {bool, int, float, str}


def test_how_data_is_split_in_each_form():
    from transformers.trainer_pt_utils import AcceleratorConfig

    for given in ({"split_batches": True}, '{"split_batches": true}', door.AcceleratorConfig(split_batches=True),
                  AcceleratorConfig(split_batches=True)):  # fmt: skip
        args = door.TrainingArguments("out", accelerator_config=given)
        original = theirs.TrainingArguments("out", use_cpu=True, accelerator_config={"split_batches": True})
        assert {**vars(args.accelerator_config), **vars(original.accelerator_config)} == vars(args.accelerator_config)
        assert args.to_dict()["accelerator_config"] == original.to_dict()["accelerator_config"]
    again = door.TrainingArguments("out", accelerator_config=args.to_dict()["accelerator_config"])
    assert again.accelerator_config == args.accelerator_config
    each = door.TrainingArguments(
        "out", accelerator_config={"gradient_accumulation_kwargs": {"num_steps": 2}}, gradient_accumulation_steps=2
    )
    assert each.accelerator_config.gradient_accumulation_kwargs == {"num_steps": 2}


def settable(args):
    return {
        name: getattr(getattr(args, name), "value", getattr(args, name))
        for name in ("push_to_hub", "hub_model_id", "hub_strategy", "hub_token", "hub_private_repo", "hub_revision",
                     "hub_always_push", "dataloader_num_workers", "dataloader_in_order", "data_seed", "mixed_precision",
                     "dataloader_multiprocessing_context", "activation_checkpointing", "default_optim", "seed",
                     "auto_find_batch_size", "deepspeed_plugin", "do_train", "num_train_epochs")
    }  # fmt: skip


def test_groups_of_settings_are_those_of_the_original():
    def changed(package):
        args = package.TrainingArguments("out", use_cpu=True, bf16=True)
        args.set_push_to_hub("me/mine", "checkpoint", token="secret", private_repo=True, revision="branch")
        args.set_dataloader(1, 2, False, 2, True, False, 3, "fork", True, False, True, 7)
        return settable(args.set_training(1e-3, 4, 0.1, 2, -1, 1, 3, True))

    assert changed(door) == changed(theirs)


def test_setting_a_group_at_a_time():
    args = door.TrainingArguments("out")
    args.set_training(learning_rate=1e-3, batch_size=2).set_evaluate("steps", 10).set_save("epoch").set_logging(steps=3)
    args.set_optimizer("sgd").set_lr_scheduler("cosine", warmup_steps=0.5).set_dataloader(4, 4).set_testing(2)
    assert (args.eval_steps, args.save_strategy, args.logging_steps, args.optim) == (10, "epoch", 3, "sgd")
    assert args.train_batch_size == 4
    assert args.get_warmup_steps(9) == math.ceil(4.5)
    with pytest.raises(ConfigError):
        args.set_training(learning_rate=-1)


def test_a_command_line():
    parser = door.HfArgumentParser(door.TrainingArguments)
    with pytest.warns(FutureWarning, match="evaluation_strategy is now eval_strategy"):
        (args,) = parser.parse_args_into_dataclasses([
            "--output_dir", "out", "--evaluation_strategy", "epoch", "--warmup_ratio=0.1", "--overwrite_output_dir",
            "--learning_rate", "1e-3", "--bf16", "--use_cpu", "--lr_scheduler_kwargs", '{"num_cycles": 1}',
            "--report_to", "none", "--label_names", "a", "b",
        ])  # fmt: skip
    assert (args.eval_strategy, args.warmup_steps, args.learning_rate, args.bf16) == ("epoch", 0.1, 1e-3, True)
    assert args.label_names == ["a", "b"]
    assert args.lr_scheduler_kwargs == {"num_cycles": 1}
    (args,) = parser.parse_dict({"output_dir": "out", "max_steps": 5})
    assert args.max_steps == 5


# ---------------------------------------------------------------------- the trainer's constructor

CONSTRUCTIONS = [
    ({}, "needs a model"),
    ({"model": Net}, "is the class Net"),
    ({"model": 3}, "give an nn.Module"),
    ({"model": Net(), "model_init": Net}, "contradict"),
    ({"model_init": lambda a, b: None}, "model_init must take nothing"),
    ({"model": Net(), "args": {"eval_strategy": "epoch"}}, "needs eval_dataset"),
    ({"model": Net(), "train_dataset": Stream(points())}, "max_steps"),
    ({"model": Net(), "optimizers": (torch.optim.SGD(Net().parameters()), None)}, "none of the model's parameters"),
    ({"model": Net(), "callbacks": [object()]}, "hears no event"),
    ({"model": Net(), "args": {"batch_eval_metrics": True}, "compute_metrics": len}, "compute_result"),
    ({"model": Net(), "tokeniser": 1}, "Did you mean 'tokenizer'"),
]


def test_dictionaries_and_files_with_old_names(tmp_path):
    parser = door.HfArgumentParser(door.TrainingArguments)
    given = {"output_dir": "out", "evaluation_strategy": "epoch", "warmup_ratio": 0.1, "logging_dir": "logs", "more": 1}
    with pytest.warns(FutureWarning) as told:
        (args,) = parser.parse_dict(given, allow_extra_keys=True)
    assert (args.eval_strategy, args.warmup_steps, args.logging_dir) == ("epoch", 0.1, "logs")
    assert "evaluation_strategy is now eval_strategy; warmup_ratio is now" in str(told[0].message)
    with pytest.raises(ValueError, match="more"):
        parser.parse_dict({"output_dir": "out", "more": 1})
    with pytest.raises(ConfigError, match="TPUs are not supported"):
        parser.parse_dict({"output_dir": "out", "tpu_num_cores": 8})
    path = tmp_path / "args.json"
    path.write_text(json.dumps({"output_dir": "out", "group_by_length": True}))
    with pytest.warns(FutureWarning, match="group_by_length is now"):
        (args,) = parser.parse_json_file(str(path))
    assert args.train_sampling_strategy == "group_by_length"


@pytest.mark.parametrize(("given", "text"), CONSTRUCTIONS, ids=lambda x: str(x)[:40])
def test_what_a_trainer_refuses(given, text):
    args = door.TrainingArguments("out", use_cpu=True, **given.pop("args", {}))
    with pytest.raises(ConfigError, match=text):
        door.Trainer(args=args, **given)


def test_a_trainer_tells_all_at_once():
    args = door.TrainingArguments("out", eval_strategy="epoch")
    with pytest.raises(ConfigError) as told:
        door.Trainer(args=args, train_dataset=Stream(points()), callbacks=[1], no_such=2)
    assert len(told.value.problems) == 5


def test_activation_checkpointing_of_a_plain_module_is_refused():
    with pytest.raises(ConfigError, match="gradient_checkpointing_enable"):
        door.Trainer(Net(), door.TrainingArguments("out", gradient_checkpointing=True))


@pytest.mark.parametrize("name", ["adamw_8bit", "adamw_torch_8bit"])
def test_optimizers_of_packages_that_are_not_there(tmp_path, name):
    args = door.TrainingArguments(str(tmp_path), optim=name, use_cpu=True, disable_tqdm=True)
    with pytest.raises(MissingPackageError, match="pip install"):
        door.Trainer(Net(), args, train_dataset=points()).train()


def test_schedule_free_is_a_package_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "schedulefree", None)
    args = door.TrainingArguments(str(tmp_path), optim="schedule_free_sgd", use_cpu=True, disable_tqdm=True)
    with pytest.raises((MissingPackageError, ValueError), match="schedulefree"):
        door.Trainer(Net(), args, train_dataset=points()).train()


def test_an_optimizer_of_transformers_that_is_not_built():
    theirs = pytest.importorskip("transformers.training_args").OptimizerNames
    assert {name.value for name in theirs} == {name.value for name in OptimizerNames}
    assert set(NOT_BUILT_OPTIMIZERS) < {name.value for name in OptimizerNames}


def test_sortish_sampler_sorts():
    args = door.Seq2SeqTrainingArguments("out", sortish_sampler=True)
    assert args.train_sampling_strategy == "group_by_length"

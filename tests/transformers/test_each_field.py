"""Each setting of TrainingArguments by itself, under both doors: the same weights, lines and folders."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch

import bolide.transformers as ours
from tests.transformers.models import bert, labelled_texts
from tests.transformers.scripts import Ragged, arguments, padded
from tests.transformers.test_both_doors import differences

theirs = pytest.importorskip("transformers")
pytestmark = pytest.mark.slow

EACH_EPOCH = {"eval_strategy": "epoch"}
BEST = {"load_best_model_at_end": True, "save_strategy": "epoch", **EACH_EPOCH}
FIELDS: list[dict[str, Any]] = [
    # how long
    {"num_train_epochs": 0.7}, {"num_train_epochs": 0}, {"max_steps": 3}, {"per_device_train_batch_size": 3},
    {"per_device_eval_batch_size": 3, **EACH_EPOCH}, {"auto_find_batch_size": True},
    # optimizer and schedule
    {"learning_rate": 0.1}, {"weight_decay": 0.5}, {"adam_beta1": 0.5}, {"adam_beta2": 0.5}, {"adam_epsilon": 0.1},
    {"max_grad_norm": 0.01}, {"max_grad_norm": 0, "logging_steps": 1}, {"optim": "adamw_torch"}, {"optim": "adagrad"},
    {"optim": "sgd", "optim_args": "momentum=0.9"}, {"optim": "rmsprop", "optim_args": "alpha=0.5,momentum=0.3"},
    {"lr_scheduler_type": "cosine"}, {"lr_scheduler_type": "polynomial"}, {"lr_scheduler_type": "constant"},
    {"lr_scheduler_type": "cosine_with_restarts", "lr_scheduler_kwargs": '{"num_cycles": 2}'},
    {"lr_scheduler_type": "constant_with_warmup", "warmup_steps": 3}, {"lr_scheduler_type": "inverse_sqrt"},
    {"lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": {"min_lr": 1e-3}},
    {"lr_scheduler_type": "cosine_warmup_with_min_lr", "lr_scheduler_kwargs": {"min_lr_rate": 0.1}},
    {"lr_scheduler_type": "warmup_stable_decay", "lr_scheduler_kwargs": {"num_decay_steps": 3}, "warmup_steps": 2},
    {"lr_scheduler_type": "reduce_lr_on_plateau", **EACH_EPOCH}, {"warmup_steps": 3}, {"warmup_steps": 0.4},
    # loss, precision, memory
    {"average_tokens_across_devices": False}, {"label_smoothing_factor": 0.2}, {"bf16": True},
    {"neftune_noise_alpha": 5.0}, {"torch_compile": True, "torch_compile_backend": "eager"}, {"use_cache": True},
    {"activation_checkpointing": True}, {"torch_empty_cache_steps": 2},
    {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": False}},
    {"activation_checkpointing": True, "activation_checkpointing_kwargs": {"every_n_layers": 1}},
    # logging
    {"logging_strategy": "epoch"}, {"logging_strategy": "no"}, {"logging_steps": 0.3}, {"logging_first_step": True},
    {"logging_nan_inf_filter": False}, {"include_num_input_tokens_seen": "all"}, {"run_name": "x"},
    {"include_num_input_tokens_seen": True}, {"log_level": "error"}, {"disable_tqdm": False},
    # evaluation
    {"eval_strategy": "steps", "eval_steps": 3}, {"eval_strategy": "steps", "eval_steps": 0.4},
    {"eval_delay": 2, **EACH_EPOCH}, {"eval_strategy": "steps", "eval_steps": 2, "eval_delay": 5},
    {"eval_on_start": True, **EACH_EPOCH}, {"prediction_loss_only": True, **EACH_EPOCH},
    {"eval_accumulation_steps": 1, **EACH_EPOCH}, {"include_for_metrics": ["inputs", "loss"], **EACH_EPOCH},
    {"batch_eval_metrics": True, **EACH_EPOCH}, {"eval_do_concat_batches": False, **EACH_EPOCH},
    {"metric_for_best_model": "eval_accuracy", "greater_is_better": True, **BEST},
    {"metric_for_best_model": "accuracy", "greater_is_better": False, **BEST},
    {"load_best_model_at_end": True, "eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps",
     "save_steps": 4},
    # checkpoints
    {"save_strategy": "steps", "save_steps": 3}, {"save_strategy": "steps", "save_steps": 0.5},
    {"save_strategy": "epoch", "save_total_limit": 1}, {"save_strategy": "epoch", "save_only_model": True},
    {"save_strategy": "best", "metric_for_best_model": "loss", **EACH_EPOCH},
    {"save_strategy": "epoch", "enable_jit_checkpoint": True}, {"resume_from_checkpoint": "/nowhere"},
    {"ignore_data_skip": True}, {"restore_callback_states_from_checkpoint": True},
    # seeds and loading
    {"seed": 7}, {"data_seed": 7}, {"full_determinism": True}, {"dataloader_pin_memory": False},
    {"dataloader_drop_last": True, "per_device_train_batch_size": 5}, {"dataloader_num_workers": 1},
    {"dataloader_drop_last": True, "per_device_eval_batch_size": 3, **EACH_EPOCH},
    {"dataloader_num_workers": 1, "dataloader_persistent_workers": True, "dataloader_prefetch_factor": 3},
    {"dataloader_num_workers": 1, "dataloader_multiprocessing_context": "fork"}, {"remove_unused_columns": False},
    {"label_names": ["labels"]}, {"train_sampling_strategy": "sequential"}, {"length_column_name": "n"},
    {"train_sampling_strategy": "group_by_length"}, {"accelerator_config": {"use_seedable_sampler": False}},
    {"accelerator_config": {"split_batches": True}}, {"accelerator_config": {"dispatch_batches": True}},
    {"do_train": True}, {"do_eval": True}, {"do_predict": True},
]  # fmt: skip


def metrics(prediction: Any, compute_result: bool = True) -> dict[str, float]:
    logits, labels = prediction.predictions, prediction.label_ids
    logits, labels = (part[0] if isinstance(part, (tuple, list)) else part for part in (logits, labels))
    right = torch.as_tensor(logits).argmax(-1) == torch.as_tensor(labels)
    return {"accuracy": float(right.double().mean()), "parts": len(list(prediction))}


def run(door: Any, given: dict[str, Any], out: str) -> dict[str, Any]:
    torch.manual_seed(0)
    data, more = labelled_texts(18), {}
    if given.get("train_sampling_strategy") == "group_by_length":
        data, more = Ragged(**data.columns), {"data_collator": padded}
    trainer = door.Trainer(
        bert(0.1), arguments(door, out, **given), train_dataset=data, eval_dataset=labelled_texts(10, 1),
        compute_metrics=metrics, **more,
    )  # fmt: skip
    trainer.train()
    weights = {name: value.detach().clone() for name, value in trainer.model.state_dict().items()}
    folders = sorted(name for name in os.listdir(out) if name.startswith("check")) if os.path.isdir(out) else []
    state = trainer.state
    return {
        "weights": weights, "log": state.log_history, "folders": folders, "steps": state.global_step,
        "best": state.best_metric, "tokens": state.num_input_tokens_seen, "training": trainer.model.training,
        "operations": state.total_flos,
    }  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("given", FIELDS, ids=lambda given: "-".join(map(str, given)))
def test_a_setting_has_the_same_effect(given, tmp_path):
    try:
        expected = run(theirs, given, str(tmp_path / "theirs"))
        found = run(ours, given, str(tmp_path / "ours"))
    finally:
        torch.use_deterministic_algorithms(False)
    assert differences(expected, found) == []

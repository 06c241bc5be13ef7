"""Old arguments of TrainingArguments and Trainer, one row each: what it became, or what to write instead.

Owns the table of names that left transformers between 4.0 and 5.24. `translated` applies it and gives one warning for
all names that a call uses. Who calls: TrainingArguments, and the Trainer of the second door, for arguments that they
do not have.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from bolide.core.errors import did_you_mean
from bolide.core.messages import warn

Status = Literal["exact", "ignored", "error"]
"""exact: the same meaning; ignored: it has no effect any more; error: refused where it asks for something."""

Settings = dict[str, Any]

OF_SEQ2SEQ = (
    "sortish_sampler", "predict_with_generate", "generation_max_length", "generation_num_beams", "generation_config",
)  # fmt: skip
"""Arguments that are of Seq2SeqTrainingArguments alone."""


@dataclass(frozen=True)
class Row:
    """One old argument: its name, the new spelling in words, the settings that a value gives, and its status."""

    name: str
    new: str
    convert: Callable[[Any], Settings]
    status: Status = "exact"


def _to(name: str) -> Callable[[Any], Settings]:
    return lambda value: {name: value}


def _nothing(value: Any) -> Settings:
    return {}


def _ratio(value: Any) -> Settings:
    """A share of the steps; 1.0 is all of them, not one step."""
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value <= 1:
        raise ValueError(f"warmup_ratio={value!r} must be a share from 0.0 to 1.0; write warmup_steps=")
    return {"warmup_steps": min(float(value), math.nextafter(1.0, 0.0))} if value else {}


def _inputs(value: Any) -> Settings:
    return {"include_for_metrics": ["inputs"]} if value else {}


def _in_fsdp_config(name: str) -> Callable[[Any], Settings]:
    return lambda value: {"fsdp_config": {name: value}} if value else {}


def _in_accelerator_config(name: str) -> Callable[[Any], Settings]:
    return lambda value: {"accelerator_config": {name: value}} if value is not None else {}


def _old_optim(value: Any) -> Settings:
    return {"optim": {"adamw_hf": "adamw_torch", "adamw_apex_fused": "adamw_torch_fused"}.get(value, value)}


def _refused(what: str) -> Callable[[Any], Settings]:
    def convert(value: Any) -> Settings:
        if value in (None, False, -1, 0, ""):
            return {}
        raise ValueError(what)

    return convert


_ROWS = (
    Row("evaluation_strategy", "eval_strategy", _to("eval_strategy")),
    Row("evaluate_during_training", 'eval_strategy="steps"', lambda on: {"eval_strategy": "steps"} if on else {}),
    Row("warmup_ratio", "warmup_steps=<a share below 1>", _ratio),
    Row("group_by_length", 'train_sampling_strategy="group_by_length"',
        lambda on: {"train_sampling_strategy": "group_by_length"} if on else {}),
    Row("overwrite_output_dir", "nothing: it was never read", _nothing, "ignored"),
    Row("save_safetensors", "nothing: weights are always safetensors", _nothing, "ignored"),
    Row("no_cuda", "use_cpu", _to("use_cpu")),
    Row("use_mps_device", "nothing: a Mac's GPU is found by itself", _nothing, "ignored"),
    Row("per_gpu_train_batch_size", "per_device_train_batch_size", _to("per_device_train_batch_size")),
    Row("per_gpu_eval_batch_size", "per_device_eval_batch_size", _to("per_device_eval_batch_size")),
    Row("fp16_backend", "fp16: mixed precision is PyTorch's own", _nothing, "ignored"),
    Row("half_precision_backend", "fp16: mixed precision is PyTorch's own", _nothing, "ignored"),
    Row("fp16_opt_level", "fp16: it was a setting of NVIDIA's apex", _nothing, "ignored"),
    Row("push_to_hub_model_id", "hub_model_id", _to("hub_model_id")),
    Row("push_to_hub_organization", 'hub_model_id="organization/name"', _refused(
        'push_to_hub_organization is gone; write hub_model_id="organization/name"'), "error"),
    Row("push_to_hub_token", "hub_token", _to("hub_token")),
    Row("include_inputs_for_metrics", 'include_for_metrics=["inputs"]', _inputs),
    Row("include_tokens_per_second", "include_num_input_tokens_seen",
        lambda on: {"include_num_input_tokens_seen": "all"} if on else {}),
    Row("adafactor", 'optim="adafactor"', lambda on: {"optim": "adafactor"} if on else {}),
    Row("fsdp_min_num_params", 'fsdp_config={"min_num_params": ...}', _in_fsdp_config("min_num_params")),
    Row("fsdp_transformer_layer_cls_to_wrap", 'fsdp_config={"transformer_layer_cls_to_wrap": ...}',
        _in_fsdp_config("transformer_layer_cls_to_wrap")),
    Row("torchdynamo", "torch_compile_backend", _to("torch_compile_backend")),
    Row("dispatch_batches", 'accelerator_config={"dispatch_batches": ...}', _in_accelerator_config("dispatch_batches")),
    Row("split_batches", 'accelerator_config={"split_batches": ...}', _in_accelerator_config("split_batches")),
    Row("jit_mode_eval", "nothing", _refused("jit_mode_eval=True is gone; leave it out"), "error"),
    Row("use_ipex", "nothing", _refused("use_ipex=True is gone; leave it out"), "error"),
    Row("past_index", "nothing", _refused("past_index is gone; leave it out"), "error"),
    Row("use_legacy_prediction_loop", "nothing: there is one way to evaluate", _nothing, "ignored"),
    Row("mp_parameters", "nothing", _refused("mp_parameters was for SageMaker; leave it out"), "error"),
    Row("_n_gpu", "nothing: it is found by itself", _nothing, "ignored"),
    Row("tpu_num_cores", "nothing", _refused("TPUs are not supported; leave tpu_num_cores out"), "error"),
    Row("tpu_metrics_debug", "nothing", _refused("TPUs are not supported; leave tpu_metrics_debug out"), "error"),
    Row("ray_scope", "the environment variable RAY_SCOPE", _nothing, "ignored"),
)  # fmt: skip

ROWS: dict[str, Row] = {row.name: row for row in _ROWS}
"""The old arguments by name."""

KEPT = {
    "logging_dir": "the environment variable TENSORBOARD_LOGGING_DIR",
}
"""Old names that are fields still, with their new spelling."""


def translated(given: Mapping[str, Any], known: Collection[str], owner: str) -> tuple[Settings, list[str]]:
    """The arguments under their names of today, and what is wrong with those that have none.

    Args:
        given: keyword arguments as the user wrote them.
        known: the names that exist; an old name that a subclass has itself is left alone.
        owner: whose arguments they are, for the texts.
    """
    settings: Settings = {}
    wrong: list[str] = []
    said: list[str] = []
    for name, value in given.items():
        row = ROWS.get(name)
        if name in known:
            settings[name] = value
            if name in KEPT and value is not None:
                said.append(f"{name} is now {KEPT[name]}")
        elif name in OF_SEQ2SEQ:
            wrong.append(f"{owner} has no argument {name!r}; it is one of Seq2SeqTrainingArguments.")
        elif row is None:
            wrong.append(f"{owner} has no argument {name!r}." + did_you_mean(name, {*known, *ROWS}))
        else:
            try:
                found = row.convert(value)
            except ValueError as error:
                wrong.append(str(error))
                continue
            said.append(f"{name} is now {row.new}")
            for key, new in found.items():
                if key in given and key not in ("fsdp_config", "accelerator_config"):
                    wrong.append(f"{name} and {key} are two spellings of one setting; leave {name} out")
                elif isinstance(new, dict):
                    settings[key] = {**(settings.get(key) or given.get(key) or {}), **new}
                else:
                    settings[key] = new
    optim = settings.get("optim")
    if isinstance(optim, str) and _old_optim(optim)["optim"] != optim:
        settings |= _old_optim(optim)
        said.append(f'optim="{optim}" is now optim="{settings["optim"]}"')
    if said:
        warn(f"{owner} was given old spellings: " + "; ".join(said) + ".", FutureWarning)
    return settings, wrong


def docs_table() -> str:
    """The table as the documentation shows it."""
    lines = ["| old argument | write | |", "|---|---|---|"]
    lines += [f"| `{row.name}` | {row.new} | {row.status} |" for row in _ROWS]
    lines += [f"| `{name}` | {new} | exact |" for name, new in KEPT.items()]
    return "\n".join(lines)

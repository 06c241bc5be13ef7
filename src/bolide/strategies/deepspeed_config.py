"""The arguments of DeepSpeedStrategy as one table, and the dictionary that DeepSpeed is given.

Owns where each argument lies in DeepSpeed's own configuration, what is filled in by Bolide, and what contradicts each
other. It imports no deepspeed. Who calls: DeepSpeedStrategy, and the second door for its `deepspeed=`.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bolide.core.errors import ConfigError, did_you_mean


@dataclass(frozen=True)
class Argument:
    """One argument: its places in DeepSpeed's configuration (dotted), its default, and what it is.

    `kind` is "config" (goes to `places`), "offload" (goes there where that offload is on), "strategy" (the strategy
    itself does it), "accepted" (no effect, and why) or "refused" (what is given there is an error).
    """

    name: str
    default: Any
    places: tuple[str, ...] = ()
    kind: str = "config"
    note: str = ""


def _zero(name: str, default: Any) -> Argument:
    return Argument(name, default, (f"zero_optimization.{name}",))


_OPTIMIZER = "zero_optimization.offload_optimizer"
_PARAM = "zero_optimization.offload_param"

ARGUMENTS: tuple[Argument, ...] = (
    Argument("zero_optimization", True, kind="strategy", note="False: stage 0, gradients averaged and no more"),
    Argument("stage", 2, ("zero_optimization.stage",)),
    Argument("remote_device", None, kind="strategy", note="where configure_model puts the parts of stage 3"),
    Argument("offload_optimizer", False, kind="strategy", note="makes zero_optimization.offload_optimizer"),
    Argument("offload_parameters", False, kind="strategy", note="makes zero_optimization.offload_param"),
    Argument("offload_params_device", "cpu", (f"{_PARAM}.device",), "offload"),
    Argument("nvme_path", "/local_nvme", (f"{_PARAM}.nvme_path", f"{_OPTIMIZER}.nvme_path"), "offload"),
    Argument("params_buffer_count", 5, (f"{_PARAM}.buffer_count",), "offload"),
    Argument("params_buffer_size", 100_000_000, (f"{_PARAM}.buffer_size",), "offload"),
    Argument("max_in_cpu", 1_000_000_000, (f"{_PARAM}.max_in_cpu",), "offload"),
    Argument("offload_optimizer_device", "cpu", (f"{_OPTIMIZER}.device",), "offload"),
    Argument("optimizer_buffer_count", 4, (f"{_OPTIMIZER}.buffer_count",), "offload"),
    Argument("block_size", 1_048_576, ("aio.block_size",)),
    Argument("queue_depth", 8, ("aio.queue_depth",)),
    Argument("single_submit", False, ("aio.single_submit",)),
    Argument("overlap_events", True, ("aio.overlap_events",)),
    Argument("thread_count", 1, ("aio.intra_op_parallelism",)),
    Argument("pin_memory", False, (f"{_PARAM}.pin_memory", f"{_OPTIMIZER}.pin_memory"), "offload"),
    _zero("sub_group_size", 1_000_000_000_000),
    _zero("contiguous_gradients", True),
    _zero("overlap_comm", True),
    _zero("allgather_partitions", True),
    _zero("reduce_scatter", True),
    _zero("allgather_bucket_size", 200_000_000),
    _zero("reduce_bucket_size", 200_000_000),
    Argument("zero_allow_untested_optimizer", True, ("zero_allow_untested_optimizer",)),
    Argument("logging_batch_size_per_gpu", "auto", ("train_micro_batch_size_per_gpu",), note="for what DeepSpeed logs"),
    Argument("config", None, kind="strategy", note="a dictionary, or the path of a JSON file"),
    Argument("logging_level", 30, kind="strategy", note="of DeepSpeed's own logger"),
    Argument("loss_scale", 0, ("fp16.loss_scale",)),
    Argument("initial_scale_power", 16, ("fp16.initial_scale_power",)),
    Argument("loss_scale_window", 1000, ("fp16.loss_scale_window",)),
    Argument("hysteresis", 2, ("fp16.hysteresis",)),
    Argument("min_loss_scale", 1, ("fp16.min_loss_scale",)),
    Argument("partition_activations", False, ("activation_checkpointing.partition_activations",)),
    Argument("cpu_checkpointing", False, ("activation_checkpointing.cpu_checkpointing",)),
    Argument(
        "contiguous_memory_optimization", False, ("activation_checkpointing.contiguous_memory_optimization",)
    ),
    Argument(
        "synchronize_checkpoint_boundary", False, ("activation_checkpointing.synchronize_checkpoint_boundary",)
    ),
    Argument("load_full_weights", False, kind="accepted", note="files hold whole tensors, and always load so"),
    Argument("exclude_frozen_parameters", False, kind="strategy", note="leaves them out of the files"),
    Argument("accelerator", None, kind="refused", note="an error: the trainer's decides"),
    Argument("parallel_devices", None, kind="refused", note="an error: the trainer's `devices` decide"),
    Argument("cluster_environment", None, kind="strategy"),
    Argument("checkpoint_io", None, kind="strategy"),
    Argument("precision_plugin", None, kind="refused", note="an error: give the precision to the trainer"),
    Argument("process_group_backend", None, kind="strategy"),
    Argument("timeout", None, kind="strategy"),
    Argument("start_method", None, kind="strategy"),
    Argument("uneven", "stop", kind="strategy"),
)  # fmt: skip
"""Every argument of DeepSpeedStrategy: those of Lightning's class, and `ParallelStrategy`'s."""

BY_NAME = {argument.name: argument for argument in ARGUMENTS}
OF_THE_GROUP = (
    "accelerator", "parallel_devices", "cluster_environment", "checkpoint_io", "precision_plugin",
    "process_group_backend", "timeout", "start_method", "uneven",
)  # fmt: skip
"""Arguments that `ParallelStrategy` takes."""

AUTO = "auto"
ELSEWHERE = {
    "gradient_accumulation_steps": "Trainer(accumulate_grad_batches=...)",
    "train_batch_size": "the batch size of the loader, Trainer(devices=...) and Trainer(accumulate_grad_batches=...)",
    "dataloader_drop_last": "DataLoader(drop_last=...)",
}
"""Entries of DeepSpeed's configuration that the Trainer decides, and what to write."""


def check_names(given: Mapping[str, Any]) -> list[str]:
    """What is wrong with the names of arguments."""
    return [
        f"DeepSpeedStrategy({name}=...) is no argument of it; what else DeepSpeed knows goes into "
        "config={...}." + did_you_mean(name, BY_NAME)
        for name in given
        if name not in BY_NAME
    ]


def read_config(config: Any, source: str = "DeepSpeedStrategy(config=...)") -> dict[str, Any]:
    """The configuration as a dictionary of its own: from a mapping, or the path of a JSON file.

    Raises:
        ConfigError: neither, no such file, or no JSON object in it.
    """
    if isinstance(config, Mapping):
        return copy.deepcopy(dict(config))
    if not isinstance(config, (str, Path)):
        raise ConfigError(f"{source} must be a dictionary or the path of a JSON file, not {type(config).__name__}")
    path = Path(config)
    if not path.is_file():
        raise ConfigError(f"{source}: there is no file {str(path)!r}; give DeepSpeed's configuration as JSON")
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"{source}: {str(path)!r} is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise ConfigError(f"{source}: {str(path)!r} holds a {type(found).__name__}, and a JSON object is expected")
    return found


def make_config(given: Mapping[str, Any], config: dict[str, Any] | None) -> dict[str, Any]:
    """DeepSpeed's configuration: the user's own with the arguments that were given, else all of the table.

    Raises:
        ConfigError: an argument contradicts the configuration, or the Trainer decides what an entry says.
    """
    made = copy.deepcopy(config) if config is not None else {}
    wrong = [
        f"DeepSpeedStrategy(config=...): {name!r} is decided by {instead}; leave it out of the configuration"
        for name, instead in ELSEWHERE.items()
        if made.get(name, AUTO) not in (AUTO, 1)
    ]
    for name in ELSEWHERE:
        made.pop(name, None)
    for argument in ARGUMENTS:
        if argument.name not in given and (config is not None or argument.kind != "config"):
            continue
        value = given.get(argument.name, argument.default)
        if value is None or value == AUTO or argument.kind not in ("config", "offload"):
            continue
        for place in argument.places:
            present = get(made, place)
            if present is None or present == AUTO:
                put(made, place, value)
            elif argument.name in given and present != value:
                wrong.append(
                    f"DeepSpeedStrategy({argument.name}={value!r}) contradicts {place}={present!r} in its config; "
                    "leave one of them out"
                )
    if given.get("zero_optimization") is False:
        put(made, "zero_optimization.stage", 0)
    _offload(made, given, config is not None)
    stage = get(made, "zero_optimization.stage")
    stage = 0 if stage is None else stage
    if stage not in (0, 1, 2, 3) or isinstance(stage, bool):
        wrong.append(f"DeepSpeedStrategy(stage={stage!r}) must be 0, 1, 2 or 3")
    if get(made, f"{_PARAM}.device") not in (None, "none") and stage != 3:
        wrong.append(f"DeepSpeedStrategy: parameters are offloaded at stage 3 only, not at stage {stage}")
    for place in (_OPTIMIZER, _PARAM):
        device = get(made, f"{place}.device")
        if device not in (None, "none", "cpu", "nvme"):
            wrong.append(f"DeepSpeedStrategy: {place}.device={device!r} must be 'cpu' or 'nvme'")
    if wrong:
        raise ConfigError(wrong)
    made.setdefault("train_micro_batch_size_per_gpu", 1)
    if made["train_micro_batch_size_per_gpu"] == AUTO:
        made["train_micro_batch_size_per_gpu"] = 1
    made["gradient_accumulation_steps"] = 1
    made.setdefault("zero_allow_untested_optimizer", True)
    if get(made, f"{_OPTIMIZER}.device") not in (None, "none"):
        made.setdefault("zero_force_ds_cpu_optimizer", False)
    return made


def _offload(made: dict[str, Any], given: Mapping[str, Any], own_config: bool) -> None:
    """Makes the parts about offloading, or drops what speaks of an offload that is not on."""
    for switch, place in (("offload_optimizer", _OPTIMIZER), ("offload_parameters", _PARAM)):
        on = bool(given.get(switch, False)) or (own_config and get(made, place) is not None and switch not in given)
        if not on:
            made.get("zero_optimization", {}).pop(place.rpartition(".")[2], None)
            continue
        for argument in ARGUMENTS:
            for target in argument.places if argument.kind == "offload" else ():
                needs_path = not target.endswith("nvme_path") or get(made, f"{place}.device") == "nvme"
                if target.startswith(f"{place}.") and get(made, target) is None and not own_config and needs_path:
                    put(made, target, given.get(argument.name, argument.default))


def get(config: Mapping[str, Any], place: str) -> Any:
    """The entry at a dotted place; None where there is none."""
    found: Any = config
    for name in place.split("."):
        if not isinstance(found, Mapping) or name not in found:
            return None
        found = found[name]
    return found


def put(config: dict[str, Any], place: str, value: Any) -> None:
    """Sets the entry at a dotted place, with the dictionaries on the way there."""
    *way, last = place.split(".")
    for name in way:
        config = config.setdefault(name, {})
    config[last] = value


def entries(config: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """All entries with their dotted places, except dictionaries."""
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from entries(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value


def without_auto(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration without entries that say "auto": DeepSpeed's own defaults hold there."""
    return {
        name: without_auto(value) if isinstance(value, Mapping) else value
        for name, value in config.items()
        if value != AUTO
    }


def with_precision(config: dict[str, Any], name: str) -> dict[str, Any]:
    """The configuration with the Trainer's precision in it.

    Raises:
        ConfigError: it turns on another one, or one that DeepSpeed does not compute in.
    """
    kind = {"bf16": "bf16", "16": "fp16", "32": None}.get(name.partition("-")[0], "")
    if kind == "":
        raise ConfigError(
            f"precision={name!r} is not there under DeepSpeed: write '32-true', 'bf16-mixed', 'bf16-true', '16-mixed' "
            "or '16-true'"
        )
    made = copy.deepcopy(config)
    for block in ("fp16", "bf16"):
        enabled = get(made, f"{block}.enabled")
        if enabled is True and block != kind:
            write = "bf16-mixed" if block == "bf16" else "16-mixed"
            raise ConfigError(
                f"precision={name!r} contradicts {block}.enabled=True in DeepSpeed's configuration; write "
                f"Trainer(precision={write!r})"
            )
        if block == kind:
            put(made, f"{block}.enabled", True)
        elif block in made:
            put(made, f"{block}.enabled", False)
    if kind is not None and get(made, "zero_optimization.stage") in (None, 0):
        raise ConfigError(
            f"precision={name!r} with DeepSpeed's stage 0 is not built: write stage=1 or higher, or strategy='ddp'"
        )
    return made

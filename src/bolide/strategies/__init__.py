"""Strategies by their public names, and the table of strategy names.

A name or class whose mechanism is not built is refused by name, with what to write instead.
"""

from __future__ import annotations

from typing import Any

from bolide.core.errors import did_you_mean
from bolide.core.lazy import submodule
from bolide.strategies.ddp import DDPStrategy
from bolide.strategies.parallel import ParallelStrategy
from bolide.strategies.strategy import SingleDeviceStrategy, Strategy

__all__ = [
    "DDPStrategy", "DeepSpeedStrategy", "FSDPStrategy", "ModelParallelStrategy", "ParallelStrategy",
    "SingleDeviceStrategy", "Strategy",
]  # fmt: skip

_STARTS: dict[str, str | None] = {"": None, "_spawn": "spawn", "_fork": "fork", "_notebook": "fork"}
_UNUSED: dict[str, dict[str, Any]] = {
    "": {},
    "_find_unused_parameters_true": {"find_unused_parameters": True},
    "_find_unused_parameters_false": {"find_unused_parameters": False},
}
PRESETS: dict[str, dict[str, Any]] = {
    f"ddp{kind}{suffix}": {"start_method": start, **unused}
    for kind, start in _STARTS.items()
    for suffix, unused in _UNUSED.items()
}
"""Names that stand for a DDPStrategy with these arguments."""

FSDP_PRESETS: dict[str, dict[str, Any]] = {"fsdp": {}, "fsdp_cpu_offload": {"cpu_offload": True}}
"""Names that stand for a FSDPStrategy with these arguments."""

DEEPSPEED_PRESETS: dict[str, dict[str, Any]] = {
    "deepspeed": {},
    "deepspeed_stage_1": {"stage": 1},
    "deepspeed_stage_2": {"stage": 2},
    "deepspeed_stage_2_offload": {"stage": 2, "offload_optimizer": True},
    "deepspeed_stage_3": {"stage": 3},
    "deepspeed_stage_3_offload": {"stage": 3, "offload_optimizer": True, "offload_parameters": True},
    "deepspeed_stage_3_offload_nvme": {
        "stage": 3, "offload_optimizer": True, "offload_parameters": True,
        "offload_optimizer_device": "nvme", "offload_params_device": "nvme",
    },
}  # fmt: skip
"""Names that stand for a DeepSpeedStrategy with these arguments."""

NAMES = ("auto", "single_device", *PRESETS, *FSDP_PRESETS, *DEEPSPEED_PRESETS)
NOT_BUILT_NAMES = ("xla", "xla_debug", "single_xla", "single_tpu")
NOT_BUILT_CLASSES = ("XLAStrategy", "SingleDeviceXLAStrategy")


def resolve_strategy(strategy: Any, several: bool = False) -> tuple[Strategy, list[str]]:
    """The strategy that `strategy=` means, with `several` processes or one, and what is wrong with the request."""
    if isinstance(strategy, Strategy):
        return strategy, []
    if strategy == "auto" and several:
        return DDPStrategy(), []
    if strategy in ("auto", "single_device"):
        return SingleDeviceStrategy(), []
    if isinstance(strategy, str) and strategy in PRESETS:
        made = DDPStrategy(**PRESETS[strategy])
        made.strategy_name = strategy
        return made, []
    if isinstance(strategy, str) and strategy in FSDP_PRESETS:
        from bolide.strategies.fsdp import FSDPStrategy

        sharded = FSDPStrategy(**FSDP_PRESETS[strategy])
        sharded.strategy_name = strategy
        return sharded, []
    if isinstance(strategy, str) and strategy in DEEPSPEED_PRESETS:
        from bolide.strategies.deepspeed import DeepSpeedStrategy

        by_deepspeed = DeepSpeedStrategy(**DEEPSPEED_PRESETS[strategy])
        by_deepspeed.strategy_name = strategy
        return by_deepspeed, []
    if strategy in NOT_BUILT_NAMES:
        return SingleDeviceStrategy(), [
            f"strategy={strategy!r} is not built in this version of Bolide; write strategy='ddp'"
        ]
    return SingleDeviceStrategy(), [
        f"strategy={strategy!r} must be one of {', '.join(NAMES)}, or a Strategy."
        + did_you_mean(str(strategy), (*NAMES, *NOT_BUILT_NAMES))
    ]


def __getattr__(name: str) -> Any:
    if name in NOT_BUILT_CLASSES:
        raise AttributeError(
            f"bolide.strategies.{name} is not built in this version of Bolide; there are {', '.join(__all__)}"
        )
    if name == "FSDPStrategy":  # torch's sharding is imported by who uses it
        from bolide.strategies.fsdp import FSDPStrategy

        return FSDPStrategy
    if name == "DeepSpeedStrategy":
        from bolide.strategies.deepspeed import DeepSpeedStrategy

        return DeepSpeedStrategy
    if name == "ModelParallelStrategy":
        from bolide.strategies.model_parallel import ModelParallelStrategy

        return ModelParallelStrategy
    found = submodule(__name__, name)
    if found is not None:
        return found
    raise AttributeError(f"module 'bolide.strategies' has no attribute {name!r}." + did_you_mean(name, __all__))

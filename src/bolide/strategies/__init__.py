"""Strategies by their public names, and the table of strategy names.

A name or class whose mechanism is not built is refused by name, with what to write instead.
"""

from __future__ import annotations

from typing import Any

from bolide.core.errors import did_you_mean
from bolide.core.lazy import submodule
from bolide.strategies.strategy import SingleDeviceStrategy, Strategy

__all__ = ["SingleDeviceStrategy", "Strategy"]

NAMES = ("auto", "single_device")
_DDP = [f"ddp{kind}{unused}" for kind in ("", "_spawn", "_fork", "_notebook") for unused in (
    "", "_find_unused_parameters_true", "_find_unused_parameters_false")]  # fmt: skip
NOT_BUILT_NAMES = (
    *_DDP, "fsdp", "fsdp_cpu_offload", "deepspeed", "deepspeed_stage_1", "deepspeed_stage_2",
    "deepspeed_stage_2_offload", "deepspeed_stage_3", "deepspeed_stage_3_offload", "deepspeed_stage_3_offload_nvme",
    "xla", "xla_debug", "single_xla", "single_tpu",
)  # fmt: skip
NOT_BUILT_CLASSES = (
    "DDPStrategy", "FSDPStrategy", "DeepSpeedStrategy", "ModelParallelStrategy", "ParallelStrategy", "XLAStrategy",
    "SingleDeviceXLAStrategy",
)  # fmt: skip


def resolve_strategy(strategy: Any) -> tuple[Strategy, list[str]]:
    """The strategy that `strategy=` means, and what is wrong with the request."""
    if isinstance(strategy, Strategy):
        return strategy, []
    if strategy in NAMES:
        return SingleDeviceStrategy(), []
    if strategy in NOT_BUILT_NAMES:
        return SingleDeviceStrategy(), [
            f"strategy={strategy!r} runs many processes, which are not built in this version of Bolide; "
            "leave strategy out, or write strategy='auto'"
        ]
    return SingleDeviceStrategy(), [
        f"strategy={strategy!r} must be one of {', '.join(NAMES)}, or a Strategy."
        + did_you_mean(str(strategy), (*NAMES, *NOT_BUILT_NAMES))
    ]


def __getattr__(name: str) -> Any:
    if name in NOT_BUILT_CLASSES:
        raise AttributeError(
            f"bolide.strategies.{name} runs many processes, which are not built in this version of Bolide; "
            "SingleDeviceStrategy is there"
        )
    found = submodule(__name__, name)
    if found is not None:
        return found
    raise AttributeError(f"module 'bolide.strategies' has no attribute {name!r}." + did_you_mean(name, __all__))

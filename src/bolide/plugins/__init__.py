"""Plugins by their public names: what `Trainer(plugins=...)` takes. precision.py and checkpoint/ own the behaviour."""

from __future__ import annotations

from typing import Any

from bolide.core.errors import did_you_mean
from bolide.core.lazy import submodule
from bolide.plugins.io import CheckpointIO, TorchCheckpointIO
from bolide.plugins.precision import DoublePrecision, HalfPrecision, MixedPrecision, Precision

__all__ = ["CheckpointIO", "DoublePrecision", "HalfPrecision", "MixedPrecision", "Precision", "TorchCheckpointIO"]

_NOT_BUILT = {
    "AsyncCheckpointIO": "writing in the background",
    "BitsandbytesPrecision": "bitsandbytes",
    "DeepSpeedPrecision": "DeepSpeed",
    "FSDPPrecision": "FSDP",
    "LayerSync": "synchronizing batch norm over processes",
    "TorchSyncBatchNorm": "synchronizing batch norm over processes",
    "TransformerEnginePrecision": "Transformer Engine",
    "XLACheckpointIO": "XLA",
    "XLAPrecision": "XLA",
}
_RENAMED = {
    "PrecisionPlugin": "Precision",
    "MixedPrecisionPlugin": "MixedPrecision",
    "NativeMixedPrecisionPlugin": "MixedPrecision",
    "DoublePrecisionPlugin": "DoublePrecision",
    "HalfPrecisionPlugin": "HalfPrecision",
    "DDPPlugin": "bolide.strategies.DDPStrategy",
    "DDPSpawnPlugin": "bolide.strategies.DDPStrategy",
}


def __getattr__(name: str) -> Any:
    if name == "DeepSpeedPlugin":  # a strategy was a plugin once, and may still be given as one
        from bolide.strategies import DeepSpeedStrategy

        return DeepSpeedStrategy
    if name in _NOT_BUILT:
        raise AttributeError(
            f"bolide.plugins.{name}: {_NOT_BUILT[name]} is not built in this version of Bolide. There are: "
            f"{', '.join(__all__)}."
        )
    if name in _RENAMED:
        raise AttributeError(f"bolide.plugins.{name} is {_RENAMED[name]} today.")
    found = submodule(__name__, name)
    if found is not None:
        return found
    raise AttributeError(f"module 'bolide.plugins' has no attribute {name!r}." + did_you_mean(name, __all__))

"""Precisions as plugins: rows of precision.py's table by the names of classes."""

from __future__ import annotations

from typing import Any

import torch

from bolide.core.errors import ConfigError
from bolide.core.lazy import submodule
from bolide.precision import Precision

__all__ = ["DoublePrecision", "HalfPrecision", "MixedPrecision", "Precision"]


class MixedPrecision(Precision):
    """Weights stay as they are; operations run in 16 bits.

    Args:
        precision: "16-mixed" or "bf16-mixed".
        device: where the module runs, such as "cuda".
        scaler: a GradScaler of one's own, for "16-mixed".
    """

    def __init__(self, precision: str, device: str, scaler: torch.amp.GradScaler | None = None) -> None:
        if precision not in ("16-mixed", "bf16-mixed"):
            raise ConfigError(f"MixedPrecision(precision={precision!r}): expected '16-mixed' or 'bf16-mixed'.")
        if scaler is not None and precision == "bf16-mixed":
            raise ConfigError("MixedPrecision(precision='bf16-mixed') needs no scaler; leave scaler out.")
        super().__init__(precision, device)
        if scaler is not None:
            self.scaler = scaler


class HalfPrecision(Precision):
    """Weights, inputs and operations in 16 bits.

    Args:
        precision: "16-true" or "bf16-true".
    """

    def __init__(self, precision: str = "16-true") -> None:
        if precision not in ("16-true", "bf16-true"):
            raise ConfigError(f"HalfPrecision(precision={precision!r}): expected '16-true' or 'bf16-true'.")
        super().__init__(precision)


class DoublePrecision(Precision):
    """Weights, inputs and operations in 64 bits."""

    def __init__(self) -> None:
        super().__init__("64-true")


_RENAMED = {"PrecisionPlugin": "Precision", "MixedPrecisionPlugin": "MixedPrecision"}


def __getattr__(name: str) -> Any:
    if name in _RENAMED:
        raise AttributeError(f"bolide.plugins.precision.{name} is {_RENAMED[name]} today.")
    found = submodule(__name__, name)
    if found is not None:
        return found
    raise AttributeError(
        f"module 'bolide.plugins.precision' has no attribute {name!r}. There are: {', '.join(__all__)}."
    )

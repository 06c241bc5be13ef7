"""Bolide trains PyTorch models.

`import bolide as pl` is the import; the names below are loaded when they are first used, so that the import costs
little more than torch's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bolide import callbacks, loggers, utilities
    from bolide.callbacks.callback import Callback
    from bolide.datamodule import LightningDataModule
    from bolide.module import LightningModule
    from bolide.seed import seed_everything
    from bolide.strategies.estimate import estimate
    from bolide.trainer.trainer import Trainer

__version__ = "0.1.0"
__all__ = [
    "Callback", "LightningDataModule", "LightningModule", "Trainer", "callbacks", "estimate", "loggers",
    "seed_everything", "utilities",
]  # fmt: skip

_NAMES = {
    "Callback": "bolide.callbacks.callback",
    "LightningDataModule": "bolide.datamodule",
    "LightningModule": "bolide.module",
    "Trainer": "bolide.trainer.trainer",
    "estimate": "bolide.strategies.estimate",
    "seed_everything": "bolide.seed",
}
_MODULES = (
    "accelerators", "callbacks", "data", "demos", "loggers", "plugins", "profilers", "strategies", "trainer", "tuner",
    "utilities",
)  # fmt: skip


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name in _NAMES:
        return getattr(import_module(_NAMES[name]), name)
    if name in _MODULES:
        return import_module(f"bolide.{name}")
    if name == "Fabric":
        raise AttributeError("There is no bolide.Fabric; Trainer.steps(module, loader) gives the loop to your own code")
    raise AttributeError(f"module 'bolide' has no attribute {name!r}; there are {', '.join(__all__)}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])

"""Loggers, under the names and module paths that Lightning's users import. Loaded when they are asked for."""

from __future__ import annotations

from typing import Any

from bolide.core.lazy import submodule

_HOME = {
    "CSVLogger": "csv_logs",
    "DummyLogger": "logger",
    "Logger": "logger",
    "TensorBoardLogger": "tensorboard",
}
_NOT_BUILT = {
    "CometLogger": "subclass bolide.loggers.Logger and call comet_ml in log_metrics",
    "LitLogger": "use TensorBoardLogger or CSVLogger",
    "MLFlowLogger": "subclass bolide.loggers.Logger and call mlflow.log_metrics in log_metrics",
    "NeptuneLogger": "subclass bolide.loggers.Logger and call neptune in log_metrics",
    "WandbLogger": "use TensorBoardLogger after wandb.init(sync_tensorboard=True)",
}

__all__ = ["CSVLogger", "Logger", "TensorBoardLogger"]


def __getattr__(name: str) -> Any:
    import sys
    from importlib import import_module

    if name in _HOME:
        return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    if name not in _NOT_BUILT:
        found = submodule(__name__, name)
        if found is not None:
            return found
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    text = f"{name} is not in this version of Bolide. Instead, {_NOT_BUILT[name]}."
    # `from ... import name` asks through this function of the import system, and keeps the text of an ImportError only
    if sys._getframe(1).f_code.co_name == "_handle_fromlist":
        raise ImportError(text, name=__name__)
    raise AttributeError(text)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])

"""Hyperparameters by name, wherever they stand: on the module, among its hyperparameters, or on the datamodule."""

from __future__ import annotations

import inspect
from types import FrameType
from typing import Any

from bolide.core.errors import did_you_mean
from bolide.hparams import AttributeDict, init_arguments, save_hyperparameters

__all__ = [
    "AttributeDict",
    "get_init_args",
    "lightning_getattr",
    "lightning_hasattr",
    "lightning_setattr",
    "parse_class_init_keys",
    "save_hyperparameters",
]


def _holders(model: Any, attribute: str) -> list[Any]:
    """Everything that has the attribute, the module first."""
    found = [model] if hasattr(model, attribute) else []
    datamodule = None
    if getattr(model, "_trainer", None) is not None:
        datamodule = model.trainer.datamodule
    for owner in (model, datamodule):
        hparams = getattr(owner, "hparams", None)
        if hparams is not None and attribute in hparams:
            found.append(hparams)
    if datamodule is not None and hasattr(datamodule, attribute):
        found.append(datamodule)
    return found


def lightning_hasattr(model: Any, attribute: str) -> bool:
    """Whether the module, its hyperparameters or its datamodule have `attribute`."""
    return bool(_holders(model, attribute))


def lightning_getattr(model: Any, attribute: str) -> Any:
    """The value of `attribute`; where several have it, the datamodule's.

    Raises:
        AttributeError: nobody has it.
    """
    holders = _holders(model, attribute)
    if not holders:
        raise _nobody(model, attribute)
    last = holders[-1]
    return last[attribute] if isinstance(last, dict) else getattr(last, attribute)


def lightning_setattr(model: Any, attribute: str, value: Any) -> None:
    """Sets `attribute` wherever it is.

    Raises:
        AttributeError: nobody has it.
    """
    holders = _holders(model, attribute)
    if not holders:
        raise _nobody(model, attribute)
    for holder in holders:
        if isinstance(holder, dict):
            holder[attribute] = value
        else:
            setattr(holder, attribute, value)


def _nobody(model: Any, attribute: str) -> AttributeError:
    known = [*getattr(model, "hparams", {}), *vars(model)]
    return AttributeError(
        f"{attribute!r} is neither an attribute of {type(model).__name__}, nor among its hyperparameters, nor on its "
        f"datamodule.{did_you_mean(attribute, known)}"
    )


def get_init_args(frame: FrameType) -> dict[str, Any]:
    """The arguments of the constructor that runs in `frame`; empty where it is none."""
    code = frame.f_code
    if code.co_name != "__init__" or not code.co_argcount:
        return {}
    return init_arguments(frame.f_locals[code.co_varnames[0]], frame)


def parse_class_init_keys(cls: type) -> tuple[str, str | None, str | None]:
    """The names that the constructor of `cls` gives to self, `*args` and `**kwargs`; None where it has none."""
    parameters = list(inspect.signature(cls.__init__).parameters.values())  # type: ignore[misc]
    args = next((p.name for p in parameters if p.kind is inspect.Parameter.VAR_POSITIONAL), None)
    kwargs = next((p.name for p in parameters if p.kind is inspect.Parameter.VAR_KEYWORD), None)
    return parameters[0].name, args, kwargs

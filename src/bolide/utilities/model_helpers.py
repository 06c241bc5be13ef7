"""Whether a user overrides a hook."""

from __future__ import annotations

import functools
from typing import Any


def is_overridden(method_name: str, instance: object | None = None, parent: type | None = None) -> bool:
    """Whether `instance` has a method of that name which is not `parent`'s.

    Args:
        method_name: the hook.
        instance: a module, datamodule or callback; None overrides nothing.
        parent: the class whose method does not count; None takes the class of Bolide that `instance` comes from.

    Raises:
        ValueError: `instance` comes from no class of Bolide and `parent` is not given.
    """
    if instance is None:
        return False
    if parent is None:
        parent = next((base for base in type(instance).__mro__ if base.__module__.partition(".")[0] == "bolide"), None)
        if parent is None:
            raise ValueError(
                f"is_overridden({method_name!r}, {type(instance).__name__}): expected a LightningModule, "
                "LightningDataModule or Callback. Write: is_overridden(name, instance, parent=Base)"
            )
    own = _function(getattr(instance, method_name, None))
    inherited = _function(getattr(parent, method_name, None))
    if own is None:
        return False
    if inherited is None:
        raise ValueError(f"{parent.__name__} has no method {method_name!r}.")
    return own is not inherited


def _function(method: Any) -> Any:
    method = method.func if isinstance(method, functools.partial) else method
    method = getattr(method, "__func__", method)
    return getattr(method, "__wrapped__", method)

"""Submodules of the public packages, imported when they are first asked for as attributes.

User code writes `pl.utilities.exceptions.MisconfigurationException` after `import bolide as pl` alone. Who calls: the
`__getattr__` of the public packages, for names that they do not know.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from types import ModuleType


def submodule(package: str, name: str) -> ModuleType | None:
    """The public submodule `name` of `package`, imported; None where there is none."""
    if name.startswith("_") or find_spec(f"{package}.{name}") is None:
        return None
    return import_module(f"{package}.{name}")

"""Whether packages are installed, and in which version; nothing is imported to find out."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys
from collections.abc import Callable
from typing import Any

from packaging.requirements import Requirement
from packaging.version import Version


def package_available(name: str) -> bool:
    """Whether the top-level package `name` can be imported."""
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def module_available(path: str) -> bool:
    """Whether the module `path` can be imported. Its parent packages are imported to find out."""
    if not package_available(path.partition(".")[0]):
        return False
    try:
        return importlib.util.find_spec(path) is not None
    except ImportError:
        return False


def compare_version(package: str, op: Callable[[Any, Any], bool], version: str) -> bool:
    """Whether the installed version of `package` is in the relation `op` (such as operator.ge) to `version`."""
    try:
        installed = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return False
    return bool(op(Version(installed), Version(version)))


class RequirementCache:
    """A requirement such as "rich>=13" that is true where it is met, and says why where it is not.

    Args:
        requirement: a name with a version, as pip takes it.
        module: another thing to look for: a module's path.
    """

    def __init__(self, requirement: str | None = None, module: str | None = None) -> None:
        if requirement is None and module is None:
            raise ValueError("RequirementCache needs a requirement or a module.")
        self.requirement, self.module = requirement, module

    def __bool__(self) -> bool:
        return not self._missing()

    def _missing(self) -> str:
        if self.requirement is not None:
            wanted = Requirement(self.requirement)
            try:
                installed = importlib.metadata.version(wanted.name)
            except importlib.metadata.PackageNotFoundError:
                if self.module is None or not module_available(self.module):
                    return f"Module not found: {wanted.name!r}. Write: pip install '{self.requirement}'"
                return ""
            if not wanted.specifier.contains(installed, prereleases=True):
                return f"{wanted.name} {installed} does not meet {self.requirement!r}. Write: pip install '{wanted}'"
            return ""
        assert self.module is not None
        return "" if module_available(self.module) else f"Module not found: {self.module!r}."

    def __str__(self) -> str:
        return self._missing() or f"Requirement {self.requirement or self.module!r} met"

    __repr__ = __str__


_OMEGACONF_AVAILABLE = package_available("omegaconf")
_RICH_AVAILABLE = package_available("rich")
_TORCHVISION_AVAILABLE = package_available("torchvision")
_TENSORBOARD_AVAILABLE = package_available("tensorboard")
_NUMPY_AVAILABLE = True
_IS_WINDOWS = sys.platform == "win32"
_IS_INTERACTIVE = hasattr(sys, "ps1")

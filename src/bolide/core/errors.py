"""The exceptions Bolide raises on purpose.

A message says what was given, what was expected and what to write instead. `ConfigError` is for what was asked of
the Trainer, `UserCodeError` for what a module, callback or loader did, `CheckpointError` for a file that cannot be
used. All are `MisconfigurationException`s, the one name that existing Lightning code catches.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class MisconfigurationException(Exception):
    """Base of every error that the user can mend."""


class ConfigError(MisconfigurationException, ValueError, TypeError):
    """Arguments that are wrong or contradict each other; lists all of them at once."""

    def __init__(self, problems: str | Iterable[str]) -> None:
        self.problems = [problems] if isinstance(problems, str) else list(problems)
        if len(self.problems) == 1:
            super().__init__(self.problems[0])
        else:
            lines = "\n".join(f"  {i}. {text}" for i, text in enumerate(self.problems, 1))
            super().__init__(f"{len(self.problems)} settings cannot be used as given:\n{lines}")


class UserCodeError(MisconfigurationException, RuntimeError):
    """A module, callback or loader returned or did something that training cannot go on with."""


class CheckpointError(MisconfigurationException, RuntimeError):
    """A checkpoint that is missing, damaged or does not fit; nothing live was changed."""


class CheckpointNotFoundError(CheckpointError, FileNotFoundError):
    """A `ckpt_path` at which there is nothing."""


class NotBuiltError(ConfigError, NotImplementedError):
    """A name that Bolide knows and does not offer (yet)."""


class MissingPackageError(MisconfigurationException, ModuleNotFoundError):
    """An optional dependency that is not installed."""

    def __init__(self, feature: str, package: str, extra: str | None = None) -> None:
        command = f'pip install "bolide[{extra}]"' if extra else f"pip install {package}"
        super().__init__(f"{feature} needs the package {package!r}, which is not installed. Write: {command}")
        self.name = package


class SIGTERMException(SystemExit):
    """The process was told to stop and has stopped cleanly; the exit code is 128 + SIGTERM."""

    def __init__(self) -> None:
        super().__init__(143)


def nearest(name: str, known: Iterable[str], count: int = 3) -> list[str]:
    """The `known` names that look most like `name`, nearest first; empty when none is close."""
    return get_close_matches(name, list(known), n=count, cutoff=0.6)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A sentence naming the nearest known name, or nothing."""
    close = nearest(name, known, 1)
    return f" Did you mean {close[0]!r}?" if close else ""

"""One trial as the function that trains sees it, wherever its study is kept.

Owns what a trial knows and how it is given up. Who calls: tuner/study and tuner/on_ray make them, tuner/searching and
transformers/search train them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from bolide.core.errors import ConfigError


class PrunedError(Exception):
    """Raised within a trial that is given up."""


@dataclass
class Trial:
    """One trial.

    Attributes:
        index: its number among those that count; the same in a study that was killed and went on.
        settings: what was chosen for it.
        tell: takes an intermediate value and its step, and says whether the trial is to be given up.
        results: plain data to keep of it: metrics, history, the path of a checkpoint.
        can_go_on: whether it is started again where its process is lost, so that it should keep what that needs.
        choose: chooses one more setting: (kind, name, *what there is to choose from); None where that cannot be done.
        goes_on: whether it was begun before in a process that was lost: its newest checkpoint is where it goes on.
    """

    index: int
    settings: dict[str, Any]
    tell: Callable[[float, int], bool]
    results: dict[str, Any] = field(default_factory=dict)
    can_go_on: bool = False
    goes_on: bool = False
    choose: Callable[..., Any] | None = None

    def suggest_float(self, name: str, low: float, high: float, **options: Any) -> float:
        """A number between two; options are those of optuna: log, step."""
        return float(self._chosen("float", name, low, high, **options))

    def suggest_int(self, name: str, low: int, high: int, **options: Any) -> int:
        """A whole number between two, both included; options are those of optuna: log, step."""
        return int(self._chosen("int", name, low, high, **options))

    def suggest_categorical(self, name: str, choices: Sequence[Any]) -> Any:
        """One of several."""
        return self._chosen("categorical", name, choices)

    def _chosen(self, kind: str, name: str, *among: Any, **options: Any) -> Any:
        """A setting that is chosen while the trial is made ready, as in model_init(trial); it is one of its settings.

        Raises:
            ConfigError: the trial trains where its study is not.
        """
        if self.choose is None:
            raise ConfigError(
                f"{name!r} cannot be chosen in the process that trains; choose it in the space, and read "
                f"trial.params[{name!r}]"
            )
        self.settings[name] = value = self.choose(kind, name, *among, **options)
        return value

    @property
    def number(self) -> int:
        """As `index`, by the name that optuna's trials have."""
        return self.index

    @property
    def params(self) -> dict[str, Any]:
        """As `settings`, by the name that optuna's trials have."""
        return self.settings

    def report(self, value: float, step: int) -> None:
        """Tells an intermediate value.

        Raises:
            PrunedError: it is worse than the values of others at the same step, so that this trial is given up.
        """
        if self.tell(float(value), step):
            raise PrunedError

"""One trial as the function that trains sees it, wherever its study is kept.

Owns what a trial knows and how it is given up. Who calls: tuner/study and tuner/on_ray make them, tuner/searching and
transformers/search train them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


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
        goes_on: whether it was begun before in a process that was lost: its newest checkpoint is where it goes on.
    """

    index: int
    settings: dict[str, Any]
    tell: Callable[[float, int], bool]
    results: dict[str, Any] = field(default_factory=dict)
    can_go_on: bool = False
    goes_on: bool = False

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

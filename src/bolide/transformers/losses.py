"""The losses of steps until they are logged, without waiting for the device at each of them.

Who calls: the adapter adds one a step; the trainer reads when it logs and at the end.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from bolide import collectives

FOLD_AT = 4096
"""So many losses are kept on the device at the most; reading them waits for it."""


class LossRecord:
    """Sums losses of steps; a NaN or infinite one counts as the mean of those since the last log line, if asked.

    Attributes:
        norm: the norm of the last step's gradients before they were clipped, on the device; None where not clipped.
            After a resume, until a step is done, a number.
        lr: the learning rate of the last step.
        not_finite: how many losses since the last log line were NaN or infinite.
        over_ranks: whether a step's loss is the mean over all processes, which then read together.
    """

    def __init__(self, leave_out: bool = True) -> None:
        self.leave_out = leave_out
        self.over_ranks = False
        self.waiting: list[Tensor] = []
        self.sum, self.steps = 0.0, 0
        self.total, self.total_steps = 0.0, 0
        self.not_finite = 0
        self.norm: Tensor | float | None = None
        self.lr = 0.0

    def add(self, loss: Tensor | None) -> None:
        """Takes the loss of a step."""
        if loss is None:
            return
        self.waiting.append(loss if not loss.dim() else loss.mean())
        if len(self.waiting) >= FOLD_AT:
            self._fold()

    def _fold(self) -> None:
        if not self.waiting:
            return
        values = torch.stack(self.waiting).double()
        if self.over_ranks:
            values = collectives.reduce(values, "mean")
        self.waiting, losses, sum_before = [], values.tolist(), self.sum
        for value in losses:  # one by one: Python's `sum` rounds differently from version to version
            self.sum += value
        self.steps += len(losses)
        if not math.isfinite(self.sum):
            self.sum, self.steps = sum_before, self.steps - len(losses)
            self._fold_each(losses)

    def _fold_each(self, losses: list[float]) -> None:
        for value in losses:
            if not math.isfinite(value):
                self.not_finite += 1
                if self.leave_out:
                    value = self.sum / max(1, self.steps)
            self.sum += value
            self.steps += 1

    def take(self) -> tuple[float | None, int]:
        """The mean loss since it was last taken (None: no step since), and how many losses were not finite."""
        self._fold()
        if self.steps == 0:
            return None, 0
        mean, bad = self.sum / self.steps, self.not_finite
        self.total += self.sum
        self.total_steps += self.steps
        self.sum, self.steps, self.not_finite = 0.0, 0, 0
        return mean, bad

    def sum_now(self) -> float:
        """The sum of the losses since they were last taken; waits for the device."""
        self._fold()
        return self.sum

    @property
    def pending(self) -> int:
        """Steps since the last log line."""
        return self.steps + len(self.waiting)

    def count_from_here(self) -> None:
        """`mean` is that of the steps from here on; those that wait for a log line stay in that line."""
        self._fold()
        self.total, self.total_steps = -self.sum, -self.steps

    def mean(self) -> float:
        """The mean loss of all steps, or of those since `count_from_here`."""
        self._fold()
        steps = self.total_steps + self.steps
        return (self.total + self.sum) / steps if steps else 0.0

    def state_dict(self) -> dict[str, Any]:
        """Everything, as plain data."""
        self._fold()
        return {
            "sum": self.sum, "steps": self.steps, "total": self.total, "total_steps": self.total_steps,
            "not_finite": self.not_finite, "lr": float(self.lr),
            "norm": None if self.norm is None else float(self.norm),
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes it back."""
        self.waiting = []
        for name, value in state.items():
            setattr(self, name, value)

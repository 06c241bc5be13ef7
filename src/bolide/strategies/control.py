"""The control word: what ranks tell each other within the exchange of gradients, at no collective of its own.

It is the gradient of one hidden parameter. Each rank puts its flags there as the gradient is computed; the exchange
sums them, and after the backward pass all ranks read the same sums. Who calls: DDPStrategy; what the flags mean to a
run is engine/ranks'.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

FLAGS = ("stop", "sigterm", "sigint", "queue", "nothing", "written")
"""What a rank may say: stop after this step, which signal it has received, that its training_step gave no loss, that
the save in flight has come to its end."""

Said = dict[str, float]


def silent() -> Said:
    """No flag is raised."""
    return {}


class ControlWord(nn.Module):
    """The hidden parameter. `said()` is asked as the gradients are computed, `hear` told what all ranks said."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        self.carrier = nn.Parameter(torch.zeros(len(FLAGS), dtype=dtype, device=device))
        self.__dict__["held"] = self.carrier  # the same, found without a module's look-up
        self.say: Callable[[], Said] = silent
        self.hear: Callable[[Said], Any] = lambda counts: None
        self.nothing = False
        self._quiet = torch.zeros_like(self.carrier.data)
        self._late: Tensor | None = None
        self.carrier.register_hook(self._flags)

    def root(self) -> Tensor:
        """A zero (0-dim), whose backward pass sends the word."""
        return self.__dict__["held"].sum()  # type: ignore[no-any-return]

    def _flags(self, gradient: Tensor) -> Tensor:
        said = self.say()
        if not said and not self.nothing:
            return self._quiet.clone()  # it becomes the gradient itself, which the exchange writes to
        values = {**said, "nothing": float(self.nothing)}
        return torch.tensor([values.get(name, 0.0) for name in FLAGS], dtype=gradient.dtype, device=gradient.device)

    def read(self, ranks: int, mean: bool = True) -> None:
        """Tells `hear` how many ranks raised each flag, after the exchange. On CUDA that of the step before.

        Reading from a GPU would wait for the step: it is copied as it comes, and read at the next one, unless this rank
        itself had no loss and must know now.
        """
        carrier = self.__dict__["held"]
        word, carrier.grad = carrier.grad, None
        if word is None:
            return
        scale = ranks if mean else 1
        if word.device.type != "cpu" and not self.nothing:
            late, self._late = self._late, word.detach().to("cpu", non_blocking=True)
            if late is not None:
                self._tell(late, scale)
            return
        self._tell(word, scale)

    def exchange(self, ranks: int) -> None:
        """The same by a collective of its own, for strategies whose gradients do not carry it. All ranks call it."""
        word = self._flags(self.carrier.detach())
        dist.all_reduce(word)
        self.carrier.grad = word
        self.read(ranks, mean=False)

    def _tell(self, word: Tensor, scale: int) -> None:
        values = word.tolist()
        if any(values) or self.nothing:
            self.hear({name: round(value * scale) for name, value in zip(FLAGS, values, strict=True)})
        if self.nothing:
            self.nothing = False

"""SpikeDetection: what happens when a loss jumps away from those before it."""

from __future__ import annotations

import json
import math
import os
from collections import deque
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor

from bolide.callbacks.loss_guard import LossGuard, Policy
from bolide.checkpoint import io
from bolide.core.errors import ConfigError, UserCodeError
from bolide.core.messages import warn

if TYPE_CHECKING:
    from bolide.trainer.trainer import Trainer

FILE_NAME = "skip_batches.json"
MAD_TO_SIGMA = 1.4826
"""How many times the median absolute deviation the standard deviation of normal noise is."""


class TrainingSpikeException(UserCodeError):
    """A loss jumped away from those before it; `batch_idx` is the batch's number in its epoch."""

    def __init__(self, text: str, batch_idx: int) -> None:
        super().__init__(text)
        self.batch_idx = batch_idx


class SpikeDetection(LossGuard):
    """Compares each training loss x, before its update, with the last `window` losses w that were trained on.

    x is a spike where it lies on the worse side of the mean m of w, above it for mode "min", below it for "max", and
    exceeds every bound that is given:

    - `rtol`: |x - m| > rtol * |m|
    - `atol`: |x - m| > atol
    - `z`: |x - M| > z * 1.4826 * D, where M is the median of w and D the median of |w - M|; 1.4826 D is the standard
      deviation where the noise is normal, and outliers do not move it. Where D is 0, any other value exceeds it.

    With `finite_only` a loss that is NaN or infinite is a spike, whatever the window holds; without it, such a loss is
    no spike. The first `warmup` losses are not compared. Losses that are spikes do not enter the window. The window is
    saved in checkpoints. Each loss is read on the host, which waits for the device in each step.

    With the default policy the fit ends by TrainingSpikeException, the update is not applied, and the numbers of that
    batch and of the one before it, whose update may be the cause, are added to a JSON list. "skip" and "rewind" go on:
    see `LossGuard`. A bound for noisy losses is `SpikeDetection(rtol=None, z=8, window=100, warmup=50)`.

    Args:
        mode: "min" or "max": which losses are the better ones.
        window: how many losses are compared with.
        warmup: how many losses are taken unseen.
        atol: as above; None: no such bound.
        rtol: as above; None: no such bound.
        exclude_batches_path: the JSON file, or a folder for `skip_batches.json`; default: in the working directory.
        finite_only: as above.
        policy: "raise", "skip" or "rewind".
        z: as above; None: no such bound.
        max: with "skip" and "rewind": how many batches may be left out in the whole run; one more raises. None: any.
        every_n_steps: with "rewind": keep a state to go back to every so many steps; default: at each checkpoint.

    Raises:
        ConfigError: settings that cannot be.
        TrainingSpikeException: in the fit, when it comes to that.
    """

    what = "The loss is a spike"

    def __init__(
        self,
        mode: Literal["min", "max"] = "min",
        window: int = 10,
        warmup: int = 1,
        atol: float | None = None,
        rtol: float | None = 2.0,
        exclude_batches_path: str | Path | None = None,
        finite_only: bool = True,
        policy: Policy = "raise",
        z: float | None = None,
        max: int | None = 10,
        every_n_steps: int | None = None,
    ) -> None:
        super().__init__(policy, max, every_n_steps)
        wrong = []
        if mode not in ("min", "max"):
            wrong.append(f"SpikeDetection(mode={mode!r}) must be 'min' or 'max'")
        if window < 1 or warmup < 1:
            wrong.append(f"SpikeDetection(window={window}, warmup={warmup}) must both be at least 1")
        if atol is None and rtol is None and z is None and not finite_only:
            wrong.append("SpikeDetection has no bound to compare with; give atol, rtol or z")
        for name, bound in (("atol", atol), ("rtol", rtol), ("z", z)):
            if bound is not None and not bound >= 0:
                wrong.append(f"SpikeDetection({name}={bound!r}) must not be negative")
        if wrong:
            raise ConfigError(wrong)
        self.mode = mode
        self.window = window
        self.warmup = warmup
        self.atol = atol
        self.rtol = rtol
        self.z = z
        self.finite_only = finite_only
        path = os.fspath(exclude_batches_path) if exclude_batches_path is not None else os.getcwd()
        self.exclude_batches_path = path if path.endswith(".json") else io.join(path, FILE_NAME)
        self.bad_batches: list[int] = []
        self._losses: deque[float] = deque(maxlen=window)
        self._seen = 0

    def start_anew(self) -> None:
        """No loss has been seen."""
        super().start_anew()
        self.bad_batches = []
        self._losses.clear()
        self._seen = 0

    def is_bad(self, loss: Tensor) -> bool:
        """Whether `loss` is a spike."""
        value = float(loss.detach())
        if not math.isfinite(value):
            return self.finite_only
        if self._seen < self.warmup or not self._losses:
            return False
        return self.is_spike(value, list(self._losses))

    def is_spike(self, value: float, losses: list[float]) -> bool:
        """The comparison of a finite `value` with `losses`, as the class describes it."""
        if self.atol is None and self.rtol is None and self.z is None:
            return False
        mean = fmean(losses)
        if value <= mean if self.mode == "min" else value >= mean:
            return False
        distance = abs(value - mean)
        if self.atol is not None and not distance > self.atol:
            return False
        if self.rtol is not None and not distance > self.rtol * abs(mean):
            return False
        if self.z is None:
            return True
        middle = median(losses)
        return abs(value - middle) > self.z * MAD_TO_SIGMA * median(abs(loss - middle) for loss in losses)

    def accept(self, loss: Tensor) -> None:
        """A loss that is trained on enters the window."""
        self._seen += 1
        value = float(loss.detach())
        if math.isfinite(value):
            self._losses.append(value)

    def error(self, trainer: Trainer, loss: float) -> Exception:
        """The end of the fit; the numbers of the batches are written first."""
        batch_idx = self._batch_idx
        self.bad_batches += [batch_idx - 1, batch_idx] if batch_idx > 0 else [batch_idx]
        listed = ""
        if not trainer.fast_dev_run:
            listed = f" Batches to leave out are listed in {self.exclude_batches_path};"
            if trainer.is_global_zero:
                self._list_bad_batches()
        recent = ", ".join(f"{value:g}" for value in list(self._losses)[-5:])
        return TrainingSpikeException(
            f"The loss of batch {batch_idx} of epoch {trainer.current_epoch} is {loss:g}, after {recent or 'none'}; "
            f"the update was not applied.{listed} SpikeDetection(policy='skip') or 'rewind' goes on without them",
            batch_idx,
        )

    def _list_bad_batches(self) -> None:
        """Adds the batches to those that earlier attempts listed: a run that spiked goes on from before the spike."""
        path = self.exclude_batches_path
        try:
            earlier = json.loads(io.read_bytes(path)) if io.exists(path) else []
            known = [number for number in earlier if isinstance(number, int)] if isinstance(earlier, list) else []
            numbers = [*dict.fromkeys([*known, *self.bad_batches])]
            io.write_atomically(path, lambda file: file.write(json.dumps(numbers, indent=4).encode()))
        except (OSError, ValueError) as error:  # which must not hide the spike
            warn(f"SpikeDetection cannot add the batches {self.bad_batches} to {path}: {error}")

    def state_dict(self) -> dict[str, Any]:
        """The window, and the batches that were left out."""
        own = {"losses": list(self._losses), "seen": self._seen, "bad_batches": list(self.bad_batches)}
        return super().state_dict() | own

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on with the window. The state of Lightning's own callback, which holds another one, begins anew."""
        if "losses" not in state_dict:
            self.bad_batches = [int(number) for number in state_dict.get("bad_batches", [])]
            return
        super().load_state_dict(state_dict)
        self._losses = deque((float(loss) for loss in state_dict["losses"]), maxlen=self.window)
        self._seen = int(state_dict["seen"])
        self.bad_batches = [int(number) for number in state_dict["bad_batches"]]

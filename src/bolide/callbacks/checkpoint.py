"""The base class of callbacks that save checkpoints; they hear every event after all other callbacks."""

from __future__ import annotations

from typing import ClassVar

from bolide.callbacks.callback import Callback


class Checkpoint(Callback):
    """A callback that saves checkpoints.

    The trainer keeps its subclasses last in the list of callbacks, so that what others did is in the file.
    """

    monitors_metrics: ClassVar[bool] = True

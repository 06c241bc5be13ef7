"""`Tuner`: known by name, not built yet."""

from __future__ import annotations

from typing import Any

from bolide.core.errors import NotBuiltError


class Tuner:
    """Finds a learning rate or a batch size by trying.

    Args:
        trainer: the Trainer that runs the trials.

    Raises:
        NotBuiltError: always, in this version.
    """

    def __init__(self, trainer: Any) -> None:
        raise NotBuiltError(
            "Tuner is not built in this version of Bolide. Set the learning rate and the batch size in your module, or "
            "try several in a loop: for lr in (1e-4, 1e-3, 1e-2): Trainer(max_steps=100).fit(Net(lr=lr), loader)"
        )

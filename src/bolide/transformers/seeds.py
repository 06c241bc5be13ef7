"""`set_seed`, by the name that scripts of transformers know."""

from __future__ import annotations

import torch

from bolide.seed import seed_everything


def set_seed(seed: int, deterministic: bool = False) -> None:
    """Seeds python, numpy and torch; with `deterministic`, torch uses deterministic algorithms only."""
    seed_everything(seed, verbose=False)
    if deterministic:
        torch.use_deterministic_algorithms(True)

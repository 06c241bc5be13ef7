"""The tuner by its public name: finding a learning rate or a batch size. Not built yet; refused with what to do."""

from bolide.tuner.tuning import Tuner

__all__ = ["Tuner"]

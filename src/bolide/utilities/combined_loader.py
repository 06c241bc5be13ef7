"""The public path of CombinedLoader; data/combined.py owns it."""

from bolide.data.combined import CombinedLoader
from bolide.utilities.data import sized_len

__all__ = ["CombinedLoader", "sized_len"]

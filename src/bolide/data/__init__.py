"""Loaders and batches: reading them, combining them, sharing them among processes, moving them."""

from bolide.data.sharing import split

__all__ = ["split"]

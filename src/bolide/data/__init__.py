"""Loaders and batches: reading them, combining them, moving them."""

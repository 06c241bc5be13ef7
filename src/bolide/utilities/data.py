"""Facts about loaders and batches: their sizes, and how many workers suit this machine."""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from bolide.core.errors import ConfigError
from bolide.core.messages import warn
from bolide.hparams import AttributeDict
from bolide.log import batch_size_of
from bolide.world import cpu_count

__all__ = [
    "AttributeDict",
    "extract_batch_size",
    "has_iterable_dataset",
    "has_len",
    "has_len_all_ranks",
    "sized_len",
    "suggested_max_num_workers",
]


def extract_batch_size(batch: Any) -> int:
    """The number of samples in `batch`: the first dimension of the first tensor in it.

    Raises:
        MisconfigurationException: there is no tensor in the batch.
    """
    return batch_size_of(batch)


def sized_len(loader: Any) -> int | None:
    """The length of `loader`, or None where it has none."""
    try:
        return len(loader)
    except (TypeError, NotImplementedError):
        return None


def has_len(loader: Any) -> bool:
    """Whether `loader` has a length; warns where it is zero."""
    length = sized_len(loader)
    if length == 0:
        warn(f"{type(loader).__name__} has the length 0. Please make sure that this is meant.")
    return length is not None


def has_len_all_ranks(loader: Any, *args: Any, **kwargs: Any) -> bool:
    """Whether `loader` has a length on every rank; there is one rank."""
    return has_len(loader)


def has_iterable_dataset(loader: Any) -> bool:
    """Whether `loader` is a DataLoader over an IterableDataset."""
    return isinstance(loader, DataLoader) and isinstance(loader.dataset, IterableDataset)


def suggested_max_num_workers(local_world_size: int) -> int:
    """How many workers a loader may have when `local_world_size` processes share this machine's cores.

    Raises:
        ConfigError: fewer than one process.
    """
    if local_world_size < 1:
        raise ConfigError(f"suggested_max_num_workers({local_world_size!r}): expected a number of at least 1.")
    return max(1, cpu_count() // local_world_size - 1)

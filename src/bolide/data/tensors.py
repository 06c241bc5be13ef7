"""The quick path for data in memory: a TensorDataset is read a batch at a time by indexing.

`batches_of` gives the very batches, in the order, and with the draws from the random generators, that torch's
DataLoader gives for the same loader. It is used only where nothing could tell the difference (`is_plain`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Subset, TensorDataset, default_collate


def is_plain(loader: Any) -> bool:
    """Whether `loader` is a plain DataLoader over a TensorDataset, or a Subset of one, read in this process."""
    return (
        type(loader) is DataLoader
        and loader.num_workers == 0
        and loader.batch_sampler is not None
        and loader.collate_fn is default_collate
        and not loader.pin_memory
        and _tensors_of(loader.dataset) is not None
    )


def _tensors_of(dataset: Any) -> tuple[Tensor, ...] | None:
    while type(dataset) is Subset:
        dataset = dataset.dataset
    if type(dataset) is not TensorDataset or any(type(t) is not Tensor or t.is_sparse for t in dataset.tensors):
        return None
    return dataset.tensors


def batches_of(loader: DataLoader[Any]) -> Iterator[list[Tensor]]:
    """The batches of `loader`, each a list of tensors of its own, never views of the dataset.

    Draws one number from the loader's generator when called, as an iterator of torch's DataLoader does.
    """
    indices = iter(loader.batch_sampler)  # type: ignore[arg-type]
    # torch's iterator draws the workers' base seed here even without workers; every later draw depends on it
    torch.empty((), dtype=torch.int64).random_(generator=loader.generator)
    return _fetch(loader.dataset, indices)


def _fetch(dataset: Any, indices: Iterator[list[int]]) -> Iterator[list[Tensor]]:
    tensors = _tensors_of(dataset)
    assert tensors is not None
    maps = []
    while type(dataset) is Subset:
        maps.append(torch.as_tensor(dataset.indices, dtype=torch.int64))
        dataset = dataset.dataset
    for batch in indices:
        index = torch.as_tensor(batch, dtype=torch.int64)
        for positions in maps:
            index = positions[index]
        yield [t.index_select(0, index if t.device.type == "cpu" else index.to(t.device)) for t in tensors]

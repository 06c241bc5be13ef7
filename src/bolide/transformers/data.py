"""How samples become batches: orders, collating, dropped columns, and the windows of an optimizer step.

Owns the loaders that the trainer makes. It trains nothing. Who calls: the trainer.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, Sampler

from bolide.core.errors import UserCodeError
from bolide.core.messages import warn_once
from bolide.data.loaders import length_of
from bolide.data.position import Reader


class EpochSampler(Sampler[int]):
    """A random order that depends on the seed and the epoch alone, so that any epoch's order can be had at once.

    Args:
        count: how many samples there are.
        seed: epoch e is shuffled by a generator seeded with seed + e.
    """

    def __init__(self, count: int, seed: int) -> None:
        self.count, self.seed, self.epoch = count, seed, 0

    def set_epoch(self, epoch: int) -> None:
        """The next pass is that of `epoch`."""
        self.epoch = epoch

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        yield from torch.randperm(self.count, generator=generator).tolist()


class LengthGroupedSampler(Sampler[int]):
    """Random groups of samples of like length: shuffled, cut into stretches of up to 50 batches, each sorted.

    The longest sample of all comes first, so that a lack of memory shows at once.

    Args:
        batch_size: samples to a batch.
        lengths: of each sample.
    """

    def __init__(self, batch_size: int, lengths: Sequence[int]) -> None:
        self.batch_size, self.lengths = batch_size, list(lengths)

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[int]:
        lengths, count = self.lengths, len(self.lengths)
        order = torch.randperm(count).tolist()
        stretch = max(1, min(count // (self.batch_size * 4), 50)) * self.batch_size
        parts = [
            sorted(order[i : i + stretch], key=lambda k: lengths[k], reverse=True) for i in range(0, count, stretch)
        ]
        first = max(range(len(parts)), key=lambda i: lengths[parts[i][0]])
        parts[0][0], parts[first][0] = parts[first][0], parts[0][0]
        return iter([index for part in parts for index in part])


class BalancedBatches(Sampler[list[int]]):
    """Batches of like cost: the samples of one optimizer step, sorted by length and cut so that no batch costs much
    more than another; long samples are fewer to a batch.

    A batch costs its samples times the longest of them, and a part that grows with that length's square, as attention
    does. What is too little for a whole step is left out.

    Args:
        lengths: of each sample.
        samples: of one optimizer step, on all processes.
        batches: of one optimizer step, on all processes.
        seed: epoch e is shuffled by seed + e.
    """

    def __init__(self, lengths: Sequence[int], samples: int, batches: int, seed: int) -> None:
        self.lengths, self.samples, self.batches = list(lengths), samples, batches
        self.seed, self.epoch = seed, 0

    def set_epoch(self, epoch: int) -> None:
        """The next pass is that of `epoch`."""
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.lengths) // self.samples * self.batches

    def __iter__(self) -> Iterator[list[int]]:
        order = list(EpochSampler(len(self.lengths), self.seed + self.epoch))
        for start in range(0, len(order) - self.samples + 1, self.samples):
            step = sorted(order[start : start + self.samples], key=lambda k: self.lengths[k], reverse=True)
            yield from sorted(self._cut(step), key=self._cost, reverse=True)

    def _cost(self, batch: Sequence[int]) -> float:
        longest = self.lengths[batch[0]]
        return len(batch) * longest * (1 + ATTENTION_SHARE * longest)

    def _cut(self, step: list[int]) -> list[list[int]]:
        """The step in its batches, by the least bound on a batch's cost that gives no more of them."""
        bounds = sorted({self._cost(step[i:j]) for i in range(len(step)) for j in range(i + 1, len(step) + 1)})
        low, high = 0, len(bounds) - 1
        while low < high:
            middle = (low + high) // 2
            if len(self._within(step, bounds[middle])) <= self.batches:
                high = middle
            else:
                low = middle + 1
        parts = self._within(step, bounds[low])
        while len(parts) < self.batches:  # one that costs much and has two samples is two
            largest = max((part for part in parts if len(part) > 1), key=self._cost)
            place, half = parts.index(largest), len(largest) // 2
            parts[place : place + 1] = [largest[:half], largest[half:]]
        return parts

    def _within(self, step: list[int], bound: float) -> list[list[int]]:
        parts: list[list[int]] = [[]]
        for index in step:
            if parts[-1] and self._cost([*parts[-1], index]) > bound:
                parts.append([])
            parts[-1].append(index)
        return parts


ATTENTION_SHARE = 1 / 4096
"""At this length's inverse, attention costs as much as all that grows with the length alone."""


def lengths_of(dataset: Any, column: str, main_input: str) -> list[int]:
    """The length of each sample: from a column, else by reading all samples once.

    Raises:
        UserCodeError: samples are no dictionaries with the main input.
    """
    names = getattr(dataset, "column_names", None)
    if names is not None and column in names:
        return [int(n) for n in dataset[column]]
    found = []
    for i in range(len(dataset)):
        sample = dataset[i]
        if not isinstance(sample, Mapping) or main_input not in sample:
            raise UserCodeError(
                f'train_sampling_strategy="group_by_length" needs samples that are dictionaries with {main_input!r}, '
                f"or a column {column!r} of lengths"
            )
        found.append(len(sample[main_input]))
    return found


def seed_worker(worker_id: int) -> None:
    """Seeds python and numpy in a loader's worker, by the seed that torch gave it."""
    seed = torch.initial_seed() % 2**32
    random.seed(seed)
    np.random.seed(seed)


class Loader(DataLoader[Any]):
    """A DataLoader that makes its batches in this process without torch's bookkeeping, where it has no workers.

    The same batches, and the same draws from the same generators.
    """

    def __iter__(self) -> Any:
        if self.num_workers or isinstance(self.dataset, IterableDataset) or self.pin_memory or self.batch_size is None:
            return super().__iter__()
        torch.empty((), dtype=torch.int64).random_(generator=self.generator)  # the base seed that torch draws here
        return self._in_process()

    def _in_process(self) -> Iterator[Any]:
        dataset, collate = self.dataset, self.collate_fn
        many = getattr(dataset, "__getitems__", None)
        for indices in self.batch_sampler:  # type: ignore[union-attr]
            yield collate(many(indices) if many is not None else [dataset[i] for i in indices])


class Window(list[Any]):
    """The batches of one optimizer step; `shares` say, where several processes train, which of them count."""

    shares: list[float] | None = None


class Windows:
    """A loader whose items are windows: so many batches of `loader` at a time, the last one of a pass maybe fewer.

    It keeps its place within a pass, so that a run goes on where it stood, whatever the window was.

    Args:
        loader: the loader of batches.
        size: batches to a window.
    """

    def __init__(self, loader: Any, size: int) -> None:
        self.loader, self.size = loader, size
        self.reader = Reader(loader)

    def __iter__(self) -> Iterator[Window]:
        batches = iter(self.reader)
        return self._grouped(batches)

    def _grouped(self, batches: Iterator[Any]) -> Iterator[Window]:
        window = Window()
        for batch in batches:
            window.append(batch)
            if len(window) == self.size:
                yield window
                window = Window()
        if window:
            yield window

    def state_dict(self) -> dict[str, Any]:
        """Where the pass stands: behind which batch."""
        return {"reader": self.reader.position(), "taken": self.reader.taken}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The next pass goes on there."""
        self.reader.go_on(state["reader"], state["taken"])

    @property
    def sampler(self) -> Any:
        """The sampler of the batches' loader."""
        return getattr(self.loader, "sampler", None)

    @property
    def batch_sampler(self) -> Any:
        """The batch sampler of the batches' loader."""
        return getattr(self.loader, "batch_sampler", None)

    @property
    def dataset(self) -> Any:
        """The dataset of the batches' loader."""
        return getattr(self.loader, "dataset", None)


class SizedWindows(Windows):
    """Windows over a loader of known length."""

    def __len__(self) -> int:
        return -(-len(self.loader) // self.size)


def windows(loader: Any, size: int) -> Any:
    """The loader itself for windows of one batch, else its windows."""
    if size == 1:
        return loader
    return Windows(loader, size) if math.isinf(length_of(loader)) else SizedWindows(loader, size)


# ---------------------------------------------------------------------- collating


def default_data_collator(features: Sequence[Any], return_tensors: str = "pt") -> dict[str, Any]:
    """A batch from samples that are dictionaries: numbers and arrays are stacked, text and None left out.

    `label` and `label_ids` become `labels`.

    Raises:
        UserCodeError: samples that are no dictionaries, or another kind of tensors than torch's.
    """
    if return_tensors != "pt":
        raise UserCodeError(f"return_tensors={return_tensors!r}: batches are torch tensors ('pt')")
    rows = [sample if isinstance(sample, Mapping) else getattr(sample, "__dict__", None) for sample in features]
    if any(row is None for row in rows):
        raise UserCodeError(
            f"A sample is a {type(features[0]).__name__}, and the default data collator takes dictionaries such as "
            '{"input_ids": ..., "labels": ...}; give samples so, or write Trainer(data_collator=...)'
        )
    first = rows[0]
    assert first is not None
    batch: dict[str, Any] = {}
    if first.get("label") is not None:
        label = first["label"]
        kind = torch.long if isinstance(label.item() if isinstance(label, Tensor) else label, int) else torch.float
        batch["labels"] = torch.tensor([row["label"] for row in rows], dtype=kind)  # type: ignore[index]
    elif first.get("label_ids") is not None:
        batch["labels"] = stacked([row["label_ids"] for row in rows])  # type: ignore[index]
    for key, value in first.items():
        if key not in ("label", "label_ids") and value is not None and not isinstance(value, str):
            batch[key] = stacked([row[key] for row in rows])  # type: ignore[index]
    return batch


def stacked(values: list[Any]) -> Tensor:
    """Values of samples as one tensor, with a first dimension for the samples."""
    first = values[0]
    if isinstance(first, Tensor):
        return torch.stack(values)
    if isinstance(first, np.ndarray):
        return torch.from_numpy(np.stack(values))
    return torch.tensor(values)


class WithoutColumns:
    """A collator that drops from each sample what the model does not take; says so once.

    Args:
        collate: the collator that makes the batch.
        keep: the names that stay.
        model_name: for the text.
    """

    def __init__(self, collate: Callable[[list[Any]], Any], keep: Sequence[str], model_name: str) -> None:
        self.collate, self.keep, self.model_name = collate, frozenset(keep), model_name
        self.looked = False

    def __call__(self, samples: list[Any]) -> Any:
        if not self.looked and samples and isinstance(samples[0], Mapping):
            tell_dropped(list(samples[0]), self.keep, self.model_name)
            self.looked = True
        return self.collate([
            {name: value for name, value in sample.items() if name in self.keep}
            if isinstance(sample, Mapping) else sample
            for sample in samples
        ])  # fmt: skip


def tell_dropped(names: Sequence[str], keep: Collection[str], model_name: str) -> None:
    """Says which of a sample's columns the model does not see.

    Raises:
        UserCodeError: none is left.
    """
    dropped = [name for name in names if name not in keep]
    if names and len(dropped) == len(names):
        raise UserCodeError(
            f"Of the columns {', '.join(sorted(map(str, names)))}, {model_name}.forward takes none. Give it what it "
            f"takes ({', '.join(sorted(keep))}), as a tokenizer does, or write remove_unused_columns=False where a "
            "data collator of yours makes it."
        )
    if dropped:
        warn_once(
            f"The columns {', '.join(sorted(map(str, dropped)))} are left out, as {model_name}.forward does not take "
            "them. Write remove_unused_columns=False to keep them for a data collator of yours."
        )

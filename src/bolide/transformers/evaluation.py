"""What an evaluation collects, batch by batch, in bounded memory: losses, predictions, labels.

Predictions leave the device at once; beyond a limit they go on into a temporary file that numpy maps. Who calls: the
trainer, through its adapter's prediction step.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

PAD = -100
"""What fills up predictions and labels of batches that differ in their second dimension."""

SPILL_BYTES = 512 << 20
"""Arrays larger than this live in a temporary file, not in memory."""


def to_numpy(value: Tensor) -> np.ndarray[Any, Any]:
    """A tensor as an array on the host; bfloat16, which numpy lacks, as float32."""
    value = value.detach()
    if value.dtype == torch.bfloat16:
        value = value.float()
    return np.asarray(value.cpu().numpy())


class Rows:
    """Arrays of one leaf, joined along their first dimension; the second may differ, and is filled up.

    Args:
        spill_bytes: beyond this the rows are kept in a temporary file.
    """

    def __init__(self, spill_bytes: int = SPILL_BYTES) -> None:
        self.spill_bytes = spill_bytes
        self.parts: list[np.ndarray[Any, Any]] = []
        self.shapes: list[tuple[int, ...]] = []
        self.bytes = 0
        self.file: Any = None
        self.dtype: Any = None
        self.whole: Any = None

    def add(self, value: Any) -> None:
        """Appends the rows of one batch."""
        array = np.atleast_1d(to_numpy(value) if isinstance(value, Tensor) else np.asarray(value))
        self.dtype = array.dtype if self.dtype is None else np.promote_types(self.dtype, array.dtype)
        self.shapes.append(array.shape)
        self.bytes += array.nbytes
        if self.file is None and self.bytes > self.spill_bytes:
            self.file = tempfile.TemporaryFile()  # noqa: SIM115  # `joined` closes it
            for part in self.parts:
                self.file.write(np.ascontiguousarray(part, self.dtype).tobytes())
            self.parts = []
        if self.file is None:
            self.parts.append(array)
        else:
            self.file.write(np.ascontiguousarray(array, self.dtype).tobytes())

    def joined(self, limit: int | None = None) -> np.ndarray[Any, Any]:
        """All rows, at most `limit` of them."""
        count = sum(shape[0] for shape in self.shapes)
        width = [max(shape[i] for shape in self.shapes) for i in range(1, len(self.shapes[0]))]
        if self.file is None:
            if all(list(shape[1:]) == width for shape in self.shapes):
                return np.concatenate(self.parts)[:limit]
            whole = np.full((count, *width), PAD, dtype=self.dtype)
            self._fill(whole, iter(self.parts))
            return whole[:limit]
        if self.whole is not None:
            return self.whole[:limit]
        self.file.flush()
        if all(list(shape[1:]) == width for shape in self.shapes):
            self.whole = np.memmap(self.file, dtype=self.dtype, mode="r", shape=(count, *width))
            self.file.close()  # the map holds it
            return self.whole[:limit]
        with tempfile.TemporaryFile() as target:
            whole = np.memmap(target, dtype=self.dtype, mode="w+", shape=(count, *width))
        whole[:] = PAD
        self.file.seek(0)
        self._fill(whole, self._read())
        self.file.close()
        self.whole = whole
        return whole[:limit]

    def _read(self) -> Iterator[np.ndarray[Any, Any]]:
        size = np.dtype(self.dtype).itemsize
        for shape in self.shapes:
            yield np.frombuffer(self.file.read(int(np.prod(shape)) * size), self.dtype).reshape(shape)

    def _fill(self, whole: np.ndarray[Any, Any], parts: Any) -> None:
        row = 0
        for part in parts:
            where = (slice(row, row + part.shape[0]), *(slice(0, n) for n in part.shape[1:]))
            whole[where] = part
            row += part.shape[0]


class Collected:
    """A nested value (tensors in tuples, lists and dictionaries), collected leaf by leaf.

    Args:
        join: whether batches are joined; else a list of the batches' values is kept.
    """

    def __init__(self, join: bool = True) -> None:
        self.join = join
        self.tree: Any = None
        self.batches: list[Any] = []

    def add(self, value: Any) -> None:
        """Takes one batch's value; None is no value."""
        if value is None:
            return
        if not self.join:
            self.batches.append(mapped(value, to_numpy))
        elif self.tree is None:
            self.tree = mapped(value, _first)
        else:
            _each(self.tree, value)

    def result(self, limit: int | None = None) -> Any:
        """What was collected, as numpy; None where nothing was."""
        if not self.join:
            return self.batches or None
        return None if self.tree is None else mapped(self.tree, lambda rows: rows.joined(limit))


def _first(value: Any) -> Rows:
    rows = Rows()
    rows.add(value)
    return rows


def mapped(value: Any, fn: Any) -> Any:
    """A nested value with `fn` of each leaf; sequences become tuples."""
    if isinstance(value, Mapping):
        return {key: mapped(item, fn) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return tuple(mapped(item, fn) for item in value)
    return fn(value)


def _each(tree: Any, value: Any) -> None:
    if isinstance(tree, Rows):
        tree.add(value)
    elif isinstance(tree, dict):
        for key, rows in tree.items():
            _each(rows, value[key])
    else:
        for rows, item in zip(tree, value, strict=True):
            _each(rows, item)


def is_array(value: Any) -> bool:
    """Whether a value is made of tensors alone, so that it can be collected; a cache of keys and values is not."""
    if isinstance(value, Mapping):
        return bool(value) and all(is_array(item) for item in value.values())
    if isinstance(value, (list, tuple)):
        return bool(value) and all(is_array(item) for item in value)
    return isinstance(value, Tensor)


def detached(value: Tensor) -> Tensor:
    """A tensor without its graph."""
    return value.detach()


class MeanLoss:
    """The mean of batch losses, each counted once for each of its samples."""

    def __init__(self) -> None:
        self.waiting: list[Tensor] = []
        self.sizes: list[int] = []
        self.total, self.count = 0.0, 0
        self.losses: Rows | None = None

    def add(self, loss: Tensor | None, size: int) -> None:
        """Takes one batch's loss; the device is not waited for until 64 of them are there."""
        if loss is None:
            return
        self.waiting.append(loss.detach().mean())
        self.sizes.append(size)
        if self.losses is not None:
            self.losses.add(loss.detach().mean().repeat(size))
        if len(self.waiting) == 64:
            self._fold()

    def _fold(self) -> None:
        for loss, size in zip(torch.stack(self.waiting).double().tolist(), self.sizes, strict=True):
            self.total += loss * size
            self.count += size
        self.waiting, self.sizes = [], []

    def result(self) -> float | None:
        """The mean; None where there was no loss."""
        if self.waiting:
            self._fold()
        return self.total / self.count if self.count else None


def batch_size_of(inputs: Any) -> int | None:
    """How many samples a batch has: the first dimension of its first tensor."""
    if isinstance(inputs, Tensor):
        return inputs.shape[0] if inputs.dim() else None
    values: Any = (
        inputs.values() if isinstance(inputs, Mapping) else inputs if isinstance(inputs, (list, tuple)) else ()
    )
    for value in values:
        found = batch_size_of(value)
        if found is not None:
            return found
    return None


def numbers(metrics: dict[str, Any]) -> dict[str, Any]:
    """Metrics with numpy and torch numbers as plain ones, so that they are JSON."""
    return {
        key: value.item() if hasattr(value, "item") and getattr(value, "size", 1) in (1,) else
        value.item() if isinstance(value, Tensor) and value.numel() == 1 else value
        for key, value in metrics.items()
    }  # fmt: skip

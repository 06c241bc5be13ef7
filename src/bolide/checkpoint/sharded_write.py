"""Writes a sharded checkpoint: each rank its parts, the first one the rest, and the manifest when all are on the disk.

All ranks call `write_folder` together, each from the thread that writes, over a group of its own beside that of the
training. What fails on one fails on all, and the folder is what it was. Who calls: checkpoint/rank_writer.py, and the
trainer for a save that is waited for.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from bolide import collectives
from bolide.checkpoint import io
from bolide.checkpoint.file import about_of, write_checkpoint
from bolide.checkpoint.parts import Box
from bolide.checkpoint.sharded import (
    MANIFEST,
    Contents,
    PartAt,
    TensorAt,
    is_foreign,
    is_sharded,
    problem_of,
    rest_name,
    shard_name,
    tidy,
    to_json,
)
from bolide.checkpoint.shards import digest_of, write_tensors
from bolide.core.errors import CheckpointError


@dataclass
class Written:
    """What a rank has put on the disk: its files with size and SHA-256, and by tensor where its part lies."""

    files: dict[str, tuple[int, str]]
    parts: dict[str, tuple[str, tuple[int, ...], PartAt]]


def write_folder(state: dict[str, Any], path: str, group: Any = None, failure: BaseException | None = None) -> None:
    """Writes this rank's share of a checkpoint into the folder `path`; the first rank commits it. All must call it.

    A checkpoint that is there under the same name stays valid until the manifest is replaced.

    Args:
        state: what `parts.share_of_this_rank` gave.
        path: a folder that all ranks see, local or a URL for fsspec.
        group: the ranks' group for this, where there are several.
        failure: why this rank cannot write; the others hear of it.

    Raises:
        CheckpointError: it failed on some rank, which is named; the first rank raises it.
        FailedOnRankZero: the same, on the other ranks.
    """
    rank = collectives.rank(group)
    with contextlib.ExitStack() as stack:
        collectives.on_rank_zero(lambda: _tidy_after_failure(path, lambda: _prepare(path, stack)), group)
        written = Written({}, {})
        if failure is None:
            try:
                written = _write_own(state, path, rank)
            except Exception as error:  # noqa: BLE001  # raised below, once all have word of it
                failure = error
        told = collectives.gather_to_zero((written, None if failure is None else _text(failure)), group)

        def finish() -> None:
            assert told is not None
            if failure is not None:
                raise failure
            for number, (_, text) in enumerate(told):
                if text is not None:
                    raise CheckpointError(f"rank {number} could not write its part of {path!r}: {text}")
            _commit(state, path, [done for done, _ in told])

        try:
            collectives.on_rank_zero(lambda: _tidy_after_failure(path, finish), group)
        except collectives.FailedOnRankZero as error:
            # where the first rank does not see them, on a file system of this machine, they are this rank's to remove
            with contextlib.suppress(OSError):
                for name in () if io.exists(io.join(path, MANIFEST)) else written.files:
                    io.remove(io.join(path, name))
            raise error from failure


def _tidy_after_failure(path: str, step: Callable[[], None]) -> None:
    """Does `step`; where it fails, nothing of this save stays in the folder."""
    try:
        step()
    except Exception:
        with contextlib.suppress(OSError):  # what the save failed with is what counts
            tidy(path)
        raise


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _prepare(path: str, stack: contextlib.ExitStack) -> None:
    """Makes the folder, on the first rank; what is there and no checkpoint of this kind is out of the way, or an error.

    Raises:
        CheckpointError: it holds other things.
    """
    stack.enter_context(io.displaced(path, by_folder=True))
    if io.is_dir(path) and not is_sharded(path) and is_foreign(path):
        raise CheckpointError(f"{path!r} is a folder that holds other things; give the checkpoint another path")
    io.make_dirs(path)


def _write_own(state: dict[str, Any], path: str, rank: int) -> Written:
    """The files of one rank."""
    token = uuid.uuid4().hex[:12]
    written = Written({}, {})
    parts: dict[str, Tensor] = {}
    keys: dict[Any, str] = {}
    for name, tensor in state["parts"].items():
        dtype, shape, offset = state["layout"][name]
        # weights that are tied stand there under two names, and are written once
        memory = (tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), dtype) if tensor.numel() else name
        key = keys.setdefault(memory, name)
        parts.setdefault(key, tensor)
        at = PartAt(shard_name(rank, token), key, Box(tuple(offset), tuple(tensor.shape)))
        written.parts[name] = (dtype, tuple(shape), at)
    if parts:
        found: list[tuple[int, str]] = []
        name = shard_name(rank, token)
        io.write_atomically(io.join(path, name), lambda file: found.append(write_tensors(file, parts)))
        written.files[name] = found[-1]
    if state["rest"] is not None:
        name = rest_name(token)
        write_checkpoint(state["rest"], io.join(path, name))
        written.files[name] = digest_of(io.join(path, name))
    return written


def _commit(state: dict[str, Any], path: str, written: list[Written]) -> None:
    """Writes the manifest, which makes the folder a checkpoint, and removes what it names no more.

    Raises:
        CheckpointError: a file of another rank is not to be seen, or a tensor is not whole.
    """
    files = {name: entry for one in written for name, entry in one.files.items()}
    for name, (size, _) in files.items():
        file = io.join(path, name)
        if not io.exists(file) or io.size_bytes(file) != size:
            raise CheckpointError(
                f"{file!r} was written by another process, and is not to be seen from the first one: a sharded "
                "checkpoint must lie on a file system that all processes share"
            )
    tensors: dict[str, TensorAt] = {}
    for one in written:
        for name, (dtype, shape, part) in one.parts.items():
            known = tensors.get(name)
            tensors[name] = TensorAt(dtype, shape, (*(known.parts if known is not None else ()), part))
    for name, tensor in tensors.items():
        problem = problem_of(tensor)
        if problem:
            raise CheckpointError(f"{name!r} cannot be saved in parts: the ranks hold {problem}")
    rest = next(name for name in files if name.startswith("rest."))
    data = to_json(Contents(about_of(state["rest"]), rest, files, tensors))
    io.write_atomically(io.join(path, MANIFEST), lambda file: file.write(data))
    tidy(path)

"""A checkpoint as a folder: shards of tensors, the rest as one small file, and a manifest that makes it a checkpoint.

The manifest, JSON, names every file with its size and SHA-256 and says which part of which tensor lies where. It is
written last and replaced in one move, so a folder is what its manifest says, or nothing. torch's own distributed
checkpoints would not do: their index is a pickle, nothing in them tells damage, and their files are neither fsynced nor
written through checkpoint/io. Who calls: checkpoint/sharded_write.py, stored.py, read.py and store.py.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, fields
from typing import Any

from bolide.checkpoint import digest, io
from bolide.checkpoint.digest import About, DamagedCheckpointError, NewerFormatError
from bolide.checkpoint.file import Report
from bolide.checkpoint.parts import Box, whole_box
from bolide.checkpoint.shards import DTYPES, digest_of
from bolide.core.errors import CheckpointError, CheckpointNotFoundError

FORMAT = 1
"""The version of the folders. A reader refuses a higher one; each version written once stays readable."""

MANIFEST = io.COMMIT
_OWN_FILE = re.compile(r"(rank_\d{5}\.[0-9a-f]{12}\.safetensors|rest\.[0-9a-f]{12}\.ckpt)")
_MAX_MANIFEST_BYTES = 1 << 30
_MAX_THREADS = 4
_SEVERAL_THREADS_BYTES = 8 << 20


@dataclass(frozen=True)
class PartAt:
    """Where a part of a tensor lies: the file, its name there, and its place in the whole tensor."""

    file: str
    key: str
    box: Box


@dataclass(frozen=True)
class TensorAt:
    """A whole tensor: the name of its dtype, its shape, and its parts, which cover it."""

    dtype: str
    shape: tuple[int, ...]
    parts: tuple[PartAt, ...]


@dataclass(frozen=True)
class Contents:
    """What a folder holds: `files` are (size in bytes, SHA-256) by name, `rest` is the one that is no shard."""

    about: About
    rest: str
    files: dict[str, tuple[int, str]]
    tensors: dict[str, TensorAt]

    @property
    def size_bytes(self) -> int:
        """Of all files but the manifest."""
        return sum(size for size, _ in self.files.values())


def shard_name(rank: int, token: str) -> str:
    """The file of one rank's parts. `token`, 12 hexadecimal digits, tells saves into one folder apart."""
    return f"rank_{rank:05d}.{token}.safetensors"


def rest_name(token: str) -> str:
    """The file of all that is not in shards."""
    return f"rest.{token}.ckpt"


def is_sharded(path: Any) -> bool:
    """Whether `path` is a folder with a manifest in it; one without is no checkpoint, or none any more."""
    return io.is_dir(path) and io.exists(io.join(str(path), MANIFEST))


# ---------------------------------------------------------------------- the manifest


def to_json(contents: Contents) -> bytes:
    """The manifest as it stands in the file, with its own digest; always the same bytes for the same contents."""
    body = {
        "format": FORMAT,
        "about": {name: value for name, value in asdict(contents.about).items() if value is not None},
        "rest": contents.rest,
        "files": {name: {"bytes": size, "sha256": digest} for name, (size, digest) in contents.files.items()},
        "tensors": {
            name: {
                "dtype": tensor.dtype,
                "shape": list(tensor.shape),
                "parts": [[p.file, p.key, list(p.box.offset), list(p.box.shape)] for p in tensor.parts],
            }
            for name, tensor in contents.tensors.items()
        },
    }
    return digest.signed(body)


def from_json(data: bytes) -> Contents:
    """Reads a manifest.

    Raises:
        DamagedCheckpointError: it is not what was written, or what it says cannot be.
        NewerFormatError: a later version wrote it.
    """
    body = digest.unsigned(data, FORMAT)
    try:
        about = About(**{f.name: body["about"].get(f.name) for f in fields(About)})
        files = {_own(name): (int(entry["bytes"]), str(entry["sha256"])) for name, entry in body["files"].items()}
        tensors = {str(name): _tensor(name, entry, files) for name, entry in body["tensors"].items()}
        if body["rest"] not in files:
            raise DamagedCheckpointError("its manifest lacks what it must say")
        return Contents(about, body["rest"], files, tensors)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedCheckpointError("its manifest lacks what it must say") from error


def _own(name: Any) -> str:
    """A file name that a save can have given: one without a way out of the folder."""
    if not isinstance(name, str) or not _OWN_FILE.fullmatch(name):
        raise DamagedCheckpointError(f"its manifest names {name!r}, which no save writes")
    return name


def _tensor(name: str, entry: Any, files: dict[str, Any]) -> TensorAt:
    shape = _numbers(entry["shape"])
    parts = tuple(PartAt(str(f), str(key), Box(_numbers(at), _numbers(size))) for f, key, at, size in entry["parts"])
    tensor = TensorAt(str(entry["dtype"]), shape, parts)
    problem = problem_of(tensor)
    if tensor.dtype not in DTYPES:
        problem = f"the dtype {tensor.dtype!r}"
    elif any(part.file not in files for part in parts):
        problem = "a part in no file"
    elif any(part.box.count * DTYPES[tensor.dtype].itemsize > files[part.file][0] for part in parts):
        problem = "a part that is larger than its file"
    if problem:
        raise DamagedCheckpointError(f"its manifest says of {name!r} what cannot be: {problem}")
    return tensor


def _numbers(values: Any) -> tuple[int, ...]:
    found = tuple(values)
    if any(not isinstance(value, int) or value < 0 for value in found):
        raise ValueError("no sizes")
    return found


def problem_of(tensor: TensorAt) -> str:
    """Why the parts do not make up the tensor, or nothing: each element must be in one of them, and one only."""
    whole = whole_box(tensor.shape)
    boxes = [part.box for part in tensor.parts]
    if any(len(box.offset) != len(whole.shape) or len(box.shape) != len(whole.shape) for box in boxes):
        return "a part of another number of dimensions"
    if any(box.count and box.common(whole) != box for box in boxes):
        return "a part that lies outside"
    there = sum(box.count for box in boxes)
    if there != whole.count:
        return f"parts of {there} elements, where it has {whole.count}"
    if len({box.offset for box in boxes if box.count}) != sum(1 for box in boxes if box.count):
        return "parts that overlap"  # grids that are made of ranks cannot overlap otherwise, and have as many elements
    return ""


# ---------------------------------------------------------------------- reading


def contents_of(path: str) -> Contents:
    """The manifest of a folder, read without looking at its files.

    Raises:
        CheckpointNotFoundError: there is no folder, or no manifest in it.
        DamagedCheckpointError, NewerFormatError: as `from_json`.
    """
    try:
        data = io.read_bytes(io.join(path, MANIFEST))
    except FileNotFoundError as error:
        raise CheckpointNotFoundError(
            f"There is no checkpoint at {path!r}: the folder has no {MANIFEST}, which is written last. A save that did "
            "not come to its end leaves that, or another program"
        ) from error
    except OSError as error:
        raise CheckpointError(f"The checkpoint {path!r} could not be read: {error}") from error
    if len(data) > _MAX_MANIFEST_BYTES:
        raise DamagedCheckpointError("its manifest is longer than any")
    return from_json(data)


def damage(path: str, contents: Contents, names: Iterable[str] | None = None) -> str:
    """What is wrong with the files of a folder, or nothing.

    Args:
        path: the folder.
        contents: what its manifest says.
        names: which files are looked at; all by default.
    """

    def problem(name: str) -> str:
        expected = contents.files[name]
        file = io.join(path, name)
        if not io.exists(file):
            return f"its file {name} is missing"
        there = io.size_bytes(file)
        if there != expected[0]:
            return f"its file {name} has {there} bytes, not {expected[0]}"
        return "" if digest_of(file) == expected else f"its file {name} is not what was written (SHA-256)"

    looked_at = sorted(contents.files) if names is None else list(names)
    threads = min(_MAX_THREADS, os.cpu_count() or 1, len(looked_at))
    if threads < 2 or contents.size_bytes < _SEVERAL_THREADS_BYTES:
        return next(filter(None, map(problem, looked_at)), "")
    with ThreadPoolExecutor(threads, thread_name_prefix="bolide-digest") as pool:  # hashing needs no interpreter
        return next(filter(None, pool.map(problem, looked_at)), "")


def verify_folder(path: str) -> Report:
    """Checks every byte of a sharded checkpoint.

    Raises:
        CheckpointNotFoundError: there is no folder, or no manifest in it.
        NewerFormatError: a later version of Bolide wrote it.
        OSError: it could not be read.
    """
    try:
        contents = contents_of(path)
    except NewerFormatError as error:
        raise NewerFormatError(f"The checkpoint {path!r} cannot be used: {error}") from error
    except DamagedCheckpointError as error:
        return Report(path, False, str(error), "sha256", 0, None)
    problem = damage(path, contents)
    shards = len(contents.files) - 1
    return Report(path, not problem, problem, "sha256", contents.size_bytes, contents.about, shards)


# ---------------------------------------------------------------------- what saves leave behind


def leftovers(path: str) -> list[str]:
    """The names in a folder that a save wrote and no manifest names: it was killed, or another one followed it."""
    try:
        named = set(contents_of(path).files)
    except CheckpointNotFoundError:
        named = set()
    return [name for name in io.list_dir(path) if name not in named and (_OWN_FILE.fullmatch(name) or io.is_part(name))]


def is_foreign(path: str) -> bool:
    """Whether a folder without a manifest holds what no save of ours wrote."""
    return any(not _OWN_FILE.fullmatch(name) and not io.is_part(name) for name in io.list_dir(path))


def remove_leftovers(folder: str, depth: int = 0) -> None:
    """Removes what saves that were killed left in the checkpoints of a folder, and so far below it.

    Nobody may be writing there. A folder with anything else in it, and a damaged checkpoint, stay as they are.
    """
    for name in io.list_dir(folder):
        path = io.join(folder, name)
        if io.is_link(path) or not io.is_dir(path):
            continue
        if name.endswith(".ckpt"):
            tidy(path)
        elif depth:
            remove_leftovers(path, depth - 1)


def tidy(path: str) -> None:
    """Removes what no manifest names from one folder; the folder itself, where it has none and holds nothing else."""
    if not io.is_dir(path):
        return
    if not io.exists(io.join(path, MANIFEST)):
        if not is_foreign(path):
            io.remove(path)
        return
    try:
        names = leftovers(path)
    except CheckpointError:  # damaged: the search for a checkpoint deals with it, and tells why
        return
    for name in names:
        io.remove(io.join(path, name))

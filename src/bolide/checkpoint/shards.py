"""One file of tensors in the format of safetensors: written as a stream through a digest, read by range.

Reading is the library's. Its writer makes a file of its own and renames it, or holds all bytes in memory, so it can
neither be fsynced nor counted by checkpoint/io; the format is a length, a JSON header and the bytes. Who calls:
checkpoint/sharded_write.py and checkpoint/stored.py.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Mapping
from typing import Any, BinaryIO

import torch
from torch import Tensor

from bolide.checkpoint import io
from bolide.checkpoint.digest import DamagedCheckpointError
from bolide.checkpoint.parts import Box
from bolide.core.errors import MissingPackageError

CODES: dict[torch.dtype, str] = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
}  # fmt: skip
"""What every version of the library since 0.4 reads; a tensor of another dtype is stored as its bytes."""

DTYPES: dict[str, torch.dtype] = {
    str(value).removeprefix("torch."): value for value in vars(torch).values() if isinstance(value, torch.dtype)
}
"""Dtypes by the names that they have in a manifest."""

_CHUNK_BYTES = 8 << 20


class Hashed:
    """A file that is written to from its beginning on: how many bytes so far, and their SHA-256."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._sha256 = hashlib.sha256()
        self.size_bytes = 0

    def write(self, data: Any) -> None:
        """Writes bytes, or what has them."""
        view = memoryview(data).cast("B")
        for start in range(0, len(view), _CHUNK_BYTES):  # hashed while they are in the processor's cache
            chunk = view[start : start + _CHUNK_BYTES]
            self._file.write(chunk)
            self._sha256.update(chunk)
        self.size_bytes += len(view)

    @property
    def digest(self) -> str:
        """Of all that was written."""
        return self._sha256.hexdigest()


def write_tensors(file: BinaryIO, tensors: Mapping[str, Tensor]) -> tuple[int, str]:
    """Writes `tensors` to a file that is open and empty; returns its size in bytes, and its SHA-256."""
    hashed = Hashed(file)
    # the widest first, so that each begins at a multiple of its element's size
    names = sorted(tensors, key=lambda name: (-_element_bytes(tensors[name]), name))
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name in names:
        tensor = tensors[name]
        code = CODES.get(tensor.dtype)
        shape = list(tensor.shape) if code is not None else [tensor.numel() * tensor.element_size()]
        end = at + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": code or "U8", "shape": shape, "data_offsets": [at, end]}
        at = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    hashed.write(len(text).to_bytes(8, "little"))
    hashed.write(text)
    for name in names:
        if tensors[name].numel():
            hashed.write(_bytes_of(tensors[name]))
    return hashed.size_bytes, hashed.digest


def _element_bytes(tensor: Tensor) -> int:
    return tensor.element_size() if tensor.dtype in CODES else 1


def _bytes_of(tensor: Tensor) -> Any:
    plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
    return plain.view(torch.uint8).numpy()


def digest_of(path: str) -> tuple[int, str]:
    """Size in bytes and SHA-256 of a file, as `write_tensors` and `sha256sum` give them."""
    total, size_bytes = hashlib.sha256(), 0
    with io.open_read(path) as file:
        while chunk := file.read(_CHUNK_BYTES):
            total.update(chunk)
            size_bytes += len(chunk)
    return size_bytes, total.hexdigest()


def need_library(feature: str) -> Any:
    """The library's `safe_open`.

    Raises:
        MissingPackageError: it is not installed.
    """
    try:
        from safetensors import safe_open
    except ImportError as error:
        raise MissingPackageError(feature, "safetensors", "safetensors") from error
    return safe_open


class Shards:
    """The shard files of a folder, each opened when it is first read from. A remote one is fetched whole, to disk."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._safe_open = need_library("A sharded checkpoint")
        self._open: dict[str, Any] = {}
        self._fetched: list[Any] = []

    def read(self, name: str, key: str, box: Box, wanted: Box, dtype: torch.dtype) -> Tensor:
        """A range of a part.

        Args:
            name: the file's.
            key: the part's in it.
            box: the part's place in the whole tensor.
            wanted: the range's, within `box`.
            dtype: the tensor's.

        Raises:
            DamagedCheckpointError: the file does not hold that.
        """
        try:
            shard = self._opened(name)
            if dtype not in CODES:
                # a copy, as bytes may begin anywhere in the file, and elements may not
                found: Tensor = shard.get_tensor(key).clone().view(dtype).reshape(box.shape)[wanted.within(box)]
            elif wanted == box:
                found = shard.get_tensor(key)
            else:
                found = shard.get_slice(key)[wanted.within(box)]
        except Exception as error:  # whatever the library meets in a file: it is not what its manifest says
            raise DamagedCheckpointError(f"{io.join(self.folder, name)!r} cannot be read: {error}") from error
        if found.dtype != dtype or tuple(found.shape) != wanted.shape:
            raise DamagedCheckpointError(f"{io.join(self.folder, name)!r} holds another {key!r} than its manifest says")
        return found

    def _opened(self, name: str) -> Any:
        if name not in self._open:
            path = io.join(self.folder, name)
            if io.is_remote(path):
                local = tempfile.NamedTemporaryFile(suffix=".safetensors")  # noqa: SIM115  # open as long as this is
                with io.open_read(path) as file:
                    shutil.copyfileobj(file, local, _CHUNK_BYTES)
                local.flush()
                self._fetched.append(local)
                path = local.name
            self._open[name] = self._safe_open(io.local_path(path), framework="pt", device="cpu")
        return self._open[name]

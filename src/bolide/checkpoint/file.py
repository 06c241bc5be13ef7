"""A checkpoint as one file: torch's zip with tensors and plain data, never anything that must be unpickled as code.

Writes through checkpoint/io, reads with `weights_only=True` and no other way. What a file cannot be used for is said
before anything live changes.
"""

from __future__ import annotations

import os
import pickle
from typing import Any

import torch

from bolide.checkpoint import io
from bolide.core.errors import CheckpointError, CheckpointNotFoundError, nearest

ZIP_MAGIC = b"PK\x03\x04"
PICKLE_MAGIC = b"\x80"
"""How files of torch.save before its zip format begin; they are read with weights_only all the same."""


def write_checkpoint(checkpoint: dict[str, Any], path: str | os.PathLike[str]) -> None:
    """Writes `checkpoint`, which must be tensors and plain data, under `path`: wholly or not at all."""
    io.write_atomically(path, lambda file: torch.save(checkpoint, file))


def read_checkpoint(path: str | os.PathLike[str], map_location: Any = "cpu") -> dict[str, Any]:
    """Reads a checkpoint.

    Args:
        path: a local path or a URL for fsspec.
        map_location: where the tensors go, as for `torch.load`.

    Raises:
        CheckpointNotFoundError: there is nothing at `path`.
        CheckpointError: damaged, foreign, or holding objects that only unpickling could make.
    """
    text = os.fspath(path)
    if not io.exists(text):
        raise CheckpointNotFoundError(f"There is no checkpoint at {text!r}.{beside(text)}")
    if io.is_dir(text):
        raise CheckpointError(f"{text!r} is a folder; give the path of a checkpoint file.{beside(text)}")
    with io.open_read(text) as file:
        start = file.read(4)
        file.seek(0)
        if not start:
            raise CheckpointError(f"The checkpoint {text!r} is empty (0 bytes): the writing of it was cut short.")
        if start != ZIP_MAGIC and not start.startswith(PICKLE_MAGIC):
            raise CheckpointError(f"{text!r} is no checkpoint: it is not a file that torch.save wrote.")
        try:
            loaded = torch.load(file, map_location=map_location, weights_only=True)
        except pickle.UnpicklingError as error:
            raise CheckpointError(
                f"The checkpoint {text!r} holds objects that are neither tensors nor plain data, and Bolide loads no "
                "code from files. Save it again from the program that wrote it, with such hyperparameters left out "
                f"(ignore=[...] in save_hyperparameters). torch says: {_first_line(error)}"
            ) from error
        except (RuntimeError, EOFError, KeyError, ValueError, OSError) as error:
            raise CheckpointError(
                f"The checkpoint {text!r} is damaged or cut short "
                f"({os.path.getsize(text) if os.path.exists(text) else '?'} bytes) and cannot be read; use an earlier "
                f"one. torch says: {_first_line(error)}"
            ) from error
    if not isinstance(loaded, dict):
        raise CheckpointError(f"{text!r} holds a {type(loaded).__name__}, not the dictionary of a checkpoint.")
    return loaded


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]


def beside(path: str) -> str:
    """A hint at the checkpoints near a path that is not one."""
    folder = path if io.is_dir(path) else io.parent(path)
    names = [name for name in io.list_dir(folder) if name.endswith(".ckpt")]
    if not names:
        return ""
    close = nearest(os.path.basename(path), names, 1) or names[-1:]
    return f" There is {io.join(folder, close[0])!r}."

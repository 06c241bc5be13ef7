"""A checkpoint as one file: torch's zip with tensors and plain data, and a manifest of digests behind it.

Writes through checkpoint/io, reads with `weights_only=True` and no other way, and nothing before its digests were
checked. What a file cannot be used for is said before anything live changes.
"""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

import torch

from bolide.checkpoint import digest, io
from bolide.checkpoint.digest import About, DamagedCheckpointError, Manifest, NewerFormatError
from bolide.checkpoint.plain import BoundsError, check_bounds
from bolide.core.errors import CheckpointError, CheckpointNotFoundError, nearest
from bolide.secrets import hide

ZIP_MAGIC = b"PK"
HPARAMS_KEYS = ("hyper_parameters", "datamodule_hyper_parameters")
PICKLE_MAGIC = b"\x80"
"""How files of torch.save before its zip format begin; they are read with weights_only all the same."""


@dataclass(frozen=True)
class Report:
    """What became of checking a checkpoint. `by` says by what: "sha256", "crc32" or "loading"; `shards` are those of a
    folder."""

    path: str
    whole: bool
    problem: str
    by: str
    size_bytes: int
    about: About | None
    shards: int = 0


def write_checkpoint(checkpoint: dict[str, Any], path: str | os.PathLike[str]) -> None:
    """Writes `checkpoint`, tensors and plain data, under `path`: wholly or not at all. Secrets are hidden."""
    about = about_of(checkpoint)
    hparams = {key: checkpoint[key] for key in HPARAMS_KEYS if isinstance(checkpoint.get(key), Mapping)}
    checkpoint = {**checkpoint, **{key: hide(values) for key, values in hparams.items()}}

    def write(file: BinaryIO) -> None:
        torch.save(checkpoint, file)
        digest.seal(file, about)

    with io.displaced(path, by_folder=False):
        io.write_atomically(path, write)


def about_of(checkpoint: Mapping[str, Any]) -> About:
    """What the manifest says of a checkpoint."""
    own = checkpoint.get("bolide")
    own = own if isinstance(own, Mapping) else {}
    progress = own.get("progress")
    batches = progress.get("total_batches") if isinstance(progress, Mapping) else None
    run_id, run_dir = own.get("run_id"), own.get("run_dir")
    return About(
        step=_number(checkpoint.get("global_step")),
        epoch=_number(checkpoint.get("epoch")),
        batches=_number(batches),
        run_id=run_id if isinstance(run_id, str) else None,
        run_dir=run_dir if isinstance(run_dir, str) else None,
        weights_only="optimizer_states" not in checkpoint,
        bolide=_version(),
        torch=str(torch.__version__),
    )


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _version() -> str | None:
    return getattr(sys.modules.get("bolide"), "__version__", None)  # the package is above this module


def read_checkpoint(path: str | os.PathLike[str], map_location: Any = "cpu", mmap: bool = False) -> dict[str, Any]:
    """Reads a checkpoint, after every byte of it was checked against its digests.

    Args:
        path: a local path or a URL for fsspec.
        map_location: where the tensors go, as for `torch.load`.
        mmap: leaves the tensors of a local file on the disk until they are used; the file must stay as it is.

    Raises:
        CheckpointNotFoundError: there is nothing at `path`.
        DamagedCheckpointError: cut short, changed after it was written, or no checkpoint at all.
        NewerFormatError: a later version of Bolide wrote it.
        CheckpointError: it holds objects that only unpickling could make, or cannot be read.
    """
    text = _there(path)
    with _opened(text) as file:
        try:
            if _begins_as_zip(file):
                digest.check(file)
            loaded = _unpickled(file, io.local_path(text) if mmap and not io.is_remote(text) else None, map_location)
            check_bounds(loaded)
        except CheckpointError as error:
            hint = beside(text) if isinstance(error, DamagedCheckpointError) else ""
            raise type(error)(f"The checkpoint {text!r} cannot be used: {str(error).rstrip('.')}.{hint}") from error
        except BoundsError as error:
            raise DamagedCheckpointError(f"The checkpoint {text!r} cannot be used: {error}") from error
        except OSError as error:
            raise CheckpointError(f"The checkpoint {text!r} could not be read: {error}") from error
    if not isinstance(loaded, dict):
        raise CheckpointError(f"{text!r} holds a {type(loaded).__name__}, not the dictionary of a checkpoint.")
    own = loaded.get("bolide")
    version = own.get("format") if isinstance(own, Mapping) else None
    if isinstance(version, int) and version > digest.FORMAT:
        raise NewerFormatError(
            f"The checkpoint {text!r} has format {version}, and this version of Bolide reads formats up to "
            f"{digest.FORMAT}. Update Bolide: pip install --upgrade bolide"
        )
    return loaded


def verify_checkpoint(path: str | os.PathLike[str]) -> Report:
    """Checks whether a file is what was written, without loading it where it has digests.

    Raises:
        CheckpointNotFoundError: there is nothing at `path`.
        NewerFormatError: a later version of Bolide wrote it.
        OSError: it could not be read.
    """
    text = _there(path)
    with _opened(text) as file:
        size_bytes = os.fstat(file.fileno()).st_size
        try:
            if _begins_as_zip(file):
                manifest = digest.check(file)
                by = "sha256" if manifest is not None else "crc32"
                return Report(text, True, "", by, size_bytes, manifest.about if manifest is not None else None)
            _unpickled(file, None, "cpu")
        except NewerFormatError as error:
            raise NewerFormatError(f"The checkpoint {text!r} cannot be used: {error}") from error
        except CheckpointError as error:
            return Report(text, False, str(error), "loading", size_bytes, None)
    return Report(text, True, "", "loading", size_bytes, None)


def manifest_at(path: str | os.PathLike[str]) -> Manifest | None:
    """The manifest of a file, read without checking the rest; None where it has none.

    Raises:
        CheckpointNotFoundError, DamagedCheckpointError, NewerFormatError: as `read_checkpoint`.
    """
    text = _there(path)
    with _opened(text) as file:
        return digest.manifest_of(file, digest.layout_of(file)) if _begins_as_zip(file) else None


def _there(path: str | os.PathLike[str]) -> str:
    text = os.fspath(path)
    if not io.exists(text):
        raise CheckpointNotFoundError(f"There is no checkpoint at {text!r}.{beside(text)}")
    if io.is_dir(text):
        raise CheckpointError(
            f"{text!r} is a folder without a {io.COMMIT}, and so no checkpoint; give the path of one.{beside(text)}"
        )
    return text


def _opened(text: str) -> BinaryIO:
    try:
        return io.open_read(text)
    except OSError as error:
        raise CheckpointError(f"The checkpoint {text!r} could not be read: {error}") from error


def _begins_as_zip(file: BinaryIO) -> bool:
    file.seek(0)
    start = file.read(4)
    file.seek(0)
    if not start:
        raise DamagedCheckpointError("it is empty (0 bytes): the writing of it was cut short")
    if start.startswith(ZIP_MAGIC):
        return True
    if start.startswith(PICKLE_MAGIC):
        return False
    raise DamagedCheckpointError("it is no checkpoint: not a file that torch.save wrote, or damaged at its start")


def _unpickled(file: BinaryIO, mapped_path: str | None, map_location: Any) -> Any:
    """The content, by torch's restricted reader: tensors and plain data, and nothing that the file names."""
    file.seek(0)
    try:
        if mapped_path is not None:
            return torch.load(mapped_path, map_location=map_location, weights_only=True, mmap=True)
        return torch.load(file, map_location=map_location, weights_only=True)
    except pickle.UnpicklingError as error:
        raise CheckpointError(
            "it holds objects that are neither tensors nor plain data, and Bolide loads no code from files. Save it "
            "again from the program that wrote it, with such hyperparameters left out (ignore=[...] in "
            "save_hyperparameters), or write: bolide checkpoint convert OLD NEW --trust. torch says: "
            f"{_refusal(error)}"
        ) from error
    except MemoryError as error:
        raise CheckpointError(f"there is not enough memory for it: {_first_line(error)}") from error
    except Exception as error:  # a file's content can fail in any way; nothing of it is in use yet
        raise DamagedCheckpointError(f"it is damaged or cut short; torch says: {_first_line(error)}") from error


def _refusal(error: BaseException) -> str:
    """What torch's reader refused, without its advice to load the file unsafely."""
    told = str(error).partition("WeightsUnpickler error:")[2].strip() or _first_line(error)
    return told.splitlines()[0].partition(". Please use")[0][:300]


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]


def beside(path: str) -> str:
    """A hint at the checkpoints near a path that is not one."""
    folder = path if io.is_dir(path) else io.parent(path)
    own = os.path.basename(path)
    names = [name for name in io.list_dir(folder) if name.endswith(".ckpt") and name != own]
    if not names:
        return ""
    close = nearest(own, names, 1) or names[-1:]
    return f" There is {io.join(folder, close[0])!r}."


# ---------------------------------------------------------------------- for checkpoint/convert.py


def unsafe_globals(path: str | os.PathLike[str]) -> list[str]:
    """The names that a file asks for beyond tensors and plain data, read from its opcodes; nothing is imported."""
    text = _there(path)
    with _opened(text) as file:
        if not _begins_as_zip(file):
            raise CheckpointError(
                f"{text!r} is of a format that torch left in 2020 (before version 1.6); load it with the torch that "
                "wrote it, and save it again"
            )
        digest.check(file)
        file.seek(0)
        return sorted(torch.serialization.get_unsafe_globals_in_checkpoint(file))


def read_trusting(path: str, trusted: Mapping[str, Any]) -> Any:
    """The content of a file, with `trusted` built too: objects by the name that the file has for them."""
    named: list[Any] = [(thing, name) for name, thing in trusted.items()]
    if "numpy.dtype" in trusted:  # its instances are of classes of their own
        import numpy

        named += [kind for kind in vars(numpy.dtypes).values() if isinstance(kind, type)]
    with _opened(path) as file, torch.serialization.safe_globals(named):
        if _begins_as_zip(file):
            digest.check(file)
        return _unpickled(file, None, "cpu")

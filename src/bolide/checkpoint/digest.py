"""The manifest of a checkpoint file: SHA-256 digests that cover every byte, checked before anything is unpickled.

It is one more entry, JSON, behind those of torch. Digests tell damage from what was written; they say nothing about
who wrote it. Who calls: checkpoint/file.py, which knows what is in a checkpoint, and checkpoint/store.py.
"""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, fields
from typing import Any, BinaryIO

from bolide.checkpoint.archive import Archive, Entry, LayoutError, parse, read_exactly, tail_with
from bolide.core.errors import CheckpointError

FORMAT = 1
"""The version of the files. A reader refuses a higher one; each version written once stays readable."""

MANIFEST = "bolide.json"
_CHUNK_BYTES = 1 << 20
_MAX_MANIFEST_BYTES = 64 << 20
_SEVERAL_THREADS_BYTES = 8 << 20


class DamagedCheckpointError(CheckpointError):
    """The bytes of a file are not those that were written."""


class NewerFormatError(CheckpointError):
    """A file of a later version of Bolide."""


@dataclass(frozen=True)
class About:
    """What a manifest says of the checkpoint, so that a file can be ranked without being loaded."""

    step: int | None = None
    epoch: int | None = None
    batches: int | None = None
    run_id: str | None = None
    run_dir: str | None = None
    weights_only: bool | None = None
    bolide: str | None = None
    torch: str | None = None


@dataclass(frozen=True)
class Manifest:
    """What a file should hold: bytes and SHA-256 of each entry, of all bytes between them, and of the index."""

    format: int
    about: About
    entries: Mapping[str, tuple[int, str]]
    between: str
    index: str


# ---------------------------------------------------------------------- writing


def seal(file: BinaryIO, about: About) -> None:
    """Adds the manifest to a zip that torch has just written to `file`, a file on disk open for both.

    The entries stay where they are: what follows them is written anew.
    """
    archive = parse(file)
    manifest = Manifest(
        FORMAT,
        about,
        {entry.name: (entry.data_bytes, digest) for entry, digest in _entry_digests(file, archive.entries)},
        _digest_between(file, archive.entries),
        hashlib.sha256(archive.index).hexdigest(),
    )
    file.seek(archive.index_start)
    file.truncate()
    count = len(archive.entries)
    file.write(tail_with(archive.folder, archive.index_start, archive.index, count, MANIFEST, to_json(manifest)))


def to_json(manifest: Manifest) -> bytes:
    """The manifest as it stands in a file: JSON with its own digest, always the same bytes for the same content."""
    body = {
        "format": manifest.format,
        "about": {name: value for name, value in asdict(manifest.about).items() if value is not None},
        "entries": {name: {"bytes": size, "sha256": digest} for name, (size, digest) in manifest.entries.items()},
        "between": manifest.between,
        "index": manifest.index,
    }
    return signed(body)


def signed(body: Mapping[str, Any]) -> bytes:
    """A manifest's content as JSON with its own digest."""
    digest = hashlib.sha256(_canonical(body)).hexdigest()
    return _canonical({"manifest": body, "sha256": digest}) + b"\n"


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


# ---------------------------------------------------------------------- reading


def from_json(data: bytes) -> Manifest:
    """Reads a manifest.

    Raises:
        DamagedCheckpointError: it is not what was written.
        NewerFormatError: of a later version; its own digest is right.
    """
    body = unsigned(data, FORMAT)
    version = body["format"]
    try:
        about = {f.name: body["about"].get(f.name) for f in fields(About)}
        entries = {str(name): (int(entry["bytes"]), str(entry["sha256"])) for name, entry in body["entries"].items()}
        return Manifest(version, About(**about), entries, str(body["between"]), str(body["index"]))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedCheckpointError("its manifest lacks what it must say") from error


def unsigned(data: bytes, newest: int) -> dict[str, Any]:
    """What `signed` was given, of a format up to `newest`.

    Raises:
        DamagedCheckpointError: it is not what was written.
        NewerFormatError: of a later version; its own digest is right.
    """
    try:
        content = json.loads(data, object_pairs_hook=_without_doubles)
        body, digest = content["manifest"], content["sha256"]
        version = body["format"]
        whole = hashlib.sha256(_canonical(body)).hexdigest() == digest and _canonical(content) + b"\n" == data
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DamagedCheckpointError("its manifest cannot be read") from error
    if not whole or not isinstance(version, int):
        raise DamagedCheckpointError("its manifest was changed after it was written")
    if version > newest:
        raise NewerFormatError(
            f"it has format {version}, and this version of Bolide reads formats up to {newest}. Update Bolide: "
            "pip install --upgrade bolide"
        )
    return dict(body)


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name stands there twice")
    return found


def layout_of(file: BinaryIO) -> Archive:
    """The layout of a zip, as `archive.parse` gives it.

    Raises:
        DamagedCheckpointError: it is not laid out as torch does it.
    """
    try:
        return parse(file)
    except LayoutError as error:
        raise DamagedCheckpointError(str(error)) from error


def manifest_of(file: BinaryIO, archive: Archive) -> Manifest | None:
    """The manifest in a file, or None in one that was not written by Bolide. Hashes nothing but the manifest.

    Raises:
        DamagedCheckpointError: it is there and was changed.
        NewerFormatError: a later version wrote it.
    """
    entry = archive.entry(MANIFEST)
    if entry is None:
        return None
    return from_json(_manifest_bytes(file, archive, entry))


def _manifest_bytes(file: BinaryIO, archive: Archive, entry: Entry) -> bytes:
    if entry is not archive.entries[-1] or entry.data_bytes > _MAX_MANIFEST_BYTES:
        raise DamagedCheckpointError("its manifest is not where it was written")
    return read_exactly(file, entry.data_start, entry.data_bytes)


def check(file: BinaryIO) -> Manifest | None:
    """Checks every byte of a zip on disk; returns its manifest, None where it has none.

    A file without one (not Bolide's) is held to its CRC-32 sums and to the layout of torch.

    Raises:
        DamagedCheckpointError: what is wrong, and where.
        NewerFormatError: a later version wrote it.
    """
    archive = layout_of(file)
    manifest = manifest_of(file, archive)
    if manifest is None:
        for entry, crc in _each(file, archive.entries, _crc):
            if crc != entry.crc:
                raise DamagedCheckpointError(f"its entry {entry.name!r} is not what was written (CRC-32)")
        return None
    entries, own = archive.entries[:-1], archive.entries[-1]
    sizes = {entry.name: entry.data_bytes for entry in entries}
    expected = {name: size for name, (size, _) in manifest.entries.items()}
    if sizes != expected:
        changed = sorted(name for name in {*sizes, *expected} if sizes.get(name) != expected.get(name))
        raise DamagedCheckpointError(f"its entries are not those of its manifest: {', '.join(changed[:5])}")
    index = archive.index[: _index_bytes_before(archive, own)]
    if hashlib.sha256(index).hexdigest() != manifest.index:
        raise DamagedCheckpointError("its index was changed after it was written")
    data = _manifest_bytes(file, archive, own)
    tail = tail_with(archive.folder, own.start, index, len(entries), MANIFEST, data)
    if read_exactly(file, own.start, archive.file_bytes - own.start) != tail:
        raise DamagedCheckpointError("its end was changed after it was written")
    if _digest_between(file, entries) != manifest.between:
        raise DamagedCheckpointError("the headers between its entries were changed after they were written")
    for entry, digest in _entry_digests(file, entries):
        if digest != manifest.entries[entry.name][1]:
            raise DamagedCheckpointError(f"its entry {entry.name!r} is not what was written (SHA-256)")
    return manifest


def _index_bytes_before(archive: Archive, own: Entry) -> int:
    """Where the index's last record, that of the manifest, begins."""
    extra = 12 if own.start >= 0xFFFFFFFF else 0
    return len(archive.index) - 46 - len(f"{archive.folder}/{MANIFEST}".encode()) - extra


# ---------------------------------------------------------------------- sums


def _digest_between(file: BinaryIO, entries: Iterable[Entry]) -> str:
    total = hashlib.sha256()
    for entry in entries:
        total.update(read_exactly(file, entry.start, entry.data_start - entry.start))
        behind = entry.data_start + entry.data_bytes
        total.update(read_exactly(file, behind, entry.end - behind))
    return total.hexdigest()


def _entry_digests(file: BinaryIO, entries: Iterable[Entry]) -> Iterator[tuple[Entry, str]]:
    return _each(file, entries, _sha256)


def _sha256(chunks: Iterable[bytes]) -> str:
    total = hashlib.sha256()
    for chunk in chunks:
        total.update(chunk)
    return total.hexdigest()


def _crc(chunks: Iterable[bytes]) -> int:
    total = 0
    for chunk in chunks:
        total = zlib.crc32(chunk, total)
    return total


def _each(
    file: BinaryIO, entries: Iterable[Entry], summed: Callable[[Iterable[bytes]], Any]
) -> Iterator[tuple[Entry, Any]]:
    """Every entry with its sum. Hashing lets go of the interpreter's lock, so large files take several threads."""
    entries = list(entries)
    read = _reader(file)

    def sum_of(entry: Entry) -> Any:
        return summed(_chunks(read, entry))

    total_bytes = sum(entry.data_bytes for entry in entries)
    threads = min(4, os.cpu_count() or 1, len(entries))
    if total_bytes < _SEVERAL_THREADS_BYTES or threads < 2:
        yield from ((entry, sum_of(entry)) for entry in entries)
        return
    # the large ones first, so that no thread is left with one at the end
    order = sorted(entries, key=lambda entry: -entry.data_bytes)
    with ThreadPoolExecutor(threads, thread_name_prefix="bolide-digest") as pool:
        yield from zip(order, pool.map(sum_of, order), strict=True)


def _chunks(read: Callable[[int, int], bytes], entry: Entry) -> Iterator[bytes]:
    for at in range(entry.data_start, entry.data_start + entry.data_bytes, _CHUNK_BYTES):
        wanted = min(_CHUNK_BYTES, entry.data_start + entry.data_bytes - at)
        data = read(at, wanted)
        if len(data) != wanted:
            raise DamagedCheckpointError(f"it ends within its entry {entry.name!r}: the writing was cut short")
        yield data


def _reader(file: BinaryIO) -> Callable[[int, int], bytes]:
    """A function that reads (start, count) from several threads at once."""
    file.flush()
    descriptor = file.fileno()
    return lambda start, count: os.pread(descriptor, count, start)


__all__ = [
    "FORMAT", "MANIFEST", "About", "DamagedCheckpointError", "Manifest", "NewerFormatError", "check", "from_json",
    "layout_of", "manifest_of", "seal", "signed", "to_json", "unsigned",
]  # fmt: skip

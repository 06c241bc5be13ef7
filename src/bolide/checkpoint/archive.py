"""The zip of a checkpoint file, read strictly and written by hand: where each entry lies, and nothing unaccounted for.

torch writes its entries one after the other, uncompressed. What is laid out in any other way (holes, overlaps,
doubled names, compression, entries outside the one folder) is refused before anybody looks inside. It neither hashes
nor unpickles. Who calls: checkpoint/digest.py.
"""

from __future__ import annotations

import os
import re
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

LOCAL, CENTRAL, DESCRIPTOR = b"PK\x03\x04", b"PK\x01\x02", b"PK\x07\x08"
END64, LOCATOR, END = b"PK\x06\x06", b"PK\x06\x07", b"PK\x05\x06"
_LOCAL = struct.Struct("<4s5H3I2H")
_CENTRAL = struct.Struct("<4s6H3I5H2I")
_END64 = struct.Struct("<4sQ2H2I4Q")
_LOCATOR = struct.Struct("<4sIQI")
_END = struct.Struct("<4s4H2IH")
_ZIP64_TAG = 1
_SIZES_FOLLOW, _UTF8 = 0x0008, 0x0800
_NAME = re.compile(r"[A-Za-z0-9._-]{1,200}(/[A-Za-z0-9._-]{1,200}){0,4}")
_FOLDER = re.compile(r"[^/\\\x00-\x1f\x7f]{1,255}")

MAX_INDEX_BYTES = 256 << 20
MAX_ENTRIES = 2_000_000


class LayoutError(ValueError):
    """The bytes are not laid out as torch lays them out; the text says where."""


@dataclass(frozen=True)
class Entry:
    """One entry: its name below the folder, and where its bytes lie."""

    name: str
    start: int
    data_start: int
    data_bytes: int
    crc: int
    end: int


@dataclass(frozen=True)
class Archive:
    """A whole zip: the folder all entries are in, the entries by position, the index behind them."""

    folder: str
    entries: tuple[Entry, ...]
    index_start: int
    index: bytes
    file_bytes: int

    def entry(self, name: str) -> Entry | None:
        """The entry of that name, or None."""
        return next((entry for entry in self.entries if entry.name == name), None)


def size_of(file: BinaryIO) -> int:
    """How many bytes the file has."""
    return file.seek(0, os.SEEK_END)


def read_exactly(file: BinaryIO, start: int, count: int) -> bytes:
    """`count` bytes from `start`.

    Raises:
        LayoutError: the file ends before that.
    """
    file.seek(start)
    data = file.read(count)
    if len(data) != count:
        raise LayoutError(f"it ends within the {count} bytes from byte {start}: the writing of it was cut short")
    return data


# ---------------------------------------------------------------------- reading


def parse(file: BinaryIO) -> Archive:
    """Reads the layout of the zip in `file` and checks that every byte of it is accounted for.

    Raises:
        LayoutError: anything that torch would not have written.
    """
    file_bytes = size_of(file)
    count, index_start, index_bytes = _read_end(file, file_bytes)
    index = read_exactly(file, index_start, index_bytes)
    entries: list[Entry] = []
    folder, at, seen = "", 0, set()
    for full_name, start, data_bytes, crc in _read_index(index, count):
        head, slash, name = full_name.partition("/")
        if not entries:
            folder = head
            if not slash or not _FOLDER.fullmatch(folder) or folder in (".", ".."):
                raise LayoutError(f"its first entry {full_name[:80]!r} does not lie in a folder")
        if head != folder or not slash:
            raise LayoutError(f"its entry {full_name[:80]!r} lies outside of its folder {folder!r}")
        if not _NAME.fullmatch(name) or any(part in (".", "..") for part in name.split("/")):
            raise LayoutError(f"it has an entry with the name {full_name[:80]!r}")
        if name.lower() in seen:  # torch looks names up without regard to case
            raise LayoutError(f"it has two entries with the name {name!r}")
        seen.add(name.lower())
        if start != at:
            raise LayoutError(f"its entry {name!r} begins at byte {start}, and byte {at} was expected")
        entry = _read_local(file, full_name, name, start, data_bytes, crc, index_start)
        entries.append(entry)
        at = entry.end
    if not entries:
        raise LayoutError("it is a zip without entries")
    if at != index_start:
        raise LayoutError(f"there are {index_start - at} bytes between its last entry and its index")
    return Archive(folder, tuple(entries), index_start, index, file_bytes)


def _read_end(file: BinaryIO, file_bytes: int) -> tuple[int, int, int]:
    """How many entries there are, where their index begins, and its length in bytes."""
    if file_bytes < _END.size:
        raise LayoutError("it is too short: the writing of it was cut short")
    end_start = file_bytes - _END.size
    fields = _END.unpack(read_exactly(file, end_start, _END.size))
    if fields[0] != END or fields[7] != 0:
        raise LayoutError("its end is missing: it was cut short, or something follows it")
    count, index_bytes, index_start = fields[4], fields[5], fields[6]
    if (fields[1], fields[2], fields[3]) != (0, 0, count):
        raise LayoutError("its end does not fit the rest of it")
    index_end = end_start
    locator_start = end_start - _LOCATOR.size
    if locator_start >= _END64.size:
        locator = _LOCATOR.unpack(read_exactly(file, locator_start, _LOCATOR.size))
        if locator[0] == LOCATOR:
            index_end = locator_start - _END64.size
            if locator != (LOCATOR, 0, index_end, 1):
                raise LayoutError("its end does not fit the rest of it")
            wide = _END64.unpack(read_exactly(file, index_end, _END64.size))
            same = all(
                narrow in (full, limit)
                for narrow, full, limit in (
                    (count, wide[7], 0xFFFF), (index_bytes, wide[8], 0xFFFFFFFF), (index_start, wide[9], 0xFFFFFFFF),
                )
            )  # fmt: skip
            if wide[0] != END64 or wide[1] != _END64.size - 12 or wide[4:6] != (0, 0) or wide[6] != wide[7] or not same:
                raise LayoutError("its end does not fit the rest of it")
            count, index_bytes, index_start = wide[7], wide[8], wide[9]
    if index_start + index_bytes != index_end:
        raise LayoutError("its index does not reach to its end")
    if index_bytes > MAX_INDEX_BYTES or count > MAX_ENTRIES or count * _CENTRAL.size > index_bytes:
        raise LayoutError(f"it claims {count} entries in an index of {index_bytes} bytes")
    return count, index_start, index_bytes


def _read_index(index: bytes, count: int) -> Iterator[tuple[str, int, int, int]]:
    """Full name, start, bytes and CRC-32 of each entry."""
    at = 0
    for _ in range(count):
        if at + _CENTRAL.size > len(index):
            raise LayoutError("its index is cut short")
        fields = _CENTRAL.unpack_from(index, at)
        flags, method, crc, packed, size, name_bytes, extra_bytes, comment_bytes = (*fields[3:5], *fields[7:13])
        disk, start = fields[13], fields[16]
        at += _CENTRAL.size
        if fields[0] != CENTRAL or at + name_bytes + extra_bytes > len(index):
            raise LayoutError("its index is damaged")
        try:
            name = index[at : at + name_bytes].decode()
        except UnicodeDecodeError as error:
            raise LayoutError("it has an entry whose name is not text") from error
        extra = index[at + name_bytes : at + name_bytes + extra_bytes]
        at += name_bytes + extra_bytes
        size, packed, start = _widened(extra, size, packed, start)
        if method != 0 or packed != size:
            raise LayoutError(f"its entry {name[:80]!r} is compressed, which torch does not do")
        if flags & ~(_SIZES_FOLLOW | _UTF8) or disk or comment_bytes:
            raise LayoutError(f"its entry {name[:80]!r} is encrypted, split or commented, which torch does not do")
        yield name, start, size, crc
    if at != len(index):
        raise LayoutError("its index has more entries than it says")


def _widened(extra: bytes, *values: int) -> tuple[int, ...]:
    """`values` with those that 32 bits do not hold taken from the extra field."""
    wide = _extra(extra).get(_ZIP64_TAG, b"")
    found: list[int] = []
    for value in values:
        if value == 0xFFFFFFFF and len(wide) >= 8:
            value, wide = int.from_bytes(wide[:8], "little"), wide[8:]
        found.append(value)
    return tuple(found)


def _extra(extra: bytes) -> dict[int, bytes]:
    fields: dict[int, bytes] = {}
    at = 0
    while at + 4 <= len(extra):
        tag, length = struct.unpack_from("<2H", extra, at)
        if at + 4 + length > len(extra):
            break
        fields.setdefault(tag, extra[at + 4 : at + 4 + length])
        at += 4 + length
    return fields


def _read_local(file: BinaryIO, full_name: str, name: str, start: int, data_bytes: int, crc: int, limit: int) -> Entry:
    header = read_exactly(file, start, _LOCAL.size)
    fields = _LOCAL.unpack(header)
    flags, method, own_crc, packed, size, name_bytes, extra_bytes = (*fields[2:4], *fields[6:11])
    data_start = start + _LOCAL.size + name_bytes + extra_bytes
    if fields[0] != LOCAL or method != 0 or flags & ~(_SIZES_FOLLOW | _UTF8) or data_start + data_bytes > limit:
        raise LayoutError(f"the header of its entry {name!r} is damaged")
    tail = read_exactly(file, start + _LOCAL.size, name_bytes + extra_bytes)
    if tail[:name_bytes] != full_name.encode():
        raise LayoutError(f"its entry {name!r} has another name in its header")
    end = data_start + data_bytes
    if not flags & _SIZES_FOLLOW:
        size, packed = _widened(tail[name_bytes:], size, packed)
        if (own_crc, packed, size) != (crc, data_bytes, data_bytes):
            raise LayoutError(f"the header of its entry {name!r} tells other sizes than its index")
        return Entry(name, start, data_start, data_bytes, crc, end)
    form = "<4sI2Q" if _ZIP64_TAG in _extra(tail[name_bytes:]) else "<4s3I"
    expected = struct.pack(form, DESCRIPTOR, crc, data_bytes, data_bytes)
    if end + len(expected) > limit or read_exactly(file, end, len(expected)) != expected:
        raise LayoutError(f"what follows its entry {name!r} tells other sizes than its index")
    return Entry(name, start, data_start, data_bytes, crc, end + len(expected))


# ---------------------------------------------------------------------- writing


def tail_with(archive_folder: str, start: int, index: bytes, count: int, name: str, data: bytes) -> bytes:
    """What follows byte `start` of a zip when one more entry is added there: the entry, the whole index, the end.

    Args:
        archive_folder: the folder all entries are in.
        start: where the entries end so far.
        index: the index of these.
        count: how many there are.
        name: the new entry's name below the folder.
        data: its content.
    """
    full = f"{archive_folder}/{name}".encode()
    crc, size = zlib.crc32(data), len(data)
    extra, narrow = b"", start
    if start >= 0xFFFFFFFF:
        extra, narrow = struct.pack("<2HQ", _ZIP64_TAG, 8, start), 0xFFFFFFFF
    date = 0x21  # 1980-01-01: the same content gives the same bytes
    local = _LOCAL.pack(LOCAL, 20, _UTF8, 0, 0, date, crc, size, size, len(full), 0) + full + data
    record = _CENTRAL.pack(
        CENTRAL, 20, 20, _UTF8, 0, 0, date, crc, size, size, len(full), len(extra), 0, 0, 0, 0, narrow
    )
    index = index + record + full + extra
    index_start, index_end, count = start + len(local), start + len(local) + len(index), count + 1
    wide = _END64.pack(END64, _END64.size - 12, 45, 45, 0, 0, count, count, len(index), index_start)
    locator = _LOCATOR.pack(LOCATOR, 0, index_end, 1)
    few, low = min(count, 0xFFFF), min(index_start, 0xFFFFFFFF)
    end = _END.pack(END, 0, 0, few, few, min(len(index), 0xFFFFFFFF), low, 0)
    return b"".join([local, index, wide, locator, end])

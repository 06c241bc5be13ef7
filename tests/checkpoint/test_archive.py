"""What a zip must look like to be a checkpoint: anything that torch would not have written is refused."""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from bolide.checkpoint.archive import LayoutError, parse

from .mutants import stored_zip

GOOD = [("archive/data.pkl", b"x" * 10), ("archive/data/0", b"y" * 20), ("archive/version", b"3\n")]


def zipped(entries: list[tuple[str, bytes]], **kwargs: object) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", **kwargs) as target:  # type: ignore[arg-type]
        for name, content in entries:
            target.writestr(zipfile.ZipInfo(name), content, compress_type=kwargs.get("compression"))  # type: ignore[arg-type]
    return out.getvalue()


def patched(data: bytes, at: int, new: bytes) -> bytes:
    return data[:at] + new + data[at + len(new) :]


def central(data: bytes, number: int) -> int:
    at = -1
    for _ in range(number + 1):
        at = data.index(b"PK\x01\x02", at + 1)
    return at


def test_a_plain_zip_of_another_writer_is_read() -> None:
    archive = parse(io.BytesIO(stored_zip(GOOD)))
    assert archive.folder == "archive"
    assert [(entry.name, entry.data_bytes) for entry in archive.entries] == [
        ("data.pkl", 10), ("data/0", 20), ("version", 2),
    ]  # fmt: skip
    data = stored_zip(GOOD)
    assert data[archive.entries[1].data_start :][:20] == b"y" * 20


@pytest.mark.parametrize("target", ["path", "buffer"])
def test_what_torch_writes_is_read(tmp_path: Path, target: str) -> None:
    state = {"a": torch.zeros(1000), "b": [torch.zeros(0), 3]}
    where = tmp_path / "some name.ckpt" if target == "path" else io.BytesIO()
    torch.save(state, where)
    data = where.read_bytes() if isinstance(where, Path) else where.getvalue()
    archive = parse(io.BytesIO(data))
    assert archive.folder == ("some name" if target == "path" else "archive")
    assert {"data.pkl", "data/0", "version"} <= {entry.name for entry in archive.entries}


REFUSED: dict[str, Callable[[], bytes]] = {
    "nothing": lambda: b"",
    "a short file": lambda: b"PK\x03\x04",
    "no entries": lambda: stored_zip([]),
    "text": lambda: b"PK, I am no zip at all, but long enough to be one, one would think",
    "an entry outside of the folder": lambda: stored_zip([*GOOD, ("other/data/1", b"z")]),
    "an entry beside the folder": lambda: stored_zip([*GOOD, ("data", b"z")]),
    "no folder": lambda: stored_zip([("data.pkl", b"x"), ("version", b"3\n")]),
    "a folder that leads up": lambda: stored_zip([("../data.pkl", b"x")]),
    "the root as folder": lambda: stored_zip([("/data.pkl", b"x")]),
    "a name that leads up": lambda: stored_zip([*GOOD, ("archive/../../etc/passwd", b"z")]),
    "a name that leads up within": lambda: stored_zip([*GOOD, ("archive/data/../../x", b"z")]),
    "an empty part": lambda: stored_zip([*GOOD, ("archive//x", b"z")]),
    "a backslash": lambda: stored_zip([*GOOD, ("archive/a\\b", b"z")]),
    "a control character": lambda: stored_zip([*GOOD, ("archive/a\x1b[2J", b"z")]),
    "a long name": lambda: stored_zip([*GOOD, ("archive/" + "a" * 5000, b"z")]),
    "compression": lambda: zipped(GOOD, compression=zipfile.ZIP_DEFLATED),
    "one name in two cases": lambda: stored_zip([*GOOD, ("archive/Data.pkl", b"evil")]),
    "a byte before it": lambda: b"x" + stored_zip(GOOD),
    "a byte behind it": lambda: stored_zip(GOOD) + b"x",
    "two zips": lambda: stored_zip(GOOD) + stored_zip(GOOD),
    "an encrypted entry": lambda: patched(stored_zip(GOOD), central(stored_zip(GOOD), 1) + 8, b"\1\0"),
    "another name in the header": lambda: patched(stored_zip(GOOD), 30, b"archive/data.pkx"),
    "another size in the header": lambda: patched(stored_zip(GOOD), 22, struct.pack("<I", 9)),
    "another method in the header": lambda: patched(stored_zip(GOOD), 8, struct.pack("<H", 8)),
    "a size that reaches beyond the end": lambda: patched(
        stored_zip(GOOD), central(stored_zip(GOOD), 2) + 20, struct.pack("<2I", 1 << 30, 1 << 30)
    ),
    "overlapping entries": lambda: patched(
        stored_zip(GOOD), central(stored_zip(GOOD), 1) + 42, struct.pack("<I", 0)
    ),
    "more entries than there are": lambda: patched(
        stored_zip(GOOD), len(stored_zip(GOOD)) - 14, struct.pack("<2H", 60000, 60000)
    ),
    "fewer entries than there are": lambda: patched(
        stored_zip(GOOD), len(stored_zip(GOOD)) - 14, struct.pack("<2H", 2, 2)
    ),
    "two disks": lambda: patched(stored_zip(GOOD), len(stored_zip(GOOD)) - 18, struct.pack("<H", 1)),
    "an index elsewhere": lambda: patched(stored_zip(GOOD), len(stored_zip(GOOD)) - 6, struct.pack("<I", 7)),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    with pytest.raises(LayoutError):
        parse(io.BytesIO(REFUSED[case]()))


def test_doubled_names_are_refused() -> None:
    with pytest.warns(UserWarning, match="Duplicate"):
        data = stored_zip([*GOOD, ("archive/data.pkl", b"evil")])
    with pytest.raises(LayoutError, match="two entries with the name"):
        parse(io.BytesIO(data))


def test_a_hole_between_entries_is_refused() -> None:
    data = stored_zip(GOOD)
    second, index = data.index(b"PK\x03\x04", 4), central(data, 0)
    moved = bytearray(data[:second] + b"hidden" + data[second:])
    shift = 6
    for number in (1, 2):
        at = central(bytes(moved), number) + 42
        moved[at : at + 4] = struct.pack("<I", struct.unpack("<I", moved[at : at + 4])[0] + shift)
    moved[-6:-2] = struct.pack("<I", index + shift)
    with pytest.raises(LayoutError, match="begins at byte"):
        parse(io.BytesIO(bytes(moved)))


def test_sizes_of_more_than_32_bits_are_believed_only_if_they_fit() -> None:
    data = stored_zip(GOOD)
    wide = struct.pack("<4sQ2H2I4Q", b"PK\x06\x06", 44, 45, 45, 0, 0, 1 << 60, 1 << 60, 1 << 62, 1 << 62)
    locator = struct.pack("<4sIQI", b"PK\x06\x07", 0, len(data) - 22, 1)
    end = struct.pack("<4s4H2IH", b"PK\x05\x06", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    with pytest.raises(LayoutError, match="its index does not reach to its end"):
        parse(io.BytesIO(data[:-22] + wide + locator + end))

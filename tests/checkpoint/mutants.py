"""Damaged copies of a checkpoint file, each in one way, from a seed: what disks, copies and careless tools do."""

from __future__ import annotations

import io
import random
import zipfile
from collections.abc import Iterator

from bolide.checkpoint.archive import Archive, parse


def mutants(good: bytes, other: bytes, count: int, seed: int = 0) -> Iterator[tuple[str, bytes]]:
    """`count` of them, all kinds in turn; `other` is a checkpoint of the same model at another step."""
    draw = random.Random(seed)
    archive, other_archive = parse(io.BytesIO(good)), parse(io.BytesIO(other))
    made = 0
    while made < count:
        kind = (_flipped, _cut, _zeroed, _swapped, _edited)[made % 5]
        name, data = kind(good, other, archive, other_archive, draw)
        if data != good:
            made += 1
            yield name, data


def _flipped(good: bytes, other: bytes, a: Archive, b: Archive, draw: random.Random) -> tuple[str, bytes]:
    data = bytearray(good)
    bits = draw.choice([1, 1, 1, 2, 8])
    places = [draw.randrange(len(good) * 8) for _ in range(bits)]
    for place in places:
        data[place // 8] ^= 1 << place % 8
    return f"bits {places} flipped", bytes(data)


def _cut(good: bytes, other: bytes, a: Archive, b: Archive, draw: random.Random) -> tuple[str, bytes]:
    kept = draw.choice([0, draw.randrange(64), draw.randrange(len(good)), len(good) - draw.randrange(1, 200)])
    return f"cut to {kept} bytes", good[:kept]


def _zeroed(good: bytes, other: bytes, a: Archive, b: Archive, draw: random.Random) -> tuple[str, bytes]:
    start = draw.randrange(len(good))
    length = draw.choice([1, 64, 512, 4096, len(good)])
    return f"{length} zeros at {start}", (good[:start] + bytes(min(length, len(good) - start)) + good[start + length :])


def _swapped(good: bytes, other: bytes, a: Archive, b: Archive, draw: random.Random) -> tuple[str, bytes]:
    """An entry of the checkpoint of another step, or two entries of this one in each other's place."""
    data = bytearray(good)
    if draw.random() < 0.5:
        pairs = [(x, y) for x in a.entries for y in b.entries if x.name == y.name and x.data_bytes == y.data_bytes]
        mine, theirs = draw.choice(pairs)
        content = other[theirs.data_start : theirs.data_start + theirs.data_bytes]
        data[mine.data_start : mine.data_start + mine.data_bytes] = content
        return f"{mine.name} of another step", bytes(data)
    pairs = [(x, y) for x in a.entries for y in a.entries if x.name < y.name and x.data_bytes == y.data_bytes]
    x, y = draw.choice(pairs)
    first = good[x.data_start : x.data_start + x.data_bytes]
    data[x.data_start : x.data_start + x.data_bytes] = good[y.data_start : y.data_start + y.data_bytes]
    data[y.data_start : y.data_start + y.data_bytes] = first
    return f"{x.name} and {y.name} swapped", bytes(data)


def _edited(good: bytes, other: bytes, a: Archive, b: Archive, draw: random.Random) -> tuple[str, bytes]:
    """Written anew by a tool that keeps the zip's own sums right, with one entry changed, left out or added."""
    entries = [
        (f"{a.folder}/{entry.name}", good[entry.data_start : entry.data_start + entry.data_bytes])
        for entry in a.entries
    ]
    place = draw.randrange(len(entries) - 1)
    name, content = entries[place]
    how = draw.choice(["changed", "left out", "added", "longer"])
    if how == "changed" and content:
        at = draw.randrange(len(content))
        entries[place] = (name, content[:at] + bytes([content[at] ^ 0x55]) + content[at + 1 :])
    elif how == "left out":
        del entries[place]
    elif how == "added":
        entries.insert(place, (f"{a.folder}/data/777", b"more"))
    else:
        entries[place] = (name, content + b"\0")
    return f"{name} {how}", stored_zip(entries)


def stored_zip(entries: list[tuple[str, bytes]]) -> bytes:
    """A zip without compression, as a tool would write it that knows nothing of checkpoints."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as target:
        for name, content in entries:
            target.writestr(zipfile.ZipInfo(name), content)
    return out.getvalue()

"""What a disk may hold after a power loss: every directory that the operations of a run allow, and no other.

The model is harsher than most file systems. Bytes of a file that was not fsynced may be missing or cut in half. A name
that was made, moved or removed may be as it was before until its folder is fsynced, each on its own. What other code
appends and fsyncs itself (metrics, the ledger of samples) is as it was at that moment.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PART = re.compile(r"\.(?P<name>.+)\.[0-9a-f]{12}\.part")
FOLDER = None
"""The content of a folder, among files."""


class Recorder:
    """Notes each file operation of a run, with the bytes that were written, into a file of one line each."""

    def __init__(self, path: Path, root: Path) -> None:
        self.path, self.root = path, root
        self.data = path.with_suffix(".data")
        self.data.mkdir()
        self.lines = 0

    def __call__(self, at: str, number: int, kind: str, path: str) -> None:
        if (at == "before") != (kind == "rename"):
            return  # what a rename moves is there before it, what others do is there after it
        entry: dict[str, Any] = {"kind": kind, "path": path}
        if kind == "flush":  # what was written before may still be in the program's own buffer
            shutil.copyfile(path, self.data / f"{number}")
            entry["data"] = f"{number}"
        elif kind == "symlink":
            entry["link"] = os.readlink(path)
        elif kind == "rename":
            folder, name = os.path.split(path)
            parts = [n for n in os.listdir(folder) if (m := PART.fullmatch(n)) and m["name"] == name]
            assert len(parts) == 1, parts
            entry["source"] = os.path.join(folder, parts[0])
        entry["others"] = {
            str(p): p.read_bytes().decode() for p in self.root.iterdir() if p.is_file() and p.suffix in (".txt", ".csv")
        }
        with open(self.path, "a") as file:
            file.write(json.dumps(entry) + "\n")
        self.lines += 1


@dataclass
class File:
    """A file's bytes, and whether they are on the disk."""

    data: bytes | str | None  # text: where a link leads; None: a folder
    synced: bool = False


@dataclass
class Disk:
    """Names as programs see them, as the disk surely has them, and what lies between the two."""

    seen: dict[str, File] = field(default_factory=dict)
    sure: dict[str, File] = field(default_factory=dict)
    open_changes: list[tuple[str, dict[str, File | None]]] = field(default_factory=list)  # by folder

    def change(self, folder: str, names: dict[str, File | None]) -> None:
        """Names are made (a file) or removed (None)."""
        self.open_changes.append((folder, names))
        _apply(self.seen, names)

    def do(self, entry: dict[str, Any], data: Path) -> None:
        """One operation."""
        kind, path = entry["kind"], entry["path"]
        folder = os.path.dirname(path)
        if kind == "open":
            self.change(folder, {path: File(b"")})
        elif kind == "flush":
            self.seen[path].data, self.seen[path].synced = (data / entry["data"]).read_bytes(), False
        elif kind == "fsync":
            self.seen[path].synced = True
        elif kind == "rename":
            self.change(folder, {entry["source"]: None, path: self.seen[entry["source"]]})
        elif kind == "remove":
            self.change(folder, {path: None})
        elif kind == "symlink":
            self.change(folder, {path: File(entry["link"], synced=True)})
        elif kind == "mkdir":
            self.change(folder, {path: File(FOLDER, synced=True)})
        elif kind == "fsync_dir":
            for at, names in self.open_changes:
                if at == path:
                    _apply(self.sure, names)
            self.open_changes = [one for one in self.open_changes if one[0] != path]
        else:
            assert kind == "write", kind

    def after_power_loss(self) -> Iterator[dict[str, bytes | str | None]]:
        """Each content that the disk may have: by path, bytes of a file, text of a link, None for a folder."""
        for kept in itertools.product((False, True), repeat=len(self.open_changes)):
            names = dict(self.sure)
            for (_, change), there in zip(self.open_changes, kept, strict=True):
                if there:
                    _apply(names, change)
            unsure = [path for path, file in names.items() if not file.synced]
            for share in (0.0, 0.5, 1.0) if unsure else (1.0,):
                yield {
                    path: file.data[: int(len(file.data) * share)] if path in unsure and file.data else file.data
                    for path, file in names.items()
                    if _is_reachable(path, names)
                }


def _apply(names: dict[str, File], change: dict[str, File | None]) -> None:
    for path, file in change.items():
        if file is None:
            names.pop(path, None)
        else:
            names[path] = file


def _is_reachable(path: str, names: dict[str, File]) -> bool:
    """Whether the folder of a path that the run made is there, too."""
    folder = os.path.dirname(path)
    made = {p for p, file in names.items() if file.data is FOLDER}
    return folder in made or not folder.endswith(("checkpoints", ".ckpt"))


def states(log: Path) -> Iterator[tuple[int, dict[str, Any], dict[str, str]]]:
    """(number of the operation, content of the disk, other files) for each power loss; equal contents come once."""
    disk, before = Disk(), set()
    for number, line in enumerate(log.read_text().splitlines(), 1):
        entry = json.loads(line)
        for path in [path for path in entry["others"] if path in disk.seen]:  # written as a whole, then appended to
            disk.seen[path].data = entry["others"].pop(path).encode()
        disk.do(entry, log.with_suffix(".data"))
        for content in disk.after_power_loss():
            key = hash((frozenset(content.items()), frozenset(entry["others"].items())))
            if key not in before:
                before.add(key)
                yield number, content, entry["others"]


def build(root: Path, content: dict[str, Any], others: dict[str, str]) -> None:
    """Makes the folder of the run what the disk holds."""
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    for path, text in others.items():
        Path(path).write_text(text)
    for path, data in sorted(content.items()):
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        if data is FOLDER:
            target.mkdir(exist_ok=True)
        elif isinstance(data, str):
            target.symlink_to(data)
        else:
            target.write_bytes(data)

"""Every file operation of a checkpoint, numbered, in one place.

A test can watch `operations`, fail any of them, or end the process before or after each. A file appears under its
name only when it is whole: temporary name, write, flush, fsync, rename, fsync of the folder. Remote paths go through
fsspec, uploaded under a temporary name and moved last.
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
import stat
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, TypeVar

T = TypeVar("T")
_COPY_BYTES = 8 << 20
_PART = re.compile(r"\.?.+\.[0-9a-f]{12}\.part")
COMMIT = "manifest.json"
"""The file of a folder that says that the folder is whole: written last, removed first."""
Listener = Callable[[str, int, str, str], None]
"""Told ("before" or "after", number, kind of operation, path)."""


class Operations:
    """The numbered file operations of this process, and who watches them."""

    def __init__(self) -> None:
        self.count = 0
        self.listeners: list[Listener] = []
        self._numbers = itertools.count(1)  # the next one is taken in one piece, whichever thread asks

    def run(self, kind: str, path: str, operation: Callable[[], T]) -> T:
        """Does one operation, telling the listeners before and after; what they raise stops it."""
        self.count = number = next(self._numbers)
        for listener in self.listeners:
            listener("before", number, kind, path)
        result = operation()
        for listener in self.listeners:
            listener("after", number, kind, path)
        return result


operations = Operations()


def is_remote(path: str) -> bool:
    """Whether `path` is a URL for fsspec, not a local path."""
    return "://" in str(path) and not str(path).startswith("file://")


def local_path(path: str | os.PathLike[str]) -> str:
    """A local path without its scheme, a `~` at its start put in."""
    text = os.fspath(path)
    return os.path.expanduser(text[len("file://") :] if text.startswith("file://") else text)


def expanded(path: str | os.PathLike[str]) -> str:
    """A local path with environment variables and `~` put in, without its scheme; URLs stay as they are."""
    text = os.fspath(path)
    return text if is_remote(text) else local_path(os.path.expandvars(text))


def join(*parts: str) -> str:
    """Path parts joined by the separator of their kind."""
    if is_remote(parts[0]):
        return "/".join([parts[0].rstrip("/"), *(part.strip("/") for part in parts[1:])])
    return os.path.join(*parts)


def parent(path: str) -> str:
    """The folder of `path`."""
    return path.rsplit("/", 1)[0] if is_remote(path) else os.path.dirname(os.path.abspath(local_path(path)))


def name_of(path: str) -> str:
    """The last part of `path`."""
    return path.rstrip("/").rsplit("/", 1)[-1] if is_remote(path) else os.path.basename(path.rstrip(os.sep))


def _remote(path: str) -> tuple[Any, str]:
    import fsspec

    fs, inner = fsspec.core.url_to_fs(path)
    return fs, inner


def _temporary(target: str) -> str:
    """A name beside a local path for what is on its way there, or from there."""
    return os.path.join(parent(target), f".{name_of(target)}.{uuid.uuid4().hex[:12]}.part")


def is_part(name: str) -> bool:
    """Whether a name is one of what is being written or removed."""
    return _PART.fullmatch(name) is not None


def write_atomically(path: str | os.PathLike[str], write: Callable[[BinaryIO], Any]) -> None:
    """Writes a file that is either wholly there under its name, or not at all.

    What stood under the name before stays valid until the new file replaces it. On an error nothing is left behind.

    Args:
        path: a local path or a URL.
        write: is given a file on disk, open for writing and reading, and fills it.
    """
    text = os.fspath(path)
    if is_remote(text):
        _write_remote(text, write)
        return
    target = local_path(text)
    folder = parent(target)
    make_dirs(folder)
    temporary = _temporary(target)
    # mode 0666 less the umask; O_EXCL so that a planted link is never followed
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0)
    descriptor = operations.run("open", temporary, lambda: os.open(temporary, flags, 0o666))
    try:
        with os.fdopen(descriptor, "w+b") as file:
            operations.run("write", temporary, lambda: write(file))
            operations.run("flush", temporary, file.flush)
            operations.run("fsync", temporary, lambda: os.fsync(file.fileno()))
        operations.run("rename", target, lambda: os.replace(temporary, target))
    except BaseException:
        if os.path.lexists(temporary):
            os.unlink(temporary)
        raise
    sync_dir(folder)


def _write_remote(path: str, write: Callable[[BinaryIO], Any]) -> None:
    fs, inner = _remote(path)
    temporary = f"{inner}.{uuid.uuid4().hex[:12]}.part"
    operations.run("mkdir", path, lambda: fs.makedirs(inner.rsplit("/", 1)[0], exist_ok=True))
    try:
        with tempfile.TemporaryFile() as local:  # so that what is written can be read again, and memory holds it once
            write(local)
            local.seek(0)
            with fs.open(temporary, "wb") as file:
                operations.run("write", temporary, lambda: shutil.copyfileobj(local, file, _COPY_BYTES))
        operations.run("rename", path, lambda: fs.mv(temporary, inner))
    except BaseException:
        if fs.exists(temporary):
            fs.rm(temporary)
        raise


def sync_dir(folder: str) -> None:
    """Makes the names in a local folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        operations.run("fsync_dir", folder, lambda: os.fsync(descriptor))
    finally:
        os.close(descriptor)


def open_read(path: str | os.PathLike[str]) -> BinaryIO:
    """Opens a file for reading; a remote one is fetched whole, onto the disk.

    Raises:
        OSError: it is a folder, a pipe or a device, which might never end.
    """
    text = os.fspath(path)
    if is_remote(text):
        fs, inner = _remote(text)
        local = tempfile.TemporaryFile()  # noqa: SIM115  # the caller closes it
        try:
            with fs.open(inner, "rb") as file:
                shutil.copyfileobj(file, local, _COPY_BYTES)
            local.seek(0)
        except BaseException:
            local.close()
            raise
        return local
    target = local_path(text)
    # a pipe would make an ordinary open wait for its writer
    flags = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)
    descriptor = os.open(target, flags)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(f"{target!r} is not a regular file")
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_bytes(path: str | os.PathLike[str]) -> bytes:
    """The bytes of a file."""
    text = os.fspath(path)
    if is_remote(text):
        fs, inner = _remote(text)
        return bytes(fs.cat_file(inner))
    with open_read(text) as file:
        return file.read()


def exists(path: str | os.PathLike[str]) -> bool:
    """Whether there is a file or folder."""
    text = os.fspath(path)
    if is_remote(text):
        fs, inner = _remote(text)
        return bool(fs.exists(inner))
    return os.path.exists(local_path(text))


def is_dir(path: str | os.PathLike[str]) -> bool:
    """Whether there is a folder."""
    text = os.fspath(path)
    if is_remote(text):
        fs, inner = _remote(text)
        return bool(fs.isdir(inner))
    return os.path.isdir(local_path(text))


def make_dirs(path: str | os.PathLike[str]) -> None:
    """Makes a folder and those above it, durably; those that are there are left alone."""
    text = os.fspath(path)
    if is_remote(text):
        fs, inner = _remote(text)
        operations.run("mkdir", text, lambda: fs.makedirs(inner, exist_ok=True))
        return
    folder = os.path.abspath(local_path(text))
    missing: list[str] = []
    while not os.path.isdir(folder):
        missing.append(folder)
        folder = os.path.dirname(folder)
    for one in reversed(missing):
        operations.run("mkdir", one, lambda one=one: os.makedirs(one, exist_ok=True))  # type: ignore[misc]
        sync_dir(os.path.dirname(one))


def remove(path: str | os.PathLike[str]) -> None:
    """Removes a file, link or folder; what is not there is fine. A link's target stays.

    A folder loses its name, and what says that it is whole, before its files go one by one.
    """
    text = os.fspath(path)
    if is_remote(text):
        fs, inner = _remote(text)
        commit = f"{inner.rstrip('/')}/{COMMIT}"
        if fs.exists(commit):
            operations.run("remove", join(text, COMMIT), lambda: fs.rm(commit))
        if fs.exists(inner):
            operations.run("remove", text, lambda: fs.rm(inner, recursive=True))
        return
    target = local_path(text)
    if not os.path.lexists(target):
        return
    if os.path.islink(target) or not os.path.isdir(target):
        operations.run("remove", target, lambda: os.unlink(target))
        sync_dir(parent(target))
        return
    if not is_part(name_of(target)):
        there, target = target, _temporary(target)
        operations.run("rename", target, lambda: os.replace(there, target))
        sync_dir(parent(target))
    operations.run("remove", target, lambda: shutil.rmtree(target))
    sync_dir(parent(target))


def move(path: str, target: str) -> None:
    """Gives a file another name, durably; a link is moved, not what it points to."""
    if is_remote(path):
        fs, inner = _remote(path)
        _, there = _remote(target)
        operations.run("rename", target, lambda: fs.mv(inner, there, recursive=bool(fs.isdir(inner))))
        return
    path, target = local_path(path), local_path(target)
    operations.run("rename", target, lambda: os.replace(path, target))
    for folder in dict.fromkeys((parent(target), parent(path))):
        sync_dir(folder)


@contextmanager
def displaced(path: str | os.PathLike[str], by_folder: bool) -> Iterator[None]:
    """While `path` is written: what stands there and is of the other kind, file or folder, lies under a free name.

    It goes when the new one is there, and comes back where the writing fails. A kill leaves it under that name, as
    whole as it was: a folder cannot be replaced by a file in one move, nor a file by a folder.
    """
    text = os.fspath(path)
    if is_link(text):
        if by_folder:
            remove(text)  # what it leads to stays
        yield
        return
    if not exists(text) or is_dir(text) == by_folder:
        yield
        return
    aside = free_name(text)
    try:
        move(text, aside)
        yield
    except BaseException:
        if exists(aside) and not exists(text):
            move(aside, text)
        raise
    remove(aside)


def free_name(path: str) -> str:
    """`path`, with a version before its ending where the name is taken."""
    folder, name = parent(path), name_of(path)
    taken = set(list_dir(folder))
    stem, dot, ending = name.rpartition(".")
    version = 0
    while name in taken:
        version += 1
        name = f"{stem}-v{version}{dot}{ending}"
    return join(folder, name)


def is_link(path: str | os.PathLike[str]) -> bool:
    """Whether `path` is a symbolic link; URLs are none."""
    text = os.fspath(path)
    return not is_remote(text) and os.path.islink(local_path(text))


def remove_parts(folder: str | os.PathLike[str], depth: int = 0) -> None:
    """Removes what writers that were killed left in a folder, and so far below it. Nobody may be writing there."""
    text = os.fspath(folder)
    for name in list_dir(text):
        path = join(text, name)
        if is_part(name):
            remove(path)
        elif depth and is_dir(path) and not is_link(path):
            remove_parts(path, depth - 1)


def link(target: str, path: str) -> None:
    """Makes `path` a link to `target`, replacing what stood there in one move."""
    target, path = local_path(target), local_path(path)
    temporary = _temporary(path)
    relative = os.path.relpath(target, parent(path))
    if os.path.isdir(path) and not os.path.islink(path):
        remove(path)
    operations.run("symlink", temporary, lambda: os.symlink(relative, temporary))
    operations.run("rename", path, lambda: os.replace(temporary, path))
    sync_dir(parent(path))


def list_dir(path: str | os.PathLike[str]) -> list[str]:
    """The names in a folder, sorted; none where there is no folder."""
    text = os.fspath(path)
    if is_remote(text):
        fs, inner = _remote(text)
        if not fs.isdir(inner):
            return []
        return sorted(str(entry).rstrip("/").rsplit("/", 1)[-1] for entry in fs.ls(inner, detail=False))
    folder = local_path(text)
    return sorted(os.listdir(folder)) if os.path.isdir(folder) else []


def size_bytes(path: str | os.PathLike[str]) -> int:
    """The size of a file."""
    text = os.fspath(path)
    if is_remote(text):
        fs, inner = _remote(text)
        return int(fs.size(inner))
    return os.path.getsize(local_path(text))


def modified_s(path: str | os.PathLike[str]) -> float:
    """When a file was last written, in seconds since 1970."""
    text = os.fspath(path)
    if is_remote(text):
        fs, inner = _remote(text)
        return float(fs.modified(inner).timestamp())
    return os.path.getmtime(local_path(text))

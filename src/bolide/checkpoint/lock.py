"""One run at a time writes a run folder: a lock that the system frees when its process ends, however it ends.

Owns `<folder>/.lock`: flock, and in the file who holds it. Which folder is a run's own is decided by who calls: the
engine, from before the first log or save until the end is noted, on the first rank alone.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import time
import weakref
from typing import Any

from bolide.checkpoint import io
from bolide.core.errors import ConfigError
from bolide.core.messages import warn_once

NAME = ".lock"
PATIENCE_S = 0.2
"""How long a lock may be held by somebody who only looks."""
_UNSUPPORTED = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL}
_NOT_WRITABLE = {errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOSPC, errno.EDQUOT}


class FolderInUseError(ConfigError):
    """Another run that is alive writes the same run folder."""


class RunLock:
    """The right to write a run folder, for one run at a time.

    May be acquired several times by its holder, and is given up when it was released as often. Another RunLock for
    the same folder is refused meanwhile, in this process and in others. What a dead process held is free.

    A folder where nothing can be locked (a remote one, a file system without flock, a read-only one) is used without
    a lock; that is said once.

    Example::

        with RunLock("runs/7"):
            ...  # nobody else writes to runs/7
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        text = os.fspath(folder)
        self.folder = text if io.is_remote(text) else os.path.realpath(io.local_path(text))
        self._descriptor: int | None = None
        self._made = False
        self._count = 0

    @property
    def held(self) -> bool:
        """Whether the folder is locked by this object."""
        return self._descriptor is not None

    def acquire(self) -> bool:
        """Locks the folder, which is made where it is missing.

        Returns:
            Whether it is locked; False where locking is not possible.

        Raises:
            FolderInUseError: another run holds it; says which.
        """
        self._count += 1
        if self._count > 1:
            return self.held
        try:
            self._made = not io.is_remote(self.folder) and not os.path.isdir(self.folder)
            self._descriptor = None if io.is_remote(self.folder) else _lock(self.folder)
        except BaseException:
            self._count = 0
            raise
        if self._descriptor is not None:
            inherited.add(self)
        return self.held

    def release(self) -> None:
        """Undoes one `acquire`; the last one frees the folder, and removes it where it was made and is empty."""
        if self._count == 0:
            return
        self._count -= 1
        if self._count or self._descriptor is None:
            return
        descriptor, self._descriptor = self._descriptor, None
        inherited.discard(self)
        try:
            os.unlink(os.path.join(self.folder, NAME))  # while it is held: who waits for it sees that it is gone
            if self._made:
                os.rmdir(self.folder)  # nothing was written there
        except OSError:
            pass
        os.close(descriptor)

    def __del__(self) -> None:
        self._count = min(self._count, 1)  # whoever held it is gone
        self.release()

    def __enter__(self) -> RunLock:
        self.acquire()
        return self

    def __exit__(self, *_: Any) -> None:
        self.release()

    def _close_in_child(self) -> None:
        """A forked process has the descriptor too, and would hold the lock after its parent's death."""
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._descriptor, self._count = None, 0


class Inherited:
    """The locks of this process, which its forked children let go of: flock itself would share them."""

    def __init__(self) -> None:
        self._locks: weakref.WeakSet[RunLock] = weakref.WeakSet()
        self._registered = False

    def add(self, lock: RunLock) -> None:
        """Has `lock` closed in every process that is forked from now on."""
        if not self._registered:
            os.register_at_fork(after_in_child=self.close)
            self._registered = True
        self._locks.add(lock)

    def discard(self, lock: RunLock) -> None:
        """The lock is held no more."""
        self._locks.discard(lock)

    def close(self) -> None:
        """Lets go of all."""
        for lock in list(self._locks):
            lock._close_in_child()
        self._locks.clear()


inherited = Inherited()


def _lock(folder: str) -> int | None:
    """The descriptor that holds the lock, None where there is no locking."""
    try:
        import fcntl
    except ImportError:
        warn_once(f"This system has no flock: nothing keeps a second run from writing {folder!r} too.")
        return None
    path = os.path.join(folder, NAME)
    deadline_s = time.monotonic() + PATIENCE_S
    try:
        while True:
            io.make_dirs(folder)  # durably: what is saved in it must not go with it
            try:
                descriptor = _open(path)
            except FileNotFoundError:
                continue  # its holder has just removed the folder, which was empty
            locked = False
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                locked = _is_at(descriptor, path)
            except BlockingIOError:
                if time.monotonic() > deadline_s:
                    raise FolderInUseError(_refusal(folder)) from None
                time.sleep(0.01)  # somebody may be looking whether it is locked, no more
            finally:
                if not locked:
                    os.close(descriptor)
            if locked:
                _write_owner(descriptor)
                return descriptor
            # else its holder removed it between our opening and our locking of it
    except OSError as error:
        if error.errno in _UNSUPPORTED:
            why = "its file system has no locks"
        elif error.errno in _NOT_WRITABLE:
            why = "nothing can be written there"
        else:
            raise
        warn_once(f"The run folder {folder!r} is not locked ({why}: {error}): see to it that no second run writes it.")
        return None


def _open(path: str) -> int:
    more = os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0)
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | more, 0o666)
    except PermissionError:
        return os.open(path, os.O_RDONLY | more)  # another user's, in a shared folder: that is locked just the same


def _is_at(descriptor: int, path: str) -> bool:
    """Whether the file that was locked is still the one of that name."""
    mine = os.fstat(descriptor)
    try:
        there = os.stat(path)
    except FileNotFoundError:
        return False
    return (mine.st_dev, mine.st_ino) == (there.st_dev, there.st_ino)


def _write_owner(descriptor: int) -> None:
    owner = {"pid": os.getpid(), "host": socket.gethostname(), "start": time.strftime("%Y-%m-%d %H:%M:%S %z")}
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(owner).encode(), 0)
    except OSError:  # a full disk: the lock holds all the same, and names nobody
        pass


def _refusal(folder: str) -> str:
    owner = owner_of(folder)
    if not owner:
        who, stop = "by another run", "stop it"
    elif owner["pid"] == os.getpid() and owner["host"] == socket.gethostname():
        who, stop = f"by another Trainer of this very process (since {owner['start']})", "let that fit end"
    else:
        who = f"by process {owner['pid']} on {owner['host']} (since {owner['start']})"
        stop = f"stop it (kill {owner['pid']})"
    return (
        f"The run folder {folder!r} is in use {who}. Two runs in one folder would overwrite and delete each other's "
        f"checkpoints. Wait for it, {stop}, or give this run a folder of its own, as in "
        "Trainer(default_root_dir=...) or with another version of the logger."
    )


def owner_of(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """Who wrote the lock file of `folder`: its "pid", "host" and "start"; empty where that is not known.

    The file of a dead process stays until the next run: that there is an owner does not say that it is alive.
    """
    deadline_s = time.monotonic() + 0.2
    while True:
        try:
            with open(os.path.join(folder, NAME), "rb") as file:
                found = json.loads(file.read(4096))
        except (OSError, ValueError):
            found = None
        if isinstance(found, dict) and {"pid", "host", "start"} <= found.keys():
            return found
        if time.monotonic() > deadline_s:  # it is written just after it is locked
            return {}
        time.sleep(0.01)

"""Folders of checkpoints: which file is the newest valid one, what is set aside, what may be deleted.

Reads and moves files through checkpoint/io; a damaged file is put into the subfolder `quarantine` with its reason and
never deleted, and nothing but what is asked for here is touched. Who calls: trainer/paths.py, ModelCheckpoint, and
engine/session when a run has ended.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from bolide.checkpoint import io
from bolide.checkpoint.digest import About, DamagedCheckpointError, NewerFormatError
from bolide.checkpoint.read import about_at, about_of, modified_s, read_checkpoint, verify_checkpoint
from bolide.checkpoint.sharded import is_sharded
from bolide.core.errors import CheckpointError, CheckpointNotFoundError

ENDING = ".ckpt"
QUARANTINE = "quarantine"
FINISHED = "finished.json"


@dataclass(frozen=True)
class Candidate:
    """A file that may be gone on from. `about` is what it says of itself, `modified_s` in seconds since 1970."""

    path: str
    about: About
    modified_s: float

    @property
    def position(self) -> tuple[int, int, float]:
        """Steps, batches, time: the greater, the further."""
        return (*_position(self.about), self.modified_s)


@dataclass(frozen=True)
class Rejected:
    """A file that cannot be gone on from: why, and where it lies now if it was set aside."""

    path: str
    reason: str
    moved_to: str | None = None

    def __str__(self) -> str:
        where = f" (now {self.moved_to!r})" if self.moved_to else ""
        return f"{self.path!r}{where}: {self.reason}"


@dataclass(frozen=True)
class Found:
    """The newest valid checkpoint or None; what was damaged; the folders whose run has come to its end."""

    path: str | None
    about: About | None
    rejected: tuple[Rejected, ...]
    finished: tuple[str, ...] = ()


def checkpoints_in(folder: str) -> list[str]:
    """The paths of the checkpoints in a folder, files and sharded ones; what is being written is none."""
    names = [name for name in io.list_dir(folder) if name.endswith(ENDING) and not name.startswith(".")]
    paths = [io.join(folder, name) for name in names]
    return [path for path in paths if io.exists(path) and (not io.is_dir(path) or is_sharded(path))]


def newest_valid(paths: Iterable[str], *, to_train: bool = True, skip_finished: bool = False) -> Found:
    """The newest of `paths` that is whole, and what had to be passed over.

    Of the run that wrote last, the file with the most steps is the newest, then the one with the most batches, then
    the youngest. Damaged files are moved to the subfolder `quarantine` of theirs.

    Args:
        paths: the candidates; those that are missing are left out.
        to_train: leaves out files that hold weights only.
        skip_finished: leaves out the files of runs that have come to their end, see `mark_finished`.

    Raises:
        NewerFormatError: the newest file was written by a later version; nothing is touched then.
    """
    rejected: list[Rejected] = []
    known: list[Candidate] = []
    for path in dict.fromkeys(paths):
        try:
            known.append(_candidate(path))
        except CheckpointNotFoundError:
            continue
        except NewerFormatError:
            raise
        except DamagedCheckpointError as error:
            rejected.append(Rejected(path, str(error), set_aside(path, str(error))))
        except CheckpointError as error:
            rejected.append(Rejected(path, str(error)))
    finished: list[str] = []
    if skip_finished:
        marks = {folder: read_mark(folder) for folder in {io.parent(one.path) for one in known}}
        over = [one for one in known if _is_over(one, marks[io.parent(one.path)])]
        finished = sorted({io.parent(one.path) for one in over})
        known = [one for one in known if one not in over]
    for one in newest_first(known):
        if to_train and one.about.weights_only:
            rejected.append(Rejected(one.path, "it holds weights only"))
            continue
        try:
            report = verify_checkpoint(one.path)
        except (CheckpointNotFoundError, OSError) as error:
            rejected.append(Rejected(one.path, f"it could not be read: {error}"))
            continue
        if report.whole:
            return Found(one.path, one.about, tuple(rejected), tuple(finished))
        rejected.append(Rejected(one.path, report.problem, set_aside(one.path, report.problem)))
    return Found(None, None, tuple(rejected), tuple(finished))


def newest_first(candidates: Sequence[Candidate]) -> list[Candidate]:
    """The order in which they are tried: the run that wrote last before the others, within a run by steps."""
    last_written_s: dict[str | None, float] = {}
    for one in candidates:
        run = one.about.run_id
        last_written_s[run] = max(one.modified_s, last_written_s.get(run, 0.0))
    return sorted(candidates, key=lambda one: (last_written_s[one.about.run_id], one.position), reverse=True)


def _candidate(path: str) -> Candidate:
    about = about_at(path)
    return Candidate(path, about if about is not None else about_of(read_checkpoint(path, mmap=True)), modified_s(path))


def _position(about: About) -> tuple[int, int]:
    return (-1 if about.step is None else about.step, -1 if about.batches is None else about.batches)


# ---------------------------------------------------------------------- damaged ones


def set_aside(path: str, reason: str) -> str | None:
    """Moves a damaged file into the subfolder `quarantine`, beside a text that says why; nothing is deleted.

    A link is followed: the file that it points to is moved, unless that lies in another folder.

    Returns:
        Where the file is now; None where it could not be moved, and is where it was.
    """
    real = path if io.is_remote(path) else os.path.realpath(io.local_path(path))
    folder = io.parent(path)
    if not io.is_remote(path) and io.parent(real) != os.path.realpath(folder):
        return None
    quarantine = io.join(folder, QUARANTINE)
    text = (
        f"{path}\nset aside {datetime.now(timezone.utc).isoformat(timespec='seconds')}, because it is damaged:\n"
        f"{reason}\n"
    )
    try:
        target = io.free_name(io.join(quarantine, io.name_of(real)))
        io.write_atomically(f"{target}.reason.txt", lambda file: file.write(text.encode()))
        io.move(real, target)
    except OSError:  # a folder that cannot be written: the file stays, and is passed over
        return None
    return target


# ---------------------------------------------------------------------- runs that have come to their end


@dataclass(frozen=True)
class Mark:
    """That a run has come to its end: how far it was, and when the mark was set, in seconds since 1970."""

    position: tuple[int, int]
    run_id: str | None
    set_s: float


def mark_finished(folder: str, about: About) -> None:
    """Notes in a folder of checkpoints that the run which wrote them has come to its end.

    `ckpt_path="auto"` does not go on from it then. A run that starts there later, or goes further, is not covered.
    """
    step, batches = _position(about)
    content = {
        "step": step,
        "batches": batches,
        "run_id": about.run_id,
        "finished": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }
    data = json.dumps(content, indent=1).encode() + b"\n"
    io.write_atomically(io.join(folder, FINISHED), lambda file: file.write(data))


def read_mark(folder: str) -> Mark | None:
    """The mark of a folder, or None: there is none, or it cannot be read."""
    path = io.join(folder, FINISHED)
    if not io.exists(path):
        return None
    try:
        content = json.loads(io.read_bytes(path)[:65536])
        run_id = content["run_id"]
        position = (int(content["step"]), int(content["batches"]))
        return Mark(position, run_id if isinstance(run_id, str) else None, io.modified_s(path))
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _is_over(one: Candidate, mark: Mark | None) -> bool:
    if mark is None:
        return False
    if one.about.run_id is not None and one.about.run_id == mark.run_id:
        return _position(one.about) <= mark.position
    return one.modified_s <= mark.set_s


# ---------------------------------------------------------------------- deleting


def may_remove(path: str, newer: str, folder: str, resumed_from: str | None) -> bool:
    """Whether retention may delete `path`, now that the file `newer` is committed.

    Nothing outside of `folder`, also by way of a link; and what the run was resumed from only when `newer` was read
    again and is whole.

    Args:
        path: the superseded file; deleting a link leaves what it points to.
        newer: a file that was committed after it.
        folder: the callback's folder.
        resumed_from: the file that the run went on from, or None.
    """
    if not path or not _is_below(path, folder):
        return False
    if path == newer or same_file(path, newer):
        return False
    if resumed_from is None or not same_file(path, resumed_from):
        return True
    try:
        return verify_checkpoint(newer).whole
    except (CheckpointError, OSError):
        return False


def _is_below(path: str, folder: str) -> bool:
    if io.is_remote(path) or io.is_remote(folder):
        rest = path.removeprefix(folder.rstrip("/") + "/")
        return rest != path and ".." not in rest.split("/")
    real = os.path.join(os.path.realpath(io.parent(io.local_path(path))), io.name_of(path))
    root = os.path.realpath(io.local_path(folder))
    return real != root and os.path.commonpath([real, root]) == root


def same_file(path: str, other: str) -> bool:
    """Whether both lead to one file; remote paths are compared as they are."""
    if io.is_remote(path) or io.is_remote(other):
        return path == other
    return os.path.realpath(io.local_path(path)) == os.path.realpath(io.local_path(other))


# ---------------------------------------------------------------------- in use


def in_use(folder: str) -> bool:
    """Whether a run that is alive holds the lock of a run folder. It is looked at, for a moment, by a shared lock."""
    if io.is_remote(folder):
        return False
    try:
        import fcntl

        descriptor = os.open(io.join(io.local_path(folder), ".lock"), os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
    except (ImportError, OSError):
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return isinstance(error, BlockingIOError)
    finally:
        os.close(descriptor)
    return False


def summary(about: About | None) -> dict[str, Any]:
    """What is known of a checkpoint's place, for a line of text."""
    if about is None:
        return {}
    found = {"epoch": about.epoch, "step": about.step}
    return {name: value for name, value in found.items() if value is not None}

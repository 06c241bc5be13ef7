from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bolide.checkpoint import lock as locks
from bolide.checkpoint.lock import NAME, FolderInUseError, RunLock, owner_of
from bolide.core.errors import ConfigError

Start = Callable[..., "subprocess.Popen[str]"]

HOLD = """
    import sys, time
    from bolide.checkpoint.lock import RunLock
    lock = RunLock(sys.argv[1])
    lock.acquire()
    print("locked", flush=True)
    time.sleep(100)
    """


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a program that says something when it is ready; ended with the test."""
    started: list[subprocess.Popen[str]] = []

    def begin(code: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(code), str(tmp_path / "run")], stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        assert process.stdout is not None and process.stdout.readline().strip() == "locked"
        return process

    yield begin
    for process in started:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def test_a_second_lock_is_refused_and_says_where_it_stands(tmp_path: Path) -> None:
    with RunLock(tmp_path / "run") as lock:
        assert lock.held
        with pytest.raises(FolderInUseError, match=r"another Trainer of this very process.*Trainer\(default_root_dir"):
            RunLock(tmp_path / "run").acquire()
        with RunLock(tmp_path / "other run") as other:
            assert other.held
    assert not lock.held
    with RunLock(tmp_path / "run") as again:
        assert again.held
    assert os.listdir(tmp_path) == []  # it was made for the lock, and nothing was written there


def test_its_holder_may_take_it_again(tmp_path: Path) -> None:
    lock = RunLock(tmp_path)
    assert lock.acquire() and lock.acquire()
    lock.release()
    with pytest.raises(ConfigError):
        RunLock(tmp_path).acquire()
    lock.release()
    lock.release()  # once too often does nothing
    assert not lock.held and RunLock(tmp_path).acquire()


def test_a_refused_lock_can_be_tried_again(tmp_path: Path) -> None:
    first, second = RunLock(tmp_path), RunLock(tmp_path)
    first.acquire()
    for _ in range(3):
        with pytest.raises(FolderInUseError):
            second.acquire()
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else None
    with pytest.raises(FolderInUseError):
        second.acquire()
    if before is not None:
        assert len(os.listdir("/proc/self/fd")) == before
    first.release()
    assert second.acquire()
    second.release()


def test_another_process_is_named(tmp_path: Path, start: Start) -> None:
    owner = start(HOLD)
    with pytest.raises(FolderInUseError, match=f"process {owner.pid} on .*kill {owner.pid}"):
        RunLock(tmp_path / "run").acquire()
    assert owner_of(tmp_path / "run")["pid"] == owner.pid


def test_what_a_dead_process_held_is_free(tmp_path: Path, start: Start) -> None:
    owner = start(HOLD)
    os.kill(owner.pid, signal.SIGKILL)
    owner.wait()
    assert (tmp_path / "run" / NAME).exists()
    with RunLock(tmp_path / "run") as lock:
        assert lock.held and owner_of(lock.folder)["pid"] == os.getpid()


def test_a_forked_child_does_not_hold_it(tmp_path: Path, start: Start) -> None:
    owner = start(
        """
        import os, sys, time
        from bolide.checkpoint.lock import RunLock
        lock = RunLock(sys.argv[1])
        lock.acquire()
        ready, write = os.pipe()
        if os.fork() == 0:
            assert not lock.held
            os.close(1)
            os.write(write, b"x")
            time.sleep(100)
            os._exit(0)
        os.read(ready, 1)
        print("locked", flush=True)
        time.sleep(100)
        """
    )
    with pytest.raises(FolderInUseError):
        RunLock(tmp_path / "run").acquire()
    children = Path(f"/proc/{owner.pid}/task/{owner.pid}/children")
    found = [int(pid) for pid in children.read_text().split()] if children.exists() else []
    os.kill(owner.pid, signal.SIGKILL)
    owner.wait()
    try:
        assert all(os.path.exists(f"/proc/{pid}") for pid in found)  # it is alive, as a loader's worker would be
        with RunLock(tmp_path / "run") as lock:
            assert lock.held
    finally:
        for pid in found:
            os.kill(pid, signal.SIGKILL)


def test_of_two_processes_that_wait_for_it_one_gets_it(tmp_path: Path) -> None:
    """Released by removing the file: who had opened the removed one must not believe that it holds the folder."""
    code = """
    import sys, time
    from bolide.checkpoint.lock import FolderInUseError, RunLock
    end = time.monotonic() + 1.0
    while time.monotonic() < end:
        try:
            with RunLock(sys.argv[1]) as lock:
                holders = open(sys.argv[1] + "/holders", "x")
                holders.close()
                import os
                os.unlink(sys.argv[1] + "/holders")
        except FolderInUseError:
            pass
    """
    both = [subprocess.Popen([sys.executable, "-c", textwrap.dedent(code), str(tmp_path)]) for _ in range(2)]
    assert [process.wait(timeout=60) for process in both] == [0, 0]


@pytest.mark.parametrize("content", [b"", b"not json", b"[1, 2]", b'{"pid": 1}'])
def test_a_lock_file_that_says_nothing_useful_is_no_obstacle(tmp_path: Path, content: bytes) -> None:
    (tmp_path / NAME).write_bytes(content)
    assert owner_of(tmp_path) == {}
    with RunLock(tmp_path) as lock:
        assert lock.held
        (tmp_path / NAME).write_bytes(content)
        with pytest.raises(FolderInUseError, match="by another run"):
            RunLock(tmp_path).acquire()


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_used_with_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    import fcntl

    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    lock = RunLock(tmp_path)
    with pytest.warns(UserWarning, match="has no locks"):
        assert lock.acquire() is False
    assert not lock.held
    lock.release()


def test_a_folder_that_cannot_be_written_is_used_with_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "open", refuse)
    with pytest.warns(UserWarning, match="nothing can be written there"):
        assert RunLock(tmp_path).acquire() is False


def test_other_errors_are_not_swallowed(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    lock = RunLock(tmp_path / "file" / "below")
    with pytest.raises(OSError):
        lock.acquire()
    (tmp_path / "file").unlink()
    assert lock.acquire()
    lock.release()


def test_a_remote_folder_is_not_locked() -> None:
    with RunLock("memory://bucket/run") as lock:
        assert not lock.held
    lock.release()


def test_a_link_in_the_place_of_the_file_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "run" / NAME).symlink_to(tmp_path / "precious")
    with pytest.raises(OSError):
        RunLock(tmp_path / "run").acquire()
    assert (tmp_path / "precious").read_text() == "precious"


def test_the_owner_is_read_as_it_was_written(tmp_path: Path) -> None:
    before = time.strftime("%Y-%m-%d")
    with RunLock(tmp_path):
        owner = json.loads((tmp_path / NAME).read_text())
        assert owner == owner_of(tmp_path) and owner["start"] >= before
    assert not locks.inherited._locks


def test_somebody_who_looks_does_not_make_a_start_fail(tmp_path):
    fcntl = pytest.importorskip("fcntl")
    (tmp_path / ".lock").write_text("")
    descriptor = os.open(tmp_path / ".lock", os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    threading.Timer(0.05, os.close, (descriptor,)).start()
    with RunLock(tmp_path) as lock:
        assert lock.held


def test_a_folder_is_the_same_by_whatever_link(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with RunLock(tmp_path / "real"), pytest.raises(FolderInUseError):
        RunLock(tmp_path / "link").acquire()


def test_a_lock_that_nobody_holds_any_more_is_free(tmp_path):
    lock = RunLock(tmp_path)
    lock.acquire()
    del lock
    with RunLock(tmp_path) as again:
        assert again.held

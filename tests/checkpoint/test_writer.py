from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from bolide.checkpoint import io
from bolide.checkpoint.file import read_checkpoint, write_checkpoint
from bolide.checkpoint.writer import SaveError, Writer
from bolide.core.errors import CheckpointError, ConfigError


class Slow:
    """Writes when it is allowed to."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.begun = threading.Event()
        self.paths: list[str] = []

    def __call__(self, checkpoint: dict[str, Any], path: str) -> None:
        self.begun.set()
        assert self.go_on.wait(60)
        write_checkpoint(checkpoint, path)
        self.paths.append(path)


@pytest.fixture
def slow() -> Iterator[Slow]:
    made = Slow()
    yield made
    made.go_on.set()


@contextmanager
def operations(listen: Callable[[str, int, str, str], None]) -> Iterator[None]:
    io.operations.listeners.append(listen)
    try:
        yield
    finally:
        io.operations.listeners.remove(listen)


def state(step: int = 0) -> dict[str, Any]:
    return {"step": step, "w": torch.full((1000,), float(step))}


# ---------------------------------------------------------------------- what is saved


class Net(nn.Module):
    """A little of everything that a step changes in place."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(6, 6)
        self.b = nn.Linear(6, 6)
        self.b.weight = self.a.weight
        self.norm = nn.BatchNorm1d(6)
        self.register_buffer("count", torch.zeros(()))

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad()
        self.norm(self.b(self.a(torch.randn(9, 6)))).square().mean().backward()
        optimizer.step()
        self.count += 1


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


def test_the_state_at_the_call_is_saved_whatever_the_loop_does_meanwhile(tmp_path: Path, slow: Slow) -> None:
    net = Net()
    optimizer = torch.optim.AdamW(net.parameters())
    writer = Writer(slow)
    for step in range(4):
        net.step(optimizer)
        history = [step]
        checkpoint = {"w": net.state_dict(), "o": optimizer.state_dict(), "h": history, "nested": {"a": [step]}}
        write_checkpoint(checkpoint, tmp_path / "expected")
        slow.begun.clear()
        slow.go_on.clear()
        saving = writer.save(checkpoint, tmp_path / "got")
        assert slow.begun.wait(60)
        for _ in range(3):
            net.step(optimizer)
        with torch.no_grad():
            net.a.weight.fill_(-1)
        optimizer.param_groups[0]["lr"] = 9.0
        history.append(-1)
        checkpoint["nested"]["a"][0] = "changed"
        checkpoint["more"] = 1
        assert not saving.done
        slow.go_on.set()
        writer.drain()
        assert saving.committed and saving.error is None
        got, expected = read_checkpoint(tmp_path / "got"), read_checkpoint(tmp_path / "expected")
        assert same(got, expected) and got["h"] == [step]
        weights = got["w"]
        assert weights["a.weight"].data_ptr() == weights["b.weight"].data_ptr()  # tied, as they were
    assert (tmp_path / "got").read_bytes()[:4] == b"PK\x03\x04"


def test_asynchronous_and_synchronous_files_are_the_same(tmp_path: Path) -> None:
    net = Net()
    for name, asynchronous in (("a", True), ("b", False)):
        (tmp_path / name).mkdir()
        writer = Writer(asynchronous=asynchronous)
        writer.save(net.state_dict(), tmp_path / name / "x.ckpt")
        writer.close()
    assert (tmp_path / "a" / "x.ckpt").read_bytes() == (tmp_path / "b" / "x.ckpt").read_bytes()


def test_several_paths_get_one_state(tmp_path: Path, slow: Slow) -> None:
    writer = Writer(slow)
    values = state(1)
    saving = writer.save(values, [tmp_path / "best", str(tmp_path / "last")])
    values["w"].fill_(2)
    slow.go_on.set()
    writer.drain()
    assert saving.written == [str(tmp_path / "best"), str(tmp_path / "last")] and saving.committed
    assert all(torch.equal(read_checkpoint(path)["w"], state(1)["w"]) for path in saving.paths)


# ---------------------------------------------------------------------- one in flight


def test_a_save_waits_for_the_one_before_and_is_never_queued(tmp_path: Path, slow: Slow) -> None:
    writer = Writer(slow)
    writer.save(state(1), tmp_path / "1")
    assert writer.busy and slow.begun.wait(60)
    order: list[str] = []
    releasing = threading.Timer(0.2, lambda: (order.append("released"), slow.go_on.set()))
    releasing.start()
    second = writer.save(state(2), tmp_path / "2")
    order.append("second save returned")
    assert order == ["released", "second save returned"] and slow.paths[0] == str(tmp_path / "1")
    assert second.waited_s > 0 and second.blocked_s >= second.waited_s
    writer.drain()
    assert slow.paths == [str(tmp_path / "1"), str(tmp_path / "2")] and not writer.busy
    assert read_checkpoint(tmp_path / "1")["step"] == 1 and read_checkpoint(tmp_path / "2")["step"] == 2


def test_poll_does_not_wait(tmp_path: Path, slow: Slow) -> None:
    writer = Writer(slow)
    told: list[str] = []
    writer.poll()
    saving = writer.save(state(), tmp_path / "a", lambda: told.append("saved"))
    writer.poll()
    assert not saving.done and told == []
    assert writer.drain(timeout_s=0.05) is False and writer.busy
    slow.go_on.set()
    while not saving.done:
        time.sleep(0.001)
    assert told == []
    writer.poll()
    assert told == ["saved"] and not writer.busy
    writer.poll()
    assert told == ["saved"] and writer.drain() is True


@pytest.mark.parametrize("asynchronous", [True, False])
def test_what_follows_comes_after_the_commit(tmp_path: Path, asynchronous: bool) -> None:
    (tmp_path / "old").write_bytes(b"old")
    writer = Writer(asynchronous=asynchronous)
    seen: list[tuple[str, bool, str]] = []

    def note(what: str) -> None:
        whole = (tmp_path / "new").exists() and read_checkpoint(tmp_path / "new")["step"] == 3
        seen.append((what, whole, threading.current_thread().name))

    def delete() -> None:
        note("delete")
        io.remove(tmp_path / "old")

    writer.save(state(3), tmp_path / "new", lambda: note("then"), after_commit=delete, otherwise=lambda e: note("no"))
    writer.drain()
    here = threading.current_thread().name
    assert seen == [("delete", True, "bolide-writer" if asynchronous else here), ("then", True, here)]
    assert not (tmp_path / "old").exists()


def test_wait_writes_the_state_itself_and_returns_after_the_commit(tmp_path: Path, slow: Slow) -> None:
    threads: list[str] = []

    def write(checkpoint: dict[str, Any], path: str) -> None:
        threads.append(threading.current_thread().name)
        assert checkpoint is given

    writer = Writer(write)
    given = state()
    told: list[int] = []
    saving = writer.save(given, tmp_path / "a", lambda: told.append(1), wait=True)
    assert saving.committed and told == [1] and threads == [threading.current_thread().name]
    assert writer._snapshots.arena.nbytes == 0  # no copy was made


def test_a_next_save_may_be_asked_for_in_what_follows(tmp_path: Path) -> None:
    writer = Writer()
    writer.save(state(1), tmp_path / "1", lambda: writer.save(state(2), tmp_path / "2"))
    writer.drain()
    writer.drain()
    assert read_checkpoint(tmp_path / "2")["step"] == 2


def test_a_closed_writer_holds_no_memory_and_can_be_used_again(tmp_path: Path) -> None:
    writer = Writer()
    for step in range(2):
        writer.save(state(step), tmp_path / "a")
        assert writer._snapshots.arena.nbytes
        writer.close()
        assert not writer._snapshots.arena.nbytes and not [t for t in threading.enumerate() if "bolide" in t.name]
    assert read_checkpoint(tmp_path / "a")["step"] == 1


def test_memory_may_be_made_ready_before_the_first_save(tmp_path: Path) -> None:
    writer = Writer()
    writer.reserve(1 << 20)
    assert writer._snapshots.arena.nbytes >= 1 << 20
    writer.save(state(4), tmp_path / "a")
    writer.close()
    assert read_checkpoint(tmp_path / "a")["step"] == 4
    synchronous = Writer(asynchronous=False)
    synchronous.reserve(1 << 20)
    assert synchronous._snapshots.arena.nbytes == 0


def test_without_memory_for_a_copy_the_state_is_written_while_training_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = Writer()

    def refuse(nbytes: int) -> None:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    monkeypatch.setattr(writer._snapshots, "reserve", refuse)
    writer.reserve(1000)
    with pytest.warns(UserWarning, match="no memory for a copy"):
        saving = writer.save(state(5), tmp_path / "a")
    assert saving.committed and read_checkpoint(tmp_path / "a")["step"] == 5


def test_a_wrong_setting_is_refused() -> None:
    with pytest.raises(ConfigError, match="expected 'raise' or 'warn'"):
        Writer(on_error="ignore")  # type: ignore[arg-type]


# ---------------------------------------------------------------------- faults


def operations_of_a_save(folder: Path) -> list[tuple[str, str]]:
    """What one save does, in order, with the deletion that follows it."""
    done: list[tuple[str, str]] = []

    def listen(when: str, number: int, kind: str, path: str) -> None:
        if when == "before":
            done.append((kind, os.path.basename(path).partition(".part")[0]))

    with operations(listen):
        save_new(Writer(asynchronous=False), folder)
    return done


def save_new(writer: Writer, folder: Path, **callbacks: Any) -> Any:
    """Saves "new.ckpt"; "old.ckpt" goes once it is committed."""
    return writer.save(
        state(2), folder / "sub" / "new.ckpt", after_commit=lambda: io.remove(folder / "old.ckpt"), **callbacks
    )


FAULTS = [errno.ENOSPC, errno.EIO, errno.EROFS]
COUNT = 11  # operations in a save into a new folder, and in the deletion after it: the test below holds that
LAST_OF_COMMIT = 8
"""The number of the operation that makes the new name durable: what comes after is deletion."""


def test_the_operations_that_are_made_to_fail(tmp_path: Path) -> None:
    write_checkpoint(state(1), tmp_path / "old.ckpt")
    kinds = [kind for kind, _ in operations_of_a_save(tmp_path)]
    assert kinds == [
        "mkdir", "fsync_dir", "open", "write", "flush", "fsync", "rename", "fsync_dir", "remove", "fsync_dir",
    ]  # fmt: skip
    assert len(kinds) == COUNT - 1 and kinds[LAST_OF_COMMIT - 1] == "fsync_dir"


@pytest.mark.parametrize("asynchronous", [True, False], ids=["async", "sync"])
@pytest.mark.parametrize("on_error", ["warn", "raise"])
@pytest.mark.parametrize("fault", FAULTS, ids=lambda number: errno.errorcode[number])
@pytest.mark.parametrize("number", range(1, COUNT))
def test_a_fault_at_any_operation(tmp_path: Path, number: int, fault: int, on_error: Any, asynchronous: bool) -> None:
    """The checkpoint before stays valid, nothing half is left, and the run goes on or stops as asked."""
    write_checkpoint(state(1), tmp_path / "old.ckpt")
    writer = Writer(on_error=on_error, asynchronous=asynchronous)
    told: list[Any] = []
    counted = 0

    def fail(when: str, _: int, kind: str, path: str) -> None:
        nonlocal counted
        if when == "before":
            counted += 1
            if counted == number:
                raise OSError(fault, os.strerror(fault))

    def follow() -> Any:
        saving = save_new(writer, tmp_path, then=lambda: told.append("then"), otherwise=told.append)
        writer.drain()
        return saving

    committed = number > LAST_OF_COMMIT
    saving = None
    with operations(fail):
        if on_error == "warn":
            with pytest.warns(UserWarning, match=r"Training goes on \(on_save_error='warn'\)") as found:
                saving = follow()
            text = str(found[0].message)
        else:
            with pytest.raises(SaveError) as raised:
                follow()
            text = str(raised.value)
            assert raised.value.errno == fault and isinstance(raised.value.__cause__, OSError)
    assert os.strerror(fault) in text and "new.ckpt" in text
    assert ("was saved, but what follows a save failed" if committed else "could not be saved") in text
    if saving is not None:
        assert saving.committed == committed and saving.error.errno == fault
    assert (told == ["then"]) if committed else (len(told) == 1 and told[0].errno == fault)

    new = tmp_path / "sub" / "new.ckpt"
    assert [name for name in os.listdir(tmp_path) if name.endswith(".part")] == []
    assert not new.parent.exists() or set(os.listdir(new.parent)) <= {"new.ckpt"}
    if new.exists():  # from the renaming on it is there, and whole
        assert number >= LAST_OF_COMMIT and read_checkpoint(new)["step"] == 2
    if not committed or number == LAST_OF_COMMIT + 1:
        assert read_checkpoint(tmp_path / "old.ckpt")["step"] == 1
    assert not writer.busy
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        save_new(writer, tmp_path)  # the disk is well again
        writer.close()
    assert read_checkpoint(new)["step"] == 2 and not (tmp_path / "old.ckpt").exists()


@pytest.mark.parametrize("asynchronous", [True, False], ids=["async", "sync"])
@pytest.mark.parametrize("size", [1 << 10, 1 << 21])
def test_a_disk_that_is_full_in_the_middle_of_a_file(tmp_path: Path, asynchronous: bool, size: int) -> None:
    """What the system says is told, not what torch makes of it."""

    class Full:
        def __init__(self, file: Any) -> None:
            self.file, self.left = file, size // 2

        def write(self, data: Any) -> int:
            self.left -= len(data)
            if self.left < 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return int(self.file.write(data))

        def flush(self) -> None:
            self.file.flush()

    def write(checkpoint: dict[str, Any], path: str) -> None:
        io.write_atomically(path, lambda file: torch.save(checkpoint, Full(file)))

    write_checkpoint(state(1), tmp_path / "a")
    writer = Writer(write, asynchronous=asynchronous)
    with pytest.raises(SaveError, match="No space left on device") as raised:
        writer.save({"w": torch.zeros(size // 4)}, tmp_path / "a")
        writer.drain()
    assert raised.value.errno == errno.ENOSPC and isinstance(raised.value, CheckpointError)
    assert os.listdir(tmp_path) == ["a"] and read_checkpoint(tmp_path / "a")["step"] == 1


def test_a_failure_surfaces_at_the_next_call_once(tmp_path: Path) -> None:
    def fail(checkpoint: dict[str, Any], path: str) -> None:
        raise OSError(errno.EIO, "Input/output error")

    writer = Writer(fail)
    for call in (writer.poll, writer.drain, writer.close, lambda: writer.save(state(), tmp_path / "b")):
        saving = writer.save(state(), tmp_path / "a")
        while not saving.done:
            time.sleep(0.001)
        with pytest.raises(SaveError, match="Input/output error"):
            call()
        writer.poll()
        writer.drain()
    assert not saving.committed and isinstance(saving.error, OSError)


def test_of_several_files_those_that_are_written_are_named(tmp_path: Path) -> None:
    def write(checkpoint: dict[str, Any], path: str) -> None:
        if path.endswith("last"):
            raise OSError(errno.EIO, "Input/output error")
        write_checkpoint(checkpoint, path)

    writer = Writer(write, on_error="warn")
    told: list[Any] = []
    saving = writer.save(state(), [tmp_path / "best", tmp_path / "last"], otherwise=told.append)
    with pytest.warns(UserWarning, match=r"best' is on disk"):
        writer.drain()
    assert not saving.committed and saving.written == [str(tmp_path / "best")] and len(told) == 1


@pytest.mark.parametrize("on_error", ["warn", "raise"])
def test_what_is_no_failure_of_the_save_is_raised_as_it_is(tmp_path: Path, on_error: Any) -> None:
    def stop(checkpoint: dict[str, Any], path: str) -> None:
        raise KeyboardInterrupt

    writer = Writer(stop, on_error=on_error)
    with pytest.raises(KeyboardInterrupt):
        writer.save(state(), tmp_path / "a", wait=True)
    assert not writer.busy


def test_without_a_thread_the_save_is_made_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    writer = Writer()
    saving = writer.save(state(6), tmp_path / "a")
    assert saving.committed
    writer.drain()
    assert read_checkpoint(tmp_path / "a")["step"] == 6


# ---------------------------------------------------------------------- the end of the process


def run_python(code: str, *arguments: str, timeout_s: float = 100) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *arguments], capture_output=True, text=True, timeout=timeout_s
    )


SLOW_WRITE = """
    import os, sys, threading, time
    import torch
    from bolide.checkpoint.file import write_checkpoint
    from bolide.checkpoint.writer import Writer
    def write(checkpoint, path):
        time.sleep(0.5)
        write_checkpoint(checkpoint, path)
    writer = Writer(write)
    writer.save({"step": 3, "w": [torch.ones(1 << 19) for _ in range(6)]}, sys.argv[1])  # hashed by several threads
    assert not os.path.exists(sys.argv[1])
    """
ENDS = {"sys.exit": ("sys.exit(3)", 3), "an exception": ("1 / 0", 1)}


@pytest.mark.parametrize("end", ENDS)
def test_a_save_in_flight_is_finished_before_the_program_ends(tmp_path: Path, end: str) -> None:
    line, code = ENDS[end]
    done = run_python(textwrap.dedent(SLOW_WRITE) + line, str(tmp_path / "a"))
    assert done.returncode == code, done.stderr
    assert read_checkpoint(tmp_path / "a")["step"] == 3 and os.listdir(tmp_path) == ["a"]


def test_a_disk_that_hangs_does_not_keep_the_program_from_ending(tmp_path: Path) -> None:
    done = run_python(
        """
        import sys, time
        import torch
        from bolide.checkpoint.writer import Writer
        writer = Writer(lambda checkpoint, path: time.sleep(1000), exit_timeout_s=0.2)
        writer.save({"w": torch.ones(10)}, sys.argv[1])
        sys.exit(4)
        """,
        str(tmp_path / "a"),
    )
    assert done.returncode == 4
    assert "was not on disk 0.2 s after the program's end" in done.stderr and not (tmp_path / "a").exists()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_starts_without_a_save_in_flight(tmp_path: Path) -> None:
    done = run_python(
        """
        import os, sys, threading
        import torch
        from bolide.checkpoint.file import write_checkpoint
        from bolide.checkpoint.writer import Writer
        go_on = threading.Event()
        def write(checkpoint, path):
            go_on.wait()
            write_checkpoint(checkpoint, path)
        writer = Writer(write)
        writer.save({"by": "parent", "w": torch.ones(100000)}, sys.argv[1])
        pid = os.fork()
        go_on.set()
        if pid == 0:
            writer.save({"by": "child", "w": torch.zeros(100000)}, sys.argv[2])
            sys.exit(5)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 5
        writer.close()
        """,
        str(tmp_path / "parent"),
        str(tmp_path / "child"),
    )
    assert done.returncode == 0, done.stderr
    for name, value in (("parent", 1.0), ("child", 0.0)):
        found = read_checkpoint(tmp_path / name)
        assert found["by"] == name and torch.equal(found["w"], torch.full((100000,), value))


def test_a_kill_in_the_middle_of_a_write_leaves_the_file_before(tmp_path: Path) -> None:
    write_checkpoint(state(1), tmp_path / "a")
    done = run_python(
        """
        import os, signal, sys
        import torch
        from bolide.checkpoint import io
        from bolide.checkpoint.writer import Writer
        def kill(when, number, kind, path):
            if (when, kind) == ("after", "write"):
                os.kill(os.getpid(), signal.SIGKILL)
        io.operations.listeners.append(kill)
        writer = Writer()
        writer.save({"step": 2, "w": torch.ones(10)}, sys.argv[1])
        writer.drain()
        """,
        str(tmp_path / "a"),
    )
    assert done.returncode == -signal.SIGKILL
    assert read_checkpoint(tmp_path / "a")["step"] == 1


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_memory_is_bounded_over_many_saves(tmp_path: Path) -> None:
    """The peak: the state, one copy of it, and 64 MB; flat, however slow the disk is."""
    done = run_python(
        """
        import re, sys, time
        import torch
        from bolide.checkpoint.file import write_checkpoint
        from bolide.checkpoint.writer import Writer
        def peak_mb():
            return int(re.search(r"VmHWM:\\s*(\\d+)", open("/proc/self/status").read())[1]) / 1024
        def write(checkpoint, path):
            time.sleep(0.02)
            write_checkpoint(checkpoint, path)
        torch.set_num_threads(1)
        state = {"w": [torch.randn(5, 1 << 18) for _ in range(4)], "s": [torch.randn(100) for _ in range(100)]}
        write_checkpoint({"w": torch.ones(1)}, sys.argv[1])
        base_mb = peak_mb()
        writer = Writer(write)
        peaks = []
        for step in range(30):
            for tensor in state["w"]:
                tensor.add_(1)
            # what changes its size, as random states and metrics do
            writer.save({**state, "step": step, "odd": torch.ones(step * 1000)}, sys.argv[1])
            peaks.append(peak_mb())
        writer.close()
        print(base_mb, peaks[5], peak_mb())
        """,
        str(tmp_path / "a"),
    )
    assert done.returncode == 0, done.stderr
    base_mb, early_mb, peak_mb = map(float, done.stdout.split())
    assert peak_mb <= base_mb + 1.1 * 20 + 64
    assert peak_mb >= base_mb + 15  # it was measured at all
    assert peak_mb <= early_mb + 8
    assert read_checkpoint(tmp_path / "a")["step"] == 29


def test_an_interrupt_while_waiting_does_not_make_the_thread_pass_for_ended(tmp_path):
    """Were it taken for ended, the next snapshot would be laid over the one that is being written."""
    go = threading.Event()

    def slow(checkpoint, path):
        if "one" in path:
            go.wait(60)
        write_checkpoint(checkpoint, path)

    writer = Writer(slow)
    saving = writer.save({"x": torch.full((100,), 1.0)}, tmp_path / "one.ckpt")
    interrupt = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    interrupt.start()
    with pytest.raises(KeyboardInterrupt):
        writer.drain()
    assert not saving.done and writer.busy and writer.drain(0.01) is False
    freed = []
    writer.let_go(lambda: freed.append(saving.done))
    assert freed == []
    go.set()
    writer.save({"x": torch.full((100,), 2.0)}, tmp_path / "two.ckpt")
    writer.drain()
    assert freed == [True]
    assert read_checkpoint(tmp_path / "one.ckpt")["x"].unique().tolist() == [1.0]


def test_what_cannot_be_copied_is_a_failed_save(tmp_path):
    told = []
    writer = Writer(on_error="warn")
    with pytest.warns(UserWarning, match=r"a\.ckpt.*could not be saved.*cannot pickle"):
        writer.save({"x": threading.Lock()}, tmp_path / "a.ckpt", otherwise=told.append)
    assert len(told) == 1 and writer.last_failed
    writer.save({"x": 1}, tmp_path / "b.ckpt")
    writer.drain()
    assert not writer.last_failed


def test_join_tells_what_follows_and_keeps_the_error(tmp_path):
    def full(checkpoint, path):
        raise OSError(28, "No space left on device")

    told = []
    writer = Writer(full)
    writer.save({"x": 1}, tmp_path / "a.ckpt", otherwise=told.append)
    assert writer.join() and len(told) == 1 and writer.busy
    with pytest.raises(SaveError, match="No space left"):
        writer.poll()
    writer.poll()

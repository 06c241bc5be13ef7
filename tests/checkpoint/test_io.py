from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bolide.checkpoint import io


@pytest.fixture
def watched() -> Iterator[list[tuple[str, str]]]:
    """The operations that are done, by kind and file name."""
    done: list[tuple[str, str]] = []

    def listen(when: str, number: int, kind: str, path: str) -> None:
        if when == "after":
            done.append((kind, os.path.basename(path)))

    io.operations.listeners.append(listen)
    yield done
    io.operations.listeners.remove(listen)


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path, watched: list[tuple[str, str]]) -> None:
    io.write_atomically(tmp_path / "a", lambda f: f.write(b"new"))
    assert (tmp_path / "a").read_bytes() == b"new"
    assert [kind for kind, _ in watched] == ["open", "write", "flush", "fsync", "rename", "fsync_dir"]
    assert os.listdir(tmp_path) == ["a"]


@pytest.mark.parametrize("failing", ["open", "write", "flush", "fsync", "rename"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path: Path, failing: str, when: str) -> None:
    (tmp_path / "a").write_bytes(b"old")

    def fail(at: str, number: int, kind: str, path: str) -> None:
        if (at, kind) == (when, failing):
            raise OSError(28, "No space left on device")

    io.operations.listeners.append(fail)
    try:
        with pytest.raises(OSError, match="No space"):
            io.write_atomically(tmp_path / "a", lambda f: f.write(b"new"))
    finally:
        io.operations.listeners.remove(fail)
    expected = b"new" if (failing, when) == ("rename", "after") else b"old"
    assert (tmp_path / "a").read_bytes() == expected
    if (failing, when) != ("open", "after"):  # the file descriptor was never handed over: its name may stay
        assert os.listdir(tmp_path) == ["a"]


def test_modes_obey_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        io.write_atomically(tmp_path / "sub" / "a", lambda f: f.write(b"x"))
    finally:
        os.umask(before)
    assert (tmp_path / "sub" / "a").stat().st_mode & 0o777 == 0o640


def test_numbers_go_up(tmp_path: Path) -> None:
    first = io.operations.count
    io.write_atomically(tmp_path / "a", lambda f: f.write(b"x"))
    assert io.operations.count == first + 6


def test_removing_a_link_leaves_its_target(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "a").write_text("x")
    io.link(str(tmp_path / "folder"), str(tmp_path / "link"))
    assert os.readlink(tmp_path / "link") == "folder"
    io.remove(tmp_path / "link")
    assert (tmp_path / "folder" / "a").exists() and not (tmp_path / "link").exists()
    io.remove(tmp_path / "never there")
    io.remove(tmp_path / "folder")
    assert not (tmp_path / "folder").exists()


def test_remote_paths_are_moved_into_place() -> None:
    import fsspec

    path = "memory://bucket/deep/a.ckpt"
    io.write_atomically(path, lambda f: f.write(b"x"))
    assert io.read_bytes(path) == b"x" and io.exists(path) and not io.is_dir(path)
    assert io.list_dir("memory://bucket/deep") == ["a.ckpt"]
    io.remove(path)
    assert not io.exists(path) and io.list_dir("memory://none") == []
    assert io.is_remote(path) and not io.is_remote("/a/b") and not io.is_remote("file:///a")

    def fail(file: Any) -> None:
        file.write(b"half")
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        io.write_atomically(path, fail)
    assert not fsspec.filesystem("memory").exists("/bucket/deep/a.ckpt")


def test_paths_are_joined_by_their_kind() -> None:
    assert io.join("s3://bucket/a", "b", "c.ckpt") == "s3://bucket/a/b/c.ckpt"
    assert io.join("/a", "b") == os.path.join("/a", "b")


def test_what_killed_writers_left_goes_and_nothing_else(tmp_path: Path) -> None:
    kept = [".hidden", "a.ckpt", "a.part", "b.ckpt.part", ".x.0123456789ag.part"]
    left = [".a.ckpt.0123456789ab.part", "b.ckpt.0123456789ab.part"]
    for name in kept + left:
        (tmp_path / name).touch()
    io.remove_parts(tmp_path)
    io.remove_parts(tmp_path / "missing")
    assert sorted(os.listdir(tmp_path)) == sorted(kept)


def test_a_killed_writer_leaves_a_name_that_is_recognised(tmp_path: Path) -> None:
    seen: list[str] = []
    io.write_atomically(tmp_path / "a.ckpt", lambda file: seen.extend(os.listdir(tmp_path)))
    for name in seen:
        (tmp_path / name).touch()
    io.remove_parts(tmp_path)
    assert len(seen) == 1 and os.listdir(tmp_path) == ["a.ckpt"]


def test_moving_is_durable_and_takes_links_as_they_are(tmp_path: Path, watched: list[tuple[str, str]]) -> None:
    (tmp_path / "to").mkdir()
    (tmp_path / "a").write_text("x")
    (tmp_path / "link").symlink_to("a")
    io.move(str(tmp_path / "link"), str(tmp_path / "to" / "link"))
    io.move(str(tmp_path / "a"), str(tmp_path / "to" / "b"))
    assert sorted(os.listdir(tmp_path / "to")) == ["b", "link"] and io.is_link(tmp_path / "to" / "link")
    assert [kind for kind, _ in watched] == ["rename", "fsync_dir", "fsync_dir"] * 2
    io.write_atomically("memory://bucket/x", lambda file: file.write(b"x"))
    io.move("memory://bucket/x", "memory://bucket/y")
    assert io.read_bytes("memory://bucket/y") == b"x" and not io.exists("memory://bucket/x")
    assert not io.is_link("memory://bucket/y")


def test_what_is_written_can_be_read_back_while_it_is_written() -> None:
    def write(file: Any) -> None:
        file.write(b"abcdef")
        file.seek(0)
        assert file.read() == b"abcdef"
        file.truncate(3)

    for path in ("there", "memory://bucket/there"):
        io.write_atomically(path, write)
        assert io.read_bytes(path) == b"abc"


def test_last_parts() -> None:
    assert io.name_of("/a/b.ckpt") == "b.ckpt" and io.name_of("s3://bucket/a/b.ckpt") == "b.ckpt"


@pytest.mark.parametrize("prefix", ["~", "file://~", "file://{home}"])
def test_a_home_and_a_scheme_in_local_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prefix: str) -> None:
    home, here = tmp_path / "home", tmp_path / "here"
    here.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(here)
    path = prefix.format(home=home) + "/runs/a.ckpt"
    io.write_atomically(path, lambda f: f.write(b"new"))
    assert (home / "runs" / "a.ckpt").read_bytes() == io.read_bytes(path) == b"new"
    assert io.parent(path) == str(home / "runs") and io.exists(path) and io.size_bytes(path) == 3
    assert io.list_dir(io.parent(path)) == ["a.ckpt"] and io.free_name(path) == str(home / "runs" / "a-v1.ckpt")
    io.move(path, path + ".b")
    io.link(path + ".b", path)
    assert (home / "runs" / "a.ckpt").readlink() == Path("a.ckpt.b")
    io.remove(path)
    assert os.listdir(home / "runs") == ["a.ckpt.b"] and not os.listdir(here)

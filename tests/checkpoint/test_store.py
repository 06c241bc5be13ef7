from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from bolide.checkpoint import io, store
from bolide.checkpoint.digest import About, NewerFormatError
from bolide.checkpoint.file import write_checkpoint
from bolide.checkpoint.lock import RunLock

CLOCK_S = 1_700_000_000


def write(path: Path, step: int, batches: int | None = None, run: str | None = None, at_s: int = 0, **more: Any) -> str:
    own: dict[str, Any] = {"format": 1, "progress": {"total_batches": step if batches is None else batches}}
    if run is not None:
        own["run_id"] = run
    content = {"global_step": step, "epoch": 0, "optimizer_states": [], "w": torch.arange(100.0) + step, "bolide": own}
    path.parent.mkdir(parents=True, exist_ok=True)
    write_checkpoint({**content, **more}, path)
    os.utime(path, (CLOCK_S + at_s, CLOCK_S + at_s))
    return str(path)


def damage(path: str | Path, at: int = 700) -> None:
    with open(path, "r+b") as file:
        file.seek(at)
        byte = file.read(1)
        file.seek(at)
        file.write(bytes([byte[0] ^ 0xFF]))


@contextmanager
def failing(kind: str, number: int) -> Iterator[None]:
    def fail(when: str, count: int, operation: str, path: str) -> None:
        if when == "before" and operation == kind:
            raise OSError(number, os.strerror(number), path)

    io.operations.listeners.append(fail)
    try:
        yield
    finally:
        io.operations.listeners.remove(fail)


# ---- the newest


def test_the_newest_has_the_most_steps_then_batches_then_is_the_youngest(tmp_path: Path) -> None:
    paths = [
        write(tmp_path / "a.ckpt", 5, 10, at_s=9),
        write(tmp_path / "b.ckpt", 7, 14, at_s=1),
        write(tmp_path / "c.ckpt", 7, 15, at_s=2),
        write(tmp_path / "d.ckpt", 7, 15, at_s=3),
    ]
    found = store.newest_valid(paths)
    assert found.path == paths[3] and found.about is not None and found.about.step == 7 and found.rejected == ()
    assert store.newest_valid(paths[:3]).path == paths[2]
    assert store.newest_valid([]).path is None
    assert store.newest_valid([str(tmp_path / "missing.ckpt")]) == store.Found(None, None, ())


def test_the_run_that_wrote_last_comes_first(tmp_path: Path) -> None:
    older = write(tmp_path / "old.ckpt", 900, run="first", at_s=1)
    newer = write(tmp_path / "new.ckpt", 5, run="second", at_s=2)
    assert store.newest_valid([older, newer]).path == newer


def test_files_of_lightning_are_ranked_by_their_steps(tmp_path: Path) -> None:
    ours = write(tmp_path / "a.ckpt", 5)
    theirs = str(tmp_path / "b.ckpt")
    torch.save({"global_step": 9, "epoch": 1, "state_dict": {}, "optimizer_states": []}, theirs)
    assert store.newest_valid([ours, theirs]).path == theirs


def test_weights_alone_are_no_place_to_go_on_from(tmp_path: Path) -> None:
    whole = write(tmp_path / "a.ckpt", 5)
    write_checkpoint({"global_step": 9, "state_dict": {}}, tmp_path / "b.ckpt")
    found = store.newest_valid([whole, str(tmp_path / "b.ckpt")])
    assert found.path == whole and "weights only" in str(found.rejected[0])
    assert store.newest_valid([whole, str(tmp_path / "b.ckpt")], to_train=False).path == str(tmp_path / "b.ckpt")


def test_checkpoints_in_a_folder(tmp_path: Path) -> None:
    assert store.checkpoints_in(str(tmp_path / "none")) == []
    for name in ("a.ckpt", "last.ckpt", ".a.ckpt.0123456789ab.part", ".b.ckpt", "c.txt", "finished.json"):
        (tmp_path / name).touch()
    (tmp_path / "folder.ckpt").mkdir()
    (tmp_path / "dangling.ckpt").symlink_to("gone.ckpt")
    assert [os.path.basename(path) for path in store.checkpoints_in(str(tmp_path))] == ["a.ckpt", "last.ckpt"]


# ---- damaged ones


def test_a_damaged_one_is_set_aside_with_its_reason_and_the_next_is_taken(tmp_path: Path) -> None:
    good, bad = write(tmp_path / "a.ckpt", 5), write(tmp_path / "b.ckpt", 6)
    damage(bad)
    content = Path(bad).read_bytes()
    found = store.newest_valid([good, bad])
    aside = tmp_path / "quarantine" / "b.ckpt"
    assert found.path == good and [one.moved_to for one in found.rejected] == [str(aside)]
    assert aside.read_bytes() == content and not Path(bad).exists()
    reason = (tmp_path / "quarantine" / "b.ckpt.reason.txt").read_text()
    assert bad in reason and found.rejected[0].reason in reason


def test_an_older_damaged_one_stays_where_it_is(tmp_path: Path) -> None:
    bad, good = write(tmp_path / "a.ckpt", 5), write(tmp_path / "b.ckpt", 6)
    damage(bad)
    assert store.newest_valid([good, bad]) == store.newest_valid([good])
    assert Path(bad).exists()


@pytest.mark.parametrize("content", [b"", b"hello, I am no checkpoint", b"PK\x03\x04" + bytes(500)])
def test_foreign_files_are_set_aside_too(tmp_path: Path, content: bytes) -> None:
    good = write(tmp_path / "a.ckpt", 5)
    (tmp_path / "b.ckpt").write_bytes(content)
    assert store.newest_valid([str(tmp_path / "b.ckpt"), good]).path == good
    assert (tmp_path / "quarantine" / "b.ckpt").read_bytes() == content


def test_what_is_set_aside_keeps_what_was_there(tmp_path: Path) -> None:
    for _ in range(3):
        (tmp_path / "last.ckpt").write_bytes(b"")
        store.newest_valid([str(tmp_path / "last.ckpt")])
    assert sorted(os.listdir(tmp_path / "quarantine")) == [
        "last-v1.ckpt", "last-v1.ckpt.reason.txt", "last-v2.ckpt", "last-v2.ckpt.reason.txt",
        "last.ckpt", "last.ckpt.reason.txt",
    ]  # fmt: skip


def test_one_that_holds_objects_is_passed_over_and_stays(tmp_path: Path) -> None:
    good = write(tmp_path / "a.ckpt", 5)
    torch.save({"global_step": 9, "x": Path("p")}, tmp_path / "b.ckpt")
    found = store.newest_valid([good, str(tmp_path / "b.ckpt")])
    assert found.path == good and found.rejected[0].moved_to is None and (tmp_path / "b.ckpt").exists()


def test_one_of_a_later_version_is_an_error_and_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = write(tmp_path / "a.ckpt", 5)
    monkeypatch.setattr("bolide.checkpoint.digest.FORMAT", 2)
    newer = write(tmp_path / "b.ckpt", 6)
    monkeypatch.undo()
    with pytest.raises(NewerFormatError):
        store.newest_valid([good, newer])
    assert Path(newer).exists()


def test_a_folder_that_cannot_be_written_is_no_obstacle(tmp_path: Path) -> None:
    good, bad = write(tmp_path / "a.ckpt", 5), write(tmp_path / "b.ckpt", 6)
    damage(bad)
    with failing("mkdir", errno.EROFS):
        found = store.newest_valid([good, bad])
    assert found.path == good and found.rejected[0].moved_to is None and Path(bad).exists()


def test_a_link_to_a_damaged_file(tmp_path: Path) -> None:
    good, bad = write(tmp_path / "a.ckpt", 5), write(tmp_path / "b.ckpt", 6)
    damage(bad)
    (tmp_path / "last.ckpt").symlink_to("b.ckpt")
    found = store.newest_valid([str(tmp_path / "last.ckpt"), bad, good])
    assert found.path == good and not Path(bad).exists()
    assert store.checkpoints_in(str(tmp_path)) == [good]


def test_a_link_that_leads_elsewhere_moves_nothing(tmp_path: Path) -> None:
    bad = write(tmp_path / "elsewhere" / "b.ckpt", 6)
    damage(bad)
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "last.ckpt").symlink_to(bad)
    found = store.newest_valid([str(folder / "last.ckpt")])
    assert found.path is None and found.rejected[0].moved_to is None
    assert Path(bad).exists() and os.listdir(folder) == ["last.ckpt"]


def test_remote_folders() -> None:
    folder = "memory://bucket/run"
    for step in (5, 6):
        write_checkpoint({"global_step": step, "optimizer_states": []}, f"{folder}/{step}.ckpt")
    data = io.read_bytes(f"{folder}/6.ckpt")
    io.write_atomically(f"{folder}/6.ckpt", lambda file: file.write(data[:-1]))
    found = store.newest_valid(store.checkpoints_in(folder))
    assert found.path == f"{folder}/5.ckpt"
    assert io.exists(f"{folder}/quarantine/6.ckpt") and not io.exists(f"{folder}/6.ckpt")
    store.mark_finished(folder, About(step=5))
    assert store.newest_valid(store.checkpoints_in(folder), skip_finished=True).path is None
    io.remove(folder)


# ---- runs that have come to their end


def finished(paths: list[str]) -> list[str] | str | None:
    found = store.newest_valid(paths, skip_finished=True)
    return found.path or list(found.finished)


def test_a_finished_run_is_not_gone_on_from(tmp_path: Path) -> None:
    paths = [write(tmp_path / "a.ckpt", 5, run="r"), write(tmp_path / "b.ckpt", 9, run="r")]
    assert finished(paths) == paths[1]
    store.mark_finished(str(tmp_path), About(step=9, batches=9, run_id="r"))
    assert finished(paths) == [str(tmp_path)]
    assert store.newest_valid(paths).path == paths[1]


def test_what_was_written_after_the_mark_is(tmp_path: Path) -> None:
    first = write(tmp_path / "a.ckpt", 9, run="r")
    store.mark_finished(str(tmp_path), About(step=9, batches=9, run_id="r"))
    os.utime(tmp_path / "finished.json", (CLOCK_S + 5, CLOCK_S + 5))
    further = write(tmp_path / "b.ckpt", 12, run="r", at_s=1)  # trained further by name, and killed; the clock jumped
    assert finished([first, further]) == further
    os.remove(further)
    other = write(tmp_path / "c.ckpt", 2, run="s", at_s=6)
    assert finished([first, other]) == other
    abandoned = write(tmp_path / "d.ckpt", 3, run="q", at_s=1)  # before the run that came to its end
    assert finished([first, abandoned]) == [str(tmp_path)]


@pytest.mark.parametrize("content", ["", "{}", "[1]", '{"step": "x", "batches": 1, "run_id": null}'])
def test_a_mark_that_cannot_be_read_is_none(tmp_path: Path, content: str) -> None:
    path = write(tmp_path / "a.ckpt", 5)
    (tmp_path / "finished.json").write_text(content)
    assert finished([path]) == path


def test_in_use(tmp_path: Path) -> None:
    assert not store.in_use(str(tmp_path)) and not store.in_use("memory://x")
    with RunLock(tmp_path):
        assert store.in_use(str(tmp_path))
    assert not store.in_use(str(tmp_path)) and os.listdir(tmp_path) == []


# ---- what retention may delete


def test_retention_stays_in_its_folder(tmp_path: Path) -> None:
    folder, outside = tmp_path / "run", tmp_path / "other"
    own, newer = write(folder / "a.ckpt", 1), write(folder / "b.ckpt", 2)
    far = write(outside / "c.ckpt", 1)
    (folder / "sub").mkdir()
    (folder / "linked").symlink_to(outside)
    below = write(folder / "sub" / "d.ckpt", 1)

    def may(path: str) -> bool:
        return store.may_remove(path, newer, str(folder), None)

    assert may(own) and may(below)
    refused = [
        "", newer, far, str(folder), str(folder / "linked" / "c.ckpt"), str(folder / ".." / "other" / "c.ckpt"),
        str(folder / "sub" / ".." / ".." / "other" / "c.ckpt"),
    ]  # fmt: skip
    assert [path for path in refused if may(path)] == []
    (folder / "link.ckpt").symlink_to(far)
    assert may(str(folder / "link.ckpt"))  # the link itself lies there
    io.remove(str(folder / "link.ckpt"))
    assert os.path.exists(far)
    (folder / "newest.ckpt").symlink_to("b.ckpt")
    assert not may(str(folder / "newest.ckpt"))  # another name of the newer one


def test_the_file_a_run_came_from_goes_only_when_a_newer_one_is_whole(tmp_path: Path) -> None:
    source, newer = write(tmp_path / "a.ckpt", 1), write(tmp_path / "b.ckpt", 2)
    (tmp_path / "last.ckpt").symlink_to("a.ckpt")

    def may(resumed_from: str) -> bool:
        return store.may_remove(source, newer, str(tmp_path), resumed_from)

    assert may(source) and may(str(tmp_path / "last.ckpt"))
    damage(newer)
    assert not may(source) and not may(str(tmp_path / "last.ckpt"))
    os.remove(newer)
    assert not may(source)
    assert store.may_remove(source, newer, str(tmp_path), str(tmp_path / "another.ckpt"))


def test_retention_of_remote_folders() -> None:
    folder = "memory://bucket/run"
    assert store.may_remove(f"{folder}/a.ckpt", f"{folder}/b.ckpt", folder, None)
    for path in ("memory://bucket/a.ckpt", f"{folder}/../a.ckpt", "/etc/passwd", folder):
        assert not store.may_remove(path, f"{folder}/b.ckpt", folder, None)

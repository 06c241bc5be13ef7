"""Sharded checkpoints of one process: every bit comes back, every damage is found, and no kill leaves half of one."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from bolide.checkpoint import io, store
from bolide.checkpoint.consolidate import consolidate
from bolide.checkpoint.digest import DamagedCheckpointError, NewerFormatError, signed
from bolide.checkpoint.file import write_checkpoint
from bolide.checkpoint.parts import Box, share_of_this_rank, whole_box
from bolide.checkpoint.read import about_at, read_checkpoint, verify_checkpoint
from bolide.checkpoint.sharded import Contents, PartAt, TensorAt, contents_of, problem_of, remove_leftovers
from bolide.checkpoint.sharded_write import write_folder
from bolide.checkpoint.stored import Stored, open_folder
from bolide.core.errors import CheckpointError, CheckpointNotFoundError, ConfigError

DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool, torch.complex64, torch.complex128, torch.float8_e4m3fn, torch.float8_e5m2, torch.uint16,
]  # fmt: skip


def state(step: int = 4, seed: int = 0) -> dict[str, Any]:
    """A checkpoint as a run collects it: every dtype, odd shapes, tied weights, numbers as keys."""
    generator = torch.Generator().manual_seed(seed)
    values = {f"kind.{d}": torch.randint(0, 2, (3, 5), generator=generator).to(d) for d in DTYPES}
    tied = torch.randn(6, 2, generator=generator)
    return {
        "epoch": 1,
        "global_step": step,
        "state_dict": {
            **values, "scalar": torch.tensor(2.5), "empty": torch.zeros(0, 4), "turned": torch.randn(3, 4).T,
            "tied.a": tied, "tied.b": tied, "a/b": torch.ones(2), "conj": torch.ones(2, dtype=torch.complex64).conj(),
            "no tensor": 7,
        },
        "optimizer_states": [
            {
                "state": {0: {"step": torch.tensor(float(step)), "exp_avg": torch.randn(6, 2, generator=generator)}},
                "param_groups": [{"lr": 0.1, "betas": (0.9, 0.99), "params": [0]}],
            }
        ],
        "callbacks": {"one": {"score": torch.tensor(1.0)}},
        "bolide": {"format": 1, "run_id": "r", "progress": {"total_batches": step}, "rng": {"torch": torch.arange(9)}},
    }  # fmt: skip


def save(path: Path, checkpoint: dict[str, Any] | None = None, **options: Any) -> Path:
    write_folder(share_of_this_rank(state(**options) if checkpoint is None else checkpoint), str(path))
    return path


def assert_same(found: Any, right: Any, at: str = "") -> None:
    assert type(found) is type(right), at
    if isinstance(right, torch.Tensor):
        assert found.dtype == right.dtype and found.shape == right.shape, at
        assert torch.equal(bits(found), bits(right)), at
    elif isinstance(right, dict):
        assert list(found) == list(right), at
        for key, value in right.items():
            assert_same(found[key], value, f"{at}/{key}")
    elif isinstance(right, (list, tuple)):
        assert len(found) == len(right), at
        for i, value in enumerate(right):
            assert_same(found[i], value, f"{at}/{i}")
    else:
        assert found == right, at


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.resolve_conj().contiguous().reshape(-1).view(torch.uint8)


# ---------------------------------------------------------------------- what is written


def test_every_entry_comes_back_with_its_bits(tmp_path: Path) -> None:
    path = save(tmp_path / "a.ckpt")
    assert_same(read_checkpoint(path), state_as(path))
    about = about_at(path)
    assert about is not None and (about.step, about.epoch, about.batches, about.run_id) == (4, 1, 4, "r")
    report = verify_checkpoint(path)
    assert report.whole and report.shards == 1 and report.size_bytes > 1000


def state_as(path: Path) -> dict[str, Any]:
    """What `save` was given; "turned" draws from the global generator, so it is taken from the files."""
    right = state()
    right["state_dict"]["turned"] = read_checkpoint(path)["state_dict"]["turned"]
    return right


def test_the_shards_are_the_librarys_and_the_digests_are_of_their_files(tmp_path: Path) -> None:
    path = save(tmp_path / "a.ckpt")
    body = json.loads((path / "manifest.json").read_text())["manifest"]
    assert sorted(os.listdir(path)) == sorted([*body["files"], "manifest.json"])
    for name, entry in body["files"].items():
        data = (path / name).read_bytes()
        assert (len(data), hashlib.sha256(data).hexdigest()) == (entry["bytes"], entry["sha256"])
    shard = next(name for name in body["files"] if name.startswith("rank_00000."))
    tensors = load_file(path / shard)
    assert torch.equal(tensors["state_dict/kind.torch.bfloat16"], state()["state_dict"]["kind.torch.bfloat16"])
    assert "state_dict/tied.a" in tensors and "state_dict/tied.b" not in tensors  # once
    assert body["tensors"]["state_dict/tied.b"]["parts"][0][1] == "state_dict/tied.a"


def test_a_tensor_is_read_by_range(tmp_path: Path) -> None:
    draw = random.Random(2)
    values = {f"{d}": torch.arange(7 * 6 * 5).reshape(7, 6, 5).to(d) for d in (torch.float32, torch.complex128)}
    path = save(tmp_path / "a.ckpt", {"state_dict": values})
    opened = open_folder(str(path))["state_dict"]
    for _ in range(40):
        offset = tuple(draw.randrange(n) for n in (7, 6, 5))
        box = Box(offset, tuple(draw.randint(1, n - at) for n, at in zip((7, 6, 5), offset, strict=True)))
        for name, stored in opened.items():
            assert isinstance(stored, Stored)
            assert torch.equal(stored.read(box), values[name][box.within(whole_box((7, 6, 5)))])


def test_parts_must_make_up_the_tensor() -> None:
    def at(*boxes: tuple[tuple[int, ...], tuple[int, ...]]) -> str:
        return problem_of(TensorAt("float32", (4, 2), tuple(PartAt("f", "k", Box(o, s)) for o, s in boxes)))

    assert at(((0, 0), (2, 2)), ((2, 0), (2, 2))) == "" == at(((0, 0), (4, 1)), ((0, 1), (4, 1)), ((4, 0), (0, 2)))
    assert "4 elements, where it has 8" in at(((0, 0), (2, 2)))
    assert "outside" in at(((0, 0), (2, 2)), ((3, 0), (2, 2)))
    assert "overlap" in at(((0, 0), (2, 2)), ((0, 0), (2, 2)))
    assert "dimensions" in at(((0,), (8,)))


def test_it_loads_where_load_from_checkpoint_and_map_location_say(tmp_path: Path) -> None:
    path = save(tmp_path / "a.ckpt")
    for where in ("meta", {"cpu": "meta"}, lambda storage, place: storage.to("meta") if place == "cpu" else None):
        if callable(where):
            continue  # a storage has no memory there
        assert read_checkpoint(path, map_location=where)["state_dict"]["scalar"].device.type == "meta"
    assert read_checkpoint(path, map_location=lambda storage, place: None)["state_dict"]["scalar"].device.type == "cpu"


# ---------------------------------------------------------------------- damage


def files_of(path: Path) -> list[str]:
    return sorted(os.listdir(path))


def test_every_flipped_bit_and_every_cut_is_found(tmp_path: Path) -> None:
    path, draw = save(tmp_path / "a.ckpt", {"state_dict": {"w": torch.randn(4, 3)}, "global_step": 1}), random.Random(0)
    for name in files_of(path):
        right = (path / name).read_bytes()
        places = range(len(right)) if len(right) < 400 else draw.sample(range(len(right)), 60)
        for place in places:
            (path / name).write_bytes(
                right[:place] + bytes([right[place] ^ 1 << draw.randrange(8)]) + right[place + 1 :]
            )
            assert not verify_checkpoint(path).whole, (name, place)
        for cut in (right[:-1], right[: len(right) // 2], b"", right + b"\0"):
            (path / name).write_bytes(cut)
            assert not verify_checkpoint(path).whole, (name, len(cut))
            with pytest.raises(DamagedCheckpointError, match="a.ckpt"):
                read_checkpoint(path)
        (path / name).write_bytes(right)
    assert verify_checkpoint(path).whole


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    path = save(tmp_path / "a.ckpt")
    shard = next(name for name in files_of(path) if name.startswith("rank_"))
    (path / shard).unlink()
    assert f"its file {shard} is missing" in verify_checkpoint(path).problem
    (path / "manifest.json").unlink()
    with pytest.raises(CheckpointError, match="is a folder without a manifest.json"):
        read_checkpoint(path)
    with pytest.raises(CheckpointNotFoundError, match="written last"):
        contents_of(str(path))


@pytest.mark.parametrize("change", ["name", "box", "dtype", "key", "file", "size", "format"])
def test_a_manifest_that_says_what_cannot_be(tmp_path: Path, change: str) -> None:
    path = save(tmp_path / "a.ckpt", {"state_dict": {"w": torch.randn(4, 3)}})
    body = json.loads((path / "manifest.json").read_text())["manifest"]
    entry = body["tensors"]["state_dict/w"]
    if change == "name":
        body["files"]["../../etc/passwd"] = {"bytes": 1, "sha256": ""}
    elif change == "box":
        entry["parts"][0][3] = [4, 2]
    elif change == "dtype":
        entry["dtype"] = "load"
    elif change == "file":
        entry["parts"][0][0] = "rank_00009.0123456789ab.safetensors"
    elif change == "size":
        entry["shape"] = entry["parts"][0][3] = [1 << 40, 1 << 20]
    elif change == "key":
        entry["parts"][0][1] = "another"
    else:
        body["format"] = 2
    (path / "manifest.json").write_bytes(signed(body))
    with pytest.raises(NewerFormatError if change == "format" else DamagedCheckpointError, match="a.ckpt|another"):
        read_checkpoint(path)


# ---------------------------------------------------------------------- kills and failures


def each_operation(work: Callable[[], Any]) -> int:
    """How many file operations `work` takes."""
    before = io.operations.count
    work()
    return io.operations.count - before


def killed(work: Callable[[], Any], when: str, number: int) -> int:
    """`work()` in a fork of this process, which kills itself before or after file operation `number`; its exit code."""
    child = os.fork()
    if child == 0:
        first = io.operations.count

        def listen(at: str, count: int, kind: str, path: str) -> None:
            if (at, count - first) == (when, number):
                os.kill(os.getpid(), signal.SIGKILL)

        io.operations.listeners.append(listen)
        with contextlib.suppress(BaseException):
            work()
            os._exit(0)
        os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@contextlib.contextmanager
def failing_at(number: int) -> Iterator[None]:
    first = io.operations.count

    def listen(at: str, count: int, kind: str, path: str) -> None:
        if at == "before" and count - first == number:
            raise OSError(28, "No space left on device")

    io.operations.listeners.append(listen)
    try:
        yield
    finally:
        io.operations.listeners.remove(listen)


def newest(folder: Path) -> tuple[int | None, Any]:
    """Step and content of what a run would go on from, once the folder was tidied as its lock does."""
    io.remove_parts(folder)
    remove_leftovers(str(folder))
    found = store.newest_valid(store.checkpoints_in(str(folder)))
    assert not found.rejected, found.rejected
    return (None, None) if found.path is None else (found.about.step, read_checkpoint(found.path))  # type: ignore[union-attr]


OLD, NEW = (
    {"state_dict": {"w": torch.full((3, 2), float(s))}, "optimizer_states": [], "global_step": s} for s in (1, 2)
)
"""The checkpoint before, and the one that is being written."""


def put(kind: str, path: Path, checkpoint: dict[str, Any]) -> None:
    if kind == "file":
        write_checkpoint(checkpoint, path)
    else:
        save(path, checkpoint)


SAVES = {
    "beside the one before": ("folder", "old.ckpt", "folder", "new.ckpt"),
    "under the name of the one before": ("folder", "last.ckpt", "folder", "last.ckpt"),
    "in the place of a file": ("file", "last.ckpt", "folder", "last.ckpt"),
    "a file in the place of a folder": ("folder", "last.ckpt", "file", "last.ckpt"),
}


@pytest.mark.parametrize("case", SAVES)
def test_a_kill_at_any_file_operation_leaves_the_old_one_or_the_new_one(tmp_path: Path, case: str) -> None:
    kind, name, new_kind, new_name = SAVES[case]
    (tmp_path / "dry").mkdir()
    put(kind, tmp_path / "dry" / name, OLD)
    count = each_operation(lambda: put(new_kind, tmp_path / "dry" / new_name, NEW))
    assert count >= 10
    steps = []
    for number in range(1, count + 1):
        for when in ("before", "after"):
            folder = tmp_path / f"{number}{when}"
            folder.mkdir()
            put(kind, folder / name, OLD)
            code = killed(lambda folder=folder: put(new_kind, folder / new_name, NEW), when, number)  # type: ignore[misc]
            assert code == -signal.SIGKILL, (number, when, code)
            step, content = newest(folder)
            assert step in (1, 2), (number, when)
            assert_same(content, OLD if step == 1 else NEW)
            steps.append(step)
            assert all(entry.endswith(".ckpt") for entry in os.listdir(folder)), os.listdir(folder)
            # and the next save under the same name comes to its end
            put(new_kind, folder / new_name, NEW)
            assert newest(folder)[0] == 2
    assert steps == sorted(steps), "the commit is one moment"
    assert steps[0] == 1 and steps[-1] == 2


@pytest.mark.parametrize("case", SAVES)
def test_a_failure_of_any_file_operation_leaves_the_old_one(tmp_path: Path, case: str) -> None:
    kind, name, new_kind, new_name = SAVES[case]
    put(kind, tmp_path / name, OLD)
    for number in range(1, 100):
        with failing_at(number):
            try:
                put(new_kind, tmp_path / new_name, NEW)
            except (OSError, CheckpointError):
                step, content = newest(tmp_path)
                if step == 1:
                    assert_same(content, OLD)
                    assert os.listdir(tmp_path) == [name], (number, os.listdir(tmp_path))
                    continue
                # committed, and what follows has failed: fsyncs, tidying
            break
    assert newest(tmp_path)[0] == 2 and number >= 8


# ---------------------------------------------------------------------- folders of checkpoints


def test_a_damaged_one_is_set_aside_and_the_next_is_taken(tmp_path: Path) -> None:
    old, new = save(tmp_path / "old.ckpt", step=4), save(tmp_path / "new.ckpt", step=8)
    shard = next(name for name in files_of(new) if name.startswith("rank_"))
    (new / shard).write_bytes((new / shard).read_bytes()[:-5])
    found = store.newest_valid(store.checkpoints_in(str(tmp_path)))
    assert found.path == str(old)
    assert not new.exists() and (tmp_path / "quarantine" / "new.ckpt" / "manifest.json").exists()
    assert shard in (tmp_path / "quarantine" / "new.ckpt.reason.txt").read_text()


def test_what_is_no_checkpoint_is_neither_taken_nor_touched(tmp_path: Path) -> None:
    save(tmp_path / "a.ckpt")
    (tmp_path / "theirs.ckpt").mkdir()
    (tmp_path / "theirs.ckpt" / ".metadata").write_bytes(b"x")
    (tmp_path / "theirs.ckpt" / "rank_00000.0123456789ab.safetensors").write_bytes(b"x")
    (tmp_path / "cut.ckpt").mkdir()
    (tmp_path / "cut.ckpt" / "rank_00001.0123456789ab.safetensors").write_bytes(b"x")
    (tmp_path / "cut.ckpt" / ".rest.0123456789ab.ckpt.0123456789ab.part").write_bytes(b"x")
    (tmp_path / "a.ckpt" / "rank_00007.0123456789ab.safetensors").write_bytes(b"left by a kill")
    assert store.checkpoints_in(str(tmp_path)) == [str(tmp_path / "a.ckpt")]
    remove_leftovers(str(tmp_path))
    assert sorted(os.listdir(tmp_path)) == ["a.ckpt", "theirs.ckpt"]
    assert len(os.listdir(tmp_path / "theirs.ckpt")) == 2
    assert "rank_00007.0123456789ab.safetensors" not in os.listdir(tmp_path / "a.ckpt")
    with pytest.raises(CheckpointError, match="holds other things"):
        save(tmp_path / "theirs.ckpt")
    assert len(os.listdir(tmp_path / "theirs.ckpt")) == 2


def test_a_removal_that_is_killed_leaves_no_half(tmp_path: Path) -> None:
    for number in range(1, 5):
        for when in ("before", "after"):
            path = save(tmp_path / "a.ckpt")
            if killed(lambda path=path: io.remove(path), when, number) == 0:  # type: ignore[misc]
                continue
            assert not path.exists() or verify_checkpoint(path).whole
            io.remove_parts(tmp_path)
            assert os.listdir(tmp_path) in ([], ["a.ckpt"])


def test_a_link_is_replaced_and_what_it_leads_to_stays(tmp_path: Path) -> None:
    old = save(tmp_path / "old.ckpt", step=4)
    io.link(str(old), str(tmp_path / "last.ckpt"))
    save(tmp_path / "last.ckpt", step=8)
    assert about_at(old).step == 4 and about_at(tmp_path / "last.ckpt").step == 8  # type: ignore[union-attr]
    assert not (tmp_path / "last.ckpt").is_symlink()


def test_it_lies_on_a_remote_file_system(tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    url = f"memory://{tmp_path.name}/a.ckpt"
    save(url)  # type: ignore[arg-type]
    assert_same(read_checkpoint(url)["optimizer_states"], state()["optimizer_states"])
    save(url, step=9)  # type: ignore[arg-type]
    assert verify_checkpoint(url).whole and about_at(url).step == 9  # type: ignore[union-attr]
    assert len(io.list_dir(url)) == 3
    assert store.newest_valid(store.checkpoints_in(f"memory://{tmp_path.name}")).path is not None
    io.remove(url)
    assert not io.exists(url)


# ---------------------------------------------------------------------- one file of it


def test_consolidate_has_every_bit_and_overwrites_nothing(tmp_path: Path) -> None:
    path = save(tmp_path / "a.ckpt")
    out = consolidate(str(path))
    assert out == str(tmp_path / "a.consolidated.ckpt")
    plain = torch.load(out, weights_only=True)
    right = read_checkpoint(path)
    assert_same(plain, right)
    sizes = {
        name: value.untyped_storage().nbytes() for name, value in plain["state_dict"].items() if name != "no tensor"
    }
    assert sizes["tied.a"] == 48 and sizes["kind.torch.int8"] == 15, "a tensor has a storage of its own"
    before = Path(out).read_bytes()
    with pytest.raises(ConfigError, match="is there already"):
        consolidate(str(path))
    assert Path(out).read_bytes() == before
    with pytest.raises(CheckpointError, match="one file already"):
        consolidate(out)
    with pytest.raises(CheckpointNotFoundError):
        consolidate(str(tmp_path / "none.ckpt"))
    assert sorted(os.listdir(tmp_path)) == ["a.ckpt", "a.consolidated.ckpt"]


def test_the_contents_say_what_they_said(tmp_path: Path) -> None:
    contents = contents_of(str(save(tmp_path / "a.ckpt")))
    assert isinstance(contents, Contents) and contents.tensors["state_dict/scalar"].shape == ()

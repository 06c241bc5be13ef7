from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from bolide.checkpoint import digest
from bolide.checkpoint.archive import parse
from bolide.checkpoint.digest import DamagedCheckpointError, NewerFormatError
from bolide.checkpoint.file import manifest_at, read_checkpoint, verify_checkpoint, write_checkpoint

from .mutants import stored_zip

STATE: dict[str, Any] = {
    "state_dict": {"a": torch.arange(40.0), "b": torch.arange(3)},
    "epoch": 3,
    "global_step": 12,
    "optimizer_states": [],
    "bolide": {"format": 1, "run_id": "r7", "progress": {"total_batches": 24}},
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_checkpoint(STATE, tmp_path / "a.ckpt")
    return tmp_path / "a.ckpt"


def same(loaded: dict[str, Any]) -> bool:
    return torch.equal(loaded["state_dict"]["a"], torch.arange(40.0)) and loaded["epoch"] == 3


# ---- torch takes such a file for its own


@pytest.mark.parametrize("mmap", [False, True])
def test_torch_reads_it(path: Path, mmap: bool) -> None:
    assert same(torch.load(path, weights_only=True, mmap=mmap))


def test_torchs_entries_lie_where_torch_put_them(path: Path) -> None:
    plain = io.BytesIO()
    torch.save(STATE, plain)
    before, after = parse(plain), parse(io.BytesIO(path.read_bytes()))
    ours = {entry.name: (entry.data_start, entry.data_bytes) for entry in after.entries}
    # each save has an id of its own, of the same length
    assert ours.pop(digest.MANIFEST)[0] > 0
    assert ours == {entry.name: (entry.data_start, entry.data_bytes) for entry in before.entries}
    assert all(start % 64 == 0 for name, (start, _) in ours.items() if name.startswith("data/"))


def test_a_zip_tool_finds_it_whole(path: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        content = json.loads(archive.read(f"archive/{digest.MANIFEST}"))
    assert content["manifest"]["about"]["step"] == 12


def test_it_is_the_same_for_the_same_content(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_checkpoint(STATE, tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_the_manifest_tells_what_the_file_is(path: Path) -> None:
    manifest = manifest_at(path)
    assert manifest is not None
    about = manifest.about
    assert (about.step, about.epoch, about.batches, about.run_id) == (12, 3, 24, "r7")
    assert about.weights_only is False and about.torch == str(torch.__version__)
    report = verify_checkpoint(path)
    assert report.whole and report.by == "sha256" and report.about == about


# ---- every byte counts


def test_a_flip_of_any_byte_is_found(path: Path) -> None:
    good = path.read_bytes()
    accepted = []
    with path.open("r+b") as file:
        for at in range(len(good)):
            file.seek(at)
            file.write(bytes([good[at] ^ 0x10]))
            try:
                digest.check(file)
                accepted.append(at)
            except DamagedCheckpointError:
                pass
            file.seek(at)
            file.write(good[at : at + 1])
        assert digest.check(file) is not None
    assert accepted == []


def test_a_cut_at_any_length_is_found(path: Path) -> None:
    size = path.stat().st_size
    accepted = []
    with path.open("r+b") as file:
        for length in range(size - 1, 0, -1):
            file.truncate(length)
            try:
                digest.check(file)
                accepted.append(length)
            except DamagedCheckpointError:
                pass
    assert accepted == []


@pytest.mark.parametrize("more", [b"\0", b"PK\x05\x06" + bytes(18)], ids=["a byte", "another end"])
def test_what_follows_the_end_is_refused(path: Path, more: bytes) -> None:
    path.write_bytes(path.read_bytes() + more)
    with pytest.raises(DamagedCheckpointError):
        read_checkpoint(path)


def test_the_damaged_entry_is_named(path: Path) -> None:
    entry = parse(io.BytesIO(path.read_bytes())).entry("data/0")
    assert entry is not None
    data = bytearray(path.read_bytes())
    data[entry.data_start] ^= 1
    path.write_bytes(data)
    with pytest.raises(DamagedCheckpointError, match=r"a\.ckpt.*'data/0' is not what was written"):
        read_checkpoint(path)
    report = verify_checkpoint(path)
    assert not report.whole and "data/0" in report.problem


def test_large_entries_are_hashed_by_several_threads(tmp_path: Path) -> None:
    state = {"state_dict": {str(i): torch.full((1 << 19,), float(i)) for i in range(6)}}
    write_checkpoint(state, tmp_path / "a.ckpt")
    assert verify_checkpoint(tmp_path / "a.ckpt").whole
    entry = parse(io.BytesIO((tmp_path / "a.ckpt").read_bytes())).entry("data/3")
    assert entry is not None
    with (tmp_path / "a.ckpt").open("r+b") as file:
        file.seek(entry.data_start + entry.data_bytes - 1)
        file.write(b"\xff")
    assert "data/3" in verify_checkpoint(tmp_path / "a.ckpt").problem


# ---- versions, and files without a manifest


def rewritten(path: Path, change: Any) -> None:
    """The file with another manifest, whose own digest is right."""
    import hashlib

    data = path.read_bytes()
    archive = parse(io.BytesIO(data))
    own = archive.entries[-1]
    body = json.loads(data[own.data_start : own.data_start + own.data_bytes])["manifest"]
    change(body)
    text = digest._canonical(body)
    content = digest._canonical({"manifest": body, "sha256": hashlib.sha256(text).hexdigest()}) + b"\n"
    entries = [(f"archive/{e.name}", data[e.data_start : e.data_start + e.data_bytes]) for e in archive.entries[:-1]]
    path.write_bytes(stored_zip([*entries, (f"archive/{digest.MANIFEST}", content)]))


def test_a_newer_format_is_named_as_such(path: Path) -> None:
    rewritten(path, lambda body: body.update(format=digest.FORMAT + 1, anything={"new": 1}))
    with pytest.raises(NewerFormatError, match=r"a\.ckpt.*format 2.*reads formats up to 1.*pip install --upgrade"):
        read_checkpoint(path)
    with pytest.raises(NewerFormatError):
        verify_checkpoint(path)


def test_a_newer_content_is_named_as_such(tmp_path: Path) -> None:
    write_checkpoint({**STATE, "bolide": {"format": 9}}, tmp_path / "a.ckpt")
    with pytest.raises(NewerFormatError, match="format 9"):
        read_checkpoint(tmp_path / "a.ckpt")


@pytest.mark.parametrize(
    "change",
    [
        lambda body: body.pop("entries"),
        lambda body: body.update(format="one"),
        lambda body: body.update(about=[]),
        lambda body: body["entries"].update({"data/9": {"bytes": 1, "sha256": ""}}),
        lambda body: body.update(between="0" * 64),
    ],
)
def test_a_manifest_that_does_not_fit_is_refused(path: Path, change: Any) -> None:
    rewritten(path, change)
    with pytest.raises(DamagedCheckpointError):
        read_checkpoint(path)


def test_files_of_torch_itself_are_held_to_their_own_sums(tmp_path: Path) -> None:
    torch.save(STATE, tmp_path / "a.ckpt")
    assert same(read_checkpoint(tmp_path / "a.ckpt"))
    assert verify_checkpoint(tmp_path / "a.ckpt").by == "crc32"
    data = bytearray((tmp_path / "a.ckpt").read_bytes())
    entry = parse(io.BytesIO(data)).entry("data/0")
    assert entry is not None
    data[entry.data_start + 5] ^= 4
    (tmp_path / "a.ckpt").write_bytes(data)
    with pytest.raises(DamagedCheckpointError, match=r"data/0.*CRC-32"):
        read_checkpoint(tmp_path / "a.ckpt")


def test_files_from_before_torchs_zip_are_read(tmp_path: Path) -> None:
    torch.save(STATE, tmp_path / "a.ckpt", _use_new_zipfile_serialization=False)
    assert same(read_checkpoint(tmp_path / "a.ckpt"))
    assert verify_checkpoint(tmp_path / "a.ckpt").by == "loading"
    data = (tmp_path / "a.ckpt").read_bytes()
    (tmp_path / "a.ckpt").write_bytes(data[:-40])
    assert not verify_checkpoint(tmp_path / "a.ckpt").whole

"""Files of every format version that was ever written are read, and gone on from."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
import torch

from bolide.checkpoint import read, sharded
from bolide.checkpoint.digest import FORMAT
from bolide.checkpoint.file import manifest_at, read_checkpoint, verify_checkpoint
from tests.golden.make import FOLDER, Golden, loader, main, main_sharded, trainer

WHOLE = sorted(path.name for path in FOLDER.glob("format_*.ckpt") if "weights" not in path.name)
FOLDERS = sorted(path.name for path in FOLDER.glob("sharded_*.ckpt"))


def version_of(name: str) -> int:
    return int(re.findall(r"\d+", name)[0])


def test_there_is_one_of_each_version() -> None:
    assert [version_of(name) for name in WHOLE] == list(range(1, FORMAT + 1))


@pytest.mark.parametrize("name", WHOLE)
def test_it_is_whole_and_says_what_it_is(name: str) -> None:
    assert verify_checkpoint(FOLDER / name).by == "sha256"
    manifest = manifest_at(FOLDER / name)
    assert manifest is not None and manifest.format == version_of(name)
    assert (manifest.about.step, manifest.about.batches, manifest.about.weights_only) == (4, 9, False)


@pytest.mark.parametrize("name", WHOLE)
def test_a_fit_goes_on_from_it(name: str, tmp_path: Path) -> None:
    shutil.copy(FOLDER / name, tmp_path / "old.ckpt")
    module = Golden()
    going = trainer(8)
    going.fit(module, loader(shuffle=True), loader(shuffle=False), ckpt_path=tmp_path / "old.ckpt")
    assert going.global_step == 8 and going.current_epoch >= 2
    loaded = read_checkpoint(tmp_path / "old.ckpt")
    assert not torch.equal(module.state_dict()["net.0.weight"], loaded["state_dict"]["net.0.weight"])


@pytest.mark.parametrize("name", [*WHOLE, *(name.replace(".ckpt", "_weights.ckpt") for name in WHOLE)])
def test_a_module_is_built_from_it(name: str) -> None:
    module = Golden.load_from_checkpoint(FOLDER / name)
    assert dict(module.hparams) == {"width": 8, "lr": 0.05}
    saved = read_checkpoint(FOLDER / name)["state_dict"]
    assert all(torch.equal(value, saved[key]) for key, value in module.state_dict().items())


@pytest.mark.parametrize("name", FOLDERS)
def test_a_fit_of_one_process_goes_on_from_the_shards_of_two(name: str, tmp_path: Path) -> None:
    report = read.verify_checkpoint(FOLDER / name)
    assert report.whole and report.shards == 2 and report.about is not None and report.about.step == 4
    shutil.copytree(FOLDER / name, tmp_path / "old.ckpt")
    module, going = Golden(), trainer(8)
    going.fit(module, loader(shuffle=True), loader(shuffle=False), ckpt_path=tmp_path / "old.ckpt")
    assert going.global_step == 8 and going.accumulate_grad_batches == 4
    saved = read.read_checkpoint(FOLDER / name)
    assert not torch.equal(module.state_dict()["net.0.weight"], saved["state_dict"]["net.0.weight"])
    loaded = Golden.load_from_checkpoint(FOLDER / name)
    assert all(torch.equal(value, saved["state_dict"][key]) for key, value in loaded.state_dict().items())


def test_the_present_version_writes_such_folders(tmp_path: Path) -> None:
    assert [version_of(name) for name in FOLDERS] == list(range(1, sharded.FORMAT + 1))
    main_sharded(tmp_path)
    new, golden = (read.read_checkpoint(folder / FOLDERS[-1]) for folder in (tmp_path, FOLDER))
    assert set(golden) <= set(new) and set(golden["bolide"]) <= set(new["bolide"])
    old_names, names = (set(sharded.contents_of(str(folder / FOLDERS[-1])).tensors) for folder in (FOLDER, tmp_path))
    assert old_names == names


def test_the_present_version_writes_such_files(tmp_path: Path) -> None:
    main(tmp_path)
    for path in tmp_path.glob("format_*.ckpt"):
        new, golden = read_checkpoint(path), read_checkpoint(FOLDER / path.name)
        assert set(golden) <= set(new) and set(golden.get("bolide", {})) <= set(new.get("bolide", {}))

"""Files of every format version that was ever written are read, and gone on from."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
import torch

from bolide.checkpoint.digest import FORMAT
from bolide.checkpoint.file import manifest_at, read_checkpoint, verify_checkpoint
from tests.golden.make import FOLDER, Golden, loader, main, trainer

WHOLE = sorted(path.name for path in FOLDER.glob("format_*.ckpt") if "weights" not in path.name)


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


def test_the_present_version_writes_such_files(tmp_path: Path) -> None:
    main(tmp_path)
    for path in tmp_path.glob("format_*.ckpt"):
        new, golden = read_checkpoint(path), read_checkpoint(FOLDER / path.name)
        assert set(golden) <= set(new) and set(golden.get("bolide", {})) <= set(new.get("bolide", {}))

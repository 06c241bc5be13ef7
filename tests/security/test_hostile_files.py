"""Files made to do harm: none runs anything, none names what is imported, each is refused soon and within bounds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import bolide
from bolide.core.errors import CheckpointError, MisconfigurationException

from .hostile import hostile_files

READER = r"""
import json, os, resource, sys, time, warnings
warnings.simplefilter("ignore")
import torch
from bolide.checkpoint.file import read_checkpoint, verify_checkpoint
from bolide.checkpoint.store import newest_valid
from bolide.core.errors import CheckpointError

# what the first file of each kind makes torch import is no event of the hostile ones
torch.save({"a": torch.zeros(1)}, "zip.ckpt")
torch.save({"a": torch.zeros(1)}, "old.ckpt", _use_new_zipfile_serialization=False)
for path in ("zip.ckpt", "old.ckpt"):
    read_checkpoint(path), read_checkpoint(path, mmap=path == "zip.ckpt"), verify_checkpoint(path)
open("evil.ckpt", "wb").write(b"PK")
try:
    read_checkpoint("evil.ckpt")
except CheckpointError:
    pass

WATCHED = ("pickle.find_class", "exec", "import", "marshal", "os.system", "os.exec", "os.fork", "os.posix_spawn",
           "os.remove", "os.rmdir", "shutil.", "subprocess.", "socket.", "urllib.", "webbrowser.", "ctypes.", "code.")
seen, watching = [], False

def hook(event, arguments):
    if watching and event.startswith(WATCHED):
        seen.append([event, str(arguments)[:200]])

sys.addaudithook(hook)
report = {}
for name in sorted(os.listdir("hostile")):
    path = os.path.join("hostile", name)
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start_s = time.process_time()
    modules = set(sys.modules)
    watching = True
    try:
        read_checkpoint(path)
        outcome = "accepted"
    except CheckpointError:
        outcome = "refused"
    except BaseException as error:
        outcome = f"{type(error).__name__}: {error}"[:300]
    watching = False
    report[name] = {
        "outcome": outcome, "seen": list(seen), "imported": sorted(set(sys.modules) - modules),
        "cpu_s": time.process_time() - start_s,
        "grown_mb": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb) / 1024,
    }
    seen.clear()
print(json.dumps(report))
"""

CANARY = "open('pwned', 'w').close()\ndef boom(*a, **k): open('pwned', 'w').close()\nBoom = boom\n"


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """What a process of its own, under an audit hook, made of each file."""
    folder = tmp_path_factory.mktemp("hostile")
    (folder / "hostile").mkdir()
    (folder / "bolide_canary.py").write_text(CANARY)
    (folder / "keep").mkdir()
    for name, data in hostile_files().items():
        (folder / "hostile" / f"{name.replace('/', ' ')}.ckpt").write_bytes(data)
    done = subprocess.run(
        [sys.executable, "-c", READER], cwd=folder, capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return folder, json.loads(done.stdout.splitlines()[-1])


def test_there_are_many_kinds(outcomes: tuple[Path, dict[str, Any]]) -> None:
    assert len(outcomes[1]) >= 80


def test_all_are_refused_by_a_checkpoint_error(outcomes: tuple[Path, dict[str, Any]]) -> None:
    other = {name: found["outcome"] for name, found in outcomes[1].items() if found["outcome"] != "refused"}
    assert other == {}


def test_nothing_runs_and_nothing_is_imported(outcomes: tuple[Path, dict[str, Any]]) -> None:
    folder, found = outcomes
    assert {name: one["seen"] for name, one in found.items() if one["seen"]} == {}
    assert {name: one["imported"] for name, one in found.items() if one["imported"]} == {}
    assert not (folder / "pwned").exists() and (folder / "keep").is_dir()


def test_each_is_refused_within_bounds(outcomes: tuple[Path, dict[str, Any]]) -> None:
    slow = {name: one["cpu_s"] for name, one in outcomes[1].items() if one["cpu_s"] > 2}
    large = {name: one["grown_mb"] for name, one in outcomes[1].items() if one["grown_mb"] > 256}
    assert slow == {} and large == {}


# ---- names in plain data that other programs would import


class Model(bolide.LightningModule):
    def __init__(self, size: int = 2, net: Any = None, **kwargs: Any) -> None:
        super().__init__()
        self.given = {"size": size, "net": net, **kwargs}


NAMES: dict[str, dict[str, Any]] = {
    "instantiator": {"_instantiator": "bolide_canary.boom", "size": 3},
    "instantiator of the standard library": {"_instantiator": "os.system", "size": 3},
    "lightning's instantiator with class paths": {
        "_instantiator": "lightning.pytorch.cli.instantiate_module",
        "net": {"class_path": "bolide_canary.Boom", "init_args": {}},
    },
    "hydra's target": {"net": {"_target_": "bolide_canary.boom", "x": 1}},
    "a class path": {"net": {"class_path": "bolide_canary.Boom", "init_args": {"x": 1}}},
    "a target at the top": {"_target_": "bolide_canary.boom"},
    "a class attribute": {"__class__": "bolide_canary.Boom", "size": 3},
}


@pytest.mark.parametrize("case", NAMES)
def test_a_name_in_hyperparameters_is_only_text(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bolide_canary.py").write_text(CANARY)
    monkeypatch.syspath_prepend(str(tmp_path))
    torch.save({"state_dict": {}, "hyper_parameters": NAMES[case], "hparams_name": "kwargs"}, tmp_path / "a.ckpt")
    try:
        model = Model.load_from_checkpoint(tmp_path / "a.ckpt")
        assert model.given.get("net") == NAMES[case].get("net")
    except CheckpointError as error:
        assert "imported" in str(error) or "called" in str(error)
    assert "bolide_canary" not in sys.modules and not Path("pwned").exists()


@pytest.mark.parametrize("key", ["hparams_name", "datamodule_hparams_name", "loops", "callbacks", "optimizer_states"])
def test_a_name_elsewhere_is_only_text(key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bolide_canary.py").write_text(CANARY)
    monkeypatch.syspath_prepend(str(tmp_path))
    value: Any = "bolide_canary.boom" if key.endswith("name") else {"bolide_canary.boom": {"_target_": "os.system"}}
    torch.save({"state_dict": {}, "hyper_parameters": {"size": 3}, key: value}, tmp_path / "a.ckpt")
    assert Model.load_from_checkpoint(tmp_path / "a.ckpt").given["size"] == 3
    assert "bolide_canary" not in sys.modules


# ---- what is no regular file


def test_a_pipe_and_a_device_are_refused_at_once(tmp_path: Path) -> None:
    import os

    os.mkfifo(tmp_path / "pipe.ckpt")
    for path in (tmp_path / "pipe.ckpt", Path("/dev/zero")):
        with pytest.raises(MisconfigurationException, match="not a regular file"):
            bolide.checkpoint.file.read_checkpoint(path)

from __future__ import annotations

import argparse
import collections
import datetime
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bolide.checkpoint.convert import convert, main, needed, plain_content, refused
from bolide.checkpoint.file import read_checkpoint, verify_checkpoint
from bolide.core.errors import CheckpointError, ConfigError


class Evil:
    def __reduce__(self) -> Any:
        return os.system, ("touch pwned",)


@pytest.fixture
def old(tmp_path: Path) -> str:
    content = {
        "state_dict": {"w": torch.ones(3)},
        "global_step": 3,
        "hyper_parameters": {
            "space": argparse.Namespace(x=1), "path": Path("/a/b"), "scalar": np.float64(2.5), "array": np.arange(3),
            "counts": collections.defaultdict(int, {"a": 1}),
        },
        "callbacks": {"timer": {"wait": datetime.timedelta(1)}, "fine": {"n": 1}},
    }  # fmt: skip
    torch.save(content, tmp_path / "old.ckpt")
    return str(tmp_path / "old.ckpt")


def test_what_is_needed_is_listed_without_importing_it(tmp_path: Path) -> None:
    from tests.security.hostile import Call, archived, pickled

    (tmp_path / "a.ckpt").write_bytes(archived(pickled({"x": Call("no_such_module.thing"), "y": Call("os.system")})))
    assert needed(str(tmp_path / "a.ckpt")) == ["no_such_module.thing", "os.system"]
    assert "no_such_module" not in sys.modules


def test_nothing_is_converted_before_all_of_it_is_trusted(old: str, tmp_path: Path) -> None:
    names = needed(old)
    assert {"argparse.Namespace", "pathlib.PosixPath", "numpy.dtype", "collections.defaultdict"} <= set(names)
    with pytest.raises(CheckpointError, match=r"not trusted: argparse\.Namespace.*--trust pathlib\.PosixPath"):
        convert(old, str(tmp_path / "new.ckpt"), ["pathlib.PosixPath"])
    assert os.listdir(tmp_path) == ["old.ckpt"]


def test_an_old_file_becomes_plain(old: str, tmp_path: Path) -> None:
    new = str(tmp_path / "new.ckpt")
    assert convert(old, new, needed(old)) == ["callbacks.timer.wait (timedelta)"]
    assert verify_checkpoint(new).by == "sha256"
    loaded = read_checkpoint(new)
    hparams = loaded["hyper_parameters"]
    assert torch.equal(loaded["state_dict"]["w"], torch.ones(3)) and loaded["global_step"] == 3
    assert torch.equal(hparams.pop("array"), torch.arange(3))
    assert hparams == {"space": {"x": 1}, "path": "/a/b", "scalar": 2.5, "counts": {"a": 1}}
    assert loaded["callbacks"] == {"fine": {"n": 1}}
    with pytest.raises(ConfigError, match="is there already"):
        convert(old, new, needed(old))


def test_code_is_run_for_nobody(tmp_path: Path) -> None:
    torch.save({"x": Evil()}, tmp_path / "evil.ckpt")
    path = str(tmp_path / "evil.ckpt")
    names = needed(path)
    assert refused(names) == names == ["posix.system"]
    with pytest.raises(ConfigError, match=r"posix\.system.*never run"):
        convert(path, str(tmp_path / "new.ckpt"), names)
    assert os.listdir(tmp_path) == ["evil.ckpt"]


@pytest.mark.parametrize(
    "name", ["os.system", "builtins.eval", "builtins.getattr", "subprocess.Popen", "functools.partial", "pickle.loads"]
)
def test_names_that_nobody_may_trust(name: str) -> None:
    assert refused([name]) == [name]


def test_the_process_sees_nothing_of_the_environment(old: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}

    def run(command: list[str], **kwargs: Any) -> Any:
        seen.update(kwargs, command=command)
        return subprocess.CompletedProcess(command, 0, '{"left_out": []}\n', "")

    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "canary")
    monkeypatch.setattr(subprocess, "run", run)
    convert(old, str(tmp_path / "new.ckpt"), needed(old))
    assert "canary" not in repr(seen) and set(seen["env"]) == {
        "PATH", "PYTHONPATH", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "LANG",
    }  # fmt: skip
    assert seen["command"][0] == sys.executable and "shell" not in seen and seen["timeout"] > 0


def test_the_process_itself_names_what_it_cannot_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({"x": argparse.Namespace()}, tmp_path / "a.ckpt")
    for name, text in (("no_such_module.Thing", "cannot be imported here"), ("os.system", "never run for a file")):
        with pytest.raises(SystemExit) as end:
            main([str(tmp_path / "a.ckpt"), str(tmp_path / "b.ckpt"), name])
        assert end.value.code == 1
        assert name in (told := json.loads(capsys.readouterr().out)["error"]) and text in told
    assert os.listdir(tmp_path) == ["a.ckpt"]


def test_what_is_no_plain_data_is_left_out_and_named() -> None:
    plain, left_out = plain_content(
        {"hyper_parameters": {"net": torch.nn.Linear(1, 1), "lr": 0.1}, "callbacks": {"a": object()}, "n": 1}
    )
    assert plain["hyper_parameters"] == {"lr": 0.1} and plain["n"] == 1
    assert left_out == ["hyper_parameters.net (Linear)", "callbacks.a (object)"]
    with pytest.raises(CheckpointError, match="list"):
        plain_content([1])

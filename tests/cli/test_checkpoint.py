"""`bolide checkpoint`: what is printed, and the exit codes."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest
import torch

from bolide.checkpoint.file import write_checkpoint
from bolide.checkpoint.parts import share_of_this_rank
from bolide.checkpoint.sharded_write import write_folder
from bolide.cli.main import main

STATE: dict[str, Any] = {
    "epoch": 3,
    "global_step": 12,
    "pytorch-lightning_version": "2.6.6",
    "state_dict": {"net.weight": torch.zeros(4, 2), "net.bias": torch.zeros(4, dtype=torch.bfloat16)},
    "optimizer_states": [{"state": {0: {"exp_avg": torch.zeros(4, 2)}}, "param_groups": []}],
    "hyper_parameters": {"lr": 0.125, "note": "not for everybody"},
    "bolide": {"format": 1, "run_id": "r7", "fingerprint": {"torch": "2.13.0", "threads": 2}},
}


@pytest.fixture
def path(tmp_path: Path) -> str:
    write_checkpoint(STATE, tmp_path / "a.ckpt")
    return str(tmp_path / "a.ckpt")


def bolide(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(["checkpoint", *arguments])
    out, err = capsys.readouterr()
    return code, out, err


def test_inspect(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = bolide(capsys, "inspect", path)
    assert code == 0
    lines = {line.strip().split("  ")[0]: line for line in out.splitlines() if line}
    assert "SHA-256" in lines["whole"] and lines["epoch"].endswith(" 3") and lines["step"].endswith(" 12")
    assert lines["run"].endswith("r7") and lines["to resume"].endswith("yes") and lines["format"].endswith(" 1")
    assert "hyperparameters: lr, note" in out and "torch=2.13.0, threads=2" in out
    assert "float32   (4, 2)               32 B" in lines["net.weight"] and "bfloat16" in lines["net.bias"]
    assert "1 tensors, 32 B" in lines["optimizer_states"]
    assert "not for everybody" not in out and "0.125" not in out


def test_inspect_shows_no_control_characters(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_checkpoint({"state_dict": {"a\x1b[2J": torch.zeros(1)}, "k\r\n": 1}, tmp_path / "a.ckpt")
    code, out, _ = bolide(capsys, "inspect", str(tmp_path / "a.ckpt"))
    assert code == 0 and "\x1b" not in out and "\r" not in out and "a\\x1b[2J" in out


def test_verify(path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({"a": 1}, tmp_path / "torch.ckpt")
    assert bolide(capsys, "verify", path)[0] == 0
    code, out, _ = bolide(capsys, "verify", path, str(tmp_path / "torch.ckpt"))
    assert code == 0 and "step 12" in out and "CRC-32 only" in out
    data = bytearray(Path(path).read_bytes())
    data[len(data) // 2] ^= 1
    (tmp_path / "bad.ckpt").write_bytes(data)
    code, out, _ = bolide(capsys, "verify", path, str(tmp_path / "bad.ckpt"), str(tmp_path / "none.ckpt"))
    assert code == 1
    assert [line.split()[0] for line in out.splitlines()] == ["whole", "DAMAGED", "FAILED"]
    code, _, err = bolide(capsys, "inspect", str(tmp_path / "bad.ckpt"))
    assert code == 1 and "damaged" in err


def test_convert(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = str(tmp_path / "old.ckpt"), str(tmp_path / "new.ckpt")
    torch.save({"state_dict": {}, "hyper_parameters": {"a": argparse.Namespace(x=1)}}, old)
    code, out, _ = bolide(capsys, "convert", old, new)
    assert code == 1 and f"bolide checkpoint convert {old} {new} --trust argparse.Namespace" in out
    assert not Path(new).exists()
    asked: list[Any] = []
    monkeypatch.setattr("bolide.checkpoint.convert.convert", lambda *a: asked.append(a) or ["callbacks.x (timedelta)"])
    code, out, _ = bolide(capsys, "convert", old, new, "--trust", "argparse.Namespace")
    assert code == 0 and out == f"left out: callbacks.x (timedelta)\nwrote {new}\n"
    assert asked == [(old, new, ["argparse.Namespace"])]


def test_convert_refuses_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from tests.security.hostile import Call, archived, pickled

    (tmp_path / "evil.ckpt").write_bytes(archived(pickled({"x": Call("os.system", "touch pwned")})))
    code, _, err = bolide(capsys, "convert", str(tmp_path / "evil.ckpt"), "new.ckpt", "--trust", "os.system")
    assert code == 1 and "never run: os.system. Do not load this file" in err


def test_weights(path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    shared = torch.arange(6.0).reshape(2, 3)
    write_checkpoint({"state_dict": {"a": shared, "b": shared.T, "n": 3}, "global_step": 7}, tmp_path / "b.ckpt")
    out_path = tmp_path / "w.safetensors"
    code, out, err = bolide(capsys, "weights", str(tmp_path / "b.ckpt"), str(out_path))
    assert code == 0 and "2 tensors" in out and "left out: n" in err
    loaded = safetensors.load_file(out_path)
    assert torch.equal(loaded["a"], shared) and torch.equal(loaded["b"], shared.T)
    assert bolide(capsys, "weights", path, str(out_path))[0] == 1  # there already
    write_checkpoint({"epoch": 1}, tmp_path / "none.ckpt")
    assert bolide(capsys, "weights", str(tmp_path / "none.ckpt"), str(tmp_path / "x"))[0] == 1


def test_weights_without_the_package(path: str, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    code, _, err = bolide(capsys, "weights", path, "w.safetensors")
    assert code == 1 and 'pip install "bolide[safetensors]"' in err


def test_an_action_is_needed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["checkpoint"])
    assert end.value.code == 2 and "ACTION" in capsys.readouterr().err


def test_a_folder_of_shards(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(tmp_path / "s.ckpt")
    write_folder(share_of_this_rank(STATE), folder)
    code, out, _ = bolide(capsys, "verify", folder)
    assert code == 0 and "in 1 shards, step 12" in out
    code, out, _ = bolide(capsys, "inspect", folder)
    assert (
        code == 0 and "folder      " in out and "shards      1" in out and "float32   (4, 2)               32 B" in out
    )
    code, out, _ = bolide(capsys, "consolidate", folder)
    assert code == 0 and "s.consolidated.ckpt" in out
    assert torch.load(tmp_path / "s.consolidated.ckpt", weights_only=True)["global_step"] == 12
    code, _, err = bolide(capsys, "consolidate", folder)
    assert code != 0 and "is there already" in err
    code, _, _ = bolide(capsys, "weights", folder, str(tmp_path / "w.safetensors"))
    assert code == 0
    shard = next((tmp_path / "s.ckpt").glob("rank_*"))
    shard.write_bytes(b"x" * shard.stat().st_size)
    code, out, _ = bolide(capsys, "verify", folder)
    assert code == 1 and "DAMAGED" in out and shard.name in out
    code, _, err = bolide(capsys, "consolidate", folder, str(tmp_path / "o.ckpt"))
    assert code != 0 and shard.name in err and not (tmp_path / "o.ckpt").exists()

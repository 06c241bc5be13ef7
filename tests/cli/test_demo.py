"""`bolide demo`: what it prints, what it writes, and how it stops and goes on. Each in a process of its own."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from bolide.cli.demo import count_code_lines, example_path, load_example, resume_command, user_code
from bolide.cli.main import main

pytest.importorskip("sklearn")
COMMAND = [sys.executable, "-u", "-m", "bolide.cli.main", "demo"]


def run_demo(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *options], capture_output=True, text=True, timeout=100, check=False)


def test_it_trains_prints_and_writes(tmp_path):
    done = run_demo("--epochs", "2", "--out", "out")
    assert done.returncode == 0, done.stderr
    for epoch in (0, 1):
        assert re.search(rf"epoch  {epoch}   validation accuracy 0\.\d{{4}}", done.stdout)
    accuracy = float(re.search(r"test accuracy +(\d\.\d+)", done.stdout)[1])
    assert accuracy > 0.8  # two epochs only
    code = user_code(example_path("digits.py").read_text())
    assert "The 25 lines of" in done.stdout and code in done.stdout
    for what in ("best checkpoint", "last checkpoint", "logs"):
        path = Path(re.search(rf"{what} +(\S+)", done.stdout)[1])
        assert path.exists() and tmp_path in path.resolve().parents


def test_ctrl_c_saves_and_resume_goes_on():
    with subprocess.Popen(
        [*COMMAND, "--epochs", "400", "--out", "out"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        seen = ""
        for line in process.stdout:
            seen += line
            if "epoch  1   validation" in line:
                process.send_signal(signal.SIGINT)
                break
        seen += process.stdout.read()
        assert process.wait(timeout=60) == 130, seen
    assert "Traceback" not in seen
    path = Path("out/interrupted.ckpt")
    saved = torch.load(path, weights_only=True)
    assert saved["epoch"] >= 2
    assert f"to go on: bolide demo --resume {path} --epochs 400 --out out" in seen

    epochs = saved["epoch"] + 2
    done = run_demo("--resume", str(path), "--epochs", str(epochs), "--out", "out")
    assert done.returncode == 0, done.stderr
    told = [int(number) for number in re.findall(r"epoch +(\d+)   validation", done.stdout)]
    assert told == list(range(saved["epoch"], epochs))


def test_a_missing_checkpoint_is_told_in_a_line():
    done = run_demo("--resume", "nowhere.ckpt")
    assert done.returncode == 1
    assert done.stderr.strip() == "bolide demo: error: --resume nowhere.ckpt: there is no such checkpoint."


def test_without_scikit_learn_the_message_says_what_to_write(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    assert main(["demo"]) == 1
    assert "pip install scikit-learn" in capsys.readouterr().err


def test_the_example_has_the_25_lines_that_are_promised():
    source = example_path("digits.py").read_text()
    code = user_code(source)
    assert count_code_lines(code) == 25
    assert code.startswith("class Digits") and code.endswith('ckpt_path="best")')


def test_the_example_is_found_in_an_installed_package(monkeypatch, tmp_path):
    installed = tmp_path / "site-packages" / "bolide" / "cli" / "demo.py"
    monkeypatch.setattr("bolide.cli.demo.__file__", str(installed))
    assert example_path("digits.py") == tmp_path.resolve() / "site-packages" / "bolide" / "_examples" / "digits.py"


def test_the_command_to_go_on_survives_a_shell():
    assert resume_command(3, "my runs", Path("my runs/x.ckpt")) == (
        "bolide demo --resume 'my runs/x.ckpt' --epochs 3 --out 'my runs'"
    )


def test_an_example_is_loaded_as_a_module(tmp_path):
    path = tmp_path / "small.py"
    path.write_text("answer = 42")
    assert load_example(path).answer == 42

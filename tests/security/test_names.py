"""Names that try to leave their folder, as file names of checkpoints and as names of metrics within them."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import bolide
from bolide.callbacks import ModelCheckpoint
from bolide.checkpoint import io
from bolide.core.errors import ConfigError, MisconfigurationException
from bolide.core.text import printable
from bolide.demos.boring_classes import BoringModel
from bolide.loggers import CSVLogger

NAMES = [
    "..", "../x", "../../x", "a/../../x", "a/..", "./../x", "/etc/passwd", "/x", "//x", "///x", "\\x", "..\\x",
    "a\\..\\..\\x", "C:\\x", "\\\\host\\share", "~/x", "~root/x", "$HOME/x", "%HOME%", "${HOME}", "a\x00b", "\x00",
    "a\nb", "a\rb", "a\tb", "\x1b[2Jx", "a\x7fb", "file:///etc/x", "s3://bucket/x", "http://host/x", "memory://x",
    "x" * 300, "../" * 40 + "x", ".", "...", ". .", " ", "", "a/./../../x", "a//../../x", "..%2fx", "%2e%2e/x",
    "\u2025/x", "\uff0e\uff0e/x", "a\u202eb", "\ufeffx", "con", "nul.", "-rf", "--help", ";touch pwned", "|x", "`x`",
    "$(x)", "a b", "*", "?", "'", '"', "<x>", "last", ".hidden", "quarantine/x", "a/b/c/d/e/f",
]  # fmt: skip


def test_there_are_sixty() -> None:
    assert len(set(NAMES)) >= 60


def below(path: str, folder: Path) -> bool:
    real = os.path.realpath(path)
    return real.startswith(f"{os.path.realpath(folder)}{os.sep}") and not re.search(r"[\x00-\x1f\x7f]", path)


@pytest.mark.parametrize("name", NAMES)
def test_a_file_name_stays_in_its_folder(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    try:
        path = ModelCheckpoint(dirpath=folder, filename=name).format_checkpoint_name({})
    except (ConfigError, MisconfigurationException):
        return
    assert below(path, folder)


@pytest.mark.parametrize("name", [name for name in NAMES if "{" not in name])
@pytest.mark.parametrize("template", ["{%s}", "{%s:.2f}", "x-{%s}", "{epoch}-{%s}"])
def test_a_metrics_name_stays_in_its_folder(name: str, template: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    try:
        callback = ModelCheckpoint(dirpath=folder, filename=template % name, monitor=name)
        path = callback.format_checkpoint_name({name: torch.tensor(1.0), "epoch": 1})
    except (ConfigError, MisconfigurationException):
        return
    assert below(path, folder)


def test_what_a_fit_writes_and_deletes_stays_in_its_folder(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    keep = tmp_path / "outside" / "keep.ckpt"
    keep.write_text("keep")
    folder = tmp_path / "outside" / "run"

    class Model(BoringModel):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            out = super().training_step(batch, batch_idx)
            for name in ("a/b", "../keep", "x\x1b[2J", "s p a c e"):
                self.log(name, out["loss"])
            return out

    before = set(tmp_path.rglob("*"))
    for name in ("a/b", "../keep", "x\x1b[2J", "s p a c e"):
        try:
            callback = ModelCheckpoint(
                dirpath=folder, filename=f"{{{name}:.2f}}", monitor=name, every_n_train_steps=1, save_top_k=1
            )
        except ConfigError:
            continue
        trainer = bolide.Trainer(
            max_steps=3, callbacks=callback, logger=False, enable_progress_bar=False, enable_model_summary=False,
            limit_val_batches=0, accelerator="cpu",
        )  # fmt: skip
        try:
            trainer.fit(Model())
        except ConfigError:
            continue
    new = set(tmp_path.rglob("*")) - before
    assert any(path.suffix == ".ckpt" for path in new)
    assert all(folder in (path, *path.parents) for path in new)
    assert keep.read_text() == "keep"


def test_a_planted_link_is_replaced_and_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_text("precious")
    (tmp_path / "a.ckpt").symlink_to(target)
    io.write_atomically(tmp_path / "a.ckpt", lambda file: file.write(b"new"))
    assert target.read_text() == "precious" and not (tmp_path / "a.ckpt").is_symlink()


# ---- control characters


@pytest.mark.parametrize("text", ["a", "val/loss", "übung", "日本", "a b", "loss 🙂", ""])
def test_ordinary_names_are_printed_as_they_are(text: str) -> None:
    assert printable(text) == text


@pytest.mark.parametrize(
    "text", ["\x1b[2J", "a\nb", "\r", "\x00", "\x9b31m", "a\u202eb", "\u2028", "\x7f", "\ud800", "\u200b", "\x07"]
)
def test_control_characters_are_written_as_escapes(text: str) -> None:
    shown = printable(text)
    assert shown.isprintable() and "\\" in shown
    assert shown.encode("utf-8")


def test_a_metrics_name_breaks_no_row_of_the_csv(tmp_path: Path) -> None:
    logger = CSVLogger(tmp_path, name="", version="v")
    logger.log_metrics({"a\nb,c\x1b[2J": 1.0, "loss": 2.0}, step=0)
    logger.save()
    text = (tmp_path / "v" / "metrics.csv").read_text()
    assert "\x1b" not in text and len(text.splitlines()) == 2 and '"a\\nb,c\\x1b[2J"' in text

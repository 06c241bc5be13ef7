"""`skip_memory_metrics=False`: the memory of each part, by the names and in the places of transformers."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import pytest

import bolide.transformers as ours
from bolide.core.errors import ConfigError
from tests.transformers.models import Net, points
from tests.transformers.scripts import arguments

theirs = pytest.importorskip("transformers")
pytest.importorskip("psutil")
MIB = 1 << 20
HELD: list[Any] = []


def trainer(door: Any, out: Any, **more: Any) -> Any:
    args = arguments(door, str(out), max_steps=4, skip_memory_metrics=False, eval_strategy="steps", eval_steps=2)
    return door.Trainer(Net(), args, train_dataset=points(16), eval_dataset=points(4), **more)


def test_names_and_places(tmp_path):
    def names(door, out):
        first, second = trainer(door, out), trainer(door, out)
        found = [first.evaluate(), first.train().metrics, first.evaluate(), first.predict(points(4)).metrics,
                 second.train().metrics, *first.state.log_history]  # fmt: skip
        return [sorted({*row} - {"total_flos"}) for row in found]  # its PrinterCallback takes that out

    assert names(ours, tmp_path / "a") == names(theirs, tmp_path / "b")


def test_what_is_held_and_what_was_needed(tmp_path):
    def holds(prediction):
        HELD.append(np.ones(64 * MIB // 8))  # 64 MiB that stay
        needed = np.ones(96 * MIB // 8)
        return {"sum": float(needed[:2].sum())}

    try:
        found = trainer(ours, tmp_path, compute_metrics=holds).evaluate()
    finally:
        HELD.clear()
    assert 60 * MIB < found["eval_mem_cpu_alloc_delta"] < 90 * MIB
    assert found["before_init_mem_cpu"] > 60 * MIB
    plain = ours.Trainer(Net(), arguments(ours, str(tmp_path)), eval_dataset=points(4)).evaluate()
    assert not any("_mem_" in name for name in plain)


def test_a_part_that_ended_in_an_error_is_over(tmp_path):
    made = trainer(ours, tmp_path)
    made.compute_metrics = lambda prediction: 1 / 0
    with pytest.raises(ZeroDivisionError):
        made.evaluate()
    made.compute_metrics = None
    assert made.evaluate()["eval_mem_cpu_alloc_delta"] < 32 * MIB
    assert "train_mem_cpu_alloc_delta" in made.train().metrics


def test_without_psutil(tmp_path, monkeypatch):
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name == "psutil" else real(name, *more)
    )
    with pytest.raises(ConfigError, match="needs the package 'psutil'.*pip install psutil"):
        ours.TrainingArguments(str(tmp_path), skip_memory_metrics=False)

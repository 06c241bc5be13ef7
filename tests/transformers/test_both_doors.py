"""The same script under transformers and under Bolide: the same weights, log lines and results, to 1e-6."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

import bolide.transformers as ours
from tests.transformers.scripts import SCRIPTS

theirs = pytest.importorskip("transformers")
CLOCKS = ("runtime", "per_second", "preparation_time")
"""Log keys whose values are times."""


def result(door: Any, name: str, out: str) -> dict[str, Any]:
    torch.manual_seed(0)
    found = SCRIPTS[name](door, out)
    trainer, more = found if isinstance(found, tuple) else (found, None)
    return {
        "weights": {k: v.detach().clone() for k, v in trainer.model.state_dict().items()},
        "log": trainer.state.log_history,
        "steps": trainer.state.global_step,
        "epoch": trainer.state.epoch,
        "more": more,
    }


def differences(a: Any, b: Any, path: str = "") -> list[str]:
    if isinstance(a, dict) and isinstance(b, dict):
        keys = [*a, *(key for key in b if key not in a)]
        missing = [f"{path}/{key}: only in one" for key in keys if key not in a or key not in b]
        return missing + [
            line for key in keys if key in a and key in b and not any(word in str(key) for word in CLOCKS)
            for line in differences(a[key], b[key], f"{path}/{key}")
        ]  # fmt: skip
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        if len(a) != len(b):
            return [f"{path}: {len(a)} and {len(b)} entries: {a} / {b}"]
        return [line for i, (x, y) in enumerate(zip(a, b, strict=True)) for line in differences(x, y, f"{path}[{i}]")]
    if isinstance(a, (torch.Tensor, np.ndarray)):
        x, y = torch.as_tensor(a), torch.as_tensor(b)
        same = x.shape == y.shape and torch.allclose(x.double(), y.double(), rtol=1e-6, atol=1e-6)
        return [] if same else [f"{path}: {x.flatten()[:4].tolist()} / {y.flatten()[:4].tolist()}"]
    if isinstance(a, (float, int)) and isinstance(b, (float, int)):
        return [] if math.isclose(a, b, rel_tol=2e-6, abs_tol=1e-6) else [f"{path}: {a} / {b}"]
    return [] if a == b else [f"{path}: {a!r} / {b!r}"]


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_same_under_both(name, tmp_path):
    expected = result(theirs, name, str(tmp_path / "theirs"))
    found = result(ours, name, str(tmp_path / "ours"))
    assert found["log"], "nothing was logged"
    assert differences(expected, found) == []

"""The comparison itself notices each kind of difference."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from .compare import differences
from .recording import Record


def _recording() -> Record:
    record = Record(torch, "plain", Path())  # any module will do: nothing is built with it
    record.note("module.on_train_start()")
    record.metrics.append(("logger", 0, {"loss": 0.5, "epoch": 0}))
    record.modules.append(torch.nn.Linear(2, 1, bias=False))
    torch.nn.init.ones_(record.modules[0].weight)
    record.value("returned", [torch.tensor([1.0]), {"a": 1.0, "b": "text"}])
    return record


@pytest.mark.parametrize(
    "change",
    [
        lambda record: record.note("module.on_train_end()"),
        lambda record: record.trace.__setitem__(0, "module.on_train_start() [step 1]"),
        lambda record: record.metrics.append(("logger", 1, {})),
        lambda record: record.metrics.__setitem__(0, ("logger", 1, {"loss": 0.5, "epoch": 0})),
        lambda record: record.metrics.__setitem__(0, ("logger", 0, {"loss": 0.5 * (1 + 1e-5), "epoch": 0})),
        lambda record: record.metrics.__setitem__(0, ("logger", 0, {"loss": 0.5})),
        lambda record: record.metrics.__setitem__(0, ("logger", 0, {"loss": torch.tensor(0.5), "epoch": 0})),
        lambda record: record.modules[0].weight.data.mul_(1 + 2**-23),
        lambda record: record.modules.pop(),
        lambda record: record.values["returned"][0].add_(2**-23),
        lambda record: record.values["returned"][1].update(b="other"),
        lambda record: record.value("more", 1),
    ],
)
def test_a_change_is_noticed(change: Callable[[Record], object]) -> None:
    changed = _recording()
    change(changed)
    assert not differences(_recording(), _recording())
    assert len(differences(_recording(), changed)) == 1


def test_values_within_the_tolerance_are_equal() -> None:
    changed = _recording()
    changed.metrics[0] = ("logger", 0, {"epoch": 0, "loss": 0.5 * (1 + 1e-7)})
    assert not differences(_recording(), changed)

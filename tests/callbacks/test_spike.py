from __future__ import annotations

import json
import random

import pytest
import torch

from bolide.callbacks import SpikeDetection
from bolide.callbacks.spike import TrainingSpikeException
from bolide.core.errors import ConfigError
from tests.callbacks.support import NAN, Scored, fit


class Losses(Scored):
    """The losses are what a test says; the weight counts the updates."""

    def __init__(self, losses):
        super().__init__()
        self.losses = losses

    def training_step(self, batch, batch_idx):
        return (self.w - self.w.detach()).sum() + self.losses[batch_idx]


def run(losses, guard):
    module = Losses(losses)
    try:
        fit(guard, module=module, train=len(losses), val=0, max_epochs=1)
    except TrainingSpikeException as error:
        return error, -module.w.item()
    return None, -module.w.item()


@pytest.mark.parametrize(
    ("losses", "settings", "spike"),
    [
        ([1.0] * 5 + [10.0], {}, 5),
        ([1.0] * 12 + [10.0], {}, 12),
        ([1.0] * 3 + [2.9, 1.0], {}, None),
        ([1.0] * 3 + [3.1, 1.0], {}, 3),
        ([1.0] * 3 + [-10.0, 1.0], {}, None),
        ([1.0] * 3 + [-10.0, 1.0], {"mode": "max"}, 3),
        ([1.0] * 3 + [NAN, 1.0], {}, 3),
        ([1.0] * 3 + [NAN, 1.0], {"finite_only": False}, None),
        ([1.0, 10.0, 1.0], {}, 1),
        ([1.0] * 3 + [1.5], {"atol": 0.4, "rtol": None}, 3),
        ([1.0] * 3 + [1.5], {"atol": 1.4, "rtol": 0.3}, None),
        ([1.0] * 3 + [1.35], {"atol": 0.3, "rtol": 0.3}, 3),
        ([1.0, 2.0, 4.0, 8.0, 16.0], {}, 3),
        ([1.0, 50.0, 1.0, 1.0], {"warmup": 2}, None),
        ([100.0, 1.0, 1.0, 40.0], {"window": 2}, 3),
    ],
)
def test_what_is_a_spike(tmp_path, losses, settings, spike):
    # measured on Lightning 2.6.6, except that it steps before it raises
    error, updates = run(losses, SpikeDetection(exclude_batches_path=tmp_path, **settings))
    if spike is None:
        assert error is None and updates == len(losses)
        return
    assert error is not None and error.batch_idx == spike and updates == spike
    assert json.loads((tmp_path / "skip_batches.json").read_text()) == [spike - 1, spike]


def test_the_median_is_not_moved_by_what_it_should_find():
    guard = SpikeDetection(rtol=None, z=4.0)
    losses = [1.0, 1.1, 0.9, 1.05, 0.95, 1.0, 1.1, 0.9]
    sigma = 1.4826 * 0.075  # the deviations from 1.0 are 0, .1, .1, .05, .05, 0, .1, .1: their median is .075
    assert not guard.is_spike(1.0 + 3.99 * sigma, losses)
    assert guard.is_spike(1.0 + 4.01 * sigma, losses)
    assert guard.is_spike(1.6, [*losses, 9.0]) is False  # one spike in the window lifts the mean above 1.6 ...
    assert guard.is_spike(2.5, [*losses, 9.0])  # ... and neither median by much
    assert guard.is_spike(1.01, [1.0] * 5) and not guard.is_spike(0.5, [1.0] * 5)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_noise_is_no_spike_and_a_jump_is_one(seed):
    draw = random.Random(seed)
    guard = SpikeDetection(rtol=None, z=8.0, window=64, warmup=32, policy="skip", max=None)
    guard._losses.extend(2.0 + 0.1 * draw.gauss(0, 1) for _ in range(64))
    guard._seen = 64
    for i in range(2000):
        loss = torch.tensor(2.0 - i * 5e-4 + 0.1 * draw.gauss(0, 1))
        assert not guard.is_bad(loss)
        if i % 100 == 50:
            assert guard.is_bad(loss + 1.6)
        guard.accept(loss)


def test_it_may_go_on_without_the_spike(tmp_path):
    guard = SpikeDetection(policy="skip", exclude_batches_path=tmp_path)
    with pytest.warns(UserWarning, match="The loss is a spike, 10: batch 3 of epoch 0 is left out"):
        error, updates = run([1.0, 1.0, 1.0, 10.0, 1.0, 1.0], guard)
    assert error is None and updates == 5
    assert [entry["last"] for entry in guard.skipped] == [[0, 3]]
    assert list(guard._losses) == [1.0] * 5
    assert list(tmp_path.iterdir()) == []


def test_the_window_is_saved():
    guard = SpikeDetection(window=3)
    run([1.0, 2.0, 3.0, 4.0], guard)
    other = SpikeDetection(window=3)
    other.load_state_dict(guard.state_dict())
    assert other.state_dict() == guard.state_dict()
    assert list(other._losses) == [2.0, 3.0, 4.0] and other._seen == 4


def test_lightnings_own_state_is_taken_as_far_as_it_goes():
    theirs = pytest.importorskip("lightning.pytorch.callbacks").SpikeDetection()
    guard = SpikeDetection()
    guard.load_state_dict(theirs.state_dict() | {"bad_batches": [3, 4]})
    assert guard.bad_batches == [3, 4] and guard._seen == 0


@pytest.mark.parametrize(
    "arguments",
    [
        {"mode": "up"}, {"window": 0}, {"warmup": 0}, {"rtol": -1.0}, {"atol": NAN}, {"policy": "no"},
        {"rtol": None, "finite_only": False},
    ],
)  # fmt: skip
def test_settings_that_are_refused(arguments):
    with pytest.raises(ConfigError, match="SpikeDetection"):
        SpikeDetection(**arguments)


def test_batches_are_added_to_those_that_earlier_attempts_listed(tmp_path):
    path = tmp_path / "bad.json"
    path.write_text("[3, 4]")
    run([1.0, 1.0, 1.0, 1.0, 1.0, 10.0], SpikeDetection(exclude_batches_path=path))
    assert json.loads(path.read_text()) == [3, 4, 5]


@pytest.mark.parametrize("there", ["a folder", "no JSON"])
def test_a_list_that_cannot_be_written_does_not_hide_the_spike(tmp_path, there):
    path = tmp_path / "bad.json"
    path.mkdir() if there == "a folder" else path.write_text("mine")
    with pytest.warns(UserWarning, match=r"cannot add the batches \[1, 2\]"):
        error, _ = run([1.0, 1.0, 10.0], SpikeDetection(exclude_batches_path=path))
    assert error is not None and error.batch_idx == 2
    assert path.is_dir() or path.read_text() == "mine"


def test_a_dry_run_writes_nothing(tmp_path):
    guard = SpikeDetection(exclude_batches_path=tmp_path)
    with pytest.raises(TrainingSpikeException, match=r"after none; the update was not applied\. SpikeDetection"):
        fit(guard, module=Losses([NAN]), train=1, val=0, fast_dev_run=True)
    assert not list(tmp_path.iterdir())

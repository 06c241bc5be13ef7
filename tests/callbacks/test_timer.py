from datetime import timedelta

import pytest

from bolide.callbacks import Timer
from bolide.callbacks import timer as timer_module
from bolide.core.errors import ConfigError
from bolide.core.states import RunningStage
from tests.callbacks.support import Scored, fit


class Clock:
    """A clock that stands still until a test moves it."""

    now_s = 100.0

    def monotonic(self):
        return self.now_s


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(timer_module, "time", made)
    return made


class Slow(Scored):
    """Each batch takes a second, each validation ten."""

    def __init__(self, clock):
        super().__init__()
        self.clock = clock

    def training_step(self, batch, batch_idx):
        self.clock.now_s += 1
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch, batch_idx):
        self.clock.now_s += 10


@pytest.mark.parametrize(
    ("duration", "seconds"),
    [
        ("00:00:00:01", 1), ("01:02:03:04", 93784), ("15 min", 900), (timedelta(seconds=2), 2), ({"minutes": 1}, 60),
        (None, None),
    ],
)  # fmt: skip
def test_durations(duration, seconds):
    timer = Timer(duration)
    assert timer.time_remaining() == seconds and timer.time_elapsed() == 0
    assert timer.start_time() is timer.end_time() is None


@pytest.mark.parametrize("duration", ["xx", {"foo": 1}, 5, "3 epochs"])
def test_a_wrong_duration_says_what_to_write(duration):
    with pytest.raises(ConfigError, match="DD:HH:MM:SS"):
        Timer(duration)


def test_a_wrong_interval_is_refused():
    with pytest.raises(ConfigError, match="interval='batch'"):
        Timer(interval="batch")


@pytest.mark.parametrize(("interval", "step"), [("step", 3), ("epoch", 4)])
def test_it_stops_when_the_time_is_up(clock, interval, step):
    timer = Timer(timedelta(seconds=3), interval=interval, verbose=False)
    trainer = fit(timer, module=Slow(clock), train=4, val=0, max_epochs=5)
    assert trainer.global_step == step and trainer.should_stop


def test_no_time_at_all_trains_nothing():
    assert fit(Timer(timedelta(0)), train=4, val=0).global_step == 0


def test_stages_are_measured(clock):
    timer = Timer()
    fit(timer, module=Slow(clock), train=4, val=1, max_epochs=1)
    assert timer.time_elapsed() == timer.time_elapsed("train") == 14
    assert timer.time_elapsed("validate") == timer.time_elapsed(RunningStage.VALIDATING) == 10
    assert timer.end_time("train") - timer.start_time("train") == 14
    assert timer.time_remaining() is None and timer.time_elapsed("test") == 0


@pytest.mark.parametrize(
    ("settings", "arguments", "steps", "left_s"),
    [({}, {}, 10, 0), ({"total": True}, {}, 6, 0), ({}, {"compat": "lightning"}, 6, 0)],
)
def test_a_resumed_run_has_its_own_time_or_what_is_left(clock, tmp_path, settings, arguments, steps, left_s):
    trainer = fit(Timer(timedelta(seconds=6)), module=Slow(clock), train=4, val=0, max_epochs=1)
    trainer.save_checkpoint(tmp_path / "x.ckpt")
    timer, path = Timer(timedelta(seconds=6), **settings), str(tmp_path / "x.ckpt")
    resumed = fit(timer, module=Slow(clock), train=4, val=0, max_epochs=9, fit={"ckpt_path": path}, **arguments)
    assert resumed.global_step == steps and timer.time_remaining() == left_s
    assert timer.time_elapsed() == steps
    assert timer.state_dict()["time_elapsed"]["train"] == steps


def test_the_state_is_lightnings():
    theirs = pytest.importorskip("lightning.pytorch.callbacks").Timer("00:00:00:01")
    assert Timer("00:00:00:01").state_dict() == theirs.state_dict()


def test_max_time_adds_one():
    trainer = fit(max_time="00:01:00:00", max_epochs=1, train=1, val=0)
    assert [type(c) for c in trainer.callbacks] == [Timer]

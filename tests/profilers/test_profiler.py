"""The base class of profilers."""

from __future__ import annotations

import pytest

from bolide.profilers import PassThroughProfiler, Profiler


class Recorder(Profiler):
    def __init__(self):
        super().__init__(filename="x")
        self.told = []

    def start(self, action_name):
        self.told.append(f"start {action_name}")

    def stop(self, action_name):
        self.told.append(f"stop {action_name}")

    def summary(self):
        return "a report"


def test_an_action_stops_though_it_fails(capsys):
    profiler = Recorder()
    with pytest.raises(KeyError), profiler.profile("load") as name:
        assert name == "load"
        raise KeyError
    assert profiler.told == ["start load", "stop load"]
    profiler.describe()
    assert capsys.readouterr().out == "a report\n"


def test_pass_through(capsys):
    profiler = PassThroughProfiler()
    with profiler.profile("load"):
        pass
    profiler.setup("fit")
    profiler.teardown("fit")
    profiler.describe()
    assert capsys.readouterr().out == ""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

import pytest

from bolide.core.schedule import Every, limited, parse_duration, parse_interval, parse_quantity


@pytest.mark.parametrize(
    ("text", "every"),
    [
        ("500 steps", Every(500, "steps")),
        ("1 step", Every(1, "steps")),
        ("20 batches", Every(20, "batches")),
        ("1 batch", Every(1, "batches")),
        ("2 epochs", Every(2, "epochs")),
        ("0.5 epochs", Every(0.5, "epochs")),
        ("1e3 steps", Every(1000, "steps")),
        ("15 min", Every(900, "seconds")),
        ("15minutes", Every(900, "seconds")),
        ("30 s", Every(30, "seconds")),
        ("2h", Every(7200, "seconds")),
        ("1 day", Every(86400, "seconds")),
        ("00:00:15:00", Every(900, "seconds")),
    ],
)
def test_quantities(text: str, every: Every) -> None:
    assert parse_quantity(text) == every


@pytest.mark.parametrize("text", ["", "steps", "5", "5 parsecs", "1.5 steps", "-1 steps", "five steps"])
def test_what_is_no_quantity(text: str) -> None:
    with pytest.raises(ValueError, match="quantity|unit|whole"):
        parse_quantity(text)


@pytest.mark.parametrize(
    ("value", "every"),
    [
        (0.25, Every(0.25, "share")),
        (1.0, Every(1.0, "share")),
        (100, Every(100, "batches")),
        ("2 steps", Every(2, "steps")),
        ("0.5 epochs", Every(0.5, "share")),
        (timedelta(minutes=5), Every(300, "seconds")),
        ({"minutes": 5}, Every(300, "seconds")),
    ],
)
def test_intervals(value: Any, every: Every) -> None:
    assert parse_interval(value) == every


@pytest.mark.parametrize("value", [0, 0.0, 1.5, -1, True, "0 steps", None, {"fortnights": 1}])
def test_what_is_no_interval(value: Any) -> None:
    with pytest.raises(ValueError):
        parse_interval(value)


def test_durations() -> None:
    assert parse_duration("01:02:03:04") == timedelta(days=1, hours=2, minutes=3, seconds=4)
    assert parse_duration({"weeks": 1}) == timedelta(days=7)
    with pytest.raises(ValueError, match="no length of time"):
        parse_duration("5 steps")


def test_limits_leave_so_many_batches() -> None:
    assert limited(10, None) == 10
    assert limited(10, 3) == 3
    assert limited(10, 20) == 10
    assert limited(10, 0.25) == 2
    assert limited(math.inf, 5) == 5
    assert math.isinf(limited(math.inf, 1.0))
    assert limited(10, 0) == 0
    with pytest.raises(ValueError, match="no length"):
        limited(math.inf, 0.5)

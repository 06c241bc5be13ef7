from __future__ import annotations

import json
import math

import pytest

from bolide.monitor import ledger
from bolide.monitor.ledger import Attempt


def attempt(name="a", began_s=1000.0, first=0, batches=10, status="running", **seconds):
    return Attempt(name, began_s, began_s + sum(seconds.values()), first, batches, status, seconds)


def filled(one):
    return Attempt(
        one.name, one.began_s, one.ended_s, one.first_batch, one.batches, one.status,
        {name: one.seconds.get(name, 0.0) for name in ledger.CATEGORIES},
    )  # fmt: skip


def write(path, *attempts):
    for one in attempts:
        ledger.append(str(path), ledger.line_of(one))


def test_the_last_line_of_an_attempt_counts(tmp_path):
    path = tmp_path / "goodput.jsonl"
    second = attempt("b", began_s=3000.0, first=5, training=7.0)
    write(path, attempt(training=1.0), attempt(training=3.0, saving=1.5, status="failed"), second)
    assert ledger.read(path) == [filled(attempt(training=3.0, saving=1.5, status="failed")), filled(second)]
    assert ledger.read(tmp_path / "none") == []


def test_a_torn_line_costs_that_line_only(tmp_path):
    path = tmp_path / "goodput.jsonl"
    write(path, attempt(training=1.0), attempt(training=2.0))
    path.write_bytes(path.read_bytes()[:-20])
    assert ledger.read(path) == [filled(attempt(training=1.0))]
    write(path, attempt("b", began_s=2000.0, training=5.0))
    assert [one.name for one in ledger.read(path)] == ["a", "b"]
    assert path.read_bytes().count(b"\n") == 3


@pytest.mark.parametrize(
    "line",
    [
        "", "{", "[]", "7", "null", '"x"', '{"format": 2}', '{"format": 1}',
        json.dumps({"format": 1, "attempt": "x", "began_s": 1, "at_s": 2, "first_batch": 0, "batches": 1, "status": "",
                    "seconds": []}),
        ledger.line_of(attempt(training=1.0)).replace(b"1000.0", b"NaN").decode(),
        ledger.line_of(attempt(training=1.0)).replace(b'"batches":10', b'"batches":[]').decode(),
    ],
)  # fmt: skip
def test_what_is_no_line_of_it(line):
    assert ledger.parse_line(line) is None


def test_the_gap_between_attempts_is_idle():
    attempts = [
        attempt("a", 1000.0, training=60.0, saving=2.0),
        attempt("b", 1100.0, first=8, batches=20, startup=3.0, recomputed=5.0, training=32.0),
    ]
    sums = ledger.totals(attempts)
    assert sums["idle"] == 38.0 and sums["training"] == 92.0
    assert sum(sums.values()) == attempts[-1].ended_s - attempts[0].began_s
    assert ledger.share(sums) == pytest.approx(92 / 140)
    assert math.isnan(ledger.share({}))


@pytest.mark.parametrize(
    ("spans", "repeated"),
    [
        ([(0, 100)], 0),
        ([(0, 100), (80, 200)], 20),
        ([(0, 100), (80, 85), (80, 200)], 25),
        ([(0, 100), (100, 200)], 0),
        ([(0, 100), (None, 0), (80, 90)], 10),
        ([(0, 100), (0, 50)], 0),
    ],
)
def test_what_was_trained_on_again(spans, repeated):
    attempts = [attempt(str(i), float(i), first, batches) for i, (first, batches) in enumerate(spans)]
    assert ledger.repeated_batches(attempts) == repeated


def test_the_table():
    one = attempt("a", 1000.0, batches=100, startup=5.0, training=55.0, data_wait=30.0, saving=10.0)
    assert ledger.table([one]).splitlines() == [
        "Where the time went",
        "                      attempt 1",
        "  start-up        5.0 s   5.0 %",
        "  training       55.0 s  55.0 %",
        "  data wait      30.0 s  30.0 %",
        "  saving         10.0 s  10.0 %",
        "  in all     1 min 40 s",
        "Goodput, training that was kept in all time: 55.0 %",
    ]
    two = attempt("b", 4700.0, first=80, batches=200, startup=5.0, recomputed=10.0, training=85.0)
    text = ledger.table([one, two])
    assert "attempt 2" in text and "all 2 attempts" in text and "20 batches were trained on again" in text
    assert text.splitlines()[-1].startswith("Goodput, training that was kept in all time: 3.7 %")
    assert ledger.table([]) == "There is no attempt in the ledger."


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0.0 s"), (59.94, "59.9 s"), (60, "1 min 0 s"), (3725, "1 h 2 min 5 s"), (90061, "1 d 1 h 1 min")],
)
def test_durations(seconds, text):
    assert ledger.duration(seconds) == text


def test_ledgers_are_found(tmp_path):
    for name in ("b/c", "a"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "goodput.jsonl").touch()
    assert [str(path.relative_to(tmp_path)) for path in ledger.find(tmp_path)] == [
        "a/goodput.jsonl",
        "b/c/goodput.jsonl",
    ]
    assert ledger.find(tmp_path / "a/goodput.jsonl") == [tmp_path / "a/goodput.jsonl"]
    assert ledger.find(tmp_path / "nowhere") == []

"""How often something happens, and how long a run lasts: parsing quantities, and pure `due` decisions.

Owns the meaning of "500 steps", "15 min", 0.25 (of an epoch) and 100 (batches). It keeps no state: what it decides
depends on its arguments alone.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

Unit = Literal["share", "batches", "steps", "epochs", "seconds"]

_SECONDS = {"s": 1, "sec": 1, "second": 1, "min": 60, "minute": 60, "h": 3600, "hour": 3600, "d": 86400, "day": 86400}
_COUNTS: dict[str, Unit] = {"batch": "batches", "batche": "batches", "step": "steps", "epoch": "epochs"}
_QUANTITY = re.compile(r"^\s*([0-9]+(?:\.[0-9]+)?(?:e[0-9]+)?)\s*([a-zA-Z]+)\s*$")
_CLOCK = re.compile(r"^\s*(\d+):(\d+):(\d+):(\d+)\s*$")
UNITS = "'batches', 'steps', 'epochs', 's', 'min', 'h' or 'days'"


@dataclass(frozen=True)
class Every:
    """A rhythm: every `count` `unit`s. A "share" is a part of an epoch, above 0 and up to 1."""

    count: float
    unit: Unit

    def __str__(self) -> str:
        if self.unit == "share":
            return f"{self.count:g} of an epoch"
        return f"{self.count:g} {self.unit}"


def parse_duration(value: str | timedelta | Mapping[str, Any]) -> timedelta:
    """A length of time from "DD:HH:MM:SS", "15 min", a timedelta, or a dictionary of timedelta's arguments.

    Raises:
        ValueError: the text or the dictionary is none of these.
    """
    if isinstance(value, timedelta):
        return value
    if isinstance(value, Mapping):
        try:
            return timedelta(**value)
        except TypeError as error:
            raise ValueError(
                f"{dict(value)!r} is no length of time; write for example dict(minutes=15) "
                "(weeks, days, hours, minutes, seconds)"
            ) from error
    clock = _CLOCK.match(value)
    if clock:
        days, hours, minutes, seconds = (int(part) for part in clock.groups())
        return timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
    every = parse_quantity(value)
    if every.unit != "seconds":
        raise ValueError(f'{value!r} is no length of time; write "DD:HH:MM:SS" or "15 min"')
    return timedelta(seconds=every.count)


def parse_quantity(text: str) -> Every:
    """A count with its unit from text: "500 steps", "2 epochs", "15 min", "00:00:15:00".

    Raises:
        ValueError: the text is no number with a known unit.
    """
    if _CLOCK.match(text):
        return Every(parse_duration(text).total_seconds(), "seconds")
    found = _QUANTITY.match(text)
    if not found:
        raise ValueError(f'{text!r} is no quantity; write a number and a unit ({UNITS}), as in "500 steps"')
    number, unit = float(found.group(1)), found.group(2).lower()
    singular = unit if unit in ("s",) else unit.rstrip("s")
    if singular in _SECONDS:
        return Every(number * _SECONDS[singular], "seconds")
    if singular in _COUNTS:
        count_unit = _COUNTS[singular]
        if number != int(number) and count_unit != "epochs":
            raise ValueError(f"{text!r}: a number of {count_unit} must be whole")
        return Every(number, count_unit)
    raise ValueError(f"{text!r}: unknown unit {found.group(2)!r}; write one of {UNITS}")


def parse_interval(value: float | str | timedelta | Mapping[str, Any]) -> Every:
    """`val_check_interval`: a float is a share of the epoch, an int counts batches, the rest has its unit.

    Raises:
        ValueError: not positive, or a share above 1.
    """
    if isinstance(value, bool):
        raise ValueError(f"{value!r} is no interval; write a share such as 0.5, a number of batches, or '500 steps'")
    if isinstance(value, str):
        every = parse_quantity(value)
        if every.unit == "epochs" and every.count < 1:
            every = Every(every.count, "share")
    elif isinstance(value, (timedelta, Mapping)):
        every = Every(parse_duration(value).total_seconds(), "seconds")
    elif isinstance(value, int):
        every = Every(value, "batches")
    elif isinstance(value, float):
        if not 0.0 < value <= 1.0:
            raise ValueError(
                f"{value} is no share of an epoch: a float lies above 0.0 and up to 1.0, an int counts batches"
            )
        every = Every(value, "share")
    else:
        raise ValueError(f"{value!r} is no interval; write a share such as 0.5, a number of batches, or '500 steps'")
    if every.count <= 0:
        raise ValueError(f"{value!r} must be above zero")
    return every


def limited(length: float, limit: float | None) -> float:
    """How many of `length` batches (infinite where unknown) a limit leaves: an int counts, a float is a share.

    Raises:
        ValueError: a share of an unknown length.
    """
    if limit is None:
        return length
    if isinstance(limit, int):
        return min(length, limit)
    if limit == 1.0:
        return length
    if math.isinf(length):
        if limit == 0.0:
            return 0
        raise ValueError(f"{limit} is a share, and the loader has no length to take it of: write a number of batches")
    return int(length * limit)

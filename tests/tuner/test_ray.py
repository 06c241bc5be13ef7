"""Searches by Ray Tune, in a process of their own: one that has held Ray has threads, and should fork no more."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tests.distributed.support import run_pytest


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed")
def test_searches_by_ray() -> None:
    run_pytest(Path(__file__).with_name("ray_cases.py"), timeout_s=1100)

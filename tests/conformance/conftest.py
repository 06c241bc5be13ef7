"""Runs a script under both packages, generators seeded, warnings and messages silenced; asserts that they agree."""

from __future__ import annotations

import importlib
import logging
import os
import random
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy
import pytest
import torch

from .compare import differences
from .recording import Record

REFERENCE = "lightning.pytorch"
CANDIDATE = os.environ.get("BOLIDE_CONFORMANCE_CANDIDATE", "bolide")


@pytest.fixture(scope="session")
def _packages() -> Iterator[None]:
    pytest.importorskip("lightning.pytorch", reason="conformance compares with lightning==2.6.6")
    loggers = [logging.getLogger(name) for name in ("lightning", REFERENCE, "lightning.fabric", "bolide")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    for logger, level in zip(loggers, levels):
        logger.setLevel(level)


@pytest.fixture
def run_both(_packages: None, tmp_path: Path) -> Callable[..., tuple[Record, Record]]:
    """`run_both(script, mode)` gives the recordings of the reference and the candidate.

    Each side's `out_dir` is `tmp_path / folder / side`, the side being "reference" or "candidate".
    """

    def run(package: str, script: Callable[..., None], mode: str, out_dir: Path) -> Record:
        pl = importlib.import_module(package)
        out_dir.mkdir(parents=True)
        record = Record(pl, mode, out_dir)
        random.seed(0)
        numpy.random.seed(0)
        torch.manual_seed(0)
        script(pl, record, out_dir)
        record.finish()
        return record

    def run_pair(script: Callable[..., None], mode: str, folder: str = "both") -> tuple[Record, Record]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            reference = run(REFERENCE, script, mode, tmp_path / folder / "reference")
            return reference, run(CANDIDATE, script, mode, tmp_path / folder / "candidate")

    return run_pair


@pytest.fixture
def assert_conforms() -> Callable[[Record, Record], None]:
    """Fails with the first difference of each kind."""

    def check(reference: Record, candidate: Record) -> None:
        found = differences(reference, candidate)
        assert not found, "\n" + "\n".join(found)

    return check

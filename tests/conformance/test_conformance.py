"""Every script under Lightning and under Bolide: see the package's docstring for what is compared."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from . import (  # noqa: F401  (importing a file of scripts enters them)
    scripts_callbacks,
    scripts_checkpoints,
    scripts_evaluation,
    scripts_intervals,
    scripts_loaders,
    scripts_logging,
    scripts_manual,
    scripts_optimization,
    scripts_schedulers,
)
from .library import SCRIPTS
from .recording import Record


@pytest.mark.parametrize(("name", "mode"), [(name, mode) for name, (_, modes) in SCRIPTS.items() for mode in modes])
def test_script_gives_what_lightning_gives(
    name: str,
    mode: str,
    run_both: Callable[..., tuple[Record, Record]],
    assert_conforms: Callable[[Record, Record], None],
) -> None:
    script, _ = SCRIPTS[name]
    assert_conforms(*run_both(script, mode))

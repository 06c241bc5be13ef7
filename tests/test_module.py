"""`LightningModule`: what a forgotten `super().__init__()` says, however it shows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import bolide as pl
from bolide.core.errors import NotBuiltError, UserCodeError
from tests.fixtures import OneWeight, loader, trainer


def layer(self: Any) -> None:
    self.net = torch.nn.Linear(1, 1)


def parameter(self: Any) -> None:
    self.weight = torch.nn.Parameter(torch.zeros(1))


def buffer(self: Any) -> None:
    self.register_buffer("mean", torch.zeros(1))


def manual(self: Any) -> None:
    self.automatic_optimization = False


def nothing_of_torchs(self: Any) -> None:
    self.size = 3


@pytest.mark.parametrize("init", [layer, parameter, buffer, manual, nothing_of_torchs])
def test_a_forgotten_super_init_is_said(init: Callable[[Any], None]) -> None:
    kind = type(
        "Forgetful", (pl.LightningModule,), {"__init__": init, "training_step": lambda self, batch, batch_idx: None}
    )
    with pytest.raises(UserCodeError, match=r"Forgetful\.__init__ does not call super\(\)\.__init__\(\)"):
        trainer(max_epochs=1).fit(kind(), loader(1))


def test_a_group_of_processes_for_a_metric_is_refused() -> None:
    class Logs(OneWeight):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.log("loss", 1.0, sync_dist=True, sync_dist_group=object())

    with pytest.raises(NotBuiltError, match=r"self\.log\('loss', sync_dist_group=\.\.\.\) is not built"):
        trainer(max_epochs=1).fit(Logs(), loader(1))

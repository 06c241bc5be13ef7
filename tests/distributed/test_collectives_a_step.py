"""`self.log(sync_dist=True)` costs no collective in a step: those of each step are counted, with and without it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _world

import bolide as pl
from tests.distributed.support import Net, batches, in_ranks, trainer


def collectives_so_far() -> int:
    """How many collectives this process has begun in all its groups: torch numbers them in each, those of C++ too."""
    return sum(group._get_sequence_number_for_group() for group in _world.pg_map)


class Logging(Net):
    def __init__(self, what: str) -> None:
        super().__init__()
        self.what = what

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self.loss(batch)
        if self.what == "logs":
            self.log("loss", loss, sync_dist=True, on_step=True, on_epoch=True, prog_bar=True)
            self.log_dict({"a": loss.detach() * 2, "b": 1.0}, sync_dist=True, reduce_fx="max")
        if self.what == "reduces":
            dist.all_reduce(loss.detach().clone())
        return loss


class Counting(pl.Callback):
    """The collectives of each batch: between the beginning of its step and the next one's."""

    def __init__(self) -> None:
        self.at: list[int] = []

    def on_train_batch_start(self, *args: Any) -> None:
        self.at.append(collectives_so_far())

    @property
    def of_steps(self) -> list[int]:
        return [after - before for before, after in zip(self.at, self.at[1:], strict=False)]


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_synced_metric_costs_no_collective_in_a_step(strategy: str) -> None:
    def work() -> dict[str, list[int]]:
        found = {}
        for what in ("nothing", "logs", "reduces"):
            counting = Counting()
            one = trainer(2, strategy=strategy, max_epochs=1, callbacks=[counting], enable_progress_bar=False)
            one.fit(Logging(what), batches(48, 4))
            found[what] = counting.of_steps
            assert what != "logs" or torch.isfinite(one.callback_metrics["loss_epoch"])
        return found

    for found in in_ranks(2, work):
        assert len(found["nothing"]) == 5 and min(found["nothing"]) > 0
        assert found["logs"] == found["nothing"]
        assert found["reduces"] == [count + 1 for count in found["nothing"]]

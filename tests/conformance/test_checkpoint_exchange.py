"""Checkpoint files cross over: what one package saved, the other goes on from, to the same weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from .library import regression, rows
from .recording import Record


def _stateful(pl):
    class Module(regression(pl)):
        def __init__(self, lr: float = 0.05):
            super().__init__()
            self.save_hyperparameters()

        def configure_optimizers(self):
            optimizer = torch.optim.Adam(self.parameters(), lr=self.hparams.lr)
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.7)]

    return Module


def _write(pl, record: Record, out_dir: Path) -> None:
    callbacks = record.part("callbacks")
    keeper = callbacks.ModelCheckpoint(dirpath=out_dir, monitor="val", filename="kept")
    stopping = callbacks.EarlyStopping("val", patience=5)
    record.trainer(keeper, stopping, accumulate_grad_batches=2).fit(record.module(_stateful(pl)), rows(6), rows(4))


def _go_on(path: Path) -> Callable[..., None]:
    def go_on(pl, record: Record, out_dir: Path) -> None:
        callbacks = record.part("callbacks")
        keeper = callbacks.ModelCheckpoint(dirpath=out_dir, monitor="val", filename="kept")
        stopping = callbacks.EarlyStopping("val", patience=5)
        trainer = record.trainer(keeper, stopping, accumulate_grad_batches=2, max_epochs=4)
        trainer.fit(record.module(_stateful(pl)), rows(6), rows(4), ckpt_path=path)
        record.value("counters", [trainer.global_step, trainer.current_epoch])
        record.value("stopping", [stopping.wait_count, stopping.best_score])
        record.value("loaded", dict(_stateful(pl).load_from_checkpoint(path).state_dict()))

    return go_on


@pytest.mark.parametrize("writer", ["reference", "candidate"])
def test_both_go_on_from_a_file_of(
    writer: str, run_both: Callable[..., tuple[Record, Record]], assert_conforms: Callable[..., None], tmp_path: Path
) -> None:
    run_both(_write, "bare", folder="written")
    path = tmp_path / "written" / writer / "kept.ckpt"
    assert_conforms(*run_both(_go_on(path), "plain", folder="resumed"))


def test_a_file_of_the_candidate_is_plain_data(run_both: Callable[..., tuple[Record, Record]], tmp_path: Path) -> None:
    run_both(_write, "bare", folder="written")
    content = torch.load(tmp_path / "written" / "candidate" / "kept.ckpt", weights_only=True)
    assert {"state_dict", "loops", "callbacks", "optimizer_states", "lr_schedulers", "hyper_parameters"} <= set(content)

"""Each of Lightning's values that `compat="lightning"` gives, beside Bolide's own: what docs/differences.md says.

Those that are about checkpoint callbacks alone are in tests/callbacks, the numbered cases in tests/test_cases.py.
"""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import bolide as pl
from bolide.callbacks import ModelCheckpoint
from bolide.core.config import Compat
from bolide.loggers import CSVLogger
from tests.fixtures import OneWeight, loader, trainer

DIFFERENCES = Path(__file__).parents[2] / "docs" / "differences.md"


def test_the_page_names_every_switch_once() -> None:
    named = re.findall(r"\| `(\w+)` \|$", DIFFERENCES.read_text(), flags=re.MULTILINE)
    switches = {field.name for field in fields(Compat)}
    assert set(named) == switches and len(named) <= len(switches) + 1  # one stands in two rows


def both(of: Any) -> list[Any]:
    return [of(None), of("lightning")]


def test_schedulers_count_steps_or_batches() -> None:
    class Scheduled(OneWeight):
        def configure_optimizers(self) -> Any:
            optimizer = super().configure_optimizers()
            scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
            return [optimizer], [{"scheduler": scheduler, "interval": "step", "frequency": 2}]

    def moves(compat: Any) -> int:
        fit = trainer(max_epochs=1, accumulate_grad_batches=2, compat=compat)
        fit.fit(Scheduled(), loader(8))
        return int(fit.lr_scheduler_configs[0].scheduler.last_epoch)

    assert both(moves) == [2, 4]


def test_what_a_closure_logs() -> None:
    class Evaluates(OneWeight):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.log("n", 1.0, reduce_fx="sum", on_epoch=True, on_step=False)
            return (self.w - 3).square().sum()

        def configure_optimizers(self) -> Any:
            return torch.optim.LBFGS(self.parameters(), lr=0.01, max_iter=3)

    def logged(compat: Any) -> float:
        fit = trainer(max_epochs=1, compat=compat)
        fit.fit(Evaluates(), loader(2))
        return float(fit.callback_metrics["n"])

    assert both(logged) == [2.0, 6.0]


def test_when_loggers_write(tmp_path: Path) -> None:
    class Counts(CSVLogger):
        saves = 0

        def save(self) -> None:
            self.saves += 1
            super().save()

    class Logs(OneWeight):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.log("a", 1.0)
            return self.w.sum()

    def saves(compat: Any) -> int:
        logger = Counts(tmp_path)
        trainer(max_epochs=1, logger=logger, log_every_n_steps=1, compat=compat).fit(Logs(), loader(8))
        return logger.saves

    few, many = both(saves)
    assert few <= 2 and many >= 8


def test_the_mark_of_the_end(tmp_path: Path) -> None:
    def marked(compat: Any) -> bool:
        folder = tmp_path / str(compat)
        saver = ModelCheckpoint(dirpath=folder)
        trainer(max_epochs=1, callbacks=saver, enable_checkpointing=True, compat=compat).fit(OneWeight(), loader(2))
        return (folder / "finished.json").exists()

    assert both(marked) == [True, False]


def test_another_module_is_trained_or_finds_the_epochs_used_up() -> None:
    def moved(compat: Any) -> float:
        fit, second = trainer(max_epochs=1, compat=compat), OneWeight()
        fit.fit(OneWeight(), loader(2))
        fit.fit(second, loader(2))
        return second.w.item()

    assert both(moved) == [-2.0, 0.0]


class Drawn(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 6

    def __getitem__(self, i: int) -> torch.Tensor:
        return torch.rand(1)


@pytest.mark.parametrize(("compat", "alike"), [(None, True), ("lightning", False)])
def test_samples_and_the_number_of_workers(compat: Any, alike: bool) -> None:
    def drawn(workers: int) -> list[float]:
        pl.seed_everything(3, workers=True, verbose=False)
        module = OneWeight()
        trainer(max_epochs=1, compat=compat).fit(module, DataLoader(Drawn(), num_workers=workers))
        return [value for _, _, value in module.seen]

    assert (drawn(1) == drawn(2)) is alike


@pytest.mark.parametrize(("compat", "alike"), [(None, True), ("lightning", False)])
def test_randomness_of_a_run_that_goes_on(tmp_path: Path, compat: Any, alike: bool) -> None:
    saver = ModelCheckpoint(dirpath=tmp_path, every_n_train_steps=3, save_top_k=-1, filename="{step}")
    first, second = OneWeight(), OneWeight()
    pl.seed_everything(1, verbose=False)
    fit = trainer(max_epochs=1, callbacks=saver, enable_checkpointing=True, compat=compat)
    fit.fit(first, loader(20, shuffle=True))
    pl.seed_everything(2, verbose=False)
    trainer(max_epochs=1, compat=compat).fit(second, loader(20, shuffle=True), ckpt_path=tmp_path / "step=3.ckpt")
    assert len(second.seen) == 17 and (second.seen == first.seen[3:]) is alike

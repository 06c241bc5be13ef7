"""The loops' views show what Lightning's loops show at the same places (values taken from Lightning 2.6.6)."""

from __future__ import annotations

import pytest
from torch.utils.data import DataLoader

import bolide as pl
from bolide.compat.views import Views
from bolide.core.errors import MisconfigurationException
from bolide.data.combined import CombinedLoader
from bolide.demos.boring_classes import BoringModel, ManualOptimBoringModel, RandomDataset

QUIET = {
    "logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False,
    "accelerator": "cpu", "max_epochs": 2, "limit_train_batches": 3, "limit_val_batches": 2,
}  # fmt: skip


def four(ready, started, processed, completed):
    return {"ready": ready, "started": started, "processed": processed, "completed": completed}


def seen(trainer):
    fit_loop = trainer.fit_loop
    epoch_loop = fit_loop.epoch_loop
    step = epoch_loop.automatic_optimization.optim_progress.state_dict()["optimizer"]["step"]
    return {
        "epochs": fit_loop.epoch_progress.state_dict()["current"],
        "batches": epoch_loop.batch_progress.state_dict(),
        "index": (fit_loop.batch_idx, fit_loop.total_batch_idx, epoch_loop.batch_idx, epoch_loop.total_batch_idx),
        "steps": (epoch_loop.global_step, step["total"]["completed"], step["current"]["completed"]),
        "axis": epoch_loop._batches_that_stepped,
        "done": fit_loop.done,
    }


class Look(pl.Callback):
    def __init__(self):
        self.seen = {}

    def on_train_start(self, trainer, pl_module):
        self.seen["train start"] = seen(trainer)

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if trainer.current_epoch == 1 and batch_idx == 0:
            self.seen["batch start"] = seen(trainer)

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if batch_idx == 2:
            self.seen[f"batch end {trainer.current_epoch}"] = seen(trainer)

    def on_validation_end(self, trainer, pl_module):
        if not trainer.sanity_checking:
            self.seen[f"validation end {trainer.current_epoch}"] = seen(trainer)
            self.seen["val_loop"] = trainer.fit_loop.epoch_loop.val_loop.batch_progress.state_dict()["current"]

    def on_train_epoch_end(self, trainer, pl_module):
        self.seen[f"epoch end {trainer.current_epoch}"] = seen(trainer)


@pytest.fixture(scope="module")
def fitted():
    look = Look()
    trainer = pl.Trainer(**QUIET, callbacks=[look])
    trainer.fit(BoringModel())
    return trainer, look.seen


EXPECTED = {
    "train start": {
        "epochs": four(0, 0, 0, 0),
        "batches": {"total": four(0, 0, 0, 0), "current": four(0, 0, 0, 0), "is_last_batch": False},
        "index": (-1, -1, -1, -1), "steps": (0, 0, 0), "axis": 0, "done": False,
    },
    "batch end 0": {
        "epochs": four(1, 1, 0, 0),
        "batches": {"total": four(3, 3, 3, 2), "current": four(3, 3, 3, 2), "is_last_batch": True},
        "index": (2, 2, 2, 2), "steps": (3, 3, 3), "axis": 2, "done": False,
    },
    "validation end 0": {
        "epochs": four(1, 1, 0, 0),
        "batches": {"total": four(3, 3, 3, 3), "current": four(3, 3, 3, 3), "is_last_batch": True},
        "index": (2, 2, 2, 2), "steps": (3, 3, 3), "axis": 2, "done": False,
    },
    "epoch end 0": {
        "epochs": four(1, 1, 1, 0),
        "batches": {"total": four(3, 3, 3, 3), "current": four(3, 3, 3, 3), "is_last_batch": True},
        "index": (2, 2, 2, 2), "steps": (3, 3, 3), "axis": 3, "done": False,
    },
    "batch start": {
        "epochs": four(2, 2, 1, 1),
        "batches": {"total": four(4, 3, 3, 3), "current": four(1, 0, 0, 0), "is_last_batch": False},
        "index": (0, 3, 0, 3), "steps": (3, 3, 0), "axis": 3, "done": False,
    },
    "batch end 1": {
        "epochs": four(2, 2, 1, 1),
        "batches": {"total": four(6, 6, 6, 5), "current": four(3, 3, 3, 2), "is_last_batch": True},
        "index": (2, 5, 2, 5), "steps": (6, 6, 3), "axis": 5, "done": False,
    },
    "epoch end 1": {
        "epochs": four(2, 2, 2, 1),
        "batches": {"total": four(6, 6, 6, 6), "current": four(3, 3, 3, 3), "is_last_batch": True},
        "index": (2, 5, 2, 5), "steps": (6, 6, 3), "axis": 6, "done": True,
    },
}  # fmt: skip


@pytest.mark.parametrize("place", EXPECTED)
def test_what_the_loops_show(fitted, place):
    assert fitted[1][place] == EXPECTED[place]


def test_after_the_fit(fitted):
    trainer, looked = fitted
    loop = trainer.fit_loop
    assert loop.epoch_progress.state_dict()["total"] == four(2, 2, 2, 2)
    assert loop.epoch_loop._batches_that_stepped == 6
    assert (loop.max_epochs, loop.min_epochs, loop.max_steps, loop.min_steps) == (2, 0, -1, None)
    assert loop.done
    assert loop.skip
    assert not loop.restarting
    assert looked["val_loop"] == four(2, 2, 2, 2)


def test_settings_are_passed_on():
    trainer = pl.Trainer(**QUIET)
    trainer.fit_loop.max_epochs = 1
    trainer.fit_loop.epoch_loop.max_steps = 2
    assert (trainer.max_epochs, trainer.max_steps) == (1, 2)
    trainer.fit(BoringModel())
    assert trainer.global_step == 2


def test_manual_optimization():
    trainer = pl.Trainer(**{**QUIET, "max_epochs": 1})
    module = ManualOptimBoringModel()
    looked = []
    module.on_train_epoch_end = lambda: looked.append(trainer.fit_loop.epoch_loop)
    trainer.fit(module)
    assert looked[0].manual_optimization.optim_step_progress.total.completed == 3


def test_where_the_data_come_from():
    loader = DataLoader(RandomDataset(32, 4))
    found = []

    class Data(pl.Callback):
        def on_train_start(self, trainer, pl_module):
            loop = trainer.fit_loop
            found.append((loop.max_batches, loop._combined_loader.flattened, loop._data_source.instance))

    pl.Trainer(**QUIET, callbacks=[Data()]).fit(BoringModel(), loader)
    combined = CombinedLoader(loader, "min_size")
    pl.Trainer(**QUIET, callbacks=[Data()]).fit(BoringModel(), combined)
    assert found == [(3, [loader], loader), (3, [loader], combined)]


def test_the_other_loops():
    class Predicts(BoringModel):
        def predict_step(self, batch, batch_idx, dataloader_idx=0):
            return batch_idx

    loader = DataLoader(RandomDataset(32, 2))
    trainer = pl.Trainer(**QUIET)
    assert trainer.fit_loop.batch_idx == -1
    assert trainer.validate_loop.max_batches == []
    assert trainer.predict_loop.predictions == []
    found = []

    class Look(pl.Callback):
        def on_predict_epoch_end(self, trainer, pl_module):
            loop = trainer.predict_loop
            found.append((list(loop.predictions), loop.num_dataloaders, loop.max_batches))

        def on_validation_end(self, trainer, pl_module):
            loop = trainer.validate_loop
            found.append((loop.batch_progress.total.completed, loop.max_batches, loop.skip))

    trainer = pl.Trainer(**QUIET, callbacks=[Look()])
    trainer.predict(Predicts(), loader)
    trainer.predict(Predicts(), [loader, loader])
    trainer.validate(Predicts(), loader, verbose=False)
    assert found == [([0, 1], 1, [2]), ([[0, 1], [0, 1]], 2, [2, 2]), (2, [2], False)]


def test_nothing_is_run_by_a_view():
    trainer = pl.Trainer(**QUIET)
    with pytest.raises(MisconfigurationException, match="trainer.steps"):
        trainer.fit_loop.run()


def test_the_connectors():
    trainer = pl.Trainer(**QUIET)
    views = Views(trainer)
    with pytest.raises(MisconfigurationException, match="running Trainer"):
        views._checkpoint_connector.dump_checkpoint()
    dumped = []

    class Dump(pl.Callback):
        def on_train_epoch_end(self, trainer, pl_module):
            dumped.append(Views(trainer)._checkpoint_connector.dump_checkpoint(weights_only=True))

    trainer = pl.Trainer(**{**QUIET, "max_epochs": 1}, callbacks=[Dump()])
    module = BoringModel()
    trainer.fit(module)
    assert dumped[0]["state_dict"].keys() == module.state_dict().keys()
    views = Views(trainer)
    assert views._logger_connector.callback_metrics == trainer.callback_metrics
    assert views._accelerator_connector.strategy is trainer.strategy
    assert not views._accelerator_connector.is_distributed

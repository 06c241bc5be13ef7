"""replay_step: a step computed again, twice, tells a wrong machine and an unsteady operation from a wrong model."""

from __future__ import annotations

import random
import threading

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bolide as pl
from bolide.callbacks import (
    GradientAccumulationScheduler,
    ModelCheckpoint,
    PreemptionWatch,
    StepRecord,
    TQDMProgressBar,
)
from bolide.core.errors import MisconfigurationException
from bolide.monitor.goodput import GoodputMonitor


class Task(pl.LightningModule):
    """With dropout, a scheduler, and `noise` that no seed governs."""

    def __init__(self, noise: float = 0.0) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2))
        self.noise = noise

    def training_step(self, batch, batch_idx):
        x, y = batch
        unsteady = self.noise * random.SystemRandom().random()
        return F.cross_entropy(self.net(x), y) * (1 + unsteady)

    def validation_step(self, batch, batch_idx):
        self.log("v", torch.rand(()))  # draws from the stream that training goes on with

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        return [optimizer], [{"scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 3), "interval": "step"}]


def data(n=24, shuffle=True):
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randn(n, 4, generator=generator), torch.randint(2, (n,), generator=generator)
    return DataLoader(TensorDataset(x, y), batch_size=2, shuffle=shuffle)


def fitted(tmp_path, *callbacks, module=None, every=5, replay=True, **settings):
    saver = ModelCheckpoint(dirpath=tmp_path, every_n_train_steps=every, save_top_k=-1, filename="{step}")
    trainer = pl.Trainer(
        accelerator="cpu", enable_model_summary=False, callbacks=[saver, *callbacks], default_root_dir=tmp_path,
        **{
            "logger": False, "enable_progress_bar": False, "max_epochs": 2, "val_check_interval": 4,
            "resilience": {"replay": replay}, **settings,
        },
    )  # fmt: skip
    pl.seed_everything(1, verbose=False)
    trainer.fit(Task() if module is None else module, data(), data(4, False))
    return trainer


def test_the_same_bits(tmp_path):
    trainer = fitted(tmp_path)
    weights = {name: value.clone() for name, value in trainer.lightning_module.state_dict().items()}
    stream = torch.get_rng_state()
    for step in (7, 12, 17):  # in mid-epoch, at its end, and in the second epoch
        found = trainer.replay_step(step)
        assert (found.step, found.repeatable, found.same, found.differs_at) == (step, True, True, None)
        assert found.compared_with == "the recorded losses" and f"step={(step - 1) // 5 * 5}.ckpt" in found.checkpoint
        assert "the same bits as the recorded losses" in str(found)
    assert torch.equal(stream, torch.get_rng_state())
    for name, value in trainer.lightning_module.state_dict().items():
        assert torch.equal(value, weights[name])
    assert trainer.global_step == 24


def test_a_checkpoint_of_the_step_is_compared_with_too(tmp_path):
    found = fitted(tmp_path, replay=False).replay_step(15)
    assert found.same and found.compared_with == "the checkpoint of this step" and "step=10" in found.checkpoint


def test_without_anything_to_compare_with_it_says_so(tmp_path):
    found = fitted(tmp_path, replay=False).replay_step(14)
    assert found.repeatable and found.same is None
    assert "Trainer(resilience={'replay': True})" in str(found)


def test_an_operation_that_is_not_deterministic(tmp_path):
    found = fitted(tmp_path, module=Task(noise=0.1)).replay_step(8)
    assert not found.repeatable and found.same is None and found.differs_at == 6
    assert "not deterministic" in str(found)


def test_a_machine_that_computed_other_bits(tmp_path):
    class Flips(pl.Callback):
        """A bit of a weight flips after step 7 of the run, and not in a replay."""

        times = 0

        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            if trainer.global_step == 7 and Flips.times == 0:
                Flips.times += 1
                with torch.no_grad():
                    pl_module.net[0].weight[0, 0] *= 1.5

    trainer = fitted(tmp_path, Flips())
    assert trainer.replay_step(7).same
    found = trainer.replay_step(9)
    assert found.repeatable and found.same is False and found.differs_at == 8
    assert "hardware was at fault" in str(found)


def test_accumulation_and_other_callbacks_take_part(tmp_path):
    found = fitted(tmp_path, GradientAccumulationScheduler({0: 2, 1: 3}), every=2).replay_step(8)
    assert found.same and found.compared_with == "the checkpoint of this step"


def test_in_another_process_the_record_is_that_of_a_later_checkpoint(tmp_path):
    fitted(tmp_path)
    trainer = pl.Trainer(
        accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False, max_epochs=2,
        val_check_interval=4, callbacks=ModelCheckpoint(dirpath=tmp_path), default_root_dir=tmp_path,
    )  # fmt: skip
    found = trainer.replay_step(12, Task(), data(), data(4, False))
    assert found.same and found.compared_with == "the recorded losses"


def test_the_record_goes_on_after_a_resume(tmp_path):
    losses = {}
    for name, stop in (("whole", None), ("resumed", 7)):
        folder = tmp_path / name
        record, saver = StepRecord(), ModelCheckpoint(dirpath=folder, every_n_train_steps=1, save_last=True)
        trainer = pl.Trainer(
            accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False, max_epochs=1,
            callbacks=[record, saver], default_root_dir=folder,
        )  # fmt: skip
        pl.seed_everything(1, verbose=False)
        for progress in trainer.steps(Task(), data()):
            if progress.step == stop:
                break
        if stop is not None:
            trainer.fit(Task(), data(), ckpt_path="last")
        losses[name] = record.losses()
    assert losses["resumed"] == losses["whole"] and sorted(losses["whole"]) == list(range(1, 13))


def test_wrong_calls(tmp_path):
    trainer = fitted(tmp_path, max_epochs=1)
    with pytest.raises(MisconfigurationException, match=r"from before that step; there are those of step 5, 10"):
        trainer.replay_step(3)
    with pytest.raises(MisconfigurationException, match="ended at step 12"):
        trainer.replay_step(40)
    with pytest.raises(MisconfigurationException, match="optimizer step, from 1"):
        trainer.replay_step(0)
    with pytest.raises(MisconfigurationException, match=r"replay_step\(3\) needs a module"):
        pl.Trainer(logger=False).replay_step(3)


# ---- where nothing is wrong, nothing is said to be wrong


def test_files_of_another_run_in_the_folder_do_not_count(tmp_path):
    for seed in (0, 1):
        torch.manual_seed(seed)
        trainer = fitted(tmp_path)
    found = trainer.replay_step(7)
    assert found.same and found.checkpoint.endswith("step=5-v1.ckpt")


def test_another_module_of_the_same_trainer_has_a_record_of_its_own(tmp_path):
    trainer = fitted(tmp_path, max_epochs=1)
    torch.manual_seed(5)
    trainer.fit(Task(), data(), data(4, False))
    assert trainer.replay_step(7).same


def test_a_file_from_within_the_next_window_is_not_that_of_the_step(tmp_path):
    class Normed(Task):
        def __init__(self):
            super().__init__()
            self.net.append(nn.BatchNorm1d(2))

    class Stops(pl.Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            if trainer.progress.total_batches == 9:
                trainer.save_checkpoint(tmp_path / "a.ckpt")  # step 4, and a batch more: its statistics, too

    trainer = fitted(tmp_path, Stops(), module=Normed(), every=1, accumulate_grad_batches=2, replay=False)
    (tmp_path / "step=4.ckpt").unlink()
    found = trainer.replay_step(4)
    assert found.repeatable and found.same is None


def test_weights_that_the_file_leaves_out(tmp_path):
    class Partial(Task):
        def __init__(self):
            super().__init__()
            self.frozen = nn.Linear(4, 4).requires_grad_(False)
            self.strict_loading = False

        def training_step(self, batch, batch_idx):
            x, y = batch
            return super().training_step((self.frozen(x), y), batch_idx)

        def on_save_checkpoint(self, checkpoint):
            for name in [name for name in checkpoint["state_dict"] if name.startswith("frozen")]:
                del checkpoint["state_dict"][name]

    trainer = fitted(tmp_path, module=Partial())
    assert trainer.replay_step(7).same  # the module has them
    assert trainer.replay_step(10).same
    found = trainer.replay_step(7, Partial(), data(), data(4, False))
    assert found.repeatable and found.same is None  # they are others: nothing can be said


def test_what_is_not_part_of_the_step_is_left_as_it_was(tmp_path):
    class Data(pl.LightningDataModule):
        n = 1

        def train_dataloader(self):
            return data()

        def val_dataloader(self):
            return data(4, False)

        def state_dict(self):
            return {"n": -99}

        def load_state_dict(self, state):
            self.n = state["n"]

    loggers = [pl.loggers.CSVLogger(tmp_path)]
    trainer = fitted(
        tmp_path, pl.callbacks.LearningRateMonitor(), GoodputMonitor(tmp_path), logger=loggers, max_epochs=1
    )
    own = data()
    own.generator = torch.Generator().manual_seed(3)
    module = Data()
    trainer.fit(Task(), datamodule=module)
    before = own.generator.get_state(), module.n, module.trainer, (tmp_path / "goodput.jsonl").read_bytes()
    rows = [path.read_bytes() for path in sorted(tmp_path.rglob("metrics.csv"))]
    assert trainer.replay_step(7).same
    trainer.replay_step(7, Task(), own, data(4, False))
    assert torch.equal(before[0], own.generator.get_state())
    assert before[1:] == (module.n, module.trainer, (tmp_path / "goodput.jsonl").read_bytes())
    assert rows == [path.read_bytes() for path in sorted(tmp_path.rglob("metrics.csv"))]


def test_the_record_keeps_numbers_and_no_more():
    record = StepRecord(length=3)
    trainer = pl.Trainer(logger=False, enable_checkpointing=False)
    for number in range(1, 6):
        trainer.progress.total_batches = number
        record.on_train_batch_end(trainer, None, {"loss": torch.full((1000,), float(number))[0]}, None, 0)
    assert record.losses() == {3: 3.0, 4: 4.0, 5: 5.0}
    assert sum(value.untyped_storage().nbytes() for value in record.state_dict().values()) == 3 * 16


def test_callbacks_that_have_no_part_in_a_step_are_left_out_and_others_must_be_copied(tmp_path):
    class Locked(pl.Callback):
        def __init__(self):
            self.lock = threading.Lock()

    trainer = fitted(tmp_path / "a", PreemptionWatch(lambda: None), TQDMProgressBar(), enable_progress_bar=True)
    assert trainer.replay_step(7).same
    with pytest.raises(MisconfigurationException, match="Locked cannot be copied.*__deepcopy__"):
        fitted(tmp_path / "b", Locked()).replay_step(7)

"""Public reports of users of other trainers, each with the right value."""

from __future__ import annotations

import csv
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

import bolide as pl
from bolide.callbacks import EarlyStopping, ModelCheckpoint, NonFinite
from bolide.core.errors import CheckpointError, MisconfigurationException
from bolide.loggers.logger import Logger
from tests.fixtures import Generated, OneWeight, loader, trainer


class Keeping(Logger):
    """A logger that keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[dict[str, float], int | None]] = []

    name = version = "keeping"

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.told.append((metrics, step))


# ---------------------------------------------------------------------- accumulation and schedulers


def test_c1_a_short_last_window_is_a_step() -> None:
    module, fit = OneWeight(), trainer(max_epochs=1, accumulate_grad_batches=4)
    fit.fit(module, loader(10))
    assert fit.global_step == 3


def test_c1_estimated_stepping_batches_counts_the_short_windows() -> None:
    seen = []

    class Asking(OneWeight):
        def configure_optimizers(self) -> Any:
            seen.append(self.trainer.estimated_stepping_batches)
            return super().configure_optimizers()

    trainer(max_epochs=2, accumulate_grad_batches=4).fit(Asking(), loader(10))
    assert seen == [6]


def test_c2_a_short_window_is_averaged_over_its_own_length() -> None:
    module = OneWeight()
    trainer(max_epochs=1, accumulate_grad_batches=4).fit(module, loader(10))
    assert module.moves == [1.0, 1.0, 1.0]


def test_c2_compat_gives_lightnings_value() -> None:
    module = OneWeight()
    trainer(max_epochs=1, accumulate_grad_batches=4, compat="lightning").fit(module, loader(10))
    assert module.moves == [1.0, 1.0, 0.5]


def test_c2_a_short_window_of_unknown_length_is_averaged_too() -> None:
    module = OneWeight()
    trainer(max_epochs=2, accumulate_grad_batches=4).fit(module, Generated(10))
    assert module.moves == [1.0] * 6


def test_c2_a_short_window_is_right_before_it_is_clipped() -> None:
    """A gradient of 1 passes a limit of 0.9 as 0.9; scaled only after clipping it would give another value."""
    module = OneWeight()
    trainer(max_epochs=1, accumulate_grad_batches=4, gradient_clip_val=0.9).fit(module, Generated(6))
    assert module.moves == pytest.approx([0.9, 0.9], abs=1e-5)


def test_c2_under_an_overridden_optimizer_step() -> None:
    class Overridden(OneWeight):
        def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None) -> None:
            optimizer.step(closure=optimizer_closure)

    for batches in (loader(10), Generated(10)):
        module = Overridden()
        trainer(max_epochs=1, accumulate_grad_batches=4).fit(module, batches)
        assert module.moves == [1.0, 1.0, 1.0]


def test_c3_accumulation_beyond_an_epoch_steps_at_its_end_and_says_so() -> None:
    module, fit = OneWeight(), trainer(max_epochs=4, accumulate_grad_batches=4)
    with pytest.warns(UserWarning, match="accumulate_grad_batches=4 is more than the 3 batches") as said:
        fit.fit(module, loader(3))
    assert fit.global_step == 4
    assert module.moves == [1.0] * 4
    assert len([w for w in said if "accumulate_grad_batches" in str(w.message)]) == 1


class Plateau(OneWeight):
    def __init__(self) -> None:
        super().__init__()
        self.stepped_after: list[int] = []

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", torch.tensor(1.0))

    def lr_scheduler_step(self, scheduler: Any, metric: Any) -> None:
        self.stepped_after.append(self.current_epoch + 1)
        scheduler.step(metric)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=1.0)
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
        return {"optimizer": optimizer, "lr_scheduler": scheduler, "monitor": "val_loss"}


def test_c6_plateau_with_validation_every_other_epoch() -> None:
    module = Plateau()
    trainer(max_epochs=4, check_val_every_n_epoch=2).fit(module, loader(3), loader(1))
    assert module.stepped_after == [2, 4]


# ---------------------------------------------------------------------- resume and second fits


def test_c15_another_module_is_trained_by_the_same_trainer() -> None:
    fit = trainer(max_epochs=2)
    fit.fit(OneWeight(), loader(3))
    second = OneWeight()
    fit.fit(second, loader(3))
    assert [epoch for epoch, _, _ in second.seen] == [0, 0, 0, 1, 1, 1]
    assert fit.global_step == 6


def test_c15_with_max_steps() -> None:
    fit = trainer(max_steps=4)
    fit.fit(OneWeight(), loader(3))
    second = OneWeight()
    fit.fit(second, loader(3))
    assert len(second.seen) == 4


def test_c15_the_same_module_again_says_that_there_is_nothing_to_do() -> None:
    module, fit = OneWeight(), trainer(max_epochs=2)
    fit.fit(module, loader(3))
    with pytest.warns(UserWarning, match="trained to the limit already"):
        fit.fit(module, loader(3))
    fit.max_epochs = 3
    fit.fit(module, loader(3))
    assert [epoch for epoch, _, _ in module.seen] == [0, 0, 0, 1, 1, 1, 2, 2, 2]


# ---------------------------------------------------------------------- the checkpoint callback


class NeverBetter(OneWeight):
    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", float(self.current_epoch))


def test_c16_last_is_the_newest_state(tmp_path: Path) -> None:
    saver = ModelCheckpoint(dirpath=tmp_path, monitor="val_loss", save_top_k=1, save_last=True)
    trainer(max_epochs=4, callbacks=saver, enable_checkpointing=True).fit(NeverBetter(), loader(5), loader(1))
    assert torch.load(tmp_path / "last.ckpt", weights_only=True)["global_step"] == 20
    assert torch.load(saver.best_model_path, weights_only=True)["global_step"] == 5


def test_c16_compat_gives_lightnings_last(tmp_path: Path) -> None:
    saver = ModelCheckpoint(dirpath=tmp_path, monitor="val_loss", save_top_k=1, save_last=True)
    fit = trainer(max_epochs=4, callbacks=saver, enable_checkpointing=True, compat="lightning")
    fit.fit(NeverBetter(), loader(5), loader(1))
    assert torch.load(tmp_path / "last.ckpt", weights_only=True)["global_step"] == 5


def test_c18_two_checkpoint_callbacks_that_differ_in_name_only(tmp_path: Path) -> None:
    def savers() -> list[Any]:
        return [
            ModelCheckpoint(dirpath=tmp_path, filename="a-{epoch}", save_top_k=1),
            ModelCheckpoint(dirpath=tmp_path, filename="b-{epoch}", save_top_k=-1),
        ]

    first, fit = savers(), None
    fit = trainer(max_epochs=2, callbacks=first, enable_checkpointing=True)
    fit.fit(OneWeight(), loader(3))
    fit.save_checkpoint(tmp_path / "x.ckpt")
    second = savers()
    resumed = trainer(max_epochs=3, callbacks=second, enable_checkpointing=True)
    resumed.fit(OneWeight(), loader(3), ckpt_path=tmp_path / "x.ckpt")
    for before, after in zip(first, second, strict=True):
        assert before.best_model_path and Path(after.best_model_path).name[0] == Path(before.best_model_path).name[0]
    assert sorted(p.name for p in tmp_path.glob("?-*.ckpt")) == [
        "a-epoch=2.ckpt", "b-epoch=0.ckpt", "b-epoch=1.ckpt", "b-epoch=2.ckpt",
    ]  # fmt: skip


def test_c18_states_are_restored_each_to_its_own(tmp_path: Path) -> None:
    class Counting(pl.Callback):
        def __init__(self, start: int) -> None:
            self.count = start

        def state_dict(self) -> dict[str, Any]:
            return {"count": self.count}

        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            self.count = state_dict["count"]

    fit = trainer(max_epochs=1, callbacks=[Counting(3), Counting(8)])
    fit.fit(OneWeight(), loader(1))
    fit.save_checkpoint("x.ckpt")
    callbacks = [Counting(0), Counting(0)]
    trainer(max_epochs=1, callbacks=callbacks).fit(OneWeight(), loader(1), ckpt_path="x.ckpt")
    assert [c.count for c in callbacks] == [3, 8]


class Compiled(pl.LightningModule):
    def __init__(self, compiled: bool) -> None:
        super().__init__()
        net = torch.nn.Linear(2, 1)
        self.net = torch.compile(net, backend="eager") if compiled else net

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.net(batch).sum()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Plain(Compiled):
    def __init__(self) -> None:
        super().__init__(compiled=False)


class WithCompiledPart(Compiled):
    def __init__(self) -> None:
        super().__init__(compiled=True)


def test_c21_a_compiled_part_leaves_no_mark_in_the_file() -> None:
    batches = DataLoader(torch.randn(4, 2))
    compiled = WithCompiledPart()
    fit = trainer(max_steps=1)
    fit.fit(compiled, batches)
    fit.save_checkpoint("compiled.ckpt")
    weights = torch.load("compiled.ckpt", weights_only=True)["state_dict"]
    assert sorted(weights) == ["net.bias", "net.weight"]
    assert torch.equal(Plain.load_from_checkpoint("compiled.ckpt").net.weight, weights["net.weight"])

    plain = Plain()
    fit = trainer(max_steps=1)
    fit.fit(plain, batches)
    fit.save_checkpoint("plain.ckpt")
    assert torch.equal(WithCompiledPart.load_from_checkpoint("plain.ckpt").net.weight, plain.net.weight)
    resumed = trainer(max_steps=2)
    resumed.fit(WithCompiledPart(), batches, ckpt_path="plain.ckpt")
    assert resumed.global_step == 2


# ---------------------------------------------------------------------- counters, logging, metrics


class TwoOptimizers(OneWeight):
    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.v = torch.nn.Parameter(torch.zeros(1))

    def training_step(self, batch: Any, batch_idx: int) -> None:
        for optimizer, weight in zip(self.optimizers(), (self.w, self.v), strict=True):
            optimizer.zero_grad()
            self.manual_backward(weight.sum())
            optimizer.step()
        self.log("x", float(batch_idx))
        self.seen.append((self.current_epoch, batch_idx, 0.0))

    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD([self.w], lr=1.0), torch.optim.SGD([self.v], lr=1.0)]


def test_c22_two_optimizers_count_a_batch_once() -> None:
    module, logger = TwoOptimizers(), Keeping()
    fit = trainer(max_steps=6, logger=logger, log_every_n_steps=1)
    fit.fit(module, loader(10))
    assert len(module.seen) == 6
    assert fit.global_step == 6
    assert [step for metrics, step in logger.told if "x" in metrics] == [0, 1, 2, 3, 4, 5]


def test_c22_compat_counts_every_optimizer() -> None:
    module, logger = TwoOptimizers(), Keeping()
    fit = trainer(max_steps=6, logger=logger, log_every_n_steps=1, compat="lightning")
    fit.fit(module, loader(10))
    assert len(module.seen) == 3 and fit.global_step == 6


def test_c23_the_sanity_check_leaves_no_metric() -> None:
    import torchmetrics

    seen: list[Any] = []

    class Logging(OneWeight):
        def __init__(self) -> None:
            super().__init__()
            self.mean = torchmetrics.MeanMetric()

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.mean.update(5.0)
            self.log("val_mean", self.mean)
            self.log("val_loss", 1.0)

        def on_train_start(self) -> None:
            seen.append((dict(self.trainer.callback_metrics), self.mean.update_count))

    logger = Keeping()
    fit = trainer(max_epochs=1, num_sanity_val_steps=2, logger=logger)
    fit.fit(Logging(), loader(1), loader(3))
    assert seen == [({}, 0)]
    assert [set(metrics) for metrics, _ in logger.told] == [{"val_mean", "val_loss", "epoch"}]


class Lying(IterableDataset[Any]):
    """Says 12, gives 8."""

    def __len__(self) -> int:
        return 12

    def __iter__(self) -> Any:
        return (torch.tensor([float(i)]) for i in range(8))


def test_c26_a_loader_shorter_than_it_says_still_validates() -> None:
    module = OneWeight()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        trainer(max_epochs=2).fit(module, DataLoader(Lying(), batch_size=1), loader(2))
    assert module.validated == [(8, 0), (8, 1), (16, 0), (16, 1)]
    assert sum("said it has 12 batches and ended after 8" in str(w.message) for w in said) == 1


def test_c26_with_accumulation_the_last_window_is_stepped() -> None:
    module = OneWeight()
    fit = trainer(max_epochs=1, accumulate_grad_batches=3)
    fit.fit(module, DataLoader(Lying(), batch_size=1))
    assert fit.global_step == 3
    assert module.w.item() == pytest.approx(-3.0)


def test_c26_without_a_length_a_limit_ends_the_epoch() -> None:
    module = OneWeight()
    trainer(max_epochs=2, limit_train_batches=5).fit(module, Generated(100), loader(1))
    assert module.validated == [(5, 0), (10, 0)]


def test_c32_a_forgotten_super_init_is_named() -> None:
    class Forgetful(pl.LightningModule):
        def __init__(self) -> None:
            self.net = torch.nn.Linear(1, 1)

    with pytest.raises(MisconfigurationException, match=r"Forgetful.__init__ does not call super\(\).__init__\(\)"):
        Forgetful()


def test_c32_without_any_layer_the_trainer_finds_it() -> None:
    class Forgetful(pl.LightningModule):
        def __init__(self) -> None:
            self.width = 3

        def training_step(self, batch: Any, batch_idx: int) -> None: ...

    with pytest.raises(MisconfigurationException, match=r"does not call super\(\).__init__\(\)"):
        trainer(max_epochs=1).fit(Forgetful(), loader(1))


# ---------------------------------------------------------------------- going on, saving, stopping


@pytest.mark.parametrize("workers", [0, 2])
def test_c10_shuffled_goes_on_with_the_tail_of_the_unbroken_run(tmp_path: Path, workers: int) -> None:
    def seen(stop: int | None, path: Any) -> list[float]:
        pl.seed_everything(7, verbose=False)
        module, fit = OneWeight(), trainer(max_epochs=2)
        for progress in fit.steps(module, loader(10, shuffle=True, num_workers=workers), ckpt_path=path):
            if progress.step == stop:
                fit.save_checkpoint(tmp_path / "x.ckpt")
                break
        return [value for _, _, value in module.seen]

    whole, head = seen(None, None), seen(4, None)
    tail = seen(None, tmp_path / "x.ckpt")
    assert head + tail == whole and sorted((head + tail)[:10]) == [float(i) for i in range(10)]


def test_c19_a_writer_that_fails_half_way_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import bolide.checkpoint.file as files

    def half(checkpoint: Any, file: Any) -> None:
        if checkpoint["global_step"] > 4:
            file.write(b"PK half of it")
            raise OSError(28, "No space left on device")
        original(checkpoint, file)

    original = torch.save
    monkeypatch.setattr(files.torch, "save", half)
    saver = ModelCheckpoint(dirpath=tmp_path, every_n_train_steps=2, save_last=True)
    with pytest.raises(OSError, match="No space left"):
        trainer(max_epochs=1, callbacks=[saver], enable_checkpointing=True).fit(OneWeight(), loader(10))
    assert torch.load(tmp_path / "last.ckpt", weights_only=True)["global_step"] == 4
    assert sorted(path.name for path in tmp_path.iterdir()) == ["epoch=0-step=4.ckpt", "last.ckpt"]


def test_c20_hyperparameters_that_are_no_plain_data(tmp_path: Path) -> None:
    class Thing:
        pass

    class Given(OneWeight):
        def __init__(self, folder: Path, thing: Any = None) -> None:
            super().__init__()
            self.save_hyperparameters()

    fit = trainer(max_epochs=1)
    with pytest.warns(UserWarning, match="thing"):  # what cannot be saved is named
        fit.fit(Given(Path("a/b"), Thing()), loader(2))
        fit.save_checkpoint(tmp_path / "x.ckpt")
    assert torch.load(tmp_path / "x.ckpt", weights_only=True)["hyper_parameters"] == {"folder": "a/b"}
    with pytest.raises(MisconfigurationException, match=r"thing=\.\.\."):
        Given.load_from_checkpoint(tmp_path / "x.ckpt")
    assert Given.load_from_checkpoint(tmp_path / "x.ckpt", thing=Thing()).hparams.folder == Path("a/b")
    trainer(max_epochs=2).fit(Given(Path("a/b"), Thing()), loader(2), ckpt_path=tmp_path / "x.ckpt")


def test_c20_a_name_in_a_file_is_not_called(tmp_path: Path) -> None:
    fit = trainer(max_epochs=1)
    fit.fit(OneWeight(), loader(2))
    fit.save_checkpoint(tmp_path / "x.ckpt")
    content = torch.load(tmp_path / "x.ckpt", weights_only=True)
    content["hyper_parameters"] = {"_instantiator": "tests.test_cases._must_not_be_called"}
    torch.save(content, tmp_path / "y.ckpt")
    with pytest.raises(CheckpointError, match="asks to call"):
        OneWeight.load_from_checkpoint(tmp_path / "y.ckpt")


def _must_not_be_called(*args: Any, **kwargs: Any) -> None:
    raise AssertionError("a name in a file was called")


def test_c27_go_on_if_present_starts_on_a_first_run(tmp_path: Path) -> None:
    fit = trainer(max_epochs=1, callbacks=[ModelCheckpoint(dirpath=tmp_path)], enable_checkpointing=True)
    fit.fit(OneWeight(), loader(3), ckpt_path="auto")
    assert fit.global_step == 3


def test_c27_ctrl_c_reaches_the_caller() -> None:
    class Interrupted(OneWeight):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            if batch_idx == 2:
                raise KeyboardInterrupt
            return super().training_step(batch, batch_idx)

    class Ends(Keeping):
        def finalize(self, status: str) -> None:
            self.status = status

    logger = Ends()
    with pytest.raises(KeyboardInterrupt):
        trainer(max_epochs=1, logger=logger).fit(Interrupted(), loader(5))
    assert logger.status == "interrupted"


def test_c24_logs_go_on_in_a_folder_that_is_used_again(tmp_path: Path) -> None:
    from bolide.loggers import CSVLogger

    class Logging(OneWeight):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.log("loss", self.w.sum())
            return self.w.sum()

    def fit(epochs: int, path: str | None) -> None:
        logger = CSVLogger(tmp_path, name="", version="")
        one = trainer(max_epochs=epochs, logger=logger, log_every_n_steps=1)
        one.fit(Logging(), loader(4), ckpt_path=path)
        one.save_checkpoint(tmp_path / "x.ckpt")

    fit(1, None)
    fit(2, str(tmp_path / "x.ckpt"))
    with open(tmp_path / "metrics.csv") as file:
        assert [int(row["step"]) for row in csv.DictReader(file)] == list(range(8))


def test_a_missing_checkpoint_names_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "epoch=1.ckpt").write_bytes(b"x")
    with pytest.raises(CheckpointError, match=r"no such file. There is .*epoch=1.ckpt"):
        trainer(max_epochs=1).fit(OneWeight(), loader(1), ckpt_path=tmp_path / "epoch=2.ckpt")


def test_c15_callbacks_know_nothing_of_the_module_before(tmp_path: Path) -> None:
    saver = ModelCheckpoint(dirpath=tmp_path, monitor="val_loss", save_last=True, every_n_train_steps=5)
    stopper, guard = EarlyStopping("val_loss", patience=2), NonFinite(policy="skip", max=1)
    fit = trainer(max_epochs=9, callbacks=[saver, stopper, guard], enable_checkpointing=True, val_check_interval=5)
    kept = []
    for module in (NeverBetter(), NeverBetter()):
        fit.fit(module, loader(5), loader(1))
        kept.append(saver.best_model_path)
        assert (fit.global_step, stopper.stopped_epoch, stopper.wait_count) == (15, 2, 2)
        assert torch.load(saver.best_model_path, weights_only=True)["global_step"] == 5
        assert torch.load(saver.last_model_path, weights_only=True)["global_step"] == 15
        guard.skipped.append({"policy": "skip"})  # one that the next module did not meet
    assert kept[0] != kept[1] and guard.skipped == [{"policy": "skip"}]
    assert {path.name for path in tmp_path.glob("*.ckpt")} >= {Path(kept[0]).name, Path(kept[1]).name}


def test_a_fit_within_a_fit_changes_nothing_of_it() -> None:
    class Nests(OneWeight):
        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            with pytest.raises(MisconfigurationException, match="while this trainer runs already"):
                self.trainer.fit(OneWeight(), loader(1))

    fit = trainer(max_epochs=1)
    fit.fit(Nests(), loader(5))
    assert fit.global_step == 5

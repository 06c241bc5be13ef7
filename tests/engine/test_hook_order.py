"""The order of the hooks in every kind of run, written out: who is told what, and when.

tests/engine/tracing.py says how a trace is written: CB is a callback, LM the module, DM the datamodule.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import bolide as pl
from tests.engine.tracing import (
    BATCH,
    CLOSE_FIT,
    FIRST_OF_WINDOW,
    LAST_BATCH,
    LATER_IN_WINDOW,
    OPEN_FIT,
    SANITY_CHECK,
    TRANSFER,
    UPDATE,
    VALIDATION,
    Data,
    Net,
    heard,
    lines,
    listening,
)


def test_fit_with_sanity_check_and_validation() -> None:
    trace, trainer, module, datamodule = heard(num_sanity_val_steps=1)
    trainer.fit(module, datamodule=datamodule)
    assert trace == lines(
        """
        LM: configure_callbacks
        DM LM: prepare_data
        DM CB LM: setup
        LM: configure_model
        LM: configure_optimizers
        CB LM: on_fit_start
        LM: zero_grad
        CB: on_sanity_check_start
        DM: val_dataloader
        LM: on_validation_model_eval
        CB LM: on_validation_start
        CB LM: on_validation_epoch_start
        LM: on_before_batch_transfer
        LM: transfer_batch_to_device
        LM: on_after_batch_transfer
        CB LM: on_validation_batch_start
        LM: validation_step
        CB LM: on_validation_batch_end
        CB LM: on_validation_epoch_end
        CB LM: on_validation_end
        LM: on_validation_model_train
        CB: on_sanity_check_end
        DM: train_dataloader
        CB LM: on_train_start
        CB LM: on_train_epoch_start
        LM: on_before_batch_transfer
        LM: transfer_batch_to_device
        LM: on_after_batch_transfer
        CB LM: on_train_batch_start
        LM: optimizer_step
        LM: training_step
        CB LM: on_before_zero_grad
        LM: optimizer_zero_grad
        CB LM: on_before_backward
        LM: backward
        CB LM: on_after_backward
        CB LM: on_before_optimizer_step
        LM: configure_gradient_clipping
        LM: clip_gradients
        LM: lr_scheduler_step
        CB LM: on_train_batch_end
        LM: on_validation_model_zero_grad
        LM: zero_grad
        LM: on_validation_model_eval
        CB LM: on_validation_start
        CB LM: on_validation_epoch_start
        LM: on_before_batch_transfer
        LM: transfer_batch_to_device
        LM: on_after_batch_transfer
        CB LM: on_validation_batch_start
        LM: validation_step
        CB LM: on_validation_batch_end
        CB LM: on_validation_epoch_end
        CB LM: on_validation_end
        LM: on_validation_model_train
        CB LM: on_train_epoch_end
        CB LM: on_train_end
        CB LM: on_fit_end
        DM CB LM: teardown
        """
    )


def test_without_a_sanity_check_the_validation_loader_is_there_when_training_starts() -> None:
    trace, trainer, module, datamodule = heard()
    trainer.fit(module, datamodule=datamodule)
    assert trace == lines(
        OPEN_FIT,
        "DM: train_dataloader, val_dataloader",
        "CB LM: on_train_start, on_train_epoch_start",
        LAST_BATCH,
        "LM: on_validation_model_zero_grad, zero_grad",
        VALIDATION,
        "CB LM: on_train_epoch_end",
        CLOSE_FIT,
    )


def test_accumulation_with_a_short_last_window() -> None:
    trace, trainer, module, datamodule = heard(train_batches=3, accumulate_grad_batches=2, limit_val_batches=0)
    trainer.fit(module, datamodule=datamodule)
    assert trainer.global_step == 2
    assert trace == lines(
        OPEN_FIT,
        "DM: train_dataloader",
        "CB LM: on_train_start, on_train_epoch_start",
        TRANSFER,
        "CB LM: on_train_batch_start",
        FIRST_OF_WINDOW,  # no optimizer_step and no on_before_optimizer_step: the window is open
        "CB LM: on_train_batch_end",
        TRANSFER,
        "CB LM: on_train_batch_start",
        "LM: optimizer_step",
        LATER_IN_WINDOW,
        UPDATE,
        "CB LM: on_train_batch_end",
        LAST_BATCH,  # a window of one batch, which the epoch's end closes
        "CB LM: on_train_epoch_end",
        CLOSE_FIT,
    )


def test_validation_in_the_midst_of_a_window_keeps_its_gradients() -> None:
    trace, trainer, module, datamodule = heard(
        train_batches=2, accumulate_grad_batches=2, val_check_interval=1, num_sanity_val_steps=1
    )
    trainer.fit(module, datamodule=datamodule)
    assert trace == lines(
        OPEN_FIT,
        SANITY_CHECK,
        "DM: train_dataloader",
        "CB LM: on_train_start, on_train_epoch_start",
        TRANSFER,
        "CB LM: on_train_batch_start",
        FIRST_OF_WINDOW,
        "CB LM: on_train_batch_end",
        VALIDATION,  # without on_validation_model_zero_grad
        TRANSFER,
        "CB LM: on_train_batch_start",
        "LM: optimizer_step",
        LATER_IN_WINDOW,
        UPDATE,
        "LM: lr_scheduler_step",
        "CB LM: on_train_batch_end",
        "LM: on_validation_model_zero_grad, zero_grad",
        VALIDATION,
        "CB LM: on_train_epoch_end",
        CLOSE_FIT,
    )


def test_a_scheduler_by_step_steps_after_the_optimizer_only() -> None:
    class BySteps(Net):
        def configure_optimizers(self) -> Any:
            (optimizer,), (scheduler,) = super().configure_optimizers()
            return [optimizer], [{"scheduler": scheduler, "interval": "step"}]

    trace, trainer, module, datamodule = heard(BySteps, 2, accumulate_grad_batches=2, limit_val_batches=0)
    trainer.fit(module, datamodule=datamodule)
    assert trace == lines(
        OPEN_FIT,
        "DM: train_dataloader",
        "CB LM: on_train_start, on_train_epoch_start",
        TRANSFER,
        "CB LM: on_train_batch_start",
        FIRST_OF_WINDOW,
        "CB LM: on_train_batch_end",
        TRANSFER,
        "CB LM: on_train_batch_start",
        "LM: optimizer_step",
        LATER_IN_WINDOW,
        UPDATE,
        "LM: lr_scheduler_step",
        "CB LM: on_train_batch_end, on_train_epoch_end",
        CLOSE_FIT,
    )


def test_a_plateau_scheduler_by_epoch_steps_after_the_epoch_end_hooks() -> None:
    class OnPlateau(Net):
        def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
            super().validation_step(batch, batch_idx)
            self.log("metric", 1.0)

        def configure_optimizers(self) -> Any:
            (optimizer,), _ = super().configure_optimizers()
            scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
            return {"optimizer": optimizer, "lr_scheduler": scheduler, "monitor": "metric"}

    trace, trainer, module, datamodule = heard(OnPlateau, num_sanity_val_steps=1)
    trainer.fit(module, datamodule=datamodule)
    assert trace == lines(
        OPEN_FIT,
        SANITY_CHECK,
        "DM: train_dataloader",
        "CB LM: on_train_start, on_train_epoch_start",
        BATCH,
        "CB LM: on_train_batch_end",
        "LM: on_validation_model_zero_grad, zero_grad",
        VALIDATION,
        "CB LM: on_train_epoch_end",
        "LM: lr_scheduler_step",
        CLOSE_FIT,
    )


def test_manual_optimization_hears_of_backward_passes_and_steps_alone() -> None:
    class ByHand(Net):
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False

        def training_step(self, batch: Any, batch_idx: int) -> None:
            optimizer = self.optimizers()
            for _ in range(2):
                optimizer.zero_grad()
                self.manual_backward(super().training_step(batch, batch_idx))
                optimizer.step()

    trace, trainer, module, datamodule = heard(ByHand, limit_val_batches=0)
    trainer.fit(module, datamodule=datamodule)
    assert trace == lines(
        OPEN_FIT,
        "DM: train_dataloader",
        "CB LM: on_train_start, on_train_epoch_start",
        TRANSFER,
        "CB LM: on_train_batch_start",
        LATER_IN_WINDOW,
        "CB LM: on_before_optimizer_step",
        LATER_IN_WINDOW,
        "CB LM: on_before_optimizer_step",
        "CB LM: on_train_batch_end, on_train_epoch_end",
        CLOSE_FIT,
    )


def test_a_closure_that_is_evaluated_twice() -> None:
    class Newton(Net):
        def configure_optimizers(self) -> Any:
            super().configure_optimizers()
            return torch.optim.LBFGS(self.parameters(), lr=0.01, max_iter=2)

    trace, trainer, module, datamodule = heard(Newton, limit_val_batches=0)
    trainer.fit(module, datamodule=datamodule)
    assert trace == lines(
        OPEN_FIT,
        "DM: train_dataloader",
        "CB LM: on_train_start, on_train_epoch_start",
        TRANSFER,
        "CB LM: on_train_batch_start",
        "LM: optimizer_step",
        FIRST_OF_WINDOW,
        UPDATE,
        FIRST_OF_WINDOW,
        UPDATE,
        "CB LM: on_train_batch_end, on_train_epoch_end",
        CLOSE_FIT,
    )


def test_a_training_step_that_returns_none() -> None:
    class Skipping(Net):
        def training_step(self, batch: Any, batch_idx: int) -> None:
            super().training_step(batch, batch_idx)

    trace, trainer, module, datamodule = heard(Skipping, limit_val_batches=0)
    with pytest.warns(UserWarning, match="returned None"):
        trainer.fit(module, datamodule=datamodule)
    assert trace == lines(
        OPEN_FIT,
        "DM: train_dataloader",
        "CB LM: on_train_start, on_train_epoch_start",
        TRANSFER,
        "CB LM: on_train_batch_start",
        "LM: optimizer_step, training_step",
        "CB LM: on_before_zero_grad",
        "LM: optimizer_zero_grad",
        UPDATE,
        "LM: lr_scheduler_step",
        "CB LM: on_train_batch_end, on_train_epoch_end",
        CLOSE_FIT,
    )


def test_a_batch_start_that_ends_the_epoch() -> None:
    class Ending(Net):
        def on_train_batch_start(self, batch: Any, batch_idx: int) -> int | None:
            return -1 if batch_idx == 1 else None

    trace, trainer, module, datamodule = heard(Ending, 3, limit_val_batches=0)
    trainer.fit(module, datamodule=datamodule)
    assert trace == lines(
        OPEN_FIT,
        "DM: train_dataloader",
        "CB LM: on_train_start, on_train_epoch_start",
        BATCH,
        "CB LM: on_train_batch_end",
        TRANSFER,
        "CB LM: on_train_batch_start",
        "LM: lr_scheduler_step",
        "CB LM: on_train_epoch_end",
        CLOSE_FIT,
    )


def test_a_stop_validates_at_once_and_ends_the_epoch() -> None:
    class Stopping(Net):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.trainer.should_stop = True
            return super().training_step(batch, batch_idx)

    trace, trainer, module, datamodule = heard(Stopping, 3, num_sanity_val_steps=1)
    trainer.fit(module, datamodule=datamodule)
    assert trace == lines(
        OPEN_FIT,
        SANITY_CHECK,
        "DM: train_dataloader",
        "CB LM: on_train_start, on_train_epoch_start",
        BATCH,
        "CB LM: on_train_batch_end",
        "LM: on_validation_model_zero_grad, zero_grad",
        VALIDATION,
        "CB LM: on_train_epoch_end",
        CLOSE_FIT,
    )


def test_callbacks_that_act_on_metrics_hear_the_end_of_an_epoch_after_the_module() -> None:
    trace, trainer, module, datamodule = heard(limit_val_batches=0)
    stopping = listening(pl.callbacks.EarlyStopping, ["on_train_epoch_end"], "ES", trace)
    trainer.callbacks.insert(0, stopping("metric", strict=False))
    trainer.fit(module, datamodule=datamodule)
    assert [told for told in trace if told.endswith("on_train_epoch_end")] == lines("CB LM ES: on_train_epoch_end")


@pytest.mark.parametrize(("fn", "kind"), [("validate", "validation"), ("test", "test")])
def test_evaluation_alone(fn: str, kind: str) -> None:
    trace, trainer, module, datamodule = heard()
    getattr(trainer, fn)(module, datamodule=datamodule, verbose=False)
    assert trace == lines(
        f"""
        LM: configure_callbacks
        DM LM: prepare_data
        DM CB LM: setup
        LM: configure_model, zero_grad
        DM: {"val" if fn == "validate" else fn}_dataloader
        LM: on_{kind}_model_eval
        CB LM: on_{kind}_start, on_{kind}_epoch_start
        {TRANSFER}
        CB LM: on_{kind}_batch_start
        LM: {kind}_step
        CB LM: on_{kind}_batch_end, on_{kind}_epoch_end, on_{kind}_end
        LM: on_{kind}_model_train
        DM CB LM: teardown
        """
    )


def test_evaluation_over_two_loaders_is_one_epoch() -> None:
    trace, trainer, module, _ = heard()
    loader = Data(1).val_dataloader()
    trainer.validate(module, [loader, loader], verbose=False)
    batch = f"""
        {TRANSFER}
        CB LM: on_validation_batch_start
        LM: validation_step
        CB LM: on_validation_batch_end
    """
    assert trace == lines(
        "LM: configure_callbacks, prepare_data",
        "CB LM: setup",
        "LM: configure_model, zero_grad, on_validation_model_eval",
        "CB LM: on_validation_start, on_validation_epoch_start",
        batch,
        batch,
        "CB LM: on_validation_epoch_end, on_validation_end",
        "LM: on_validation_model_train",
        "CB LM: teardown",
    )


def test_prediction() -> None:
    trace, trainer, module, datamodule = heard()
    trainer.predict(module, datamodule=datamodule)
    assert trace == lines(
        f"""
        LM: configure_callbacks
        DM LM: prepare_data
        DM CB LM: setup
        LM: configure_model, zero_grad
        DM: predict_dataloader
        LM: on_predict_model_eval
        CB LM: on_predict_start, on_predict_epoch_start
        {TRANSFER}
        CB LM: on_predict_batch_start
        LM: predict_step
        CB LM: on_predict_batch_end, on_predict_epoch_end, on_predict_end
        DM CB LM: teardown
        """
    )


def test_saving_a_checkpoint(tmp_path: Path) -> None:
    trace, trainer, module, datamodule = heard(limit_val_batches=0)
    trainer.fit(module, datamodule=datamodule)
    trace.clear()
    trainer.save_checkpoint(tmp_path / "all.ckpt")
    assert trace == lines("LM CB DM: state_dict", "CB LM: on_save_checkpoint")
    trace.clear()
    trainer.save_checkpoint(tmp_path / "weights.ckpt", weights_only=True)
    assert trace == lines("LM DM: state_dict", "LM: on_save_checkpoint")


def test_going_on_from_a_checkpoint(tmp_path: Path) -> None:
    _, trainer, module, datamodule = heard(limit_val_batches=0)
    trainer.fit(module, datamodule=datamodule)
    trainer.save_checkpoint(tmp_path / "one.ckpt")
    trace, trainer, module, datamodule = heard(num_sanity_val_steps=1, max_epochs=2, limit_val_batches=0)
    trainer.fit(module, datamodule=datamodule, ckpt_path=tmp_path / "one.ckpt")
    assert trainer.global_step == 2
    assert trace == lines(
        "LM: configure_callbacks",
        "DM LM: prepare_data",
        "DM CB LM: setup",
        "LM: configure_model, on_load_checkpoint",
        "LM DM: load_state_dict",
        "CB: on_load_checkpoint, load_state_dict",
        "LM: configure_optimizers",
        "CB LM: on_fit_start",
        "LM: zero_grad",
        "DM: train_dataloader",
        "CB LM: on_train_start, on_train_epoch_start",
        LAST_BATCH,
        "CB LM: on_train_epoch_end",
        CLOSE_FIT,
    )


def test_going_on_within_an_epoch_opens_it_no_second_time(tmp_path: Path) -> None:
    class Saving(Net):
        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            if batch_idx == 0:
                self.trainer.save_checkpoint(tmp_path / "mid.ckpt")

    _, trainer, module, datamodule = heard(Saving, 2, limit_val_batches=0)
    trainer.fit(module, datamodule=datamodule)
    trace, trainer, module, datamodule = heard(Net, 2, num_sanity_val_steps=1)
    trainer.fit(module, datamodule=datamodule, ckpt_path=tmp_path / "mid.ckpt")
    opened = trace.index("CB on_train_start")
    assert "CB on_sanity_check_start" not in trace
    assert [told for told in trace[opened:] if not told.startswith("DM val")] == lines(
        "CB LM: on_train_start",
        LAST_BATCH,
        "LM: on_validation_model_zero_grad, zero_grad",
        VALIDATION,
        "CB LM: on_train_epoch_end",
        CLOSE_FIT,
    )


def test_an_exception_is_told_and_nothing_is_torn_down() -> None:
    class Failing(Net):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            super().training_step(batch, batch_idx)
            raise ValueError("the step fails")

    trace, trainer, module, datamodule = heard(Failing, limit_val_batches=0)
    with pytest.raises(ValueError, match="the step fails"):
        trainer.fit(module, datamodule=datamodule)
    assert trainer.interrupted
    assert trace == lines(
        OPEN_FIT,
        "DM: train_dataloader",
        "CB LM: on_train_start, on_train_epoch_start",
        TRANSFER,
        "CB LM: on_train_batch_start",
        "LM: optimizer_step, training_step",
        "CB DM: on_exception",
    )

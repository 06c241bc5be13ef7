"""Scripts: when validation runs, when a fit ends, several calls on one trainer, exceptions."""

from __future__ import annotations

import datetime

import torch

from .library import regression, rows, scripts_in_modes

script = scripts_in_modes("plain", "bare")


def _fit(pl, record, train=8, val=2, **arguments):
    trainer = record.trainer(**arguments)
    trainer.fit(record.module(regression(pl)), rows(train), rows(val))
    return trainer


@script
def validate_twice_an_epoch(pl, record, out_dir):
    _fit(pl, record, val_check_interval=0.5)


@script
def validate_at_a_share_of_a_ragged_epoch(pl, record, out_dir):
    _fit(pl, record, train=10, val_check_interval=0.4)


@script
def validate_every_second_batch(pl, record, out_dir):
    _fit(pl, record, train=10, val_check_interval=2)


@script
def validate_across_epochs(pl, record, out_dir):
    _fit(pl, record, train=6, val_check_interval=4, check_val_every_n_epoch=None, max_epochs=4)


@script
def validate_every_second_epoch(pl, record, out_dir):
    _fit(pl, record, train=4, check_val_every_n_epoch=2, max_epochs=5)


@script
def validate_every_second_epoch_twice(pl, record, out_dir):
    _fit(pl, record, train=8, check_val_every_n_epoch=2, val_check_interval=0.5, max_epochs=4)


@script
def sanity_steps_off_and_all(pl, record, out_dir):
    _fit(pl, record, val=8, num_sanity_val_steps=0, max_epochs=1)
    _fit(pl, record, val=8, num_sanity_val_steps=-1, max_epochs=1)


@script
def sanity_leaves_no_metrics(pl, record, out_dir):
    class Module(regression(pl)):
        def on_train_start(self):
            record.note(f"metrics at the start: {sorted(self.trainer.callback_metrics)}")

    record.trainer(max_epochs=1).fit(record.module(Module), rows(4), rows(4))


@script
def fast_dev_run(pl, record, out_dir):
    trainer = record.trainer(fast_dev_run=True, max_epochs=5)
    module = record.module(regression(pl))
    trainer.fit(module, rows(6), rows(6))
    record.value("validate", trainer.validate(module, rows(6), verbose=False))
    record.value("limits", [trainer.max_steps, trainer.num_sanity_val_steps, trainer.val_check_interval])


@script
def fast_dev_run_of_two(pl, record, out_dir):
    trainer = record.trainer(fast_dev_run=2)
    module = record.module(regression(pl))
    trainer.fit(module, rows(8), rows(8))
    record.value("predict", trainer.predict(module, rows(8)))


@script
def max_steps_within_an_epoch(pl, record, out_dir):
    _fit(pl, record, train=6, max_steps=4, max_epochs=-1)


@script
def max_steps_at_an_epochs_end(pl, record, out_dir):
    _fit(pl, record, train=6, max_steps=6, max_epochs=-1)


@script
def max_steps_at_a_validation(pl, record, out_dir):
    _fit(pl, record, max_steps=2, max_epochs=-1, val_check_interval=2)


@script
def max_steps_while_accumulating(pl, record, out_dir):
    _fit(pl, record, train=10, max_steps=4, max_epochs=-1, accumulate_grad_batches=2)


@script
def nothing_to_do(pl, record, out_dir):
    for limit in ("max_steps", "max_epochs"):
        torch.manual_seed(0)  # a fit that trains nothing need not draw what opening a loader draws
        _fit(pl, record, **{limit: 0})


def _stopping(record, at_batch):
    """Sets should_stop at the end of the given training batch, counted over the run."""

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.seen = getattr(self, "seen", 0) + 1
        if self.seen == at_batch:
            trainer.should_stop = True

    return record.callback("stopper", on_train_batch_end=on_train_batch_end)


@script
def stop_within_an_epoch(pl, record, out_dir):
    _fit(pl, record, trace_callback=_stopping(record, 2))


@script
def stop_before_min_epochs(pl, record, out_dir):
    _fit(pl, record, train=6, trace_callback=_stopping(record, 2), min_epochs=2, max_epochs=4)


@script
def stop_before_min_steps(pl, record, out_dir):
    _fit(pl, record, train=6, trace_callback=_stopping(record, 2), min_steps=5, max_epochs=4)


@script
def stop_with_an_open_window(pl, record, out_dir):
    _fit(pl, record, trace_callback=_stopping(record, 1), accumulate_grad_batches=2)


@script
def stop_after_the_only_due_validation(pl, record, out_dir):
    _fit(pl, record, trace_callback=_stopping(record, 2), val_check_interval=2)


@script
def stop_in_other_hooks(pl, record, out_dir):
    def stop(self, trainer, *arguments):
        if not trainer.sanity_checking:
            trainer.should_stop = True

    for hook in ("on_train_epoch_start", "on_train_batch_start", "on_validation_end", "on_train_epoch_end"):
        _fit(pl, record, trace_callback=record.callback("stopper", **{hook: stop}), val_check_interval=2)


@script
def max_time_far_away(pl, record, out_dir):
    trainer = _fit(pl, record, train=4, max_time={"days": 3})
    record.value("timer", [type(c).__name__ for c in trainer.callbacks if type(c).__name__ == "Timer"])


@script
def timer_that_is_up_at_once(pl, record, out_dir):
    timer = record.part("callbacks").Timer(datetime.timedelta(0), interval="step")
    trainer = record.trainer(timer)
    trainer.fit(record.module(regression(pl)), rows(6), rows(2))


@script
def fit_again_with_more_epochs(pl, record, out_dir):
    trainer, module = record.trainer(), record.module(regression(pl))
    trainer.fit(module, rows(4), rows(2))
    trainer.fit_loop.max_epochs = 3
    trainer.fit(module, rows(6), rows(2))


@script
def fit_again_without_more_epochs(pl, record, out_dir):
    trainer = record.trainer()
    trainer.fit(record.module(regression(pl)), rows(4), rows(2))
    trainer.fit(record.module(regression(pl)), rows(4), rows(2))


@script
def every_stage_on_one_trainer(pl, record, out_dir):
    trainer, module = record.trainer(max_epochs=1), record.module(regression(pl))
    record.value("before", trainer.validate(module, rows(4), verbose=False))
    trainer.fit(module, rows(4), rows(2))
    record.value("validate", trainer.validate(module, rows(4), verbose=False))
    record.value("test", trainer.test(module, rows(4), verbose=False))
    record.value("predict", trainer.predict(module, rows(4)))
    trainer.fit_loop.max_epochs = 2
    trainer.fit(module, rows(4), rows(2))


@script
def exception_in_a_training_step(pl, record, out_dir):
    class Module(regression(pl)):
        def training_step(self, batch, batch_idx):
            if batch_idx == 1:
                raise ValueError("as intended")
            return super().training_step(batch, batch_idx)

    trainer, module = record.trainer(), record.module(Module)
    record.raised("fit", lambda: trainer.fit(module, rows(6), rows(2)))


@script
def exception_in_validation(pl, record, out_dir):
    class Module(regression(pl)):
        def validation_step(self, batch, batch_idx):
            if not self.trainer.sanity_checking:
                raise KeyError("as intended")

    trainer, module = record.trainer(), record.module(Module)
    record.raised("fit", lambda: trainer.fit(module, rows(4), rows(2)))


@script
def settings_that_are_refused(pl, record, out_dir):
    for index, arguments in enumerate(
        (
            {"max_epochs": -2},
            {"limit_train_batches": 1.5},
            {"gradient_clip_algorithm": "nothing"},
            {"val_check_interval": 1.5},
            {"fast_dev_run": -1},
        )
    ):
        record.raised(f"{index}", lambda arguments=arguments: record.trainer(**arguments))


@script
def modules_that_are_refused(pl, record, out_dir):
    class NoStep(pl.LightningModule):
        def configure_optimizers(self):
            return None

    class NoOptimizer(pl.LightningModule):
        def training_step(self, batch, batch_idx):
            return None

    record.raised("no step", lambda: record.trainer().fit(NoStep(), rows(2)))
    record.raised("no loader", lambda: record.trainer().fit(regression(pl)()))
    record.raised("no test step", lambda: record.trainer().test(NoStep(), rows(2)))
    record.raised("interval too long", lambda: _fit(pl, record, train=4, val_check_interval=9))

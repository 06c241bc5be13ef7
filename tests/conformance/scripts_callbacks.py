"""Scripts: early stopping, callback order and state, callbacks that change a run."""

from __future__ import annotations

from .library import regression, rows, scripts_in_modes

script = scripts_in_modes("plain")


def _sequence(pl, values, log_in="validation"):
    """Logs the given values, one an epoch, as `score`."""

    class Module(regression(pl)):
        def validation_step(self, batch, batch_idx):
            if log_in == "validation":
                self.log("score", values[self.current_epoch])

        def on_train_epoch_end(self):
            if log_in == "training":
                self.log("score", values[self.current_epoch])

    return Module


def _early(pl, record, values, log_in="validation", trainer_arguments=None, **arguments):
    stopping = record.part("callbacks").EarlyStopping("score", **arguments)
    trainer = record.trainer(stopping, max_epochs=len(values), **(trainer_arguments or {}))
    trainer.fit(record.module(_sequence(pl, values, log_in)), rows(4), rows(2))
    record.value(
        f"early stopping {len(record.values)}",
        [stopping.stopped_epoch, stopping.wait_count, stopping.best_score, trainer.current_epoch, trainer.global_step],
    )


@script
def early_stopping_on_validation(pl, record, out_dir):
    _early(pl, record, [1.0, 0.9, 0.95, 0.89, 0.9, 0.91, 0.92], patience=2)


@script
def early_stopping_on_training(pl, record, out_dir):
    _early(pl, record, [1.0, 1.1, 1.2, 1.3], "training", patience=2)


@script
def early_stopping_min_delta_and_mode(pl, record, out_dir):
    _early(pl, record, [1.0, 1.05, 1.2, 1.25, 1.26, 1.0], patience=2, min_delta=0.1, mode="max")


@script
def early_stopping_thresholds(pl, record, out_dir):
    _early(pl, record, [1.0, 0.5, 0.4, 0.3], patience=5, stopping_threshold=0.45)
    _early(pl, record, [1.0, 2.0, 9.0, 0.3], patience=5, divergence_threshold=5.0)


@script
def early_stopping_not_finite(pl, record, out_dir):
    _early(pl, record, [1.0, 0.5, float("nan"), 0.3], patience=5)
    _early(pl, record, [1.0, 0.5, float("inf"), 0.3], patience=5, check_finite=False)


@script
def early_stopping_within_min_epochs(pl, record, out_dir):
    _early(pl, record, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0], trainer_arguments={"min_epochs": 4}, patience=1)


@script
def early_stopping_at_every_validation(pl, record, out_dir):
    _early(pl, record, [1.0, 2.0, 3.0], trainer_arguments={"val_check_interval": 0.5}, patience=2)


@script
def early_stopping_check_on_train_epoch_end(pl, record, out_dir):
    _early(pl, record, [1.0, 2.0, 3.0, 4.0], patience=2, check_on_train_epoch_end=False)
    _early(pl, record, [1.0, 2.0, 3.0, 4.0], "training", patience=1, check_on_train_epoch_end=True)


@script
def early_stopping_on_a_missing_metric(pl, record, out_dir):
    stopping = record.part("callbacks").EarlyStopping
    module = record.module(regression(pl))
    record.raised("strict", lambda: record.trainer(stopping("nothing")).fit(module, rows(2), rows(2)))
    record.trainer(stopping("nothing", strict=False)).fit(record.module(regression(pl)), rows(2), rows(2))


@script
def order_of_callbacks(pl, record, out_dir):
    callbacks = record.part("callbacks")

    class Module(regression(pl)):
        def configure_callbacks(self):
            return [callbacks.EarlyStopping("val", patience=7), record.callback("from_module")]

    class Own(callbacks.Callback):
        pass

    trainer = record.trainer(
        callbacks.ModelCheckpoint(dirpath=out_dir / "kept"),
        callbacks.EarlyStopping("train_epoch"),
        record.callback("second"),
        Own(),
        max_time="00:01:00:00",
    )
    record.value("before", [type(callback).__name__ for callback in trainer.callbacks])
    trainer.fit(record.module(Module), rows(4), rows(2))
    record.value("after", [type(callback).__name__ for callback in trainer.callbacks])
    record.value("state keys", [callback.state_key for callback in trainer.callbacks])
    record.value("patience", trainer.early_stopping_callback.patience)


@script
def callback_state_comes_back(pl, record, out_dir):
    def counter():
        def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
            self.count = getattr(self, "count", 0) + 1

        def state_dict(self):
            return {"count": getattr(self, "count", 0)}

        def load_state_dict(self, state):
            self.count = state["count"]

        return record.callback(
            "counter", on_train_batch_end=on_train_batch_end, state_dict=state_dict, load_state_dict=load_state_dict
        )

    keeper = record.part("callbacks").ModelCheckpoint(dirpath=out_dir / "kept")
    record.trainer(keeper, trace_callback=counter(), max_epochs=1).fit(record.module(regression(pl)), rows(4), rows(2))
    again = counter()
    trainer = record.trainer(trace_callback=again, max_epochs=2)
    trainer.fit(record.module(regression(pl)), rows(4), rows(2), ckpt_path=keeper.best_model_path)
    record.value("count", again.count)


@script
def lambda_callback(pl, record, out_dir):
    callback = record.part("callbacks").LambdaCallback(
        on_train_batch_end=lambda trainer, module, outputs, batch, batch_idx: record.note(f"lambda {batch_idx}"),
        on_validation_epoch_end=lambda trainer, module: record.note("lambda validation"),
        setup=lambda trainer, module, stage: record.note(f"lambda setup {stage.value}"),
    )
    record.trainer(callback).fit(record.module(regression(pl)), rows(4), rows(2))


@script
def callback_added_in_mid_fit(pl, record, out_dir):
    class Module(regression(pl)):
        def train_dataloader(self):
            if self.trainer.current_epoch == 1:
                self.trainer.callbacks.append(record.callback("late"))
            return rows(4)

    record.trainer(max_epochs=3, reload_dataloaders_every_n_epochs=1).fit(record.module(Module), None, rows(2))


@script
def callback_that_changes_the_rate(pl, record, out_dir):
    def on_before_optimizer_step(self, trainer, module, optimizer):
        for group in optimizer.param_groups:
            group["lr"] *= 0.9
        for parameter in module.parameters():
            parameter.grad.mul_(1.5)

    changer = record.callback("changer", on_before_optimizer_step=on_before_optimizer_step)
    record.trainer(trace_callback=changer).fit(record.module(regression(pl)), rows(6))


@script
def callback_that_swaps_weights_for_validation(pl, record, out_dir):
    def on_validation_start(self, trainer, module):
        self.kept = {name: value.clone() for name, value in module.state_dict().items()}
        module.layer.bias.data.add_(1.0)

    def on_validation_end(self, trainer, module):
        module.load_state_dict(self.kept)

    swapper = record.callback("swapper", on_validation_start=on_validation_start, on_validation_end=on_validation_end)
    record.trainer(trace_callback=swapper).fit(record.module(regression(pl)), rows(4), rows(2))

"""Scripts: self.log in every hook that allows it, its options, metric objects, the CSV logger's files."""

from __future__ import annotations

import csv

import torch
import yaml
from torch.utils.data import DataLoader

from .library import Rows, regression, rows, scripts_in_modes

script = scripts_in_modes("closure", "plain", "bare")


def _logging_everywhere(pl):
    class Module(regression(pl)):
        def on_train_start(self):
            self.log("on_train_start", 1.0)

        def on_train_epoch_start(self):
            self.log("on_train_epoch_start", self.current_epoch + 0.5)

        def on_train_batch_start(self, batch, batch_idx):
            self.log("on_train_batch_start", float(batch_idx), on_epoch=True)

        def on_before_zero_grad(self, optimizer):
            self.log("on_before_zero_grad", float(self.global_step))

        def on_before_backward(self, loss):
            self.log("on_before_backward", loss, on_step=False, on_epoch=True)

        def on_after_backward(self):
            self.log("on_after_backward", self.layer.weight.grad.norm(), on_epoch=True)

        def on_before_optimizer_step(self, optimizer):
            self.log("on_before_optimizer_step", float(self.global_step), reduce_fx="max", on_epoch=True)

        def on_train_batch_end(self, outputs, batch, batch_idx):
            self.log("on_train_batch_end", outputs["loss"], on_epoch=True, reduce_fx="sum", prog_bar=True)

        def on_train_epoch_end(self):
            self.log("on_train_epoch_end", float(self.global_step), prog_bar=True)

        def on_validation_start(self):
            self.log("on_validation_start", 2.0)

        def on_validation_epoch_start(self):
            self.log("on_validation_epoch_start", float(self.current_epoch))

        def on_validation_batch_start(self, batch, batch_idx):
            self.log("on_validation_batch_start", float(batch_idx), on_step=True)

        def on_validation_batch_end(self, outputs, batch, batch_idx):
            self.log("on_validation_batch_end", float(batch_idx), reduce_fx="max")

        def on_validation_epoch_end(self):
            self.log("on_validation_epoch_end", float(self.global_step), prog_bar=True)

        def on_test_start(self):
            self.log("on_test_start", 3.0)

        def on_test_epoch_start(self):
            self.log("on_test_epoch_start", 4.0)

        def on_test_batch_start(self, batch, batch_idx):
            self.log("on_test_batch_start", float(batch_idx), on_step=True)

        def on_test_batch_end(self, outputs, batch, batch_idx):
            self.log("on_test_batch_end", float(batch_idx))

        def on_test_epoch_end(self):
            self.log("on_test_epoch_end", 5.0)

        def optimizer_zero_grad(self, epoch, batch_idx, optimizer):
            self.log("optimizer_zero_grad", float(batch_idx))
            super().optimizer_zero_grad(epoch, batch_idx, optimizer)

        def configure_gradient_clipping(self, optimizer, gradient_clip_val=None, gradient_clip_algorithm=None):
            self.log("configure_gradient_clipping", float(self.global_step))

        def backward(self, loss):
            self.log("backward", loss)
            super().backward(loss)

    return Module


@script
def log_in_every_hook(pl, record, out_dir):
    trainer, module = record.trainer(), record.module(_logging_everywhere(pl))
    trainer.fit(module, rows(5), rows(3))
    record.value("test", trainer.test(module, rows(3), verbose=False))


@script
def log_in_every_hook_while_accumulating(pl, record, out_dir):
    trainer = record.trainer(accumulate_grad_batches=2, val_check_interval=2, log_every_n_steps=2)
    trainer.fit(record.module(_logging_everywhere(pl)), rows(10), rows(4))


@script
def log_in_optimizer_step(pl, record, out_dir):
    class Module(regression(pl)):
        def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure=None):
            optimizer.step(closure=optimizer_closure)
            self.log("after the step", float(batch_idx), on_epoch=True)

    record.trainer().fit(record.module(Module), rows(6))


@script
def log_from_a_callback(pl, record, out_dir):
    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.log("of callback", float(batch_idx), on_step=True, on_epoch=True)

    def on_train_epoch_end(self, trainer, module):
        self.log_dict({"one": 1.0, "two": torch.tensor(2)})

    def on_validation_epoch_end(self, trainer, module):
        module.log("through module", 3.0)

    callback = record.callback(
        "logging",
        on_train_batch_end=on_train_batch_end,
        on_train_epoch_end=on_train_epoch_end,
        on_validation_epoch_end=on_validation_epoch_end,
    )
    record.trainer(trace_callback=callback).fit(record.module(regression(pl)), rows(6), rows(2))


def _options(**fixed):
    """Every pair of on_step and on_epoch that is allowed, with a name for each."""
    for on_step in (None, True, False):
        for on_epoch in (None, True, False):
            yield f"{on_step}-{on_epoch}", {"on_step": on_step, "on_epoch": on_epoch, **fixed}


@script
def log_with_every_option(pl, record, out_dir):
    class Module(regression(pl)):
        def training_step(self, batch, batch_idx):
            loss = self.loss(batch)
            for name, options in _options():
                if (options["on_step"], options["on_epoch"]) not in ((False, False), (False, None)):
                    self.log(name, loss, **options)
                    self.log(f"bar {name}", loss, prog_bar=True, logger=False, **options)
            return loss

        def validation_step(self, batch, batch_idx):
            loss = self.loss(batch)
            for name, options in _options():
                if (options["on_step"], options["on_epoch"]) not in ((False, False), (None, False)):
                    self.log(f"val {name}", loss, **options)
                    self.log(f"val bar {name}", loss, prog_bar=True, logger=False, **options)

    record.trainer().fit(record.module(Module), rows(5), rows(3))


@script
def log_with_every_reduction(pl, record, out_dir):
    class Module(regression(pl)):
        def training_step(self, batch, batch_idx):
            loss = self.loss(batch)
            for name in ("mean", "avg", "sum", "min", "max", torch.mean, torch.sum, torch.min, torch.max):
                label = name if isinstance(name, str) else f"torch {name.__name__}"
                self.log(label, loss, on_step=True, on_epoch=True, reduce_fx=name)
            return loss

        def validation_step(self, batch, batch_idx):
            for name in ("mean", "sum", "min", "max"):
                self.log(f"val {name}", self.loss(batch), reduce_fx=name)

    record.trainer().fit(record.module(Module), rows(5), rows(3))


@script
def log_with_batch_sizes(pl, record, out_dir):
    class Named(Rows):
        def __getitem__(self, index):
            return {"name": "row", "x": super().__getitem__(index), "y": index}

    class Module(regression(pl)):
        def training_step(self, batch, batch_idx):
            loss = self.loss(batch["x"])
            self.log("inferred", loss, on_step=False, on_epoch=True)
            self.log("given", loss, on_step=False, on_epoch=True, batch_size=batch_idx + 1)
            self.log("one", loss, on_step=False, on_epoch=True, batch_size=1)
            return loss

        def on_train_batch_end(self, outputs, batch, batch_idx):
            self.log("at the end", outputs["loss"], on_step=False, on_epoch=True)

    record.trainer().fit(record.module(Module), DataLoader(Named(7), batch_size=3))


@script
def log_values_of_every_type(pl, record, out_dir):
    class Module(regression(pl)):
        def training_step(self, batch, batch_idx):
            values = {
                "int": 2,
                "bool": True,
                "float": 0.1,
                "int tensor": torch.tensor(batch_idx),
                "double tensor": torch.tensor(0.1, dtype=torch.float64),
                "half tensor": torch.tensor(0.1, dtype=torch.float16),
                "bfloat tensor": torch.tensor(0.1, dtype=torch.bfloat16),
                "one element": torch.tensor([[3.0]]),
            }
            self.log_dict(values, on_step=True, on_epoch=True)
            return self.loss(batch)

    record.trainer().fit(record.module(Module), rows(5))


@script
def log_in_place_changes_do_not_alias(pl, record, out_dir):
    class Module(regression(pl)):
        def __init__(self):
            super().__init__()
            self.register_buffer("running", torch.zeros(()))

        def training_step(self, batch, batch_idx):
            self.running += 1
            self.log("running", self.running, on_step=True, on_epoch=True)
            return self.loss(batch)

    record.trainer().fit(record.module(Module), rows(8))


@script
def log_only_sometimes(pl, record, out_dir):
    class Module(regression(pl)):
        def training_step(self, batch, batch_idx):
            loss = self.loss(batch)
            if batch_idx % 2:
                self.log("odd", loss, on_step=True, on_epoch=True)
            if self.current_epoch == 1:
                self.log("second epoch", loss, on_step=False, on_epoch=True)
            return loss

    record.trainer(max_epochs=3).fit(record.module(Module), rows(8), rows(2))


@script
def log_every_n_steps(pl, record, out_dir):
    record.trainer(log_every_n_steps=2).fit(record.module(regression(pl)), rows(10), rows(2))
    record.trainer(log_every_n_steps=0).fit(record.module(regression(pl)), rows(4), rows(2))
    record.trainer(log_every_n_steps=50).fit(record.module(regression(pl)), rows(4), rows(2))


@script
def log_every_n_steps_while_accumulating(pl, record, out_dir):
    trainer = record.trainer(log_every_n_steps=2, accumulate_grad_batches=2, max_epochs=3)
    trainer.fit(record.module(regression(pl)), rows(10), rows(2))


@script
def log_an_own_step(pl, record, out_dir):
    class Module(regression(pl)):
        def training_step(self, batch, batch_idx):
            self.log("step", float(10 * batch_idx))
            return super().training_step(batch, batch_idx)

        def validation_step(self, batch, batch_idx):
            self.log("val", self.loss(batch))
            self.log("step", 7.0)

    record.trainer().fit(record.module(Module), rows(4), rows(2))


@script
def log_to_the_logger_itself(pl, record, out_dir):
    class Module(regression(pl)):
        def training_step(self, batch, batch_idx):
            self.logger.log_metrics({"by hand": 1.0}, step=self.global_step)
            for logger in self.loggers:
                logger.log_metrics({"each": 2.0}, step=0)
            return super().training_step(batch, batch_idx)

    record.trainer(max_epochs=1).fit(record.module(Module), rows(4))


@script
def log_to_two_loggers(pl, record, out_dir):
    trainer = record.trainer(logger=[record.logger(), record.logger()], max_epochs=1)
    trainer.fit(record.module(regression(pl)), rows(4), rows(2))


@script
def log_without_a_logger(pl, record, out_dir):
    record.trainer(logger=False).fit(record.module(regression(pl)), rows(4), rows(2))


@script
def metric_objects(pl, record, out_dir):
    from torchmetrics import MaxMetric, MeanMetric, MetricCollection

    class Module(regression(pl)):
        def __init__(self):
            super().__init__()
            self.mean = MeanMetric()
            self.val_mean = MeanMetric()
            self.several = MetricCollection({"average": MeanMetric(), "largest": MaxMetric()})

        def training_step(self, batch, batch_idx):
            loss = self.loss(batch)
            self.mean(loss, weight=batch_idx + 1.0)
            self.log("mean", self.mean, on_step=True, on_epoch=True)
            self.several(loss)
            self.log_dict(self.several, on_step=False, on_epoch=True)
            return loss

        def validation_step(self, batch, batch_idx):
            self.val_mean.update(self.loss(batch))
            self.log("val mean", self.val_mean)

        def on_train_epoch_start(self):
            record.note(f"updates kept: {self.mean._update_count} {self.val_mean._update_count}")

    record.trainer().fit(record.module(Module), rows(5), rows(3))


@script
def metric_object_computed_by_hand(pl, record, out_dir):
    from torchmetrics import MeanMetric

    class Module(regression(pl)):
        def __init__(self):
            super().__init__()
            self.mean = MeanMetric()

        def validation_step(self, batch, batch_idx):
            self.mean.update(self.loss(batch))

        def on_validation_epoch_end(self):
            self.log("mean", self.mean.compute())
            self.mean.reset()

    record.trainer().fit(record.module(Module), rows(4), rows(4))


@script
def log_where_it_is_refused(pl, record, out_dir):
    hooks = ("on_fit_start", "on_train_end", "on_validation_end", "on_fit_end", "configure_optimizers", "setup")

    def make(hook):
        class Module(regression(pl)):
            pass

        def logging(self, *arguments, **named):
            self.log("nothing", 1.0)
            return getattr(super(Module, self), hook)(*arguments, **named)

        setattr(Module, hook, logging)
        return Module

    for hook in hooks:
        record.raised(hook, lambda hook=hook: record.trainer().fit(make(hook)(), rows(2), rows(2)))


@script
def log_what_is_refused(pl, record, out_dir):
    calls = {
        "string": lambda module: module.log("x", "text"),
        "two elements": lambda module: module.log("x", torch.ones(2)),
        "nested": lambda module: module.log("x", {"a": {"b": 1.0}}),
        "nowhere": lambda module: module.log("x", 1.0, on_step=False, on_epoch=False),
        "reduction": lambda module: module.log("x", 1.0, on_epoch=True, reduce_fx=torch.cumsum),
        "twice": lambda module: (module.log("x", 1.0), module.log("x", 1.0, on_epoch=True)),
        "loader index": lambda module: module.log("x/dataloader_idx_0", 1.0),
        "epoch hook": None,
    }

    def make(call):
        class Module(regression(pl)):
            def training_step(self, batch, batch_idx):
                call(self)
                return self.loss(batch)

        return Module

    class EpochHook(regression(pl)):
        def on_train_epoch_end(self):
            self.log("x", 1.0, on_step=True)

    for name, call in calls.items():
        module_class = EpochHook if call is None else make(call)
        record.raised(name, lambda module_class=module_class: record.trainer().fit(module_class(), rows(2)))


@script
def log_without_a_trainer(pl, record, out_dir):
    module = record.module(regression(pl))
    module.training_step(torch.ones(2, 4), 0)
    record.raised("trainer", lambda: module.trainer)


@script
def csv_logger_files(pl, record, out_dir):
    class Module(regression(pl)):
        def __init__(self, width=3, name="x"):
            super().__init__()
            self.save_hyperparameters()

        def on_train_epoch_end(self):
            self.log("late", float(self.current_epoch))

    logger = record.part("loggers").CSVLogger(out_dir, flush_logs_every_n_steps=2)
    trainer = record.trainer(logger=logger, enable_checkpointing=True)
    trainer.fit(record.module(Module, width=5), rows(6), rows(2))
    record.files("files", out_dir)
    folder = out_dir / "lightning_logs" / "version_0"
    with open(folder / "metrics.csv") as file:
        table = list(csv.reader(file))
    record.value("columns", table[0])
    record.value("rows", [[float(cell) if cell else None for cell in row] for row in table[1:]])
    record.value("hparams", yaml.safe_load((folder / "hparams.yaml").read_text()))
    record.value("log_dir", str(trainer.log_dir).replace(str(out_dir), ""))


@script
def logger_names_and_versions(pl, record, out_dir):
    csv_logger = record.part("loggers").CSVLogger
    for index, arguments in enumerate(({}, {}, {"name": "mine"}, {"version": "first"}, {"name": ""}, {"prefix": "p"})):
        logger = csv_logger(out_dir, **arguments)
        record.trainer(logger=logger, max_epochs=1).fit(record.module(regression(pl)), rows(2))
        record.value(f"version {index}", logger.version)
    record.files("files", out_dir)

"""Scripts: learning rate schedulers and the forms that configure_optimizers may return."""

from __future__ import annotations

import torch
from torch.optim import SGD
from torch.optim import lr_scheduler as schedulers

from .library import regression, rows, scripts_in_modes

script = scripts_in_modes("closure", "plain", "bare")


def _module(pl, record, form):
    """A traced module whose optimizers are `form(optimizer)`; it notes the rate at each batch."""

    class Module(regression(pl)):
        def configure_optimizers(self):
            return form(SGD(self.parameters(), lr=0.1, momentum=0.9))

        def on_train_batch_start(self, batch, batch_idx):
            record.note(f"lr {self.optimizers().param_groups[0]['lr']:.8g}")

    return record.module(Module)


def _halving(optimizer):
    return schedulers.StepLR(optimizer, 1, 0.5)


@script
def optimizers_in_all_forms(pl, record, out_dir):
    forms = [
        lambda o: o,
        lambda o: [o],
        lambda o: ([o], [_halving(o)]),
        lambda o: ([o], [{"scheduler": _halving(o), "interval": "step", "name": "rate"}]),
        lambda o: {"optimizer": o},
        lambda o: {"optimizer": o, "lr_scheduler": _halving(o)},
        lambda o: {"optimizer": o, "lr_scheduler": {"scheduler": _halving(o), "interval": "step", "frequency": 2}},
        lambda o: {"optimizer": o, "lr_scheduler": schedulers.ReduceLROnPlateau(o), "monitor": "train"},
        lambda o: [{"optimizer": o, "lr_scheduler": _halving(o)}],
    ]
    for index, form in enumerate(forms):
        trainer = record.trainer(max_epochs=2)
        trainer.fit(_module(pl, record, form), rows(4))
        configs = trainer.lr_scheduler_configs
        record.value(
            f"form {index}",
            [[c.interval, c.frequency, c.monitor, c.strict, c.reduce_on_plateau, c.name] for c in configs],
        )


@script
def scheduler_by_step(pl, record, out_dir):
    module = _module(pl, record, lambda o: ([o], [{"scheduler": _halving(o), "interval": "step"}]))
    record.trainer().fit(module, rows(6), rows(2))


@script
def scheduler_by_epoch(pl, record, out_dir):
    record.trainer(max_epochs=3).fit(_module(pl, record, lambda o: ([o], [_halving(o)])), rows(6), rows(2))


@script
def schedulers_of_each_kind(pl, record, out_dir):
    def form(optimizer):
        return [optimizer], [
            schedulers.ExponentialLR(optimizer, 0.9),
            {"scheduler": schedulers.StepLR(optimizer, 2, 0.9), "interval": "step"},
            {"scheduler": schedulers.ReduceLROnPlateau(optimizer, patience=0, threshold=0.5), "monitor": "val"},
            {
                "scheduler": schedulers.ReduceLROnPlateau(optimizer, patience=0, threshold=0.9),
                "monitor": "train",
                "interval": "step",
                "frequency": 2,
            },
        ]

    record.trainer(max_epochs=3).fit(_module(pl, record, form), rows(6), rows(2))


@script
def scheduler_frequencies(pl, record, out_dir):
    def form(optimizer):
        return [optimizer], [
            {"scheduler": _halving(optimizer), "frequency": 2},
            {"scheduler": schedulers.StepLR(optimizer, 1, 0.9), "interval": "step", "frequency": 3},
        ]

    record.trainer(max_epochs=4).fit(_module(pl, record, form), rows(8), rows(2))


@script
def schedulers_while_accumulating(pl, record, out_dir):
    def form(optimizer):
        return [optimizer], [_halving(optimizer), {"scheduler": _halving(optimizer), "interval": "step"}]

    record.trainer(accumulate_grad_batches=2).fit(_module(pl, record, form), rows(6))


@script
def one_cycle_over_the_estimated_steps(pl, record, out_dir):
    class Module(regression(pl)):
        def configure_optimizers(self):
            steps = self.trainer.estimated_stepping_batches
            record.note(f"estimated {steps}")
            optimizer = SGD(self.parameters(), lr=0.01, momentum=0.9)
            scheduler = schedulers.OneCycleLR(optimizer, max_lr=0.2, total_steps=int(steps))
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    monitor = record.part("callbacks").LearningRateMonitor(log_momentum=True, log_weight_decay=True)
    record.trainer(monitor, max_epochs=3, accumulate_grad_batches=2).fit(record.module(Module), rows(10))


@script
def estimated_steps(pl, record, out_dir):
    class Module(regression(pl)):
        def configure_optimizers(self):
            record.note(f"estimated {self.trainer.estimated_stepping_batches}")
            return super().configure_optimizers()

    for arguments in ({"max_steps": 5, "max_epochs": -1}, {"max_steps": 50}, {"limit_train_batches": 2}):
        record.trainer(**arguments).fit(record.module(Module), rows(6))


@script
def scheduler_step_overridden(pl, record, out_dir):
    class Warmup:
        """No scheduler of torch's."""

        def __init__(self, optimizer):
            self.optimizer, self.count = optimizer, 0

        def advance(self, by):
            self.count += by
            for group in self.optimizer.param_groups:
                group["lr"] = 0.01 * self.count

        def state_dict(self):
            return {"count": self.count}

        def load_state_dict(self, state):
            self.count = state["count"]

    class Module(regression(pl)):
        def configure_optimizers(self):
            optimizer = SGD(self.parameters(), lr=0.01)
            return [optimizer], [{"scheduler": Warmup(optimizer), "interval": "step"}]

        def lr_scheduler_step(self, scheduler, metric):
            record.note(f"advance {type(scheduler).__name__} {metric}")
            scheduler.advance(2)

    record.trainer().fit(record.module(Module), rows(6))


@script
def plateau_on_validation(pl, record, out_dir):
    def form(optimizer):
        plateau = schedulers.ReduceLROnPlateau(optimizer, patience=0, threshold=0.5)
        return {"optimizer": optimizer, "lr_scheduler": plateau, "monitor": "val"}

    record.trainer(max_epochs=4).fit(_module(pl, record, form), rows(6), rows(4))


@script
def plateau_on_a_missing_metric(pl, record, out_dir):
    def form(strict):
        return lambda o: {
            "optimizer": o,
            "lr_scheduler": {"scheduler": schedulers.ReduceLROnPlateau(o), "monitor": "nothing", "strict": strict},
        }

    record.trainer().fit(_module(pl, record, form(False)), rows(4))
    module = _module(pl, record, form(True))
    record.raised("strict", lambda: record.trainer().fit(module, rows(4)))


@script
def plateau_every_second_step_after_validation(pl, record, out_dir):
    def form(optimizer):
        plateau = schedulers.ReduceLROnPlateau(optimizer, patience=0, threshold=0.5)
        return [optimizer], [{"scheduler": plateau, "monitor": "val", "interval": "step", "frequency": 2}]

    trainer = record.trainer(val_check_interval=2, num_sanity_val_steps=0)
    trainer.fit(_module(pl, record, form), rows(8), rows(2))


@script
def scheduler_by_epoch_stopped_within_one(pl, record, out_dir):
    trainer = record.trainer(max_steps=4, max_epochs=-1)
    trainer.fit(_module(pl, record, lambda o: ([o], [_halving(o)])), rows(6), rows(2))


@script
def scheduler_by_epoch_when_a_batch_start_ends_one(pl, record, out_dir):
    class Module(regression(pl)):
        def configure_optimizers(self):
            optimizer = SGD(self.parameters(), lr=0.1)
            plateau = schedulers.ReduceLROnPlateau(optimizer, patience=0, threshold=0.9)
            return [optimizer], [_halving(optimizer), {"scheduler": plateau, "monitor": "train_epoch"}]

        def on_train_batch_start(self, batch, batch_idx):
            return -1 if batch_idx == 1 and self.current_epoch == 1 else None

    record.trainer(max_epochs=3).fit(record.module(Module), rows(6), rows(2))


@script
def schedulers_in_sequence(pl, record, out_dir):
    def form(optimizer):
        warm_up = schedulers.LinearLR(optimizer, 0.1, 1.0, total_iters=3)
        scheduler = schedulers.SequentialLR(optimizer, [warm_up, schedulers.CosineAnnealingLR(optimizer, 4)], [3])
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    monitor = record.part("callbacks").LearningRateMonitor(logging_interval="step")
    record.trainer(monitor).fit(_module(pl, record, form), rows(8))


@script
def learning_rate_monitor_by_epoch_with_groups(pl, record, out_dir):
    class Module(regression(pl)):
        def configure_optimizers(self):
            groups = [{"params": [self.layer.weight], "lr": 0.2}, {"params": [self.layer.bias]}]
            optimizer = torch.optim.Adam(groups, lr=0.05)
            return [optimizer], [{"scheduler": _halving(optimizer), "name": "mine"}]

    monitor = record.part("callbacks").LearningRateMonitor(logging_interval="epoch")
    record.trainer(monitor, max_epochs=3).fit(record.module(Module), rows(4))
    record.value("lrs", {name: list(rates) for name, rates in monitor.lrs.items()})

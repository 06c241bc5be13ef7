"""Scripts: accumulation, clipping, closures, overridden steps, precision, what training_step may return."""

from __future__ import annotations

from typing import Any

import torch

from .library import FEATURES, regression, rows, scripts_in_modes, shuffled_network, stream

script = scripts_in_modes("closure", "plain", "bare")


@script
def fit_with_validation(pl, record, out_dir):
    record.trainer().fit(record.module(regression(pl)), rows(6), rows(4))


@script
def fit_without_validation(pl, record, out_dir):
    record.trainer().fit(record.module(regression(pl)), rows(5))


@script
def accumulate_even(pl, record, out_dir):
    record.trainer(accumulate_grad_batches=2).fit(record.module(regression(pl)), rows(8), rows(4))


@script
def accumulate_ragged(pl, record, out_dir):
    record.trainer(accumulate_grad_batches=2).fit(record.module(regression(pl)), rows(10), rows(4))


@script
def accumulate_more_than_an_epoch(pl, record, out_dir):
    record.trainer(accumulate_grad_batches=4, max_epochs=3).fit(record.module(regression(pl)), rows(6))


@script
def accumulate_without_length(pl, record, out_dir):
    record.trainer(accumulate_grad_batches=2).fit(record.module(regression(pl)), stream(6), stream(2))


@script
def accumulate_and_validate_inside_window(pl, record, out_dir):
    trainer = record.trainer(accumulate_grad_batches=3, val_check_interval=2, gradient_clip_val=0.1)
    trainer.fit(record.module(regression(pl)), rows(8), rows(2))


@script
def accumulation_scheduler(pl, record, out_dir):
    scheduler = record.part("callbacks").GradientAccumulationScheduler({0: 1, 1: 2, 3: 3})
    record.trainer(scheduler, max_epochs=4).fit(record.module(regression(pl)), rows(10), rows(2))


@script
def accumulation_changed_by_a_callback(pl, record, out_dir):
    def on_train_epoch_start(self, trainer, module):
        trainer.accumulate_grad_batches = trainer.current_epoch + 1

    changer = record.callback("changer", on_train_epoch_start=on_train_epoch_start)
    record.trainer(trace_callback=changer, max_epochs=3).fit(record.module(regression(pl)), rows(8))


@script
def clip_by_norm(pl, record, out_dir):
    record.trainer(gradient_clip_val=0.05).fit(record.module(regression(pl)), rows(6))


@script
def clip_by_value(pl, record, out_dir):
    trainer = record.trainer(gradient_clip_val=0.05, gradient_clip_algorithm="value", accumulate_grad_batches=2)
    trainer.fit(record.module(regression(pl)), rows(6))


@script
def clip_overridden(pl, record, out_dir):
    class Module(regression(pl)):
        def configure_gradient_clipping(self, optimizer, gradient_clip_val=None, gradient_clip_algorithm=None):
            if self.current_epoch > 0:
                self.clip_gradients(optimizer, gradient_clip_val=0.1, gradient_clip_algorithm="norm")
            self.log("norm", self.layer.weight.grad.norm())

    record.trainer().fit(record.module(Module), rows(6))


@script
def clip_value_given_twice(pl, record, out_dir):
    class Module(regression(pl)):
        def configure_gradient_clipping(self, optimizer, gradient_clip_val=None, gradient_clip_algorithm=None):
            self.clip_gradients(optimizer, gradient_clip_val=gradient_clip_val / 2)

    module = record.module(Module)
    record.raised("fit", lambda: record.trainer(gradient_clip_val=0.2).fit(module, rows(2)))


@script
def clip_several_groups(pl, record, out_dir):
    class Module(regression(pl)):
        def configure_optimizers(self):
            groups = [{"params": [self.layer.weight], "lr": 0.2}, {"params": [self.layer.bias]}]
            return torch.optim.Adam(groups, lr=0.05)

    record.trainer(gradient_clip_val=0.05).fit(record.module(Module), rows(6))


@script
def lbfgs(pl, record, out_dir):
    class Module(regression(pl)):
        def configure_optimizers(self):
            return torch.optim.LBFGS(self.parameters(), lr=0.01, max_iter=3)

    record.trainer().fit(record.module(Module), rows(4), rows(2))


@script
def lbfgs_clipped(pl, record, out_dir):
    class Module(regression(pl)):
        def configure_optimizers(self):
            return torch.optim.LBFGS(self.parameters(), lr=0.01, max_iter=2)

    record.trainer(gradient_clip_val=0.5, max_epochs=1).fit(record.module(Module), rows(6))


@script
def optimizer_step_with_warm_up(pl, record, out_dir):
    class Module(regression(pl)):
        def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure=None):
            for group in optimizer.param_groups:
                group["lr"] = 0.1 * min(1.0, (self.trainer.global_step + 1) / 4)
            record.note(f"step {epoch} {batch_idx}, an optimizer of torch: {isinstance(optimizer, torch.optim.SGD)}")
            loss = optimizer.step(closure=optimizer_closure)
            record.note(f"the closure's loss came back: {loss.item():.6g} {loss.requires_grad}")

    record.trainer().fit(record.module(Module), rows(6), rows(2))


@script
def optimizer_step_every_second_batch(pl, record, out_dir):
    class Module(regression(pl)):
        def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure=None):
            if batch_idx % 2 == 0:
                super().optimizer_step(epoch, batch_idx, optimizer, optimizer_closure)
            else:
                loss = optimizer_closure()
                record.note(f"the closure gave {loss.item():.6g} {loss.requires_grad}")

    record.trainer().fit(record.module(Module), rows(8))


@script
def optimizer_step_never_runs_the_closure(pl, record, out_dir):
    class Module(regression(pl)):
        def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure=None):
            pass

    module = record.module(Module)
    record.raised("fit", lambda: record.trainer().fit(module, rows(2)))


@script
def optimizer_step_unwraps(pl, record, out_dir):
    class Module(regression(pl)):
        def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure=None):
            optimizer_closure()
            optimizer.optimizer.step()

    record.trainer(accumulate_grad_batches=2).fit(record.module(Module), rows(6))


@script
def backward_overridden(pl, record, out_dir):
    class Module(regression(pl)):
        def backward(self, loss):
            (2 * loss).backward()

    record.trainer().fit(record.module(Module), rows(6))


@script
def zero_grad_overridden(pl, record, out_dir):
    class Module(regression(pl)):
        def optimizer_zero_grad(self, epoch, batch_idx, optimizer):
            optimizer.zero_grad(set_to_none=False)
            record.note(f"zeroed at {epoch} {batch_idx}")

    record.trainer(accumulate_grad_batches=2).fit(record.module(Module), rows(6))


@script
def gradients_changed_in_hooks(pl, record, out_dir):
    class Module(regression(pl)):
        def on_after_backward(self):
            self.layer.bias.grad.mul_(0.5)

        def on_before_optimizer_step(self, optimizer):
            self.layer.weight.grad.add_(0.01)

        def on_before_zero_grad(self, optimizer):
            record.note(f"gradient is there: {self.layer.weight.grad is not None}")

    record.trainer(gradient_clip_val=0.3).fit(record.module(Module), rows(6))


@script
def training_step_returns_none(pl, record, out_dir):
    class Module(regression(pl)):
        def training_step(self, batch, batch_idx):
            return None if batch_idx == 1 else super().training_step(batch, batch_idx)

    record.trainer().fit(record.module(Module), rows(6), rows(2))


@script
def training_step_returns_none_while_accumulating(pl, record, out_dir):
    class Module(regression(pl)):
        def training_step(self, batch, batch_idx):
            return None if batch_idx in (0, 3) else super().training_step(batch, batch_idx)

    record.trainer(accumulate_grad_batches=2).fit(record.module(Module), rows(10))


@script
def training_step_returns_a_mapping(pl, record, out_dir):
    class Module(regression(pl)):
        def training_step(self, batch, batch_idx):
            loss = super().training_step(batch, batch_idx)
            return {"loss": loss, "twice": loss * 2, "count": 3, "names": ["a", "b"]}

        def on_train_batch_end(self, outputs, batch, batch_idx):
            record.note(f"{sorted(outputs)} {outputs['twice'].requires_grad} {outputs['loss'].item():.6g}")

    record.trainer(accumulate_grad_batches=2).fit(record.module(Module), rows(6))


@script
def training_step_without_batch_idx(pl, record, out_dir):
    class Module(regression(pl)):
        def training_step(self, batch):
            return self.loss(batch)

        def validation_step(self, batch):
            self.log("val", self.loss(batch))

    record.trainer().fit(record.module(Module), rows(6), rows(2))


@script
def batch_start_ends_the_epoch(pl, record, out_dir):
    class Module(regression(pl)):
        def on_train_batch_start(self, batch, batch_idx):
            return -1 if batch_idx == 2 - self.current_epoch else None

    record.trainer(max_epochs=3).fit(record.module(Module), rows(8), rows(2))


@script
def frozen_layer_and_unused_parameter(pl, record, out_dir):
    class Module(regression(pl)):
        def __init__(self):
            super().__init__()
            self.before = torch.nn.Linear(FEATURES, FEATURES)
            self.unused = torch.nn.Linear(2, 2)
            self.before.requires_grad_(False)

        def forward(self, batch):
            return self.layer(self.before(batch))

        def loss(self, batch):
            return self(batch).pow(2).mean()

        def configure_optimizers(self):
            return torch.optim.AdamW([p for p in self.parameters() if p.requires_grad], lr=0.01)

    record.trainer(gradient_clip_val=0.1).fit(record.module(Module), rows(6))


@script
def random_order_dropout_and_batch_norm(pl, record, out_dir):
    module = record.module(shuffled_network(pl))
    record.trainer(max_epochs=3).fit(module, rows(14, 4, shuffle=True), rows(6, shuffle=True))


@script
def seeded_everything(pl, record, out_dir):
    record.value("seed", pl.seed_everything(7, workers=True, verbose=False))
    module = record.module(shuffled_network(pl))
    record.trainer(val_check_interval=0.5).fit(module, rows(16, 4, shuffle=True, drop_last=True), rows(4))
    record.value("next", torch.rand(2))


def _precision(pl, record, precision: str, **arguments: Any) -> None:
    class Module(regression(pl)):
        def training_step(self, batch, batch_idx):
            record.note(f"output {self(batch).dtype} batch {batch.dtype} weight {self.layer.weight.dtype}")
            return super().training_step(batch, batch_idx)

    module = record.module(Module)
    trainer = record.trainer(precision=precision, **arguments)
    trainer.fit(module, rows(6), rows(2))
    record.value("precision", trainer.precision)


@script
def precision_bf16_mixed(pl, record, out_dir):
    _precision(pl, record, "bf16-mixed", gradient_clip_val=0.1)


@script
def precision_bf16_true(pl, record, out_dir):
    _precision(pl, record, "bf16-true")


@script
def precision_64(pl, record, out_dir):
    _precision(pl, record, "64", accumulate_grad_batches=2)


@script
def no_optimizer(pl, record, out_dir):
    class Module(regression(pl)):
        def configure_optimizers(self):
            return None

    record.trainer().fit(record.module(Module), rows(4), rows(2))


@script
def model_configured_late(pl, record, out_dir):
    class Module(regression(pl)):
        def __init__(self):
            super().__init__()
            self.layer = None

        def configure_model(self):
            if self.layer is None:
                self.layer = torch.nn.Linear(FEATURES, 2)

    record.trainer(max_epochs=1).fit(record.module(Module), rows(4), rows(2))

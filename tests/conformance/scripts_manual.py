"""Scripts: manual optimization."""

from __future__ import annotations

import torch
from torch.optim import SGD, Adam
from torch.optim import lr_scheduler as schedulers

from .library import FEATURES, regression, rows, scripts_in_modes

script = scripts_in_modes("plain", "bare")


def _manual(pl):
    class Manual(regression(pl)):
        def __init__(self):
            super().__init__()
            self.automatic_optimization = False

    return Manual


def _gan(pl, record):
    class Gan(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.automatic_optimization = False
            self.generator = torch.nn.Linear(FEATURES, FEATURES)
            self.critic = torch.nn.Sequential(torch.nn.Linear(FEATURES, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1))

        def training_step(self, batch, batch_idx):
            of_generator, of_critic = self.optimizers()
            noise = torch.randn(len(batch), FEATURES)

            self.toggle_optimizer(of_generator)
            record.note(f"generator's turn: {[p.requires_grad for p in self.parameters()]}")
            loss = -self.critic(self.generator(noise)).mean()
            self.log("generator", loss, prog_bar=True)
            of_generator.zero_grad()
            self.manual_backward(loss)
            of_generator.step()
            self.untoggle_optimizer(of_generator)

            self.toggle_optimizer(of_critic)
            record.note(f"critic's turn: {[p.requires_grad for p in self.parameters()]}")
            loss = self.critic(self.generator(noise).detach()).mean() - self.critic(batch).mean()
            self.log("critic", loss, on_step=True, on_epoch=True)
            of_critic.zero_grad()
            self.manual_backward(loss)
            self.clip_gradients(of_critic, gradient_clip_val=0.1, gradient_clip_algorithm="norm")
            of_critic.step()
            self.untoggle_optimizer(of_critic)
            record.note(f"after: {[p.requires_grad for p in self.parameters()]} step {self.global_step}")

        def validation_step(self, batch, batch_idx):
            self.log("val", self.critic(batch).mean())

        def configure_optimizers(self):
            return Adam(self.generator.parameters(), 0.01), Adam(self.critic.parameters(), 0.02)

    return record.module(Gan)


@script
def manual_one_optimizer(pl, record, out_dir):
    class Module(_manual(pl)):
        def training_step(self, batch, batch_idx):
            optimizer = self.optimizers()
            optimizer.zero_grad()
            loss = self.loss(batch)
            self.log("train", loss, on_step=True, on_epoch=True)
            self.manual_backward(loss)
            optimizer.step()
            return {"loss": loss, "extra": 1}

    record.trainer().fit(record.module(Module), rows(6), rows(2))


@script
def manual_gan(pl, record, out_dir):
    record.trainer().fit(_gan(pl, record), rows(6, shuffle=True), rows(2))


@script
def manual_gan_until_max_steps(pl, record, out_dir):
    trainer = record.trainer(max_steps=5, max_epochs=-1, log_every_n_steps=2)
    trainer.fit(_gan(pl, record), rows(8), rows(2))


@script
def manual_gan_with_checkpoints(pl, record, out_dir):
    keeper = record.part("callbacks").ModelCheckpoint(dirpath=out_dir / "kept", every_n_train_steps=4, save_top_k=-1)
    record.trainer(keeper).fit(_gan(pl, record), rows(6), rows(2))
    record.files("files", out_dir / "kept")


@script
def manual_accumulation(pl, record, out_dir):
    class Module(_manual(pl)):
        def training_step(self, batch, batch_idx):
            loss = self.loss(batch) / 2
            self.log("train", loss)
            self.manual_backward(loss)
            if (batch_idx + 1) % 2 == 0 or self.trainer.is_last_batch:
                optimizer = self.optimizers()
                self.clip_gradients(optimizer, gradient_clip_val=0.02, gradient_clip_algorithm="value")
                optimizer.step()
                optimizer.zero_grad()
            return loss

    record.trainer().fit(record.module(Module), rows(10), rows(2))


@script
def manual_schedulers(pl, record, out_dir):
    class Module(_manual(pl)):
        def training_step(self, batch, batch_idx):
            optimizer = self.optimizers()
            optimizer.zero_grad()
            self.manual_backward(self.loss(batch))
            optimizer.step()
            by_step, _ = self.lr_schedulers()
            by_step.step()
            self.log("lr", optimizer.param_groups[0]["lr"])

        def on_train_epoch_end(self):
            _, plateau = self.lr_schedulers()
            plateau.step(self.trainer.callback_metrics["val"])

        def configure_optimizers(self):
            optimizer = SGD(self.parameters(), lr=0.1)
            plateau = schedulers.ReduceLROnPlateau(optimizer, patience=0, threshold=0.9)
            return [optimizer], [schedulers.StepLR(optimizer, 2, 0.9), plateau]

    record.trainer(max_epochs=3).fit(record.module(Module), rows(6), rows(2))


@script
def manual_closure(pl, record, out_dir):
    class Module(_manual(pl)):
        def training_step(self, batch, batch_idx):
            optimizer = self.optimizers()

            def closure():
                loss = self.loss(batch)
                optimizer.zero_grad()
                self.manual_backward(loss)
                return loss

            returned = optimizer.step(closure=closure)
            record.note(f"step gave {returned.item():.6g}")

        def configure_optimizers(self):
            return torch.optim.LBFGS(self.parameters(), lr=0.01, max_iter=2)

    record.trainer(max_epochs=1).fit(record.module(Module), rows(4))


@script
def manual_toggled_context(pl, record, out_dir):
    class Module(_manual(pl)):
        def training_step(self, batch, batch_idx):
            first, second = self.optimizers()
            with first.toggle_model(sync_grad=True):
                record.note(f"{[p.requires_grad for p in self.parameters()]}")
                self.manual_backward(self.loss(batch))
                first.step()
                first.zero_grad()
            raw = self.optimizers(use_pl_optimizer=False)[1]
            record.note(f"{type(raw).__name__} {second.optimizer is raw}")
            self.manual_backward(self.loss(batch))
            raw.step()
            raw.zero_grad()
            record.note(f"steps {self.global_step}")

        def configure_optimizers(self):
            return [SGD([self.layer.weight], lr=0.1), SGD([self.layer.bias], lr=0.1)]

    record.trainer().fit(record.module(Module), rows(4))


@script
def manual_refuses_automatic_settings(pl, record, out_dir):
    for name, arguments in (("clip", {"gradient_clip_val": 1.0}), ("accumulate", {"accumulate_grad_batches": 2})):
        module = record.module(_manual(pl))
        record.raised(name, lambda module=module, arguments=arguments: record.trainer(**arguments).fit(module, rows(2)))


@script
def manual_bf16(pl, record, out_dir):
    class Module(_manual(pl)):
        def training_step(self, batch, batch_idx):
            optimizer = self.optimizers()
            loss = self.loss(batch)
            record.note(f"{self(batch).dtype}")
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
            return loss

    record.trainer(precision="bf16-mixed").fit(record.module(Module), rows(4))

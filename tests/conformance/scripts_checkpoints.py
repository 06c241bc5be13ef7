"""Scripts: ModelCheckpoint, checkpoint contents, resuming, hyperparameters."""

from __future__ import annotations

from argparse import Namespace

import torch
from torch.optim import Adam, lr_scheduler

from .library import FEATURES, regression, rows, scripts_in_modes, shuffled_network

script = scripts_in_modes("plain")


def _scored(pl, values):
    """Logs `score`, one of the given values an epoch, and a metric with a slash in its name."""

    class Module(regression(pl)):
        def validation_step(self, batch, batch_idx):
            self.log("score", values[self.current_epoch])
            self.log("val/loss", self.loss(batch))

    return Module


def _keep(pl, record, out_dir, values=(0.5, 0.3, 0.4, 0.2), name="kept", trainer_arguments=None, train=4, **arguments):
    keeper = record.part("callbacks").ModelCheckpoint(dirpath=out_dir / name, **arguments)
    trainer = record.trainer(keeper, **{"max_epochs": len(values), **(trainer_arguments or {})})
    trainer.fit(record.module(_scored(pl, values)), rows(train), rows(2))
    record.files(f"files of {name}", out_dir / name)
    record.checkpoint_callback(f"state of {name}", keeper)
    return keeper, trainer


@script
def keep_the_default(pl, record, out_dir):
    _keep(pl, record, out_dir)


@script
def keep_top_two(pl, record, out_dir):
    _keep(pl, record, out_dir, monitor="score", save_top_k=2, filename="{epoch}-{score:.2f}")


@script
def keep_top_two_of_max(pl, record, out_dir):
    _keep(pl, record, out_dir, monitor="score", save_top_k=2, mode="max", filename="best-{score}", save_last=True)


@script
def keep_all_and_none(pl, record, out_dir):
    _keep(pl, record, out_dir, name="all", save_top_k=-1)
    _keep(pl, record, out_dir, name="none", save_top_k=0)


@script
def keep_last_when_nothing_improves(pl, record, out_dir):
    _keep(pl, record, out_dir, (0.1, 0.2, 0.3, 0.4), monitor="score", save_last=True)
    content = torch.load(out_dir / "kept" / "last.ckpt", weights_only=False)
    record.value("last", [content["epoch"], content["global_step"]])


@script
def keep_last_as_a_link(pl, record, out_dir):
    _keep(pl, record, out_dir, save_last="link", every_n_epochs=2)
    last = out_dir / "kept" / "last.ckpt"
    record.value("link", [last.is_symlink(), last.resolve().name])


@script
def keep_last_only(pl, record, out_dir):
    _keep(pl, record, out_dir, save_top_k=0, save_last=True)


@script
def keep_every_n_steps(pl, record, out_dir):
    _keep(pl, record, out_dir, train=10, every_n_train_steps=3, save_top_k=-1, save_last=True)


@script
def keep_top_by_steps_with_a_monitor(pl, record, out_dir):
    _keep(pl, record, out_dir, train=8, every_n_train_steps=2, monitor="train", save_top_k=2)


@script
def keep_by_steps_a_validation_metric(pl, record, out_dir):
    _keep(pl, record, out_dir, train=8, every_n_train_steps=3, monitor="score", save_top_k=2, filename="{step}-{score}")


@script
def keep_every_n_epochs(pl, record, out_dir):
    _keep(pl, record, out_dir, every_n_epochs=2, save_top_k=-1)


@script
def keep_at_validation_end(pl, record, out_dir):
    _keep(pl, record, out_dir, train=8, trainer_arguments={"val_check_interval": 0.5}, save_top_k=-1, monitor="score")
    _keep(pl, record, out_dir, name="every second", trainer_arguments={"check_val_every_n_epoch": 2}, save_top_k=-1)


@script
def keep_on_train_epoch_end_or_not(pl, record, out_dir):
    _keep(pl, record, out_dir, name="yes", save_on_train_epoch_end=True, save_top_k=-1)
    _keep(pl, record, out_dir, name="no", save_on_train_epoch_end=False, save_top_k=-1)


@script
def keep_with_file_names(pl, record, out_dir):
    names = {
        "slash": {"filename": "{val/loss:.3f}", "auto_insert_metric_name": False},
        "plain": {"filename": "fixed"},
        "unknown": {"filename": "{nothing:.1f}-{step:04d}"},
        "text": {"filename": "a-{epoch:02d}-b-{score:.1f}", "auto_insert_metric_name": False},
        "one version": {"filename": "fixed", "enable_version_counter": False},
    }
    for name, arguments in names.items():
        _keep(pl, record, out_dir, (0.2, 0.1), name=name, save_top_k=-1, **arguments)


@script
def keep_in_a_folder_that_is_used(pl, record, out_dir):
    _keep(pl, record, out_dir, (0.2, 0.1), name="first", monitor="score")
    folder = out_dir / "first"
    keeper = record.part("callbacks").ModelCheckpoint(dirpath=folder, monitor="score", save_last=True)
    record.trainer(keeper, max_epochs=2).fit(record.module(_scored(pl, (0.2, 0.1))), rows(4), rows(2))
    record.files("files", folder)
    record.checkpoint_callback("state", keeper)


@script
def keep_not_a_number(pl, record, out_dir):
    _keep(pl, record, out_dir, (float("nan"), 0.3, float("nan"), 0.2), monitor="score", save_top_k=2)


@script
def keep_weights_only(pl, record, out_dir):
    keeper, _ = _keep(pl, record, out_dir, save_weights_only=True)
    content = torch.load(keeper.best_model_path, weights_only=False)
    record.value("content", sorted(name for name in content if not name.startswith("bolide")))


@script
def keep_with_early_stopping(pl, record, out_dir):
    callbacks = record.part("callbacks")
    keeper = callbacks.ModelCheckpoint(dirpath=out_dir / "kept", monitor="score", save_top_k=2)
    trainer = record.trainer(keeper, callbacks.EarlyStopping("score", patience=2), max_epochs=6)
    trainer.fit(record.module(_scored(pl, (0.3, 0.1, 0.2, 0.4, 0.5, 0.6))), rows(4), rows(2))
    record.files("files", out_dir / "kept")
    record.checkpoint_callback("state", keeper)


@script
def keep_two_at_once(pl, record, out_dir):
    checkpoint = record.part("callbacks").ModelCheckpoint
    best = checkpoint(dirpath=out_dir / "best", monitor="score")
    steps = checkpoint(dirpath=out_dir / "steps", every_n_train_steps=2, save_top_k=-1)
    trainer = record.trainer(best, steps, max_epochs=3)
    trainer.fit(record.module(_scored(pl, (0.3, 0.1, 0.2))), rows(6), rows(2))
    record.files("files", out_dir)
    record.value("first", trainer.checkpoint_callback is best)


@script
def keep_a_missing_metric(pl, record, out_dir):
    keeper = record.part("callbacks").ModelCheckpoint(dirpath=out_dir / "kept", monitor="nothing")
    module = record.module(regression(pl))
    record.raised("fit", lambda: record.trainer(keeper).fit(module, rows(2), rows(2)))


@script
def keep_after_accumulation_and_max_steps(pl, record, out_dir):
    _keep(
        pl,
        record,
        out_dir,
        train=10,
        trainer_arguments={"accumulate_grad_batches": 2, "max_steps": 5, "max_epochs": -1},
        every_n_train_steps=2,
        save_top_k=-1,
    )


def _stateful(pl):
    class Module(regression(pl)):
        def configure_optimizers(self):
            optimizer = Adam(self.parameters(), lr=0.05)
            return [optimizer], [
                lr_scheduler.StepLR(optimizer, 1, 0.5),
                {"scheduler": lr_scheduler.ExponentialLR(optimizer, 0.95), "interval": "step"},
            ]

        def on_save_checkpoint(self, checkpoint):
            checkpoint["own"] = self.current_epoch

        def on_load_checkpoint(self, checkpoint):
            assert "own" in checkpoint

    return Module


@script
def checkpoint_contents_after_fit(pl, record, out_dir):
    trainer, module = record.trainer(accumulate_grad_batches=2), record.module(_stateful(pl))
    trainer.fit(module, rows(6), rows(4))
    trainer.save_checkpoint(out_dir / "whole.ckpt")
    trainer.save_checkpoint(out_dir / "weights.ckpt", weights_only=True)
    for name in ("whole", "weights"):
        content = torch.load(out_dir / f"{name}.ckpt", weights_only=False)
        record.value(name, {key: value for key, value in content.items() if not key.startswith("bolide")})


@script
def checkpoint_contents_at_an_epochs_end(pl, record, out_dir):
    keeper = record.part("callbacks").ModelCheckpoint(dirpath=out_dir / "kept", monitor="val", save_top_k=2)
    record.trainer(keeper).fit(record.module(_stateful(pl)), rows(6), rows(4))
    for path in sorted((out_dir / "kept").iterdir()):
        content = torch.load(path, weights_only=False)
        content["callbacks"] = sorted(content["callbacks"])
        record.value(path.name, {key: value for key, value in content.items() if not key.startswith("bolide")})


@script
def checkpoint_contents_in_manual_mode(pl, record, out_dir):
    class Module(regression(pl)):
        def __init__(self):
            super().__init__()
            self.automatic_optimization = False

        def training_step(self, batch, batch_idx):
            for optimizer in self.optimizers():
                self.manual_backward(self.loss(batch))
                optimizer.step()
                optimizer.zero_grad()

        def configure_optimizers(self):
            return [Adam([self.layer.weight]), Adam([self.layer.bias])]

    trainer = record.trainer()
    trainer.fit(record.module(Module), rows(6), rows(2))
    trainer.save_checkpoint(out_dir / "whole.ckpt")
    content = torch.load(out_dir / "whole.ckpt", weights_only=False)
    record.value("whole", {key: value for key, value in content.items() if not key.startswith("bolide")})


@script
def resume_from_an_epochs_end(pl, record, out_dir):
    keeper = record.part("callbacks").ModelCheckpoint(dirpath=out_dir / "kept", save_top_k=-1)
    record.trainer(keeper).fit(record.module(_stateful(pl)), rows(6), rows(4))
    path = out_dir / "kept" / "epoch=0-step=3.ckpt"
    trainer = record.trainer(max_epochs=3)
    trainer.fit(record.module(_stateful(pl)), rows(6), rows(4), ckpt_path=path)
    unbroken = record.trainer(max_epochs=3)
    unbroken.fit(record.module(_stateful(pl)), rows(6), rows(4))


@script
def resume_with_callbacks(pl, record, out_dir):
    callbacks = record.part("callbacks")

    def run(epochs, **arguments):
        keeper = callbacks.ModelCheckpoint(dirpath=out_dir / "kept", monitor="score", save_top_k=2, save_last=True)
        stopping = callbacks.EarlyStopping("score", patience=3)
        trainer = record.trainer(keeper, stopping, max_epochs=epochs)
        module = record.module(_scored(pl, (0.3, 0.1, 0.2, 0.4, 0.5, 0.6, 0.7)))
        trainer.fit(module, rows(4), rows(2), **arguments)
        record.files(f"files {epochs}", out_dir / "kept")
        record.checkpoint_callback(f"state {epochs}", keeper)
        record.value(f"stopping {epochs}", [stopping.wait_count, stopping.stopped_epoch, stopping.best_score])

    run(2)
    run(7, ckpt_path="last")


@script
def resume_a_finished_run(pl, record, out_dir):
    keeper = record.part("callbacks").ModelCheckpoint(dirpath=out_dir / "kept")
    record.trainer(keeper).fit(record.module(_stateful(pl)), rows(6), rows(4))
    trainer = record.trainer()
    trainer.fit(record.module(_stateful(pl)), rows(6), rows(4), ckpt_path=keeper.best_model_path)


@script
def resume_after_save_checkpoint(pl, record, out_dir):
    trainer = record.trainer(accumulate_grad_batches=2)
    trainer.fit(record.module(_stateful(pl)), rows(6), rows(4))
    trainer.save_checkpoint(out_dir / "end.ckpt")
    again = record.trainer(max_epochs=4, accumulate_grad_batches=2)
    again.fit(record.module(_stateful(pl)), rows(6), rows(4), ckpt_path=out_dir / "end.ckpt")


@script
def resume_with_a_shuffled_loader(pl, record, out_dir):
    keeper = record.part("callbacks").ModelCheckpoint(dirpath=out_dir / "kept")
    record.trainer(keeper, max_epochs=1).fit(record.module(shuffled_network(pl)), rows(8, 4, shuffle=True), rows(4))
    torch.manual_seed(5)
    trainer = record.trainer(max_epochs=3)
    module = record.module(shuffled_network(pl))
    trainer.fit(module, rows(8, 4, shuffle=True), rows(4), ckpt_path=keeper.best_model_path)


@script
def hyperparameters(pl, record, out_dir):
    class Base(pl.LightningModule):
        def __init__(self, width=2, *, unused=None):
            super().__init__()
            self.layer = torch.nn.Linear(FEATURES, width)

        def training_step(self, batch, batch_idx):
            return self.layer(batch).pow(2).mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=self.hparams.lr)

    class Module(Base):
        def __init__(self, lr, width=3, names=("a", "b"), **more):
            super().__init__(width)
            self.save_hyperparameters(ignore=["names"])

    module = record.module(Module, lr=0.1, extra=[1, 2])
    record.value("hparams", dict(module.hparams))
    module.hparams.lr = 0.2
    record.value("initial", dict(module.hparams_initial))
    trainer = record.trainer(max_epochs=1)
    trainer.fit(module, rows(4))
    trainer.save_checkpoint(out_dir / "whole.ckpt")
    content = torch.load(out_dir / "whole.ckpt", weights_only=False)
    record.value("saved", [content["hparams_name"], dict(content["hyper_parameters"])])
    loaded = Module.load_from_checkpoint(out_dir / "whole.ckpt", width=3, other=5)
    record.value("loaded", dict(loaded.hparams))
    record.value("weights", dict(loaded.state_dict()))


@script
def hyperparameters_in_other_forms(pl, record, out_dir):
    class FromNamespace(regression(pl)):
        def __init__(self, settings):
            super().__init__()
            self.save_hyperparameters(settings)

    class Chosen(regression(pl)):
        def __init__(self, one, two=2, three=3):
            super().__init__()
            self.save_hyperparameters("one", "three", logger=False)

    namespaced = record.module(FromNamespace, Namespace(lr=0.1, depth=2))
    chosen = record.module(Chosen, 1)
    record.value("namespace", dict(namespaced.hparams))
    record.value("chosen", dict(chosen.hparams))
    for module in (namespaced, chosen):
        record.trainer(max_epochs=1).fit(module, rows(2))


@script
def load_with_missing_and_extra_weights(pl, record, out_dir):
    class Bigger(regression(pl)):
        def __init__(self):
            super().__init__()
            self.more = torch.nn.Linear(2, 2)

    trainer = record.trainer(max_epochs=1)
    trainer.fit(record.module(regression(pl)), rows(2))
    trainer.save_checkpoint(out_dir / "small.ckpt")
    record.raised("strict", lambda: Bigger.load_from_checkpoint(out_dir / "small.ckpt"))
    loaded = Bigger.load_from_checkpoint(out_dir / "small.ckpt", strict=False)
    record.value("layer", dict(loaded.layer.state_dict()))
    record.raised("no file", lambda: record.trainer().fit(regression(pl)(), rows(2), ckpt_path=out_dir / "none.ckpt"))

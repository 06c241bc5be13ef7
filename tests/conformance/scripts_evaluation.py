"""Scripts: validate, test and predict, and the modes of a module around validation."""

from __future__ import annotations

import torch

from .library import FEATURES, regression, rows, scripts_in_modes, shuffled_network

script = scripts_in_modes("plain")


@script
def validate_alone(pl, record, out_dir):
    trainer, module = record.trainer(), record.module(regression(pl))
    record.value("returned", trainer.validate(module, rows(5), verbose=False))


@script
def test_alone(pl, record, out_dir):
    trainer, module = record.trainer(limit_test_batches=2), record.module(regression(pl))
    record.value("returned", trainer.test(module, rows(8), verbose=False))


@script
def test_several_loaders(pl, record, out_dir):
    class Module(regression(pl)):
        def test_step(self, batch, batch_idx, dataloader_idx):
            self.log("loss", self.loss(batch), on_step=True, on_epoch=True)
            self.log("count", 1.0, reduce_fx="sum")
            if dataloader_idx == 1:
                self.log("only", 2.0, add_dataloader_idx=False)

        def on_test_epoch_end(self):
            self.log("overall", 3.0)

    trainer, module = record.trainer(), record.module(Module)
    record.value("returned", trainer.test(module, [rows(4), rows(6)], verbose=False))


@script
def predict_one_loader(pl, record, out_dir):
    trainer, module = record.trainer(), record.module(regression(pl))
    record.value("returned", trainer.predict(module, rows(5)))
    record.value("none", trainer.predict(module, rows(5), return_predictions=False))


@script
def predict_several_loaders(pl, record, out_dir):
    class Module(regression(pl)):
        def predict_step(self, batch, batch_idx, dataloader_idx=0):
            return {"rows": self(batch), "from": [batch_idx, dataloader_idx]}

    trainer, module = record.trainer(limit_predict_batches=2), record.module(Module)
    record.value("returned", trainer.predict(module, [rows(6), rows(2)]))


@script
def predict_by_default_step(pl, record, out_dir):
    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(FEATURES, 2)

        def forward(self, batch):
            record.note(f"grad {torch.is_grad_enabled()} inference {torch.is_inference_mode_enabled()}")
            return self.layer(batch)

    trainer, module = record.trainer(), record.module(Module)
    record.value("returned", trainer.predict(module, rows(4)))


@script
def without_inference_mode(pl, record, out_dir):
    trainer, module = record.trainer(inference_mode=False), record.module(regression(pl))
    record.value("validate", trainer.validate(module, rows(4), verbose=False))
    record.value("predict", trainer.predict(module, rows(4)))


@script
def batch_norm_is_not_trained_by_evaluation(pl, record, out_dir):
    trainer, module = record.trainer(max_epochs=1), record.module(shuffled_network(pl))
    record.value("validate", trainer.validate(module, rows(8, 4, shuffle=True), verbose=False))
    trainer.fit(module, rows(8, 4), rows(8, 4))


@script
def modes_of_submodules_are_restored(pl, record, out_dir):
    class Module(regression(pl)):
        def __init__(self):
            super().__init__()
            self.dropout = torch.nn.Dropout(0.5)
            self.dropout.eval()

        def note_modes(self, where):
            record.note(f"{where}: {self.training} {self.layer.training} {self.dropout.training}")

        def training_step(self, batch, batch_idx):
            self.note_modes("train")
            return super().training_step(self.dropout(batch), batch_idx)

        def validation_step(self, batch, batch_idx):
            self.note_modes("validation")

    module, trainer = record.module(Module), record.trainer()
    trainer.fit(module, rows(4), rows(2))
    module.note_modes("after fit")
    module.eval()
    trainer.validate(module, rows(2), verbose=False)
    module.note_modes("after validate")


@script
def modes_changed_by_overridden_hooks(pl, record, out_dir):
    class Module(regression(pl)):
        def on_validation_model_eval(self):
            record.note("own eval")
            super().on_validation_model_eval()
            self.layer.train()

        def on_validation_model_train(self):
            record.note("own train")
            super().on_validation_model_train()

        def on_test_model_train(self):
            record.note("own test train")

    module, trainer = record.module(Module), record.trainer()
    trainer.fit(module, rows(4), rows(2))
    trainer.test(module, rows(2), verbose=False)
    record.value("modes", [module.training, module.layer.training])


@script
def frozen_and_unfrozen(pl, record, out_dir):
    module = record.module(regression(pl))
    module.freeze()
    record.value("frozen", [module.training, *(p.requires_grad for p in module.parameters())])
    module.unfreeze()
    record.value("unfrozen", [module.training, *(p.requires_grad for p in module.parameters())])
    record.trainer(max_epochs=1).fit(module, rows(4))


@script
def evaluation_of_the_best_checkpoint(pl, record, out_dir):
    class Module(regression(pl)):
        def validation_step(self, batch, batch_idx):
            self.log("score", float(self.current_epoch != 1))
            self.log("val", self.loss(batch))

    keeper = record.part("callbacks").ModelCheckpoint(dirpath=out_dir / "kept", monitor="score", save_last=True)
    trainer, module = record.trainer(keeper, max_epochs=3), record.module(Module)
    trainer.fit(module, rows(4), rows(2))
    record.value("best", trainer.test(ckpt_path="best", dataloaders=rows(4), verbose=False))
    record.value("by default", trainer.test(dataloaders=rows(4), verbose=False))
    record.value("last", trainer.predict(ckpt_path="last", dataloaders=rows(2)))
    record.value("now", trainer.validate(module, rows(4), verbose=False))


@script
def exception_while_testing(pl, record, out_dir):
    class Module(regression(pl)):
        def test_step(self, batch, batch_idx):
            raise ValueError("as intended")

    trainer, module = record.trainer(), record.module(Module)
    record.raised("test", lambda: trainer.test(module, rows(2), verbose=False))

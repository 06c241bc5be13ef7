"""Scripts: loaders of every kind, their limits, order and transfer; data modules."""

from __future__ import annotations

import torch
from torch.utils.data import DataLoader, RandomSampler, Subset, TensorDataset, WeightedRandomSampler

from .library import FEATURES, Rows, regression, rows, scripts_in_modes, shuffled_network, stream

script = scripts_in_modes("plain", "bare")


def _collection_module(pl, record):
    class Module(regression(pl)):
        def training_step(self, batch, batch_idx):
            parts = list(batch.values()) if isinstance(batch, dict) else list(batch)
            loss = sum(self.loss(part) for part in parts if part is not None)
            self.log("train", loss, batch_size=2)
            return loss

    return record.module(Module)


@script
def train_loaders_in_a_dictionary(pl, record, out_dir):
    trainer = record.trainer()
    trainer.fit(_collection_module(pl, record), {"long": rows(8, shuffle=True), "short": rows(4, shuffle=True)})


@script
def train_loaders_in_a_list(pl, record, out_dir):
    record.trainer(limit_train_batches=3).fit(_collection_module(pl, record), [rows(8), rows(4)], rows(2))


def _combined(pl, record, mode, **arguments):
    loader = record.part("utilities").CombinedLoader({"a": rows(6, shuffle=True), "b": rows(10, shuffle=True)}, mode)
    record.trainer(**arguments).fit(_collection_module(pl, record), loader)


@script
def combined_max_size_cycle(pl, record, out_dir):
    _combined(pl, record, "max_size_cycle")


@script
def combined_min_size(pl, record, out_dir):
    _combined(pl, record, "min_size", accumulate_grad_batches=2)


@script
def combined_max_size(pl, record, out_dir):
    _combined(pl, record, "max_size", val_check_interval=0.5)


@script
def combined_sequential(pl, record, out_dir):
    combined = record.part("utilities").CombinedLoader
    module = _collection_module(pl, record)
    record.raised("fit", lambda: record.trainer().fit(module, combined([rows(4), rows(2)], "sequential")))

    class Several(regression(pl)):
        def validation_step(self, batch, batch_idx, dataloader_idx=0):
            record.note(f"batch {batch_idx} of loader {dataloader_idx}")
            self.log("val", self.loss(batch))

    trainer, module = record.trainer(), record.module(Several)
    record.value("sequential", trainer.validate(module, combined([rows(4), rows(2)], "sequential"), verbose=False))


@script
def combined_iterated_by_hand(pl, record, out_dir):
    combined = record.part("utilities").CombinedLoader
    for mode in ("min_size", "max_size", "max_size_cycle", "sequential"):
        loader = combined({"a": rows(4), "b": [rows(6), range(2)]}, mode)
        items = list(iter(loader))
        record.value(mode, [[str(batch), index, which] for batch, index, which in items])
        record.value(f"{mode} length", len(loader))


@script
def several_validation_loaders(pl, record, out_dir):
    class Module(regression(pl)):
        def validation_step(self, batch, batch_idx, dataloader_idx):
            loss = self.loss(batch)
            self.log("val", loss, on_step=True, on_epoch=True, prog_bar=True)
            self.log(f"own {dataloader_idx}", loss, add_dataloader_idx=False)

    record.trainer().fit(record.module(Module), rows(6), [rows(4), rows(2)])


@script
def several_validation_loaders_by_name(pl, record, out_dir):
    class Module(regression(pl)):
        def validation_step(self, batch, batch_idx, dataloader_idx=0):
            self.log("val", self.loss(batch))

    trainer = record.trainer(limit_val_batches=1)
    trainer.fit(record.module(Module), rows(6), {"first": rows(4), "second": rows(2)})


@script
def validation_loaders_side_by_side(pl, record, out_dir):
    class Module(regression(pl)):
        def validation_step(self, batch, batch_idx):
            record.note(f"{[None if part is None else len(part) for part in batch]}")
            self.log("val", self.loss(batch[0]), batch_size=2)

    loader = record.part("utilities").CombinedLoader([rows(6), rows(2)], "max_size")
    record.trainer().fit(record.module(Module), rows(4), loader)


@script
def limits_as_counts(pl, record, out_dir):
    record.trainer(limit_train_batches=3, limit_val_batches=1).fit(record.module(regression(pl)), rows(8), rows(8))


@script
def limits_as_shares(pl, record, out_dir):
    trainer = record.trainer(limit_train_batches=0.5, limit_val_batches=0.3)
    trainer.fit(record.module(regression(pl)), rows(10), rows(8))


@script
def limits_of_zero(pl, record, out_dir):
    record.trainer(limit_val_batches=0).fit(record.module(regression(pl)), rows(4), rows(4))
    record.trainer(limit_train_batches=0).fit(record.module(regression(pl)), rows(4), rows(4))


@script
def stream_without_length(pl, record, out_dir):
    class Module(regression(pl)):
        def training_step(self, batch, batch_idx):
            record.note(f"last {self.trainer.is_last_batch}")
            return super().training_step(batch, batch_idx)

    record.trainer().fit(record.module(Module), stream(6), stream(4))


@script
def stream_with_limits(pl, record, out_dir):
    trainer = record.trainer(limit_train_batches=2, limit_val_batches=1)
    trainer.fit(record.module(regression(pl)), stream(8), stream(8))


@script
def stream_validated_by_count(pl, record, out_dir):
    trainer = record.trainer(val_check_interval=2, limit_val_batches=1)
    trainer.fit(record.module(regression(pl)), stream(8), stream(8))


@script
def iterables_that_are_no_loader(pl, record, out_dir):
    class Sized:
        def __len__(self):
            return 3

        def __iter__(self):
            for index in range(3):
                record.note(f"yields {index}")
                yield torch.full((2, FEATURES), float(index))

    class Unsized:
        def __iter__(self):
            for index in range(3):
                record.note(f"yields {index}")
                yield torch.full((2, FEATURES), float(index))

    record.trainer().fit(record.module(regression(pl)), Sized(), [torch.ones(2, FEATURES)])
    record.trainer().fit(record.module(regression(pl)), Unsized(), Unsized())


def _spied(record, name, size, **arguments):
    """A loader that notes its iteration and its fetches: when random numbers are drawn."""

    class Source(Rows):
        def __getitem__(self, index):
            record.note(f"{name} fetches {index}")
            return super().__getitem__(index)

    class Sampler(RandomSampler):
        def __iter__(self):
            record.note(f"{name} draws an order")
            yield from super().__iter__()

    class Loader(DataLoader):
        def __iter__(self):
            record.note(f"{name} is iterated")
            return super().__iter__()

    source = Source(size)
    return Loader(source, batch_size=2, sampler=Sampler(source), **arguments)


@script
def when_loaders_are_read(pl, record, out_dir):
    module = record.module(shuffled_network(pl))
    record.trainer(val_check_interval=0.5).fit(module, _spied(record, "train", 8), _spied(record, "val", 4))


@script
def when_limited_loaders_are_read(pl, record, out_dir):
    trainer = record.trainer(limit_train_batches=2, limit_val_batches=1)
    trainer.fit(record.module(regression(pl)), _spied(record, "train", 8), _spied(record, "val", 4))


@script
def overfit_batches(pl, record, out_dir):
    trainer = record.trainer(overfit_batches=2, max_epochs=3)
    trainer.fit(record.module(regression(pl)), rows(8, shuffle=True), rows(8))


@script
def overfit_a_share(pl, record, out_dir):
    trainer = record.trainer(overfit_batches=0.5)
    trainer.fit(record.module(regression(pl)), rows(8, shuffle=True), rows(4))


def _reloading(pl, record):
    class Module(regression(pl)):
        def train_dataloader(self):
            return rows(4 + 2 * self.current_epoch)

        def val_dataloader(self):
            return rows(2 + 2 * self.current_epoch)

    return record.module(Module)


@script
def reload_loaders_every_epoch(pl, record, out_dir):
    record.trainer(reload_dataloaders_every_n_epochs=1, max_epochs=3).fit(_reloading(pl, record))


@script
def reload_loaders_every_second_epoch(pl, record, out_dir):
    trainer = record.trainer(
        reload_dataloaders_every_n_epochs=2, max_epochs=5, check_val_every_n_epoch=2, num_sanity_val_steps=0
    )
    trainer.fit(_reloading(pl, record))


@script
def loaders_of_the_module(pl, record, out_dir):
    record.trainer().fit(_reloading(pl, record))


@script
def tensor_dataset_shuffled(pl, record, out_dir):
    class Module(shuffled_network(pl)):
        def training_step(self, batch, batch_idx):
            inputs, targets = batch
            record.note(f"{type(batch).__name__} {inputs.sum().item()!r} {targets.tolist()}")
            return super().training_step(inputs, batch_idx) + targets.float().mean()

    inputs = Rows(11).rows
    dataset = TensorDataset(inputs, torch.arange(11))
    record.trainer().fit(record.module(Module), DataLoader(dataset, batch_size=3, shuffle=True), rows(2))
    subset = DataLoader(Subset(dataset, [7, 1, 5, 3, 2]), batch_size=2, shuffle=True, drop_last=True)
    record.trainer().fit(record.module(Module), subset)


@script
def tensor_dataset_with_own_samplers(pl, record, out_dir):
    class Module(regression(pl)):
        def training_step(self, batch, batch_idx):
            record.note(f"{batch[0].sum().item()!r}")
            return super().training_step(batch[0], batch_idx)

    dataset = TensorDataset(Rows(8).rows)
    weighted = DataLoader(dataset, batch_size=2, sampler=WeightedRandomSampler([1.0] * 7 + [9.0], 6))
    record.trainer().fit(record.module(Module), weighted)
    generator = torch.Generator().manual_seed(3)
    seeded = DataLoader(dataset, batch_size=3, shuffle=True, generator=generator)
    record.trainer().fit(record.module(Module), seeded)
    record.value("global draws left alone", torch.rand(2))
    replaced = DataLoader(dataset, batch_size=3, sampler=RandomSampler(dataset, replacement=True, num_samples=7))
    record.trainer().fit(record.module(Module), replaced)
    whole = DataLoader(dataset, batch_sampler=[[0, 1], [5, 2, 3]])
    record.trainer().fit(record.module(Module), whole)


@script
def random_numbers_in_the_dataset(pl, record, out_dir):
    class Noisy(Rows):
        def __getitem__(self, index):
            return super().__getitem__(index) + torch.rand(FEATURES)

    module = record.module(shuffled_network(pl))
    record.trainer().fit(module, DataLoader(Noisy(8), batch_size=2, shuffle=True), DataLoader(Noisy(4), batch_size=2))
    record.value("next", torch.rand(1))


@script
def collated_mappings(pl, record, out_dir):
    class Named(Rows):
        def __getitem__(self, index):
            return {"x": super().__getitem__(index), "label": index, "name": f"row {index}"}

    class Module(regression(pl)):
        def training_step(self, batch, batch_idx):
            record.note(f"{sorted(batch)} {batch['label'].tolist()} {batch['name']}")
            return super().training_step(batch["x"], batch_idx)

    record.trainer().fit(record.module(Module), DataLoader(Named(5), batch_size=2))


@script
def batch_transfer_overridden(pl, record, out_dir):
    class Module(regression(pl)):
        def on_before_batch_transfer(self, batch, dataloader_idx):
            return batch + 1

        def transfer_batch_to_device(self, batch, device, dataloader_idx):
            return super().transfer_batch_to_device(batch * 2, device, dataloader_idx)

        def on_after_batch_transfer(self, batch, dataloader_idx):
            return batch - 1 if self.trainer.training else batch

    record.trainer().fit(record.module(Module), rows(6), rows(2))


def _data(pl, record):
    class Data(pl.LightningDataModule):
        def __init__(self, size=6):
            super().__init__()
            self.save_hyperparameters()
            self.calls = 0

        def prepare_data(self):
            record.note("prepares")

        def setup(self, stage):
            self.calls += 1
            record.note(f"sets up {stage.value} {self.trainer is not None}")

        def train_dataloader(self):
            return rows(self.hparams.size)

        def val_dataloader(self):
            return [rows(4), rows(2)]

        def test_dataloader(self):
            return rows(4)

        def predict_dataloader(self):
            return rows(2)

        def on_after_batch_transfer(self, batch, dataloader_idx):
            return batch * (dataloader_idx + 1)

        def state_dict(self):
            return {"calls": self.calls}

        def load_state_dict(self, state):
            record.note(f"loads {state}")

        def teardown(self, stage):
            record.note(f"tears down {stage.value}")

    return record.datamodule(Data)


@script
def datamodule_in_every_stage(pl, record, out_dir):
    class Module(regression(pl)):
        def validation_step(self, batch, batch_idx, dataloader_idx=0):
            self.log("val", self.loss(batch))

    module, data, trainer = record.module(Module), _data(pl, record), record.trainer()
    trainer.fit(module, datamodule=data)
    record.value("validate", trainer.validate(module, datamodule=data, verbose=False))
    record.value("test", trainer.test(module, data, verbose=False))
    record.value("predict", trainer.predict(module, datamodule=data))


@script
def datamodule_state_comes_back(pl, record, out_dir):
    class Module(regression(pl)):
        def validation_step(self, batch, batch_idx, dataloader_idx=0):
            self.log("val", self.loss(batch))

    keeper = record.part("callbacks").ModelCheckpoint(dirpath=out_dir / "kept")
    record.trainer(keeper, max_epochs=1).fit(record.module(Module), datamodule=_data(pl, record))
    record.trainer().fit(record.module(Module), datamodule=_data(pl, record), ckpt_path=keeper.best_model_path)


@script
def datamodule_from_datasets(pl, record, out_dir):
    class Module(regression(pl)):
        def validation_step(self, batch, batch_idx, dataloader_idx=0):
            self.log("val", self.loss(batch))

    data = pl.LightningDataModule.from_datasets(Rows(8), [Rows(4), Rows(2)], Rows(2), Rows(2), batch_size=2)
    module, trainer = record.module(Module), record.trainer()
    trainer.fit(module, data)
    record.value("test", trainer.test(module, datamodule=data, verbose=False))
    record.value("predict", trainer.predict(module, datamodule=data))

"""What bad input gets: an error (a warning for a misspelt hook) that says what to write, and no half-written file."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import bolide as pl
from bolide.core.errors import CheckpointError, CheckpointNotFoundError, MisconfigurationException, UserCodeError
from bolide.core.messages import said
from tests.fixtures import OneWeight, loader


@pytest.fixture
def trainer_of(tmp_path: Path) -> Iterator[Callable[..., pl.Trainer]]:
    """A trainer that writes its logs and checkpoints under `tmp_path`; afterwards every file there must be whole."""

    def make(**settings: Any) -> pl.Trainer:
        quiet = {"enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu", "max_epochs": 1}
        logger = pl.loggers.CSVLogger(tmp_path)
        return pl.Trainer(**{**quiet, "logger": logger, "default_root_dir": tmp_path, **settings})

    yield make
    for path in tmp_path.rglob("*"):
        assert not path.name.endswith(".part")
        if path.suffix == ".ckpt" and path.name != "damaged.ckpt":
            assert "state_dict" in torch.load(path, weights_only=True)


class Nothing(IterableDataset[Any]):
    """Says no length and gives no sample."""

    def __iter__(self) -> Iterator[Any]:
        return iter(())


EMPTY = {
    "a list": [],
    "a sized dataset": DataLoader(TensorDataset(torch.zeros(3, 1)), batch_size=4, drop_last=True),
    "an unsized dataset": DataLoader(Nothing()),
    "an iterator": iter(()),
}


@pytest.mark.parametrize("kind", EMPTY)
def test_a_training_loader_that_yields_nothing(kind: str, trainer_of: Any) -> None:
    module = OneWeight()
    with pytest.raises(UserCodeError, match=r"training loader gave no batch.*(used up|drop_last=True)"):
        trainer_of().fit(module, EMPTY[kind])
    assert module.seen == []


def test_an_iterator_that_is_used_up_in_the_first_epoch(trainer_of: Any) -> None:
    module = OneWeight()
    with pytest.raises(UserCodeError, match="gave no batch.*an iterator that was used up"):
        trainer_of(max_epochs=3).fit(module, iter([torch.zeros(1), torch.ones(1)]))
    assert len(module.seen) == 2


@pytest.mark.parametrize("kind", [name for name in EMPTY if name != "a list"])
def test_a_validation_loader_that_yields_nothing(kind: str, trainer_of: Any) -> None:
    module = OneWeight()
    with pytest.raises(UserCodeError, match=r"validation loader gave no batch.*(used up|drop_last=True)"):
        trainer_of(num_sanity_val_steps=2).fit(module, loader(2), EMPTY[kind])
    assert module.seen == []


@pytest.mark.parametrize(
    ("returned", "said_of_it"),
    [
        (lambda module: "loss", "`training_step` returned a str; return the loss"),
        (lambda module: 0.5, "`training_step` returned a float; return the loss"),
        (lambda module: [module.w.sum()], "`training_step` returned a list; return the loss"),
        (lambda module: {"lss": module.w.sum()}, r"keys \['lss'\], in which 'loss' is missing; return"),
        (lambda module: {"loss": 0.5}, r"in which 'loss' is a float; return"),
        (lambda module: module.w.sum().detach(), r"has no gradient.*without \.detach\(\)"),
        (lambda module: torch.zeros(()), r"has no gradient.*requires_grad=True"),
    ],
    ids=["text", "number", "list", "no loss", "loss is a number", "detached", "constant"],
)
def test_what_training_step_must_return(returned: Callable[[Any], Any], said_of_it: str, trainer_of: Any) -> None:
    class Module(OneWeight):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return returned(self)

    with pytest.raises(UserCodeError, match=said_of_it):
        trainer_of().fit(Module(), loader(2))


def test_no_configure_optimizers(trainer_of: Any) -> None:
    class Module(pl.LightningModule):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return None

    with pytest.raises(UserCodeError, match=r"Module has no configure_optimizers; write[\s\S]*return torch\.optim\."):
        trainer_of().fit(Module(), loader(1))


def test_a_metric_that_nobody_logs_lists_those_that_are_with_the_nearest_first(trainer_of: Any) -> None:
    class Module(OneWeight):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.log_dict({"accuracy": 0.5, "val_loss": 1.0, "learning_rate": 0.1})
            return super().training_step(batch, batch_idx)

    with pytest.raises(UserCodeError, match="monitor='val_los'.*which nobody logs") as caught:
        trainer_of(callbacks=[pl.callbacks.EarlyStopping("val_los")]).fit(Module(), loader(2))
    text = str(caught.value)
    listed = text[text.index("Logged are") :]
    assert listed.index("val_loss") < listed.index("accuracy")
    assert "learning_rate" in listed
    assert "Write self.log('val_los', value)" in text and "monitor='val_loss'" in text


def test_a_metric_that_nobody_logs_where_nothing_is_logged(trainer_of: Any) -> None:
    with pytest.raises(UserCodeError, match="nothing is logged at all. Write self.log"):
        trainer_of(callbacks=[pl.callbacks.EarlyStopping("loss")]).fit(OneWeight(), loader(2))


def saved(path: Path, trainer_of: Any) -> Path:
    """A checkpoint of one epoch."""
    trainer = trainer_of(enable_checkpointing=False)
    trainer.fit(OneWeight(), loader(2))
    trainer.save_checkpoint(path)
    return path


def test_a_checkpoint_that_does_not_exist_names_the_nearest(tmp_path: Path, trainer_of: Any) -> None:
    saved(tmp_path / "first.ckpt", trainer_of)
    with pytest.raises(CheckpointNotFoundError, match=r"no such file\. There is '.*first\.ckpt'"):
        trainer_of().fit(OneWeight(), loader(2), ckpt_path=tmp_path / "frist.ckpt")


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.99])
def test_a_truncated_checkpoint_changes_nothing(share: float, tmp_path: Path, trainer_of: Any) -> None:
    content = saved(tmp_path / "whole.ckpt", trainer_of).read_bytes()
    damaged = tmp_path / "damaged.ckpt"
    damaged.write_bytes(content[: int(len(content) * share)])
    module = OneWeight()
    with pytest.raises(CheckpointError, match=r"damaged\.ckpt'.*(cut short|no checkpoint)"):
        trainer_of().fit(module, loader(2), ckpt_path=damaged)
    assert module.w.item() == 0.0 and module.seen == []
    assert damaged.read_bytes() == content[: int(len(content) * share)]  # what the user named is never touched


@pytest.mark.parametrize("name", ["on_train_epoch_ends", "validaton_step"])
def test_a_misspelt_hook_is_a_warning_that_names_the_right_one(name: str, trainer_of: Any) -> None:
    right = {"on_train_epoch_ends": "on_train_epoch_end", "validaton_step": "validation_step"}[name]
    module_kind = type("Misspelt", (OneWeight,), {name: lambda self, *args: None})
    said.clear()
    with pytest.warns(UserWarning, match=rf"Misspelt\.{name} is never called.*Did you mean '{right}'\?"):
        trainer_of().fit(module_kind(), loader(1))
    if name.startswith("on_"):
        callback_kind = type("MisspeltCallback", (pl.Callback,), {name: lambda self, *args: None})
        with pytest.warns(UserWarning, match=rf"MisspeltCallback\.{name} is never called.*Did you mean '{right}'\?"):
            trainer_of(callbacks=[callback_kind()]).fit(OneWeight(), loader(1))


def test_methods_of_ones_own_are_no_misspelt_hooks(trainer_of: Any) -> None:
    class Module(OneWeight):
        def on_my_own(self) -> None: ...

        def training_loss(self) -> None: ...

        def step(self) -> None: ...

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer_of().fit(Module(), loader(1))
    assert not [str(w.message) for w in caught if "never called" in str(w.message)]


def test_a_forgotten_super_init_says_so(trainer_of: Any) -> None:
    class Module(pl.LightningModule):
        def __init__(self) -> None:
            self.layer = torch.nn.Linear(1, 1)

    with pytest.raises(UserCodeError, match=r"Module\.__init__ does not call super\(\)\.__init__\(\): write it as the"):
        trainer_of().fit(Module(), loader(1))


def test_an_error_while_a_checkpoint_is_put_together_leaves_no_file(tmp_path: Path, trainer_of: Any) -> None:
    class Module(OneWeight):
        def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
            checkpoint["mine"] = object()

    with pytest.raises(MisconfigurationException, match="mine is a object"):
        trainer_of(callbacks=[pl.callbacks.ModelCheckpoint(dirpath=tmp_path / "kept")]).fit(Module(), loader(1))
    assert not list((tmp_path / "kept").glob("*"))

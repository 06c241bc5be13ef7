"""Hooks and Trainer attributes that went: each is named with its successor, and today's code is left alone."""

from __future__ import annotations

import functools

import pytest
from torch import nn

from bolide.compat import hooks_args
from bolide.compat.hooks_args import (
    REMOVED_CALLBACK_HOOKS,
    REMOVED_DATAMODULE_HOOKS,
    REMOVED_MODULE_HOOKS,
    REMOVED_TRAINER_ATTRIBUTES,
    check_callback,
    check_datamodule,
    check_module,
    misspelt_hooks,
)
from bolide.core.hooks import HOOKS


def made(name, *arguments, base=nn.Module):
    """An object of a class with one method, whose arguments are given as text."""
    space = {}
    exec(f"def {name}({', '.join(('self', *arguments))}): pass", space)
    return type("Net", (base,), {name: space[name]})()


@pytest.mark.parametrize("name", REMOVED_MODULE_HOOKS)
def test_each_removed_hook_of_a_module(name):
    texts = check_module(made(name, "*args"))
    assert texts == [f"Net.{name} is no longer called. {REMOVED_MODULE_HOOKS[name]}"]


@pytest.mark.parametrize("name", REMOVED_DATAMODULE_HOOKS)
def test_each_removed_hook_of_a_datamodule(name):
    assert check_datamodule(made(name, "*args", base=object))[0].startswith(f"Net.{name} is no longer called.")


@pytest.mark.parametrize("name", REMOVED_CALLBACK_HOOKS)
def test_each_removed_hook_of_a_callback(name):
    assert check_callback(made(name, "*args", base=object))[0].startswith(f"Net.{name} is no longer called.")


@pytest.mark.parametrize("name", REMOVED_TRAINER_ATTRIBUTES)
def test_each_removed_attribute_has_a_successor_in_words(name):
    text = REMOVED_TRAINER_ATTRIBUTES[name]
    assert text.endswith(".")
    assert name != text


@pytest.mark.parametrize(
    ("name", "arguments", "wrong"),
    [
        ("training_step", ("batch", "batch_idx", "optimizer_idx"), "optimizer_idx"),
        ("training_step", ("batch", "batch_idx", "optimizer_idx=0"), "optimizer_idx"),
        ("training_step", ("batch", "batch_idx", "hiddens"), "hiddens"),
        ("training_step", ("dataloader_iter", "batch_idx"), "batch_idx"),
        ("optimizer_step", ("epoch", "batch_idx", "optimizer", "optimizer_idx", "optimizer_closure"), "optimizer_idx"),
        ("optimizer_step", ("epoch", "batch_idx", "optimizer", "optimizer_closure", "on_tpu"), "on_tpu"),
        ("optimizer_zero_grad", ("epoch", "batch_idx", "optimizer", "optimizer_idx"), "optimizer_idx"),
        ("backward", ("loss", "optimizer", "optimizer_idx"), "optimizer"),
        ("on_before_optimizer_step", ("optimizer", "optimizer_idx"), "optimizer_idx"),
        ("configure_gradient_clipping", ("optimizer", "optimizer_idx", "val", "kind"), "optimizer_idx"),
        ("lr_scheduler_step", ("scheduler", "optimizer_idx", "metric"), "optimizer_idx"),
        ("toggle_optimizer", ("optimizer", "optimizer_idx"), "optimizer_idx"),
        ("on_train_batch_start", ("batch", "batch_idx", "dataloader_idx"), "dataloader_idx"),
        ("on_train_batch_end", ("outputs", "batch", "batch_idx", "dataloader_idx"), "dataloader_idx"),
        ("on_train_epoch_end", ("outputs",), "outputs"),
        ("on_predict_epoch_end", ("results",), "results"),
    ],
)
def test_each_argument_that_is_no_longer_passed(name, arguments, wrong):
    (text,) = check_module(made(name, *arguments))
    assert text.startswith(f"Net.{name} has the argument {wrong!r}, which is no longer passed. Write: def {name}(self")


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("training_step", ("batch", "batch_idx")),
        ("training_step", ("dataloader_iter",)),
        ("optimizer_step", ("*args", "**kwargs")),
        ("optimizer_step", ("epoch", "batch_idx", "optimizer", "optimizer_closure=None", "on_tpu=False")),
        ("on_train_batch_end", ("outputs", "batch", "batch_idx", "unused=0")),
        ("on_train_epoch_end", ()),
        ("on_train_epoch_end", ("unused=None",)),
        ("setup", ("stage",)),
        ("setup", ("stage=None",)),
        ("on_validation_epoch_end", ()),
    ],
)
def test_what_is_called_today_is_left_alone(name, arguments):
    assert check_module(made(name, *arguments)) == []


def test_callbacks_are_shown_their_own_signature():
    (text,) = check_callback(made("on_train_epoch_end", "trainer", "pl_module", "outputs", base=object))
    assert "def on_train_epoch_end(self, trainer, pl_module)." in text
    (text,) = check_callback(made("finetune_function", "pl_module", "epoch", "optimizer", "opt_idx", base=object))
    assert "def finetune_function(self, pl_module, epoch, optimizer)" in text


@pytest.mark.parametrize("name", ["setup", "teardown"])
def test_setup_without_stage(name):
    assert f"def {name}(self, stage)" in check_module(made(name))[0]
    assert f"def {name}(self, stage)" in check_datamodule(made(name, base=object))[0]
    assert (
        f"def {name}(self, trainer, pl_module, stage)"
        in check_callback(made(name, "trainer", "pl_module", base=object))[0]
    )


def test_a_method_of_that_name_that_the_user_calls_is_the_users():
    class Net(nn.Module):
        def on_train_epoch_end(self):
            self.on_epoch_end()

        def on_validation_epoch_end(self):
            return [self.train_step(x) for x in ()]

        def on_epoch_end(self):
            pass

        def train_step(self, x):
            pass

    assert check_module(Net()) == []
    assert misspelt_hooks(Net(), HOOKS) == []


@pytest.mark.parametrize(
    ("name", "hook"),
    [
        ("on_train_epoch_ends", "on_train_epoch_end"),
        ("on_training_epoch_end", "on_train_epoch_end"),
        ("on_val_epoch_end", "on_validation_epoch_end"),
        ("on_epoch_train_end", "on_train_epoch_end"),
        ("on_train_begin", "on_train_start"),
        ("train_step", "training_step"),
        ("val_step", "validation_step"),
        ("validate_step", "validation_step"),
        ("valid_dataloader", "val_dataloader"),
        ("train_dataloaders", "train_dataloader"),
        ("configure_optimizer", "configure_optimizers"),
    ],
)
def test_misspelt_hooks_are_told_with_the_right_one(name, hook):
    (text,) = misspelt_hooks(made(name), HOOKS)
    assert text.startswith(f"Net.{name} is never called")
    assert f"Did you mean {hook!r}" in text


@pytest.mark.parametrize(
    "name",
    ["shared_step", "configure_losses", "configure_metrics", "_on_train_epoch_ends", "on_button", "forward",
     "train_val_dataloader", "training_step", "validation_epoch_end", "diffusion_step"],
)  # fmt: skip
def test_other_methods_are_not(name):
    assert misspelt_hooks(made(name), HOOKS) == []


def test_what_a_base_class_of_the_framework_has_is_no_slip():
    class Framework:
        def train_dataloaders(self):
            pass

    Framework.__module__ = "bolide.somewhere"

    class Net(Framework):
        def train_dataloaders(self):
            pass

    assert misspelt_hooks(Net(), HOOKS) == []


def test_decorated_methods_are_seen_through():
    def tagged(fn):
        @functools.wraps(fn)
        def wrapper(*args, **kwargs):
            return fn(*args, **kwargs)

        return wrapper

    class Net(nn.Module):
        @tagged
        def training_step(self, batch, batch_idx, optimizer_idx):
            pass

        @property
        def on_things(self):
            raise AssertionError("no attribute is read")

    assert "'optimizer_idx'" in check_module(Net())[0]
    assert hooks_args.own_methods(Net()).keys() == {"training_step"}

"""load_from_checkpoint: arguments from the file, the hyperparameter file and the caller; weights; what is refused."""

from __future__ import annotations

import dataclasses
import enum
from argparse import Namespace
from pathlib import Path
from typing import Optional

import numpy as np
import pytest
import torch
from torch import nn

import bolide as pl
from bolide.checkpoint.file import write_checkpoint
from bolide.checkpoint.modules import (
    ClassOnly,
    MissingArgumentsError,
    _where_it_was_or_cpu,
    constructor_parameters,
    load_module,
)
from bolide.checkpoint.plain import plain_hparams
from bolide.core.errors import CheckpointError
from bolide.core.messages import said
from bolide.demos.boring_classes import BoringModel
from bolide.hparams import AttributeDict, HyperparametersMixin


class Module(HyperparametersMixin, nn.Module):
    """Stands for LightningModule."""

    strict_loading = True

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.loaded = []

    def configure_model(self):
        self.loaded.append("configure_model")

    def on_load_checkpoint(self, checkpoint):
        self.loaded.append("on_load_checkpoint")


class Data(HyperparametersMixin):
    """Stands for LightningDataModule."""

    def __init__(self, folder="x", batch_size=3):
        self.save_hyperparameters()
        self.state = None

    def load_state_dict(self, state):
        self.state = state


@pytest.fixture
def save(tmp_path):
    """Writes a checkpoint as the trainer does, and gives its path."""
    said.clear()

    def write(module, **extra):
        checkpoint = {"state_dict": dict(module.state_dict()) if isinstance(module, nn.Module) else {}}
        prefix = "" if isinstance(module, nn.Module) else "datamodule_"
        plain, dropped = plain_hparams(module.hparams, type(module))
        if plain:
            checkpoint[f"{prefix}hyper_parameters"] = plain
        if module._hparams_name:
            checkpoint[f"{prefix}hparams_name"] = module._hparams_name
        if dropped:
            checkpoint[f"{prefix}hparams_dropped"] = [list(item) for item in dropped]
        write_checkpoint({**checkpoint, **extra}, tmp_path / "a.ckpt")
        return tmp_path / "a.ckpt"

    return write


class Net(Module):
    def __init__(self, width, act="relu"):
        super().__init__()
        self.save_hyperparameters()
        self.got = (width, act)


def test_hyperparameters_and_weights_come_back(save):
    saved = Net(3)
    saved.eval()
    loaded = load_module(Net, save(saved))
    assert loaded.got == (3, "relu")
    assert torch.equal(loaded.layer.weight, saved.layer.weight)
    assert loaded.training
    assert loaded.loaded == ["configure_model", "on_load_checkpoint"]
    assert loaded.hparams == {"width": 3, "act": "relu"}


def test_keyword_arguments_win_over_the_file_over_the_checkpoint(save, tmp_path):
    path = save(Net(3))
    (tmp_path / "h.yaml").write_text("width: 5\nact: tanh\nother: 1\n")
    (tmp_path / "h.csv").write_text("key,value\nwidth,6.5\nact,elu\n")
    assert load_module(Net, path, act="gelu").got == (3, "gelu")
    assert load_module(Net, path, hparams_file=tmp_path / "h.yaml").got == (5, "tanh")
    assert load_module(Net, path, hparams_file=tmp_path / "h.yaml", act="gelu").got == (5, "gelu")
    assert load_module(Net, path, hparams_file=str(tmp_path / "h.csv")).got == (6.5, "elu")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("h.txt", "width: 5", "yaml is required"),
        ("h.yaml", "- 1", "holds a list"),
        ("h.yaml", "width: !!python/object/apply:os.getcwd []", "no plain YAML"),
        ("missing.yaml", None, "does not exist"),
    ],
)
def test_a_hyperparameter_file_that_cannot_be_used(save, tmp_path, name, text, message):
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(CheckpointError, match=message):
        load_module(Net, save(Net(3)), hparams_file=tmp_path / name)


def test_names_that_the_constructor_does_not_take_are_left_out(save):
    class Narrow(Module):
        def __init__(self, act="none"):
            super().__init__()
            self.got = act

    class Any(Module):
        def __init__(self, **kwargs):
            super().__init__()
            self.got = kwargs

    class Nothing(Module):
        pass

    path = save(Net(3))
    assert load_module(Narrow, path, unknown=1).got == "relu"
    assert load_module(Any, path, unknown=1).got == {"width": 3, "act": "relu", "unknown": 1}
    assert load_module(Nothing, path).hparams == {}


def test_missing_arguments_are_listed_with_what_to_write(save):
    class Grown(Module):
        def __init__(self, width, depth, heads, act="relu"):
            super().__init__()

    path = save(Net(3))
    with pytest.raises(
        MissingArgumentsError, match=r"load_from_checkpoint\('.*a.ckpt', depth=\.\.\., heads=\.\.\.\)"
    ) as caught:
        load_module(Grown, path)
    assert isinstance(caught.value, TypeError)
    load_module(Grown, path, depth=1, heads=2)


def test_without_saved_hyperparameters_the_error_says_to_save_them(save):
    class Forgot(Module):
        def __init__(self, width):
            super().__init__()

    with pytest.raises(MissingArgumentsError, match=r"self.save_hyperparameters\(\) in Forgot.__init__"):
        load_module(Forgot, save(Forgot(1)))


class Act:
    pass


class Sub(Module):
    def __init__(self, where: Path, act, net=None):
        super().__init__()
        self.save_hyperparameters()
        self.got = (where, act, net)


def test_what_was_not_plain_must_be_given(save):
    act, net = Act(), {"inner": Act()}
    with pytest.warns(UserWarning, match=r"'act' \(Act\), 'net.inner' \(Act\).*act=\.\.\., net=\.\.\."):
        path = save(Sub(Path("p"), act, net))
    assert load_module(Sub, path, act=act, net=None).got == (Path("p"), act, None)
    with pytest.raises(MissingArgumentsError, match=r"'act' is a Act.*'net.inner' is a Act.*act=\.\.\., net=\.\.\.\)"):
        load_module(Sub, path)
    with pytest.raises(MissingArgumentsError, match=r"net=\.\.\.\)"):
        load_module(Sub, path, act=act)


@pytest.mark.parametrize("conf", [Namespace(lr=0.1, net={"n": 2}), {"lr": 0.1, "net": {"n": 2}}])
def test_one_object_is_passed_as_the_argument_it_was(save, conf):
    class Configured(Module):
        def __init__(self, conf, other=1):
            super().__init__()
            self.save_hyperparameters(conf)
            self.conf, self.other = conf, other

    path = save(Configured(conf))
    loaded = load_module(Configured, path)
    assert loaded.conf == {"lr": 0.1, "net": {"n": 2}}
    assert loaded.conf.net.n == 2
    assert load_module(Configured, path, lr=0.5).conf.lr == 0.5
    changed = load_module(Configured, path, other=7)
    assert (changed.conf.lr, changed.other) == (0.1, 7)
    assert load_module(Configured, path, conf={"lr": 8}).conf == {"lr": 8}

    # a class that takes no such argument gets the values as arguments
    class Flat(Module):
        def __init__(self, lr):
            super().__init__()
            self.lr = lr

    assert load_module(Flat, path).lr == 0.1


class Kind(enum.Enum):
    A = "a"
    B = nn.Linear


@dataclasses.dataclass
class Settings:
    where: Path
    kind: Kind = Kind.A


class Typed(Module):
    def __init__(
        self,
        path: Path,
        maybe: Optional[Path],  # noqa: UP045
        either: str | Path,
        kind: Kind,
        named: Kind,
        settings: Settings,
        space: Namespace,
        array: np.ndarray,
        free,
    ):
        super().__init__()
        self.save_hyperparameters()
        self.got = dict(self.hparams)


def test_plain_data_becomes_again_what_the_annotations_say(save):
    values = {
        "path": Path("p"), "maybe": Path("q"), "either": "r", "kind": Kind.A, "named": Kind.B,
        "settings": Settings(Path("s"), Kind.A), "space": Namespace(a=1), "free": Path("t"),
    }  # fmt: skip
    array = np.arange(3.0)
    loaded = load_module(Typed, save(Typed(**values, array=array))).got
    assert np.array_equal(loaded.pop("array"), array)
    assert loaded == {**values, "free": "t"}
    assert load_module(Typed, save(Typed(**{**values, "maybe": None}, array=array))).got["maybe"] is None


def test_omegaconf_where_the_code_says_so(save):
    omegaconf = pytest.importorskip("omegaconf")

    class Conf(Module):
        def __init__(self, conf: omegaconf.DictConfig):
            super().__init__()
            self.save_hyperparameters(conf)
            self.conf = conf

    Conf.__init__.__annotations__["conf"] = omegaconf.DictConfig
    conf = omegaconf.OmegaConf.create({"lr": 0.1, "net": {"n": 2}})
    module = Conf(conf)
    assert module.hparams is conf
    loaded = load_module(Conf, save(module))
    assert isinstance(loaded.conf, omegaconf.DictConfig)
    assert loaded.conf == conf


@pytest.mark.parametrize("target", ["os.system", "bolide.cli.anything", 3])
def test_nothing_that_a_file_names_is_called(save, target):
    path = save(Net(3), hyper_parameters={"width": 3, "_instantiator": target})
    with pytest.raises(CheckpointError, match="Nothing that a checkpoint names is imported or called"):
        load_module(Net, path)


def test_files_of_lightning_cli(save):
    ours = {"_instantiator": "lightning.pytorch.cli.instantiate_module", "_class_path": "some.where.Net"}
    assert load_module(Net, save(Net(3), hyper_parameters={**ours, "width": 4})).got == (4, "relu")
    act = {"class_path": "some.where.Act", "init_args": {}}
    path = save(Net(3), hyper_parameters={**ours, "width": 4, "act": act})
    with pytest.raises(CheckpointError, match=r"class paths for 'act'.*act=Act\(\.\.\.\)"):
        load_module(Net, path)


def test_a_target_of_hydra_is_data(save):
    path = save(Net(3), hyper_parameters={"width": {"_target_": "os.system"}, "_target_": "os.system"})
    assert load_module(Net, path).got[0] == {"_target_": "os.system"}


def test_very_old_keys(save):
    path = save(Net(3))
    checkpoint = torch.load(path, weights_only=True)
    checkpoint["module_arguments"] = {"width": 9}
    del checkpoint["hyper_parameters"], checkpoint["hparams_name"]
    write_checkpoint(checkpoint, path)
    assert load_module(Net, path).got == (9, "relu")


def test_weights_that_do_not_fit(save):
    class Bigger(Net):
        def __init__(self, width, act="relu"):
            super().__init__(width)
            self.more = nn.Linear(1, 1)

    path = save(Net(3))
    with pytest.raises(CheckpointError, match="(?s)do not fit Bigger.*more.weight"):
        load_module(Bigger, path)
    assert load_module(Bigger, path, strict=False).got == (3, "relu")
    Bigger.strict_loading = False
    assert load_module(Bigger, path).got == (3, "relu")


def test_a_file_without_weights(tmp_path):
    write_checkpoint({"hyper_parameters": {"width": 3}}, tmp_path / "a.ckpt")
    with pytest.raises(CheckpointError, match="holds no 'state_dict'"):
        load_module(Net, tmp_path / "a.ckpt")


class Compiled(Net):
    def __init__(self, width, act="relu"):
        super().__init__(width, act)
        self.layer = torch.compile(self.layer, backend="eager")


def test_compiled_parts_load_both_ways(save):
    plain, compiled = Net(3), Compiled(3)
    assert torch.equal(load_module(Compiled, save(plain)).layer.weight, plain.layer.weight)
    assert torch.equal(load_module(Net, save(compiled)).layer.weight, compiled.layer.weight)


def test_map_location(save):
    asked = []

    def where(storage, location):
        asked.append(location)
        return storage

    load_module(Net, save(Net(3)), map_location=where)
    assert set(asked) == {"cpu"}


def test_tensors_of_a_device_that_is_missing_go_to_the_cpu():
    storage = torch.ones(1).untyped_storage()
    assert _where_it_was_or_cpu(storage, "cpu") is storage
    assert _where_it_was_or_cpu(storage, "xla:0") is storage
    assert _where_it_was_or_cpu(storage, "cuda:99") is storage


def test_datamodules(save):
    path = save(Data("y"), Data={"position": 4})
    data = load_module(Data, path, batch_size=8)
    assert data.hparams == {"folder": "y", "batch_size": 8}
    assert data.state == {"position": 4}


def test_inherited_and_extended_constructors(save):
    class Same(Net):
        pass

    class More(Net):
        def __init__(self, depth, **kwargs):
            super().__init__(**kwargs)
            self.depth = depth

    assert load_module(Same, save(Same(3))).got == (3, "relu")
    loaded = load_module(More, save(More(2, width=3, act="elu")))
    assert (loaded.depth, loaded.got) == (2, (3, "elu"))


def test_class_only():
    class Thing:
        @ClassOnly
        def make(cls, value):
            """Makes one."""
            return cls, value

    class SubThing(Thing):
        pass

    assert SubThing.make(1) == (SubThing, 1)
    assert Thing.make.__doc__ == "Makes one."
    with pytest.raises(TypeError, match=r"model = SubThing.make\(\.\.\.\)"):
        SubThing().make(1)


def test_the_loaded_hyperparameters_are_plain_attributes(save):
    loaded = load_module(Net, save(Net(AttributeDict(a=1))))
    assert loaded.hparams.width == {"a": 1}


class Fitted(BoringModel):
    def __init__(self, where: Path, act: Act, width: int = 32):
        super().__init__()
        self.save_hyperparameters()
        self.got = (where, act, width)


def test_a_path_and_a_users_class_in_a_real_run(tmp_path):
    act = Act()
    settings = {
        "logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu",
        "limit_train_batches": 2, "limit_val_batches": 0, "default_root_dir": tmp_path,
    }  # fmt: skip
    trainer = pl.Trainer(**settings, max_epochs=1)
    with pytest.warns(UserWarning, match=r"'act' \(Act\).*Fitted.load_from_checkpoint\(path, act=\.\.\.\)"):
        trainer.fit(Fitted(Path("data"), act))
    path = trainer.checkpoint_callback.best_model_path
    assert torch.load(path, weights_only=True)["hyper_parameters"] == {"where": "data", "width": 32}
    with pytest.raises(MissingArgumentsError, match=r"act=\.\.\."):
        Fitted.load_from_checkpoint(path)
    assert Fitted.load_from_checkpoint(path, act=act).got == (Path("data"), act, 32)
    trainer = pl.Trainer(**settings, max_epochs=2)
    trainer.fit(Fitted(Path("data"), act), ckpt_path=path)
    assert trainer.global_step == 4


def test_the_base_class_and_instances():
    with pytest.raises(CheckpointError):
        pl.LightningModule.load_from_checkpoint("missing.ckpt")
    assert constructor_parameters(pl.LightningModule) == ({}, False)
    assert constructor_parameters(pl.LightningDataModule) == ({}, False)
    assert list(constructor_parameters(Fitted)[0]) == ["where", "act", "width"]

"""save_hyperparameters: which arguments are kept, from which constructors, and what is refused."""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
import threading
import warnings
from argparse import Namespace

import pytest
import torch
from torch import nn

from bolide.core.errors import ConfigError
from bolide.hparams import AttributeDict, HyperparametersMixin, save_hyperparameters


class Base(HyperparametersMixin, nn.Module):
    """Stands for LightningModule."""

    def __init__(self, *args, **kwargs):
        super().__init__()


class Everything(Base):
    def __init__(self, x=1, *args, y=2, **kwargs):
        super().__init__()
        local = 5  # noqa: F841 - a local is no hyperparameter
        self.save_hyperparameters()


def test_all_arguments_and_no_locals():
    module = Everything(3, 7, 8, y=9, k=4)
    assert module.hparams == {"x": 3, "y": 9, "k": 4}
    assert isinstance(module.hparams, AttributeDict)
    assert module._hparams_name == "kwargs"
    assert Everything().hparams == {"x": 1, "y": 2}


def test_a_sub_class_adds_its_arguments_though_it_does_not_save():
    class Sub(Everything):
        def __init__(self, b, c=3, **kwargs):
            super().__init__(**kwargs)

    assert Sub(1, x=5, q=2).hparams == {"x": 5, "y": 2, "q": 2, "b": 1, "c": 3}


def test_the_sub_class_counts_where_both_have_the_argument():
    class Sub(Everything):
        def __init__(self, x=1, w=3):
            super().__init__(x=x + 10)

    assert Sub(1).hparams == {"x": 1, "y": 2, "w": 3}


def test_both_save():
    class Sub(Everything):
        def __init__(self, b, c=3, **kwargs):
            super().__init__(x=c)
            self.save_hyperparameters()

    assert Sub(1, q=3).hparams == {"x": 3, "y": 2, "b": 1, "c": 3, "q": 3}


def test_names_and_ignore():
    class Names(Base):
        def __init__(self, a, b, c=None):
            super().__init__()
            self.save_hyperparameters("a", "c")

    class Ignore(Base):
        def __init__(self, a, b, c=None, ignore="b"):
            super().__init__()
            self.save_hyperparameters(ignore=ignore)

    assert Names(1, 2).hparams == {"a": 1, "c": None}
    assert Ignore(1, 2).hparams == {"a": 1, "c": None, "ignore": "b"}
    assert Ignore(1, 2, ignore=["b", "ignore"]).hparams == {"a": 1, "c": None}


def test_an_unknown_name_is_refused_with_the_nearest():
    class Wrong(Base):
        def __init__(self, width):
            super().__init__()
            self.save_hyperparameters("widht")

    with pytest.raises(ConfigError, match="'widht'.*Did you mean 'width'"):
        Wrong(1)


@dataclasses.dataclass
class Settings:
    lr: float = 0.5


@pytest.mark.parametrize("conf", [Namespace(lr=0.5), {"lr": 0.5}, AttributeDict(lr=0.5), Settings()])
def test_one_object(conf):
    class Configured(Base):
        def __init__(self, conf, other=1):
            super().__init__()
            self.save_hyperparameters(conf)

    module = Configured(conf)
    assert module.hparams == {"lr": 0.5}
    assert module.hparams.lr == 0.5
    assert module._hparams_name == "conf"


def test_an_object_that_is_no_argument_has_no_name_and_is_merged():
    class Made(Base):
        def __init__(self, a):
            super().__init__()
            self.save_hyperparameters()
            self.save_hyperparameters({"b": 2})

    module = Made(1)
    assert module.hparams == {"a": 1, "b": 2}
    assert module._hparams_name is None


@pytest.mark.parametrize("value", [3, 0.5, True, None, [1, 2], nn.Linear])
def test_what_holds_no_names_is_refused(value):
    class Primitive(Base):
        def __init__(self, conf):
            super().__init__()
            self.save_hyperparameters(conf)

    with pytest.raises(ConfigError, match="Primitives are not allowed"):
        Primitive(value)


def test_two_objects_are_refused_and_names_beside_one_are_told():
    class Two(Base):
        def __init__(self, a, b):
            super().__init__()
            self.save_hyperparameters(a, b)

    with pytest.raises(ConfigError, match="given 2 objects"):
        Two({"x": 1}, {"y": 2})
    with pytest.warns(UserWarning, match="'b' are not"):
        assert Two({"x": 1}, "b").hparams == {"x": 1}


def test_a_module_among_the_values_warns():
    with pytest.warns(UserWarning, match=r"'x' is an nn.Module.*ignore=\['x'\]"):
        Everything(nn.Linear(1, 1))


def test_hparams_initial_does_not_follow_changes():
    module = Everything([1, 2])
    module.hparams.x.append(3)
    module.hparams.y = "changed"
    assert module.hparams == {"x": [1, 2, 3], "y": "changed"}
    assert module.hparams_initial == {"x": [1, 2], "y": 2}
    module.hparams_initial.x.append(4)
    assert module.hparams_initial == {"x": [1, 2], "y": 2}


def test_values_that_cannot_be_copied_are_kept():
    lock = threading.Lock()
    graph = torch.ones(1, requires_grad=True) * 2
    net = nn.Linear(1, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = Everything(lock, y=graph, net=net)
    assert module.hparams_initial.x is lock
    assert module.hparams_initial.net is net


def test_called_from_a_method_of_the_constructor():
    class Indirect(Base):
        def __init__(self, a=1):
            super().__init__()
            self.prepare()

        def prepare(self):
            self.save_hyperparameters()

    assert Indirect(4).hparams == {"a": 4}


def test_called_before_super_init():
    class Early(Base):
        def __init__(self, a=1):
            self.save_hyperparameters()
            super().__init__()

    module = Early(2)
    assert module.hparams == {"a": 2}
    assert module.hparams_initial == {"a": 2}


def test_a_decorated_constructor_and_another_name_for_self():
    def checked(fn):
        @functools.wraps(fn)
        def wrapper(*args, **kwargs):
            return fn(*args, **kwargs)

        return wrapper

    class Decorated(Base):
        @checked
        def __init__(this, lr):
            super().__init__()
            this.save_hyperparameters()

    assert Decorated(1).hparams == {"lr": 1}


def test_modules_within_modules_keep_their_own():
    class Outer(Base):
        def __init__(self, depth):
            super().__init__()
            self.inner = Everything(7)
            self.save_hyperparameters()

    module = Outer(2)
    assert module.hparams == {"depth": 2}
    assert module.inner.hparams == {"x": 7, "y": 2}


def test_a_self_that_a_closure_holds():
    class Closure(Base):
        def __init__(self, a):
            super().__init__()
            self.read = lambda: (self, a)
            self.save_hyperparameters()

    assert Closure(3).hparams == {"a": 3}


def test_dataclass_modules():
    @dataclasses.dataclass(eq=False)
    class Data(Base):
        lr: float = 0.1
        sizes: list[int] = dataclasses.field(default_factory=lambda: [1])
        made: int = dataclasses.field(default=0, init=False)

        def __post_init__(self):
            super().__init__()
            self.save_hyperparameters()

    assert Data(lr=5.0).hparams == {"lr": 5.0, "sizes": [1]}


def test_a_frame_may_be_given():
    class Framed(Base):
        def __init__(self, a):
            super().__init__()
            self.frame = inspect.currentframe()

    module = Framed(6)
    frame = module.frame
    module.save_hyperparameters(frame=frame)
    assert module.hparams == {"a": 6}


def test_outside_of_a_constructor():
    module = Base()
    with pytest.raises(ConfigError, match="found no __init__ of Base"):
        module.save_hyperparameters()
    module.save_hyperparameters({"a": 1})
    assert module.hparams == {"a": 1}


def test_logger_false():
    class Silent(Base):
        def __init__(self, a=1):
            super().__init__()
            self.save_hyperparameters(logger=False)

    assert not Silent()._log_hyperparams
    assert Everything()._log_hyperparams
    assert not Base()._log_hyperparams


def test_without_saving_they_are_empty_and_cannot_be_assigned():
    module = Base()
    assert module.hparams == {}
    assert module.hparams_initial == {}
    with pytest.raises(AttributeError, match="self.save_hyperparameters"):
        module.hparams = {"a": 1}


def test_as_a_function():
    class Plain:
        def __init__(self, a, b=2):
            save_hyperparameters(self, "b")

    assert Plain(1).__dict__["_hparams"] == {"b": 2}


def test_attribute_dict():
    settings = AttributeDict(lr=0.1, n=3)
    settings.z = 4
    assert settings["z"] == 4
    del settings.z
    assert repr(settings) == '"lr": 0.1\n"n":  3'
    assert repr(AttributeDict()) == ""
    with pytest.raises(AttributeError, match="no attribute 'q'"):
        settings.q  # noqa: B018
    with pytest.raises(AttributeError, match="no attribute 'q'"):
        del settings.q
    copied = copy.deepcopy(settings)
    assert copied == settings
    assert isinstance(copied, AttributeDict)

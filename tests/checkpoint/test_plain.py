"""to_plain and plain_hparams: what is made plain, what is refused, and that torch.load takes the result."""

from __future__ import annotations

import dataclasses
import enum
import io
import warnings
from argparse import Namespace
from collections import Counter, OrderedDict, UserDict, defaultdict, namedtuple
from pathlib import Path, PurePosixPath
from types import MappingProxyType, SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from bolide.checkpoint.plain import NotPlainError, init_defaults, plain_hparams, to_plain
from bolide.core.messages import said
from bolide.hparams import AttributeDict


class Colour(enum.Enum):
    RED = "red"
    ODD = nn.Linear


class Level(enum.IntEnum):
    HIGH = 3


class Name(str):
    def __str__(self):
        return "something else"


class Width(int):
    pass


class Share(float):
    pass


@dataclasses.dataclass
class Settings:
    path: Path
    inner: Namespace


Point = namedtuple("Point", "x y")


def through_a_file(obj):
    """Saved and loaded as checkpoints are."""
    buffer = io.BytesIO()
    torch.save(obj, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


@pytest.mark.parametrize(
    ("obj", "expected"),
    [
        (Path("a/b"), "a/b"),
        (PurePosixPath("/x"), "/x"),
        (Colour.RED, "red"),
        (Colour.ODD, "ODD"),
        (Level.HIGH, 3),
        (np.float32(0.5), 0.5),
        (np.float64(0.5), 0.5),
        (np.int64(3), 3),
        (np.bool_(True), True),
        (np.str_("a"), "a"),
        (np.array(["a", "b"]), ["a", "b"]),
        (np.array([1, "x", None], dtype=object), [1, "x", None]),
        (Namespace(a=Path("p")), {"a": "p"}),
        (SimpleNamespace(a=1), {"a": 1}),
        (Settings(Path("p"), Namespace(b=2)), {"path": "p", "inner": {"b": 2}}),
        (defaultdict(list, a=[1]), {"a": [1]}),
        (AttributeDict(a=AttributeDict(b=1)), {"a": {"b": 1}}),
        (UserDict(a=1), {"a": 1}),
        (MappingProxyType({"a": 1}), {"a": 1}),
        (OrderedDict(a=Path("p")), OrderedDict(a="p")),
        (Counter("aab"), Counter("aab")),
        (Point(1, Path("p")), (1, "p")),
        (frozenset([1, 2]), {1, 2}),
        ({Path("p")}, {"p"}),
        (range(3), [0, 1, 2]),
        (Name("net"), "net"),
        (Width(3), 3),
        (Share(-0.0), -0.0),
        ({Colour.RED: 1, Path("k"): 2, (1, 2): 3}, {"red": 1, "k": 2, (1, 2): 3}),
        ([1, (2.5, "x", None, True, 2j), b"\xff", bytearray(b"a")], [1, (2.5, "x", None, True, 2j), b"\xff", b"a"]),
        (torch.device("cpu"), torch.device("cpu")),
        (torch.bfloat16, torch.bfloat16),
        (torch.Size([1, 2]), torch.Size([1, 2])),
    ],
)
def test_what_is_made_plain_and_survives_a_file(obj, expected):
    plain = to_plain(obj)
    assert plain == expected
    assert type(plain) is type(expected)
    assert through_a_file(plain) == expected


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=np.float64).reshape(2, 3),
        np.arange(6)[::-1],
        np.arange(3, dtype=np.uint32),
        np.arange(3, dtype=">i4"),
        np.array(2.5),
        np.array([True, False]),
        np.array([1j]),
    ],
)
def test_arrays_become_tensors(array):
    tensor = through_a_file(to_plain(array))
    assert isinstance(tensor, torch.Tensor)
    assert tensor.shape == array.shape
    assert tensor.tolist() == array.tolist()


def test_the_tensor_of_an_array_is_a_copy():
    array = np.zeros(2)
    tensor = to_plain(array)
    array[0] = 1
    assert tensor.tolist() == [0, 0]


def test_what_is_plain_stays_the_same_object():
    state = nn.BatchNorm1d(2).state_dict()
    assert to_plain(state) is state
    nested = {"a": [1, (2, {"b": torch.ones(1)})], "s": {1}}
    assert to_plain(nested) is nested


def test_a_state_dict_keeps_its_versions_when_it_must_be_copied():
    state = nn.BatchNorm1d(2).state_dict()
    state["where"] = Path("p")
    plain = to_plain(state)
    assert plain["where"] == "p"
    assert plain._metadata == state._metadata


def test_tensor_classes_and_attributes_are_left_behind():
    class Mine(torch.Tensor):
        pass

    tagged = torch.ones(2)
    tagged.tag = lambda: 1
    loaded = through_a_file(to_plain({"mine": torch.ones(2).as_subclass(Mine), "tagged": tagged}))
    assert type(loaded["mine"]) is torch.Tensor
    assert loaded["tagged"].tolist() == [1, 1]
    assert tagged.tag() == 1


class Act:
    pass


@pytest.mark.parametrize(
    "obj",
    [Act(), Act, nn.ReLU(), lambda: 1, np.random.default_rng(0), np.array(["2020-01-01"], dtype="datetime64[D]"),
     np.datetime64("2020-01-01"), slice(1), torch.Generator(), iter([])],
)  # fmt: skip
def test_other_classes_are_refused(obj):
    with pytest.raises(NotPlainError):
        to_plain(obj)


def test_the_error_names_the_path():
    with pytest.raises(NotPlainError, match=r"hyper_parameters\.net\.act\[1\]\.b is a Act") as caught:
        to_plain({"net": {"act": [1, {"b": Act()}]}}, "hyper_parameters")
    assert caught.value.path == "hyper_parameters.net.act[1].b"
    assert caught.value.type_name == "Act"
    with pytest.raises(NotPlainError, match=r"is a class \(torch\.nn.*Linear\)"):
        to_plain({"layer": nn.Linear})


def test_a_container_that_contains_itself_is_refused():
    loop = {"a": []}
    loop["a"].append(loop)
    with pytest.raises(NotPlainError, match=r"a\[0\].*contains itself"):
        to_plain(loop)
    shared = [1]
    assert to_plain([shared, shared]) == [[1], [1]]


def test_keys_that_would_be_one_are_refused():
    with pytest.raises(NotPlainError, match="two of its keys"):
        to_plain({Path("a"): 1, "a": 2})


class Net:
    def __init__(self, where, net=None, act=nn.ReLU, width=3):
        pass


@pytest.fixture(autouse=True)
def _say_again():
    said.clear()
    yield
    said.clear()


def test_hyperparameters_lose_what_is_not_plain_with_one_warning():
    values = AttributeDict(where=Path("p"), net={"act": Act(), "n": 1}, act=Act, width=np.int64(4))
    with pytest.warns(
        UserWarning, match=r"'net.act' \(Act\), 'act'.*Net\.load_from_checkpoint\(path, net=\.\.\., act="
    ) as told:
        plain, dropped = plain_hparams(values, Net)
    assert len(told) == 1
    assert plain == {"where": "p", "width": 4}
    assert [path for path, _ in dropped] == ["net.act", "act"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert plain_hparams(values, Net) == (plain, dropped)


def test_a_default_is_left_out_without_a_word():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert plain_hparams({"where": "p", "act": nn.ReLU}, Net) == ({"where": "p"}, [])


def test_defaults_of_all_constructors():
    class Sub(Net):
        def __init__(self, act=None, **kwargs):
            super().__init__(**kwargs)

    assert init_defaults(Sub) == {"act": None, "net": None, "width": 3}


def test_omegaconf_containers():
    omegaconf = pytest.importorskip("omegaconf")
    conf = omegaconf.OmegaConf.create({"a": 1, "b": {"c": "${a}"}})
    assert to_plain({"conf": conf}) == {"conf": {"a": 1, "b": {"c": 1}}}
    assert plain_hparams(conf) == ({"a": 1, "b": {"c": 1}}, [])

from argparse import Namespace
from collections import OrderedDict
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from bolide.loggers import folders


class Color(Enum):
    RED = 1


@dataclass
class Point:
    x: int
    y: list[int]


def test_the_next_version_is_one_more_than_the_greatest(tmp_path):
    root = str(tmp_path)
    assert folders.next_version(str(tmp_path / "nothing")) == folders.next_version(root) == 0
    for name in ("version_0", "version_7", "version_x", "other", "version_"):
        (tmp_path / name).mkdir()
    (tmp_path / "version_9").write_text("a file")
    assert folders.next_version(root) == 8


@pytest.mark.parametrize(
    ("name", "version", "folder"),
    [("n", 3, "n/version_3"), ("", 3, "version_3"), (None, "run", "run"), ("n", "run", "n/run")],
)
def test_the_folder_of_a_run(name, version, folder):
    assert folders.run_folder("d", name, version) == f"d/{folder}"


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (True, True), (3, 3), (0.5, 0.5), ("x", "x"), (None, None), (Path("/a"), "/a"), (Color.RED, "RED"),
        (np.float32(2), 2.0), (np.int64(2), 2), (torch.float32, "torch.float32"), ((1, 2), [1, 2]), ({2, 1}, [1, 2]),
        (OrderedDict(a=(1,)), {"a": [1]}), (Namespace(q=1), {"q": 1}), (Point(1, [2]), {"x": 1, "y": [2]}),
        (torch.nn.Linear, "torch.nn.modules.linear.Linear"), (len, "builtins.len"), ({("a", 1): 2}, {"('a', 1)": 2}),
        (torch.tensor([1.0]), "tensor([1.])"),
    ],
)  # fmt: skip
def test_hyperparameters_become_plain(value, plain, tmp_path):
    folders.write_hparams(str(tmp_path), {"v": value})
    text = (tmp_path / "hparams.yaml").read_text()
    assert "!!" not in text
    assert yaml.safe_load(text) == {"v": plain}


def test_nested_names_are_joined():
    nested = {"a": {"b": 1, "c": {"d": 2}}, "e": Namespace(f=3), "g": 4}
    assert folders.flatten(nested) == {"a/b": 1, "a/c/d": 2, "e/f": 3, "g": 4}


def test_hyperparameters_as_a_dictionary():
    assert folders.as_dict(None) == {} and folders.as_dict(Namespace(a=1)) == {"a": 1}
    assert folders.as_dict(Point(1, [])) == {"x": 1, "y": []} and folders.as_dict({1: 2}) == {"1": 2}

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from bolide.checkpoint.modules import read_hparams_file
from bolide.checkpoint.strict_yaml import read_yaml
from bolide.core.errors import CheckpointError


def test_plain_data_is_read() -> None:
    text = "base: &base {lr: 0.1, layers: [1, 2]}\nnet: *base\nmerged:\n  <<: *base\n  lr: 1.0\nnone:\ntext: 'é'\n"
    base = {"lr": 0.1, "layers": [1, 2]}
    assert read_yaml(text) == {"base": base, "net": base, "merged": {**base, "lr": 1.0}, "none": None, "text": "é"}
    assert read_yaml("") is None


BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 9)
)


@pytest.mark.parametrize(
    "text",
    [
        "lr: 1\nlr: 2\n",
        "net:\n  a: 1\n  b: 2\n  a: 3\n",
        "a: !!python/object/apply:os.system ['touch pwned']\n",
        "a: !!python/name:os.system\n",
        "a: !!python/object:bolide_canary.Boom {}\n",
        "a: !!python/tuple [1]\n",
        "a: !unknown 1\n",
        "a: *nothing\n",
        BOMB,
        "a: &a [*a]\n",
        "[" * 5000,
        "{a: " * 500,
        "a: " + "9" * 10000 + "\n",
        "a: 2020-99-99\n",
        "a: 1\n---\nb: 2\n",
        "? [a, b]\n: {c\n",
        "a: \x00\n",
    ],
)
def test_refused(text: str) -> None:
    with pytest.raises(yaml.YAMLError):
        read_yaml(text)
    assert not Path("pwned").exists()


def test_a_file_of_hyperparameters_with_a_doubled_name_is_refused(tmp_path: Path) -> None:
    (tmp_path / "hparams.yaml").write_text("lr: 0.1\nlr: 0.2\n")
    with pytest.raises(CheckpointError, match=r"hparams\.yaml.*\n.*'lr' stands there twice"):
        read_hparams_file(tmp_path / "hparams.yaml")

"""Hyperparameters to and from `hparams.yaml` and .csv files. checkpoint/modules.py owns the reading."""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Mapping
from typing import Any

import yaml

from bolide.checkpoint import io
from bolide.checkpoint.modules import read_hparams_file
from bolide.checkpoint.plain import plain_hparams
from bolide.core.errors import CheckpointError
from bolide.secrets import hide

__all__ = ["load_hparams_from_tags_csv", "load_hparams_from_yaml", "save_hparams_to_yaml"]


def load_hparams_from_yaml(config_yaml: str | os.PathLike[str], use_omegaconf: bool = True) -> dict[str, Any]:
    """The hyperparameters of a YAML file; nothing that it names is imported.

    Raises:
        CheckpointError: the file is missing, or holds no names.
    """
    return read_hparams_file(config_yaml)


def load_hparams_from_tags_csv(tags_csv: str | os.PathLike[str]) -> dict[str, Any]:
    """The hyperparameters of a .csv file with the columns key and value.

    Raises:
        CheckpointError: the file is missing.
    """
    return read_hparams_file(tags_csv)


def save_hparams_to_yaml(
    config_yaml: str | os.PathLike[str], hparams: Mapping[str, Any] | Namespace, use_omegaconf: bool = True
) -> None:
    """Writes hyperparameters as YAML: plain data only, secrets as "***"; other values are left out with a warning.

    Raises:
        CheckpointError: the folder does not exist.
    """
    folder = io.parent(os.fspath(config_yaml))
    if not io.is_dir(folder):
        raise CheckpointError(f"The folder {folder!r} of {os.fspath(config_yaml)!r} does not exist.")
    plain, _ = plain_hparams(vars(hparams) if isinstance(hparams, Namespace) else hparams)
    text = yaml.safe_dump(hide(plain))
    io.write_atomically(config_yaml, lambda file: file.write(text.encode()))

"""Where the loggers that write files put them, and the hparams.yaml they write. Layout: save_dir/name/version_N."""

from __future__ import annotations

import dataclasses
from argparse import Namespace
from collections.abc import Mapping
from enum import Enum
from pathlib import PurePath
from typing import Any

import yaml

from bolide.checkpoint import io
from bolide.core.text import printable
from bolide.secrets import hide

HPARAMS_FILE = "hparams.yaml"
JOIN = "-"


def version_folder(version: int | str) -> str:
    """The folder of a version: its number after "version_", or its own name."""
    return version if isinstance(version, str) else f"version_{version}"


def next_version(root_dir: str) -> int:
    """One more than the greatest number among the `version_N` folders in `root_dir`; 0 where there is none."""
    numbers = [
        int(name[len("version_") :])
        for name in io.list_dir(root_dir)
        if name.startswith("version_") and name[len("version_") :].isdecimal() and io.is_dir(io.join(root_dir, name))
    ]
    return max(numbers, default=-1) + 1


def run_folder(save_dir: str, name: str | None, version: int | str) -> str:
    """save_dir/name/version_N; without a name, that level is missing. Environment variables and `~` are put in."""
    return io.expanded(io.join(root_folder(save_dir, name), version_folder(version)))


def root_folder(save_dir: str, name: str | None) -> str:
    """The folder that holds all versions. Environment variables and `~` are put in."""
    return io.expanded(io.join(save_dir, name) if name else save_dir)


def as_dict(params: Mapping[str, Any] | Namespace | Any | None) -> dict[str, Any]:
    """Hyperparameters as a dictionary, from a mapping, a Namespace or a dataclass; secrets are hidden."""
    if params is None:
        return {}
    if isinstance(params, Mapping):
        return hide({str(key): value for key, value in params.items()})
    if dataclasses.is_dataclass(params) and not isinstance(params, type):
        return hide({field.name: getattr(params, field.name) for field in dataclasses.fields(params)})
    return hide(dict(vars(params)))


def readable(value: Any) -> Any:
    """`value` as something that YAML has a plain form for: what is no number, text, list or dictionary becomes text."""
    if value is None or isinstance(value, (bool, str)) and type(value) in (bool, str):
        return value
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, (str, PurePath)):
        return str(value)
    if isinstance(value, Mapping):
        return {k if type(k) in (str, int, float, bool) else str(k): readable(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [readable(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted((readable(item) for item in value), key=str)
    if isinstance(value, Namespace):
        return readable(vars(value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return readable(as_dict(value))
    if type(value).__module__ == "numpy" and getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
        return readable(value.item())
    if isinstance(value, type) or hasattr(value, "__qualname__"):
        return f"{value.__module__}.{value.__qualname__}"
    return str(value)


def write_hparams(folder: str, hparams: Mapping[str, Any]) -> None:
    """Writes `hparams.yaml`, readable with `yaml.safe_load`: no object is named in it, and no secret shown."""
    text = yaml.safe_dump(readable(hide(hparams)), sort_keys=False, allow_unicode=True)
    io.write_atomically(io.join(folder, HPARAMS_FILE), lambda file: file.write(text.encode()))


def flatten(params: Mapping[str, Any], separator: str = "/") -> dict[str, Any]:
    """Nested dictionaries as one, with the keys joined: {"a": {"b": 1}} becomes {"a/b": 1}."""
    flat: dict[str, Any] = {}
    for key, value in params.items():
        if isinstance(value, Namespace) or (dataclasses.is_dataclass(value) and not isinstance(value, type)):
            value = as_dict(value)
        if isinstance(value, Mapping):
            flat |= {f"{key}{separator}{inner}": item for inner, item in flatten(value, separator).items()}
        else:
            flat[str(key)] = value
    return flat


def with_prefix(metrics: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """`metrics` with `prefix` and a dash in front of each name, where there is one; control characters escaped."""
    front = f"{prefix}{JOIN}" if prefix else ""
    return {printable(f"{front}{name}"): value for name, value in metrics.items()}

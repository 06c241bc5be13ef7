"""Builds a module or datamodule from a checkpoint: what `load_from_checkpoint` does.

Owns the way of hyperparameters from a file to a constructor. It reads through checkpoint/read.py, and imports and
calls nothing that a file names. Who calls: LightningModule and LightningDataModule.
"""

from __future__ import annotations

import csv
import dataclasses
import functools
import inspect
import typing
from argparse import Namespace
from ast import literal_eval
from collections.abc import Callable, Mapping
from enum import Enum
from pathlib import Path, PurePath
from types import UnionType
from typing import Any, Generic, TypeVar

import numpy as np
import torch
import yaml
from torch import Tensor, nn

from bolide.checkpoint import io
from bolide.checkpoint.plain import arguments_of
from bolide.checkpoint.read import read_checkpoint
from bolide.checkpoint.strict_yaml import read_yaml
from bolide.core.errors import CheckpointError, did_you_mean
from bolide.core.messages import warn
from bolide.hparams import WHOLE_SIGNATURE, AttributeDict
from bolide.secrets import hidden_at
from bolide.strategies.strategy import matching_keys

T = TypeVar("T")

HPARAMS_KEYS = ("hyper_parameters", "hparams", "module_arguments")
"""Where a module's hyperparameters stand; the later names are those of very old files."""
DATAMODULE_HPARAMS_KEY = "datamodule_hyper_parameters"
DROPPED_KEY = "hparams_dropped"
"""Beside the hyperparameters: [path, class name] of those that were not plain data; "datamodule_" comes before it."""

_CLI_INSTANTIATORS = ("lightning.pytorch.cli.instantiate_module", "pytorch_lightning.cli.instantiate_module")


class MissingArgumentsError(CheckpointError, TypeError):
    """The constructor needs arguments that neither the checkpoint nor the caller gives."""


def load_module(
    cls: type[T],
    checkpoint_path: Any,
    map_location: Any = None,
    hparams_file: Any = None,
    strict: bool | None = None,
    **kwargs: Any,
) -> T:
    """An instance of `cls` with the hyperparameters and the weights of a checkpoint.

    Args:
        cls: a LightningModule or LightningDataModule class.
        checkpoint_path: a file or URL.
        map_location: where the tensors go, as in `torch.load`; None: where they were saved from, the CPU where that
            device is missing. The module goes there as well.
        hparams_file: a .yaml or .csv file whose values replace those of the checkpoint.
        strict: whether the weights' names must match; None asks the module's `strict_loading`.
        kwargs: constructor arguments, which replace those of both files.

    Raises:
        CheckpointError: the file cannot be read, names code to call, or its weights do not fit.
        MissingArgumentsError: arguments of the constructor are missing; the text says what to write.
    """
    where = map_location if map_location is not None else _where_it_was_or_cpu
    checkpoint = read_checkpoint(checkpoint_path, map_location=where)
    arguments = constructor_arguments(cls, checkpoint, str(checkpoint_path), hparams_file, kwargs)
    instance = cls(**arguments)
    if not isinstance(instance, nn.Module):
        state = checkpoint.get(type(instance).__qualname__)
        if state is not None and hasattr(instance, "load_state_dict"):
            instance.load_state_dict(state)
        return instance
    loaded: Any = instance
    if hasattr(loaded, "configure_model"):
        loaded.configure_model()
    if hasattr(loaded, "on_load_checkpoint"):
        loaded.on_load_checkpoint(checkpoint)
    state = checkpoint.get("state_dict")
    if state is None:
        raise CheckpointError(f"{checkpoint_path} holds no 'state_dict', so it has no weights for {cls.__name__}.")
    _load_weights(loaded, state, str(checkpoint_path), strict)
    device = next((value.device for value in state.values() if isinstance(value, Tensor)), torch.device("cpu"))
    return loaded.to(device)  # type: ignore[no-any-return]


def _load_weights(module: Any, state: Mapping[str, Any], path: str, strict: bool | None) -> None:
    strictly = bool(getattr(module, "strict_loading", True)) if strict is None else strict
    try:
        module.load_state_dict(matching_keys(state, module), strict=strictly)
    except RuntimeError as error:
        raise CheckpointError(
            f"The weights in {path} do not fit {type(module).__name__}. Give the arguments it was built with, or write "
            f"strict=False to load what fits by name.\n{error}"
        ) from error


def _where_it_was_or_cpu(storage: Any, location: str) -> Any:
    """A `map_location`: None lets torch put the storage where it was; the storage itself is on the CPU."""
    kind, _, number = location.partition(":")
    if kind == "cuda" and torch.cuda.is_available() and int(number or 0) < torch.cuda.device_count():
        return None
    if kind == "mps" and torch.backends.mps.is_available():
        return None
    return storage


def constructor_arguments(
    cls: type, checkpoint: Mapping[str, Any], path: str, hparams_file: Any, kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """What `cls(...)` is called with: the checkpoint's hyperparameters, then the file's, then `kwargs`.

    Raises:
        CheckpointError: the hyperparameters name code to call.
        MissingArgumentsError: required arguments, or some that could not be saved, are not given.
    """
    saved, name, dropped = _saved_hparams(cls, checkpoint)
    saved = _without_code(saved, path)
    if hparams_file is not None:
        saved = {**saved, **read_hparams_file(hparams_file)}
    parameters, takes_any = constructor_parameters(cls)
    saved = _without_hidden(cls, saved, parameters, dropped, set(kwargs), path)
    whole = name is None or name == WHOLE_SIGNATURE or name not in parameters
    if whole:
        values = {**saved, **kwargs}
        arguments = values if takes_any else {key: value for key, value in values.items() if key in parameters}
        arguments = {
            key: value if key in kwargs else restore(value, _annotation(cls, key)) for key, value in arguments.items()
        }
        given = set(values)
    else:
        assert name is not None
        inner = {**saved, **{key: value for key, value in kwargs.items() if key not in parameters}}
        arguments = {key: value for key, value in kwargs.items() if key in parameters}
        if name not in arguments and (saved or name in parameters):
            arguments[name] = restore(_attribute_dict(inner), _annotation(cls, name))
        given = {*inner, *arguments}
    _refuse_missing(cls, parameters, arguments, dropped, given, path)
    return arguments


def _saved_hparams(cls: type, checkpoint: Mapping[str, Any]) -> tuple[dict[str, Any], str | None, list[Any]]:
    if issubclass(cls, nn.Module):
        key = next((key for key in HPARAMS_KEYS if key in checkpoint), HPARAMS_KEYS[0])
        name, dropped = checkpoint.get("hparams_name"), checkpoint.get(DROPPED_KEY)
    else:
        key = DATAMODULE_HPARAMS_KEY
        name, dropped = checkpoint.get("datamodule_hparams_name"), checkpoint.get(f"datamodule_{DROPPED_KEY}")
    return dict(checkpoint.get(key) or {}), name, list(dropped or [])


def _without_code(saved: dict[str, Any], path: str) -> dict[str, Any]:
    """Without the entries in which LightningCLI names what to import and call.

    Raises:
        CheckpointError: one of them names something else than LightningCLI's own function.
    """
    instantiator = saved.pop("_instantiator", None)
    class_path = saved.pop("_class_path", None)
    if instantiator is None and class_path is None:
        return saved
    if instantiator is not None and instantiator not in _CLI_INSTANTIATORS:
        raise CheckpointError(
            f"{path} asks to call {instantiator!r} to build the module. Nothing that a checkpoint names is imported or "
            "called. If you trust its values, read them with torch.load(path, weights_only=True)['hyper_parameters'] "
            "and give them as arguments."
        )
    classes = {key: value for key, value in saved.items() if isinstance(value, Mapping) and "class_path" in value}
    if classes:
        wanted = ", ".join(f"{key}={value['class_path'].rpartition('.')[2]}(...)" for key, value in classes.items())
        raise CheckpointError(
            f"{path} was saved by LightningCLI with class paths for {', '.join(map(repr, classes))}, and nothing that "
            f"a checkpoint names is imported. Give the objects: load_from_checkpoint(path, {wanted})"
        )
    return saved


def _without_hidden(
    cls: type,
    saved: dict[str, Any],
    parameters: Mapping[str, inspect.Parameter],
    dropped: list[Any],
    given: set[str],
    path: str,
) -> dict[str, Any]:
    """Without the secrets that were saved as "***": nobody is to log in with that.

    One that the constructor requires is added to `dropped`, so that it is asked for; for one that has a default, or
    that lies within a larger value, a warning says what stands in its place.
    """
    hidden = {key: hidden_at(value, key) for key, value in saved.items() if key not in given}
    hidden = {key: places for key, places in hidden.items() if places}
    kept = dict(saved)
    for key, places in hidden.items():
        if places != [key]:
            continue
        del kept[key]
        if key in parameters and parameters[key].default is inspect.Parameter.empty:
            dropped.append([key, "secret"])
    told = [at for key, places in hidden.items() for at in places if [key, "secret"] not in dropped]
    if told:
        warn(
            f"The secret(s) {', '.join(map(repr, told))} of {cls.__name__} are not in {path}; their defaults, or '***' "
            f"within a larger value, are in their place. Write: {cls.__name__}.load_from_checkpoint({path!r}, "
            f"{arguments_of(told)})"
        )
    return kept


def _refuse_missing(
    cls: type,
    parameters: Mapping[str, inspect.Parameter],
    arguments: Mapping[str, Any],
    dropped: list[Any],
    given: set[str],
    path: str,
) -> None:
    lost = [(str(at), str(kind)) for at, kind in dropped if str(at).partition(".")[0].partition("[")[0] not in given]
    required = [
        key
        for key, parameter in parameters.items()
        if parameter.default is inspect.Parameter.empty and key not in arguments
    ]
    names = list(dict.fromkeys([*required, *(at.partition(".")[0].partition("[")[0] for at, _ in lost)]))
    if not names:
        return
    reasons = [f"{at!r} is a {kind}, which a checkpoint cannot hold" for at, kind in lost]
    reasons += [
        f"{key!r} is not among the saved hyperparameters" + did_you_mean(key, given - set(arguments)).rstrip("?")
        for key in required
        if key not in {at.partition(".")[0].partition("[")[0] for at, _ in lost}
    ]
    advice = "" if lost else f" (or call self.save_hyperparameters() in {cls.__name__}.__init__ before training)"
    raise MissingArgumentsError(
        f"{cls.__name__} cannot be built from {path}: {'; '.join(reasons)}. Write: "
        f"{cls.__name__}.load_from_checkpoint({path!r}, {arguments_of(names)}){advice}"
    )


def constructor_parameters(cls: type) -> tuple[dict[str, inspect.Parameter], bool]:
    """The named arguments of the constructor, and whether it takes any name besides (`**kwargs`)."""
    owner = next(base for base in cls.__mro__ if "__init__" in base.__dict__)
    if owner.__module__ in ("bolide.module", "bolide.datamodule") or not inspect.isfunction(owner.__dict__["__init__"]):
        return {}, False  # the base class itself takes none, whatever its signature says
    named: dict[str, inspect.Parameter] = {}
    takes_any = False
    for parameter in list(inspect.signature(owner.__dict__["__init__"]).parameters.values())[1:]:
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            takes_any = True
        elif parameter.kind is not inspect.Parameter.VAR_POSITIONAL:
            named[parameter.name] = parameter
    return named, takes_any


def read_hparams_file(path: Any) -> dict[str, Any]:
    """Hyperparameters from `hparams.yaml`, or from a .csv with the columns key and value.

    Raises:
        CheckpointError: another ending, or a file that holds no names.
    """
    ending = Path(str(path)).suffix.lower()
    if ending not in (".yaml", ".yml", ".csv"):
        raise CheckpointError(f"hparams_file={str(path)!r}: .csv, .yml or .yaml is required.")
    if not io.exists(str(path)):
        raise CheckpointError(f"hparams_file={str(path)!r} does not exist.")
    text = io.read_bytes(str(path)).decode()
    if ending == ".csv":
        rows = list(csv.reader(text.splitlines()))[1:]
        return {row[0]: _value_of(row[1]) for row in rows if len(row) >= 2}
    try:
        content = read_yaml(text)
    except yaml.YAMLError as error:
        raise CheckpointError(
            f"hparams_file={str(path)!r} is no plain YAML; nothing that it names is imported.\n{error}"
        ) from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise CheckpointError(f"hparams_file={str(path)!r} holds a {type(content).__name__}, not names and values.")
    return content


def _value_of(text: str) -> Any:
    try:
        return literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _attribute_dict(value: Any) -> Any:
    """Nested dictionaries whose keys are attributes too: they serve as dictionary and as Namespace."""
    if isinstance(value, Mapping):
        return AttributeDict({key: _attribute_dict(inner) for key, inner in value.items()})
    if type(value) in (list, tuple):
        return type(value)(_attribute_dict(inner) for inner in value)
    return value


# ---------------------------------------------------------------------- plain data back into what the code asks for


def _annotation(cls: type, argument: str) -> Any:
    """What the code at hand (never the file) says that the argument is; None where it does not say."""
    for base in cls.__mro__:
        constructor = base.__dict__.get("__init__")
        if not inspect.isfunction(constructor):
            continue
        if argument in inspect.signature(constructor).parameters:
            if dataclasses.is_dataclass(base):
                return _hints(base).get(argument)
            return _hints(constructor).get(argument)
    return None


def _hints(thing: Any) -> dict[str, Any]:
    try:
        return typing.get_type_hints(thing)
    except (NameError, TypeError, AttributeError):  # annotations that exist for type checkers only
        return {}


def restore(value: Any, annotation: Any) -> Any:
    """A plain value as the class that the constructor's annotation names: Path, Enum, dataclass, Namespace, array.

    Anything else, and what does not fit, stays as it is.
    """
    if typing.get_origin(annotation) in (typing.Union, UnionType):
        members = typing.get_args(annotation)
        if type(value) in members:
            return value
        restored = (restore(value, member) for member in members)
        return next((new for new in restored if new is not value), value)
    if not isinstance(annotation, type):
        return value
    if isinstance(value, str) and issubclass(annotation, PurePath):
        return annotation(value)
    if issubclass(annotation, Enum) and not isinstance(value, Enum):
        return _member(annotation, value)
    if issubclass(annotation, np.ndarray) and isinstance(value, Tensor):
        return value.numpy(force=True)
    if isinstance(value, Mapping):
        if annotation is Namespace:
            return Namespace(**value)
        if dataclasses.is_dataclass(annotation):
            return _dataclass(annotation, value)
        if annotation.__module__.partition(".")[0] == "omegaconf":
            return _omegaconf(value)
    return value


def _member(kind: type[Enum], value: Any) -> Any:
    try:
        return kind(value)
    except ValueError:
        return kind.__members__.get(value, value) if isinstance(value, str) else value


def _dataclass(kind: type, values: Mapping[str, Any]) -> Any:
    known = {field.name for field in dataclasses.fields(kind) if field.init}
    if not set(values) <= known:
        return values
    hints = _hints(kind)
    return kind(**{name: restore(value, hints.get(name)) for name, value in values.items()})


def _omegaconf(values: Mapping[str, Any]) -> Any:
    import omegaconf  # the annotation comes from it, so it is installed

    return omegaconf.OmegaConf.create(_dicts(values))


def _dicts(value: Any) -> Any:
    return {key: _dicts(inner) for key, inner in value.items()} if isinstance(value, Mapping) else value


class ClassOnly(Generic[T]):
    """A class method that refuses to be called on an instance, where its result is mostly thrown away.

    Example::

        class LightningModule:
            @ClassOnly
            def load_from_checkpoint(cls, checkpoint_path): ...
    """

    def __init__(self, method: Callable[..., T]) -> None:
        self.method = method
        functools.update_wrapper(self, method)  # type: ignore[arg-type]

    def __get__(self, instance: Any, owner: type) -> Callable[..., T]:
        @functools.wraps(self.method)
        def call(*args: Any, **kwargs: Any) -> T:
            if instance is not None:
                raise TypeError(
                    f"{owner.__name__}.{self.method.__name__} makes a new object and leaves the one it is called on as "
                    f"it is. Write: model = {owner.__name__}.{self.method.__name__}(...)"
                )
            return self.method(owner, *args, **kwargs)

        return call

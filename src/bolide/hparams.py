"""Hyperparameters: what the constructor of a module or datamodule was given, kept and saved.

Owns `AttributeDict` and `HyperparametersMixin`, the base of LightningModule and LightningDataModule. It reads the
frames of the running constructors and nothing else. Making the values plain for a file is checkpoint/plain.py's task,
giving them back to a constructor is checkpoint/modules.py's.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
import sys
from argparse import Namespace
from collections.abc import Iterable, Mapping, MutableMapping
from types import FrameType, SimpleNamespace
from typing import Any

from torch import nn

from bolide.core.errors import ConfigError, did_you_mean
from bolide.core.messages import warn

WHOLE_SIGNATURE = "kwargs"
"""The `_hparams_name` of hyperparameters that are constructor arguments, not one object of them."""


class AttributeDict(dict[str, Any]):
    """A dictionary whose keys are attributes as well.

    Example::

        settings = AttributeDict(lr=0.1)
        settings.lr = 0.2
        print(settings["lr"])  # 0.2
    """

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"'{type(self).__name__}' object has no attribute {name!r}") from None

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def __delattr__(self, name: str) -> None:
        try:
            del self[name]
        except KeyError:
            raise AttributeError(f"'{type(self).__name__}' object has no attribute {name!r}") from None

    def __repr__(self) -> str:
        width = max((len(str(key)) for key in self), default=0) + 3
        names = {key: f'"{key}":'.ljust(width) for key in self}
        return "\n".join(f"{names[key]} {self[key]}" for key in sorted(self, key=str))


class HyperparametersMixin:
    """Gives a class `save_hyperparameters`, `hparams` and `hparams_initial`."""

    # Defaults of the class, not of an instance: `save_hyperparameters` may come before `super().__init__()`.
    _log_hyperparams: bool = False
    _hparams_name: str | None = None

    def save_hyperparameters(
        self,
        *args: Any,
        ignore: Iterable[str] | str | None = None,
        frame: FrameType | None = None,
        logger: bool = True,
    ) -> None:
        """Keeps constructor arguments in `self.hparams`; they are logged and saved with every checkpoint.

        Call it in `__init__`. The arguments of the constructors of base and sub classes are collected as well.

        Args:
            args: nothing: all arguments of `__init__`; names: those arguments; or one object that holds the
                hyperparameters: a dictionary, a Namespace, a dataclass or an OmegaConf container.
            ignore: names of arguments that are left out.
            frame: the frame of the constructor, where it is not among the callers.
            logger: whether the loggers are told.

        Raises:
            ConfigError: a name that is no argument, or an object that holds no names.

        Example::

            class Net(LightningModule):
                def __init__(self, width: int, lr: float = 0.1):
                    super().__init__()
                    self.save_hyperparameters()
                    self.layer = nn.Linear(28, self.hparams.width)
        """
        frame = frame if frame is not None else sys._getframe(1)
        save_hyperparameters(self, *args, ignore=ignore, frame=frame)
        self._log_hyperparams = logger

    @property
    def hparams(self) -> Any:
        """What `save_hyperparameters` kept: an AttributeDict, or the OmegaConf container it was given."""
        if "_hparams" not in self.__dict__:
            self.__dict__["_hparams"] = AttributeDict()
        return self.__dict__["_hparams"]

    @hparams.setter
    def hparams(self, value: Any) -> None:
        raise AttributeError(
            f"{type(self).__name__}.hparams cannot be assigned. Write: self.save_hyperparameters(hparams)"
        )

    @property
    def hparams_initial(self) -> Any:
        """A copy of the hyperparameters as they were when they were saved, whatever was changed since."""
        return copy_hparams(self.__dict__.get("_hparams_initial", AttributeDict()))

    def _set_hparams(self, values: Any) -> None:
        merge_hparams(self, as_hparams(values))


def save_hyperparameters(
    obj: Any, *args: Any, ignore: Iterable[str] | str | None = None, frame: FrameType | None = None
) -> None:
    """`HyperparametersMixin.save_hyperparameters` as a function: puts the hyperparameters of `obj` in place."""
    frame = frame if frame is not None else sys._getframe(1)
    ignored = {ignore} if isinstance(ignore, str) else set(ignore or ())
    given = {key: value for key, value in init_arguments(obj, frame).items() if key not in ignored}
    objects = [arg for arg in args if not isinstance(arg, str)]
    if objects:
        name, values = _one_object(type(obj).__name__, objects, args, given)
        if isinstance(values, AttributeDict):
            values = AttributeDict({key: value for key, value in values.items() if key not in ignored})
    else:
        _check_names(obj, args, given, ignored, frame)
        name = WHOLE_SIGNATURE
        values = AttributeDict({key: given[key] for key in args if key not in ignored} if args else given)
    for key in values:
        if isinstance(values, AttributeDict) and isinstance(values[key], nn.Module):
            warn(
                f"{key!r} is an nn.Module, whose weights are saved with {type(obj).__name__} anyway. "
                f"Write: self.save_hyperparameters(ignore=[{key!r}])",
                stacklevel=3,
            )
    obj._hparams_name = name
    merge_hparams(obj, values)


def _one_object(owner: str, objects: list[Any], args: tuple[Any, ...], given: dict[str, Any]) -> tuple[str | None, Any]:
    if len(objects) > 1:
        raise ConfigError(
            f"{owner}.save_hyperparameters was given {len(objects)} objects; it takes one object, or names of "
            "arguments. Write: self.save_hyperparameters({**first, **second})"
        )
    if len(args) > 1:
        names = ", ".join(repr(arg) for arg in args if isinstance(arg, str))
        warn(
            f"{owner}.save_hyperparameters was given an object and names: the object is kept, {names} are not. "
            "Call it once for each.",
            stacklevel=4,
        )
    value = objects[0]
    names_of_it = [key for key, argument in given.items() if argument is value]
    return (names_of_it[0] if names_of_it else None), as_hparams(value)


def _check_names(obj: Any, args: tuple[Any, ...], given: dict[str, Any], ignored: set[str], frame: FrameType) -> None:
    owner = type(obj).__name__
    if not given and not ignored and not _init_frames(obj, frame) and not dataclasses.is_dataclass(obj):
        raise ConfigError(
            f"{owner}.save_hyperparameters found no __init__ of {owner} among its callers. Call it in __init__, or "
            "give it a dictionary: self.save_hyperparameters({'lr': 0.1})"
        )
    unknown = [name for name in args if name not in given and name not in ignored]
    if unknown:
        raise ConfigError(
            f"{owner}.save_hyperparameters({unknown[0]!r}): __init__ has no argument of that name."
            f"{did_you_mean(unknown[0], given)} Its arguments are: {', '.join(given) or 'none'}."
        )


def as_hparams(value: Any) -> Any:
    """An object that holds hyperparameters as an AttributeDict; an OmegaConf container stays what it is.

    Raises:
        ConfigError: an object that holds no names.
    """
    if isinstance(value, (Namespace, SimpleNamespace)):
        return AttributeDict(vars(value))
    if is_omegaconf(value):
        return value
    if isinstance(value, Mapping):
        return AttributeDict(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return AttributeDict({field.name: getattr(value, field.name) for field in dataclasses.fields(value)})
    raise ConfigError(
        f"save_hyperparameters was given {value!r} ({type(value).__name__}). Primitives are not allowed: expected "
        "names of arguments, or one dictionary, Namespace, dataclass or OmegaConf container."
    )


def merge_hparams(obj: Any, values: Any) -> None:
    """Adds `values` to the hyperparameters of `obj`; what stands there is overwritten by what is new."""
    present = obj.__dict__.get("_hparams")
    if isinstance(present, MutableMapping) and isinstance(present, dict) and isinstance(values, Mapping):
        present.update(values)
    else:
        obj.__dict__["_hparams"] = values
    obj.__dict__["_hparams_initial"] = copy_hparams(obj.__dict__["_hparams"])


def copy_hparams(values: Any) -> Any:
    """A deep copy, in which modules, and what cannot be copied, are the same objects."""
    if not isinstance(values, dict):
        return copy.deepcopy(values)
    return AttributeDict({key: _copy(value) for key, value in values.items()})


def _copy(value: Any) -> Any:
    if isinstance(value, nn.Module):
        return value
    try:
        return copy.deepcopy(value)
    except (TypeError, RuntimeError, NotImplementedError, copy.Error):  # locks, generators, tensors with a graph
        return value


def is_omegaconf(value: Any) -> bool:
    """Whether `value` is a container of OmegaConf, which need not be installed."""
    return type(value).__module__.partition(".")[0] == "omegaconf"


def init_arguments(obj: Any, frame: FrameType) -> dict[str, Any]:
    """The arguments of the constructors of `obj` that are running at `frame` and above it.

    Those of base classes come first; where two constructors have an argument of one name, the sub class's counts.
    """
    if dataclasses.is_dataclass(obj) and not isinstance(obj, type):
        # The locals of a generated __init__ hold placeholders for default factories; the fields are the truth.
        return {
            field.name: getattr(obj, field.name)
            for field in dataclasses.fields(obj)
            if field.init and hasattr(obj, field.name)
        }
    merged: dict[str, Any] = {}
    for constructor in _init_frames(obj, frame):
        merged.update(_frame_arguments(constructor))
    return merged


def _init_frames(obj: Any, frame: FrameType) -> list[FrameType]:
    found = []
    current: FrameType | None = frame
    while current is not None:
        code = current.f_code
        if code.co_name == "__init__" and code.co_argcount and current.f_locals.get(code.co_varnames[0]) is obj:
            found.append(current)
        current = current.f_back
    return found


def _frame_arguments(frame: FrameType) -> dict[str, Any]:
    code, values = frame.f_code, frame.f_locals
    named = code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]
    arguments = {name: values[name] for name in named if name in values}
    if code.co_flags & inspect.CO_VARKEYWORDS:
        position = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & inspect.CO_VARARGS)
        arguments.update(values.get(code.co_varnames[position], {}))
    return arguments

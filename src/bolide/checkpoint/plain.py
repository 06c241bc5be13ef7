"""Makes values plain: tensors, numbers, texts and the containers of them, all that a checkpoint may hold.

What `torch.load(weights_only=True)` refuses is turned into what it takes, or refused before anything is written.
Pure functions; who calls: checkpoint/state.py for states, and for the hyperparameters of a module.
"""

from __future__ import annotations

import dataclasses
import inspect
import sys
from argparse import Namespace
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from pathlib import PurePath
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bolide.core.errors import UserCodeError
from bolide.core.messages import warn_once

Dropped = list[tuple[str, str]]
"""Values that were left out: where each stood ("net.act"), and the name of its class."""

_AS_THEY_ARE = (
    type(None), bool, int, float, complex, str, bytes, bytearray,
    torch.Size, torch.dtype, torch.device, torch.layout,
)  # fmt: skip
_NUMERIC_KINDS = "biufc"


class NotPlainError(UserCodeError):
    """A value that no checkpoint may hold. `path` says where it stands, `type_name` of which class it is."""

    def __init__(self, path: str, type_name: str, reason: str = "") -> None:
        self.path, self.type_name = path, type_name
        super().__init__(
            f"{path or 'the value'} is a {type_name}, which a checkpoint cannot hold{reason}: expected tensors, "
            "numbers, texts, None, and lists, tuples, sets and dictionaries of them. Save what describes the object, "
            "and build it again from that when loading."
        )


def to_plain(obj: Any, path: str = "") -> Any:
    """`obj` as tensors and plain data; the very same object where it is plain already.

    Paths become texts, an enumeration's member its value, a NumPy scalar a number and an array a tensor (an array of
    texts a list), Namespaces, dataclasses and other mappings dictionaries, named tuples tuples, frozen sets sets,
    ranges lists, OmegaConf containers what they contain.

    Args:
        obj: anything.
        path: what `obj` is called in an error, such as "hyper_parameters".

    Raises:
        NotPlainError: something else, or a container that contains itself; names the path to it.
    """
    return _plain(obj, path, ())


def _plain(obj: Any, path: str, within: tuple[int, ...]) -> Any:
    kind = type(obj)
    if kind in _AS_THEY_ARE:
        return obj
    if isinstance(obj, Tensor):
        return _plain_tensor(obj)
    if isinstance(obj, (dict, list, tuple, set)):
        if id(obj) in within:
            raise NotPlainError(path, kind.__qualname__, " because it contains itself")
        within = (*within, id(obj))
    if isinstance(obj, Enum):
        return _plain_enum(obj, path, within)
    if isinstance(obj, dict):
        return _plain_dict(obj, path, within)
    if isinstance(obj, (list, tuple)):
        return _plain_sequence(obj, path, within)
    return _converted(obj, path, within)


def _converted(obj: Any, path: str, within: tuple[int, ...]) -> Any:
    """Everything that is neither plain by its class nor a dictionary, list or tuple."""
    if isinstance(obj, (set, frozenset)):
        members = [_plain(member, f"{path}{{}}", within) for member in obj]
        same = type(obj) is set and all(new is old for new, old in zip(members, obj, strict=True))
        return obj if same else set(members)
    if isinstance(obj, np.generic):
        return _plain(obj.item(), path, within) if not isinstance(obj.item(), np.generic) else _refuse(obj, path)
    if isinstance(obj, np.ndarray):
        return _plain_array(obj, path, within)
    for base, exact in _BASES:
        if isinstance(obj, base):
            return exact(obj)
    if isinstance(obj, PurePath):
        return str(obj)
    if isinstance(obj, (Namespace, SimpleNamespace)):
        return _plain_dict(vars(obj), path, within)
    if isinstance(obj, range):
        return list(obj)
    if type(obj).__module__.partition(".")[0] == "omegaconf":
        return _plain(_omegaconf_content(obj), path, within)
    if isinstance(obj, Mapping):
        return _plain_dict(dict(obj), path, within)
    if dataclasses.is_dataclass(obj) and not isinstance(obj, type):
        if id(obj) in within:
            raise NotPlainError(path, type(obj).__qualname__, " because it contains itself")
        values = {field.name: getattr(obj, field.name) for field in dataclasses.fields(obj)}
        return _plain_dict(values, path, (*within, id(obj)))
    return _refuse(obj, path)


# A sub class of these is stored as the bare value; their own methods, since a sub class may override __str__ and more.
_BASES: tuple[tuple[type, Callable[[Any], Any]], ...] = (
    (str, str.__str__), (int, int.__int__), (float, float.__float__), (complex, complex), (bytes, bytes),
    (bytearray, bytearray),
)  # fmt: skip


def _refuse(obj: Any, path: str) -> Any:
    if isinstance(obj, type):
        raise NotPlainError(path, f"class ({obj.__module__}.{obj.__qualname__})")
    raise NotPlainError(path, type(obj).__qualname__)


def _plain_tensor(tensor: Tensor) -> Tensor:
    if not type(tensor).__module__.startswith("torch"):
        tensor = tensor.as_subclass(Tensor)
    # Attributes that a user hung on a tensor would be pickled with it.
    return tensor.detach() if getattr(tensor, "__dict__", None) else tensor


def _plain_enum(member: Enum, path: str, within: tuple[int, ...]) -> Any:
    try:
        return _plain(member.value, path, within)
    except NotPlainError:
        return member.name


def _plain_array(array: np.ndarray[Any, Any], path: str, within: tuple[int, ...]) -> Any:
    if array.dtype.kind in _NUMERIC_KINDS and array.dtype.itemsize <= np.dtype(np.complex128).itemsize:
        native = array.astype(array.dtype.newbyteorder("="))  # a copy, contiguous or not, writable, in native order
        try:
            return torch.from_numpy(np.ascontiguousarray(native).reshape(array.shape))
        except TypeError as error:  # a width that torch does not have, such as longdouble
            raise NotPlainError(path, f"NumPy array of {array.dtype}") from error
    if array.dtype.kind in "UO":
        return _plain(array.tolist(), path, within)
    raise NotPlainError(path, f"NumPy array of {array.dtype}")


def _plain_dict(obj: dict[Any, Any], path: str, within: tuple[int, ...]) -> dict[Any, Any]:
    keys: list[Any] = []
    values: list[Any] = []
    same = type(obj) in (dict, OrderedDict, Counter)
    for key, value in obj.items():
        here = f"{path}.{key}" if path else str(key)
        new_key = key if type(key) in _AS_THEY_ARE else _plain(key, f"{here} (a key)", within)
        new = _plain(value, here, within)
        same = same and new is value and new_key is key
        keys.append(new_key)
        values.append(new)
    if same:
        return obj
    result: dict[Any, Any] = OrderedDict() if isinstance(obj, OrderedDict) else {}
    result.update(zip(keys, values, strict=True))
    if len(result) != len(obj):
        raise NotPlainError(path, type(obj).__qualname__, " because two of its keys are one when plain")
    if isinstance(result, OrderedDict) and hasattr(obj, "_metadata"):
        result._metadata = obj._metadata  # type: ignore[attr-defined]  # the versions of a module's state_dict
    return result


def _plain_sequence(obj: list[Any] | tuple[Any, ...], path: str, within: tuple[int, ...]) -> Any:
    members = [_plain(member, f"{path}[{index}]", within) for index, member in enumerate(obj)]
    if type(obj) in (list, tuple) and all(new is old for new, old in zip(members, obj, strict=True)):
        return obj
    return tuple(members) if isinstance(obj, tuple) else members


def _omegaconf_content(container: Any) -> Any:
    omegaconf = sys.modules["omegaconf"]  # there is a container of it, so it was imported
    return omegaconf.OmegaConf.to_container(container, resolve=True)


def plain_hparams(values: Any, owner: type | None = None) -> tuple[dict[str, Any], Dropped]:
    """Hyperparameters as plain data, without those that cannot be; these are told in one warning.

    A value is left out whole when something within it is not plain. One that is the default of its argument is left
    out without a word, since the constructor has it.

    Args:
        values: a mapping, such as `module.hparams`, or an OmegaConf container.
        owner: the class whose constructor takes them, for the defaults and the warning.

    Returns:
        The plain values, and what was left out.
    """
    if type(values).__module__.partition(".")[0] == "omegaconf":
        values = _omegaconf_content(values)
    defaults = init_defaults(owner) if owner is not None else {}
    plain: dict[str, Any] = {}
    dropped: Dropped = []
    for key, value in values.items():
        try:
            plain[str(key)] = to_plain(value, str(key))
        except NotPlainError as error:
            if key not in defaults or defaults[key] is not value:
                dropped.append((error.path, error.type_name))
    if dropped:
        what = ", ".join(f"{path!r} ({type_name})" for path, type_name in dropped)
        name = owner.__name__ if owner is not None else "Model"
        warn_once(
            f"Checkpoints of {name} are saved without the hyperparameters {what}, which are not plain data. Give them "
            f"when loading: {name}.load_from_checkpoint(path, {arguments_of(path for path, _ in dropped)})"
        )
    return plain, dropped


def arguments_of(paths: Iterable[str]) -> str:
    """How the arguments are written in which the values at `paths` stand: "net=..., act=..."."""
    names = dict.fromkeys(path.partition(".")[0].partition("[")[0] for path in paths)
    return ", ".join(f"{name}=..." for name in names)


def init_defaults(owner: type) -> dict[str, Any]:
    """The defaults of the arguments of all constructors of `owner`, those of sub classes first."""
    found: dict[str, Any] = {}
    for cls in owner.__mro__:
        constructor = cls.__dict__.get("__init__")
        if not inspect.isfunction(constructor):
            continue
        for name, parameter in inspect.signature(constructor).parameters.items():
            if parameter.default is not inspect.Parameter.empty:
                found.setdefault(name, parameter.default)
    return found


# ---------------------------------------------------------------------- what was read, before anybody walks through it

MAX_DEPTH = 200
MAX_REPEATED_NODES = 10_000_000
MAX_EXPANDED_BYTES = 1 << 30


class BoundsError(ValueError):
    """Data that would take without end to walk through, or to write out, though the file is small."""


def check_bounds(obj: Any) -> None:
    """Refuses data that is small in a file and endless in use, before anything walks through it.

    Containers that contain themselves, that are nested deeper than 200, or that are shared so often that walking
    through them would visit more than ten million members; tensors that are views of far more than they store.

    Raises:
        BoundsError: which of these.
    """
    counts: dict[int, int] = {}  # by id: how many members it has, those of shared ones each time
    depths: dict[int, int] = {}
    members_in_all = 0
    open_now: set[int] = set()
    stack: list[tuple[Any, list[Any] | None]] = [(obj, None)]
    while stack:
        current, inner = stack.pop()
        key = id(current)
        if inner is not None:  # everything below it was counted
            open_now.discard(key)
            own = len(current)
            members_in_all += own
            counts[key] = repeated = own + sum([counts[id(value)] for value in inner])
            depths[key] = depth = 1 + max([depths[id(value)] for value in inner], default=0)
            if depth > MAX_DEPTH:
                raise BoundsError(f"it is nested deeper than {MAX_DEPTH}")
            if repeated > MAX_REPEATED_NODES and repeated > 4 * members_in_all:
                raise BoundsError("its containers hold each other so often that reading them would never end")
            continue
        if key in counts:
            continue
        if key in open_now:
            raise BoundsError("it has a container that contains itself")
        if isinstance(current, Tensor):
            _check_tensor(current)
        if not isinstance(current, _CONTAINERS):
            counts[key] = depths[key] = 0
            continue
        open_now.add(key)
        if len(open_now) > MAX_DEPTH:
            raise BoundsError(f"it is nested deeper than {MAX_DEPTH}")
        members = current.values() if isinstance(current, dict) else current
        inner = [value for value in members if type(value) not in _FLAT]
        if isinstance(current, dict):
            inner += [name for name in current if isinstance(name, (tuple, frozenset))]
        stack.append((current, inner))
        stack += [(value, None) for value in inner]


_CONTAINERS = (dict, list, tuple, set, frozenset)
_FLAT = frozenset({type(None), bool, int, float, complex, str, bytes, bytearray})


def _check_tensor(tensor: Tensor) -> None:
    if tensor.layout is not torch.strided or tensor.is_meta:
        return
    wanted_bytes = tensor.numel() * tensor.element_size()
    if wanted_bytes > MAX_EXPANDED_BYTES and wanted_bytes > 64 * max(tensor.untyped_storage().nbytes(), 1):
        raise BoundsError(f"it has a tensor of shape {tuple(tensor.shape)} that stores far less than that")

"""Old pickled checkpoints into plain ones: what a file would have built is listed, and only what is trusted is built.

The reading is done in a process of its own, without the environment of this one and with limits on its resources, by
torch's restricted reader: it builds nothing but tensors, plain data, and the classes that the user named. Who calls:
cli/checkpoint.py; the process itself runs `main`.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any

from bolide.checkpoint.file import read_trusting, unsafe_globals, write_checkpoint
from bolide.checkpoint.plain import NotPlainError, plain_hparams, to_plain
from bolide.core.errors import CheckpointError, ConfigError

TIMEOUT_S = 900
_MEMORY_BYTES = 32 << 30
_HPARAMS = ("hyper_parameters", "datamodule_hyper_parameters")

NEVER = {
    "asyncio", "bdb", "builtins", "code", "codeop", "commands", "ctypes", "dill", "cloudpickle", "doctest", "functools",
    "gc", "importlib", "inspect", "io", "joblib", "marshal", "multiprocessing", "nt", "operator", "os", "pdb", "pickle",
    "pip", "pkgutil", "platform", "posix", "pty", "pydoc", "runpy", "shelve", "shutil", "signal", "site", "socket",
    "ssl", "subprocess", "sys", "tempfile", "threading", "timeit", "types", "urllib", "webbrowser", "zipimport",
}  # fmt: skip
"""Top-level modules of which nothing is built, whoever trusts it: they run code, or reach files and the network."""

HARMLESS = {
    "builtins.set", "builtins.frozenset", "builtins.complex", "builtins.range", "builtins.slice", "builtins.bytearray",
    "builtins.int", "builtins.float", "builtins.bool", "builtins.str", "builtins.bytes", "builtins.list",
    "builtins.dict", "builtins.tuple", "types.SimpleNamespace",
}  # fmt: skip


PLAIN_DICTIONARIES = {
    "collections.defaultdict",
    "lightning.fabric.utilities.data.AttributeDict",
    "lightning.pytorch.utilities.parsing.AttributeDict",
    "lightning_fabric.utilities.data.AttributeDict",
    "pytorch_lightning.utilities.parsing.AttributeDict",
}
"""Dictionaries of other classes that become plain ones; nothing is imported for these."""


class PlainDictionary:
    """Stands for a class of dictionaries that is not plain: what is made of it is a plain one."""

    def __new__(cls, *arguments: Any) -> Any:
        """An empty dictionary; the file fills it."""
        return OrderedDict()


def needed(path: str) -> list[str]:
    """The classes and functions that reading `path` would need beyond tensors and plain data; nothing is imported."""
    return unsafe_globals(path)


def refused(names: Iterable[str]) -> list[str]:
    """Those of `names` that are built in no case."""
    return [name for name in names if name not in HARMLESS and name.partition(".")[0] in NEVER]


def convert(old: str, new: str, trusted: Sequence[str]) -> list[str]:
    """Writes the content of the pickled file `old` to `new` as a plain checkpoint.

    Args:
        old: a file that torch.save wrote.
        new: the path of the new file, which must not be there.
        trusted: the names that may be imported and called, as `needed` lists them.

    Returns:
        What is not in the new file, because it is no plain data: "path (class)".

    Raises:
        CheckpointError: it needs names that are not trusted, or cannot be read.
        ConfigError: names that are trusted in no case, or a `new` that is there already.
    """
    if os.path.lexists(new):
        raise ConfigError(f"{new!r} is there already; give another path")
    bad = refused(trusted)
    if bad:
        raise ConfigError(f"{', '.join(bad)}: code of these modules is never run for a file, whoever trusts it")
    missing = [name for name in needed(old) if name not in trusted]
    if missing:
        raise CheckpointError(
            f"{old!r} names code that was not trusted: {', '.join(missing)}. If you know what these are, write: "
            f"--trust {' '.join([*trusted, *missing])}"
        )
    command = [
        sys.executable, "-s", "-B", "-c", "import sys; from bolide.checkpoint.convert import main; main(sys.argv[1:])",
        os.path.abspath(old), os.path.abspath(new), *trusted,
    ]  # fmt: skip
    scrubbed = {
        "PATH": os.defpath,
        "PYTHONPATH": os.pathsep.join([entry or os.getcwd() for entry in sys.path]),
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
        "LANG": "C.UTF-8",
    }
    try:
        done = subprocess.run(
            command, env=scrubbed, capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise CheckpointError(f"{old!r} was not read within {TIMEOUT_S} s; it was given up") from error
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    answer: dict[str, Any] = json.loads(lines[-1]) if lines else {}
    if done.returncode != 0 or "left_out" not in answer:
        told = answer.get("error") or done.stderr.strip()[-1000:] or f"the process ended with {done.returncode}"
        raise CheckpointError(f"{old!r} could not be converted: {told}")
    return [str(entry) for entry in answer["left_out"]]


def main(arguments: Sequence[str]) -> None:
    """What the process of its own does: old path, new path, trusted names; prints one line of JSON."""
    old, new, trusted = arguments[0], arguments[1], list(arguments[2:])
    try:
        found = {name: _named(name) for name in trusted}
        limit_resources(os.path.getsize(old))
        content = read_trusting(old, found)
        plain, left_out = plain_content(content)
        write_checkpoint(plain, new)
    except (CheckpointError, ConfigError, OSError, MemoryError) as error:
        print(json.dumps({"error": str(error) or type(error).__name__}))
        sys.exit(1)
    print(json.dumps({"left_out": left_out}))


def _named(name: str) -> Any:
    """What a name that the user wrote on the command line stands for."""
    if refused([name]):
        raise ConfigError(f"{name}: code of this module is never run for a file, whoever trusts it")
    if name in PLAIN_DICTIONARIES:
        return PlainDictionary
    module, _, attribute = name.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), attribute)
        return PlainDictionary if isinstance(found, type) and issubclass(found, dict) else found
    except (ImportError, AttributeError, ValueError) as error:
        raise CheckpointError(
            f"{name} cannot be imported here: {error}. Install what defines it, or run the command where it is found"
        ) from error


def limit_resources(size_bytes: int) -> None:
    """Limits what this process may use: memory, processor time, size of files; no core dump, no child."""
    try:
        import resource
    except ImportError:
        return
    wanted = [
        ("RLIMIT_AS", _MEMORY_BYTES + 4 * size_bytes),
        ("RLIMIT_CPU", TIMEOUT_S),
        ("RLIMIT_FSIZE", 2 * size_bytes + (64 << 20)),
        ("RLIMIT_CORE", 0),
        ("RLIMIT_NPROC", 0),
    ]
    for name, value in wanted:
        number = getattr(resource, name, None)
        if number is None:
            continue
        hard = resource.getrlimit(number)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        try:
            resource.setrlimit(number, (value, value))
        except (ValueError, OSError):  # a system that does not know this limit
            continue


def plain_content(content: Any) -> tuple[dict[str, Any], list[str]]:
    """A checkpoint as plain data, and what of it could not be: hyperparameters, states of single callbacks."""
    if not isinstance(content, dict):
        raise CheckpointError(f"it holds a {type(content).__name__}, not the dictionary of a checkpoint")
    plain: dict[str, Any] = {}
    left_out: list[str] = []
    for key, value in content.items():
        if key in _HPARAMS and value:
            values = value if isinstance(value, dict) else vars(value)
            plain[key], dropped = plain_hparams(values)
            left_out += [f"{key}.{at} ({kind})" for at, kind in dropped]
            if dropped:
                plain[key.replace("hyper_parameters", "hparams_dropped")] = [list(one) for one in dropped]
        elif key == "callbacks" and isinstance(value, dict):
            plain[key] = {}
            for name, state in value.items():
                _put(plain[key], name if isinstance(name, str) else str(name), state, f"{key}.{name}", left_out)
        else:
            _put(plain, str(key), value, str(key), left_out)
    return plain, left_out


def _put(into: dict[str, Any], key: str, value: Any, path: str, left_out: list[str]) -> None:
    try:
        into[key] = to_plain(value, path)
    except NotPlainError as error:
        left_out.append(f"{error.path} ({error.type_name})")

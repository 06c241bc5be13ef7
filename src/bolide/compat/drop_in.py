"""Lets an unchanged script that imports Lightning, or transformers' Trainer, run on Bolide.

`python -m bolide.compat.drop_in train.py ARGS` runs a script; `bolide.compat.drop_in.install()` as a first line does
the same within one. With `--transformers`, transformers' Trainer and TrainingArguments are Bolide's, too. Owns the
answering of `lightning`, `lightning.pytorch`, `pytorch_lightning`, `lightning.fabric` and their submodules with
Bolide's own objects. compat/foreign_paths.py owns the table of them.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import os
import runpy
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from bolide.compat.foreign_paths import (
    HINTS,
    PATH_HINTS,
    PRETENDED_VERSION,
    ROOTS,
    foreign_modules,
)
from bolide.core.errors import UserCodeError, nearest

USAGE = "usage: python -m bolide.compat.drop_in [--transformers] (script.py | -m module) [ARGS ...]"

TRANSFORMERS: dict[str, tuple[str, ...]] = {
    "transformers": (
        "DefaultFlowCallback", "EarlyStoppingCallback", "HfArgumentParser", "PrinterCallback", "ProgressCallback",
        "Seq2SeqTrainer", "Seq2SeqTrainingArguments", "Trainer", "TrainingArguments", "get_scheduler", "set_seed",
    ),
    "transformers.hf_argparser": ("HfArgumentParser",),
    "transformers.optimization": ("get_scheduler",),
    "transformers.trainer": (
        "PrinterCallback", "ProgressCallback", "Trainer", "TrainingArguments", "get_last_checkpoint", "get_scheduler",
        "set_seed",
    ),
    "transformers.trainer_callback": (
        "DefaultFlowCallback", "EarlyStoppingCallback", "PrinterCallback", "ProgressCallback",
    ),
    "transformers.trainer_pt_utils": (),
    "transformers.trainer_seq2seq": ("Seq2SeqTrainer",),
    "transformers.trainer_utils": ("enable_full_determinism", "get_last_checkpoint", "set_seed"),
    "transformers.training_args": ("TrainingArguments",),
    "transformers.training_args_seq2seq": ("Seq2SeqTrainingArguments",),
}  # fmt: skip
"""The names of transformers that the second door answers, by module; all else stays transformers' own."""


class ForeignModule(ModuleType):
    """A module of Lightning's, whose names are looked up in modules of Bolide's."""

    def __getattr__(self, name: str) -> Any:  # the drop-in's whole purpose: answering under other names
        full = f"{self.__name__}.{name}"
        if full in foreign_modules():
            return importlib.import_module(full)
        if name == "__version__":
            return PRETENDED_VERSION
        if name == "__all__":
            return self._public_names()
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        found, reason = self._look_up(name)
        if reason is None:
            return found
        # `from ... import name` asks through this function of the import system, and keeps an ImportError's text only.
        if sys._getframe(1).f_code.co_name == "_handle_fromlist":
            raise ImportError(f"cannot import name {name!r} from {self.__name__!r}: {reason}", name=self.__name__)
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}: {reason}")

    def _look_up(self, name: str) -> tuple[Any, str | None]:
        """The object of that name, or why there is none."""
        reasons: list[str] = []
        for source in foreign_modules()[self.__name__]:
            module_name, _, only = source.partition(":")
            if only and only != name:
                continue
            module = importlib.import_module(module_name)
            try:
                return getattr(module, name), None
            except (AttributeError, ImportError) as error:
                if not str(error).startswith(("module ", "cannot import")):
                    reasons.append(str(error))
        if name in HINTS:
            return None, HINTS[name]
        if _relative(f"{self.__name__}.{name}") in PATH_HINTS:
            return None, PATH_HINTS[_relative(f"{self.__name__}.{name}")]
        if reasons:
            return None, reasons[0]
        close = nearest(name, self._public_names(), 1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        return None, f"Bolide, which stands in for Lightning here, has no {name}.{hint}"

    def _public_names(self) -> list[str]:
        names: set[str] = set()
        for source in foreign_modules()[self.__name__]:
            module_name, _, only = source.partition(":")
            module = importlib.import_module(module_name)
            names.update([only] if only else getattr(module, "__all__", [n for n in vars(module) if n[0] != "_"]))
        return sorted(names)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self._public_names()})


def _relative(name: str) -> str:
    """The path of a module below `lightning.pytorch`."""
    return name.removeprefix("lightning.pytorch.").removeprefix("pytorch_lightning.")


class _Loader(importlib.abc.Loader):
    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return ForeignModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """There is nothing to run: names are looked up when they are asked for."""


class Finder(importlib.abc.MetaPathFinder):
    """Answers the imports of Lightning's modules; a path that Bolide lacks is an error that says so."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The way to a foreign module; None for every other module."""
        if fullname.partition(".")[0] not in ROOTS:
            return None
        if fullname in foreign_modules():
            return importlib.machinery.ModuleSpec(fullname, _Loader(), origin="bolide.compat.drop_in", is_package=True)
        # `importlib.util.find_spec` asks whether there is such a module: the answer is None, no error.
        if sys._getframe(2).f_code.co_name == "find_spec":
            return None
        hint = PATH_HINTS.get(_relative(fullname), "")
        raise ModuleNotFoundError(
            f"No module named {fullname!r}: Bolide, which stands in for Lightning here, does not have it."
            + (f" {hint}" if hint else ""),
            name=fullname,
        )


def is_installed() -> bool:
    """Whether Lightning's names are answered by Bolide."""
    return any(isinstance(finder, Finder) for finder in sys.meta_path)


def install() -> None:
    """From now on, imports of Lightning give Bolide's objects. Call it before the first of them.

    Raises:
        UserCodeError: the real Lightning was imported already.

    Example::

        import bolide.compat.drop_in

        bolide.compat.drop_in.install()
        import lightning as L  # is Bolide
    """
    real = [root for root in ROOTS if root in sys.modules and not isinstance(sys.modules[root], ForeignModule)]
    if real:
        raise UserCodeError(
            f"{real[0]!r} was imported before bolide.compat.drop_in.install(), so Bolide cannot stand in for it any "
            "more. Call install() first, in the first lines of the script."
        )
    if not is_installed():
        sys.meta_path.insert(0, Finder())


def install_transformers() -> None:
    """From now on, TrainingArguments, Trainer and what belongs to them are Bolide's where transformers is asked.

    Where transformers is not installed, a module of its name has these names alone.

    Example::

        import bolide.compat.drop_in

        bolide.compat.drop_in.install_transformers()
        from transformers import Trainer, TrainingArguments  # are Bolide's
    """
    import bolide.transformers as door
    from bolide.transformers.state import has_transformers

    if not has_transformers():
        own = {name: getattr(door, name) for name in door.own_names() if name != "HfArgumentParser"}
        for module_name in TRANSFORMERS:  # what each of them has is not told apart
            stand_in = ModuleType(module_name)
            stand_in.__path__ = []  # a package, so that submodules are asked for, and found missing
            vars(stand_in).update(own)
            sys.modules[module_name] = stand_in
        return
    for module_name, names in TRANSFORMERS.items():
        module = importlib.import_module(module_name)
        for name in names:
            setattr(module, name, getattr(door, name))


def uninstall() -> None:
    """Imports of Lightning are Lightning's again; what was imported before stays what it is."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, Finder)]
    for name in [name for name, module in sys.modules.items() if isinstance(module, ForeignModule)]:
        del sys.modules[name]


def main(arguments: list[str]) -> int:
    """Runs a script, or with `-m` a module, as `__main__`; `arguments` are its path or name and its own arguments."""
    second_door = arguments[:1] == ["--transformers"]
    arguments = arguments[1:] if second_door else arguments
    as_module = arguments[:1] == ["-m"]
    rest = arguments[1:] if as_module else arguments
    if not rest or rest[0].startswith("-"):
        print(USAGE, file=sys.stderr)
        return 2
    target = rest[0]
    if not as_module and not os.path.exists(target):
        print(f"{target!r} does not exist.\n{USAGE}", file=sys.stderr)
        return 2
    install()
    if second_door:
        install_transformers()
    sys.argv = rest
    if as_module:
        sys.path.insert(0, os.getcwd())
        runpy.run_module(target, run_name="__main__", alter_sys=True)
    else:
        # As python does for a script: its folder comes first, in the place of the working directory of `-m`.
        sys.path[0] = os.path.dirname(os.path.abspath(target))
        runpy.run_path(target, run_name="__main__")
    return 0


if __name__ == "__main__":
    # The module that the script sees under its own name must be this one, not a second copy of it.
    from bolide.compat import drop_in

    sys.exit(drop_in.main(sys.argv[1:]))

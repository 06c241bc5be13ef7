"""`HfArgumentParser`: transformers' own parser, which also understands old names of TrainingArguments.

Who calls: users. transformers must be installed.
"""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Sequence
from typing import Any

from bolide.compat.hf_args import KEPT, ROWS, translated
from bolide.core.errors import ConfigError, MissingPackageError
from bolide.core.messages import warn
from bolide.transformers.state import has_transformers

if not has_transformers():
    raise MissingPackageError("HfArgumentParser", "transformers")

from transformers.hf_argparser import HfArgumentParser as _Parser


class HfArgumentParser(_Parser):
    """Turns dataclasses into a command line; `parse_args_into_dataclasses()` fills them from it.

    Example::

        parser = HfArgumentParser(TrainingArguments)
        (args,) = parser.parse_args_into_dataclasses()
    """

    def parse_args_into_dataclasses(self, args: Sequence[str] | None = None, *rest: Any, **kwargs: Any) -> Any:
        """The dataclasses, filled. Old names are translated first, with one warning."""
        if args is None:
            import sys

            args = sys.argv[1:]
        known = {f.name for kind in self.dataclass_types for f in dataclasses.fields(kind) if f.init}
        return super().parse_args_into_dataclasses(today(list(args), known), *rest, **kwargs)

    def parse_dict(self, args: dict[str, Any], allow_extra_keys: bool = False) -> Any:
        """The dataclasses, filled from a dictionary, as files are read, too; old names are translated first."""
        known = {f.name for kind in self.dataclass_types for f in dataclasses.fields(kind) if f.init}
        old = {name for name in args if name not in known and name in ROWS}
        if old:
            told = {name: value for name, value in args.items() if name in old or (name in known and name not in KEPT)}
            settings, wrong = translated(told, known, "The dictionary")
            if wrong:
                raise ConfigError(wrong)
            args = {**{name: value for name, value in args.items() if name not in old}, **settings}
        return super().parse_dict(args, allow_extra_keys)


def today(words: list[str], known: set[str]) -> list[str]:
    """A command line with old names in their spelling of today.

    Raises:
        ConfigError: old names that ask for what is gone.
    """
    found: list[str] = []
    said: list[str] = []
    wrong: list[str] = []
    place = 0
    while place < len(words):
        word = words[place]
        place += 1
        name, separator, text = word.removeprefix("--").partition("=")
        name = name.replace("-", "_")
        if not word.startswith("--") or name in known or name not in ROWS:
            found.append(word)
            continue
        if not separator and place < len(words) and not words[place].startswith("--"):
            text = words[place]
            place += 1
        try:
            settings = ROWS[name].convert(_value(text) if text else True)
        except ValueError as error:
            wrong.append(str(error))
            continue
        said.append(f"--{name} is now {ROWS[name].new}")
        for key, value in settings.items():
            found += [f"--{key}", *(map(str, value) if isinstance(value, list) else [str(value)])]
    if wrong:
        raise ConfigError(wrong)
    if said:
        warn("The command line has old spellings: " + "; ".join(said) + ".", FutureWarning)
    return found


def _value(text: str) -> Any:
    try:
        return ast.literal_eval(text[:1].upper() + text[1:] if text.lower() in ("true", "false", "none") else text)
    except (ValueError, SyntaxError):
        return text

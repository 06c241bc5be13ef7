"""The rules of the house, read from the sources: who may import whom, and what may stand where.

Each rule is a function from the parsed modules to a list of offences, so that the tests below can also show, on a
small made-up package, that a rule sees what it is there for.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import textwrap
import tokenize
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest

SOURCES = Path(__file__).resolve().parents[1] / "src"
MAX_CODE_LINES = 500
PARTS_FOR_USERS = ("demos", "utilities")
FOR_USERS = {
    "bolide.compat.drop_in.uninstall", "bolide.loggers.logger.rank_zero_experiment",
    "bolide.loggers.utilities._scan_checkpoints",
}  # fmt: skip
"""What users and their packages import, and nothing here needs to call."""

LAYERS: dict[str, int] = {
    # 1: facts and rules, no torch.distributed, no files
    "core": 1,
    # 2: services
    "world": 2, "collectives": 2, "launch": 2, "precision": 2, "strategies": 2, "data": 2, "checkpoint": 2, "log": 2,
    "hparams": 2, "secrets": 2, "seed": 2, "summary": 2,
    # 3: the loop, and what listens to it
    "engine": 3, "callbacks": 3, "loggers": 3, "profilers": 3, "monitor": 3, "export": 3,
    # 4: the front doors
    "trainer": 4, "module": 4, "datamodule": 4, "compat": 4, "transformers": 4, "utilities": 4, "plugins": 4,
    "accelerators": 4, "demos": 4,
    # 5: what runs a Trainer
    "cli": 5, "tuner": 5, "compat.drop_in": 5, "transformers.search": 5, "launch.ray": 5, "launch.ray_backend": 5,
}  # fmt: skip
"""The layer of each part of the package; the longest matching name counts."""

HALVES = ({"engine"}, {"callbacks", "loggers", "profilers"})
"""Two sides of layer 3 that meet only through core/hooks."""

ABOVE_ALL = ("compat", "transformers")
"""Never imported from layers 1 to 3."""

MAY_UNPICKLE = {"bolide.checkpoint.file"}
"""The one place that calls torch.load, with weights_only=True, and knows pickle's errors, nothing else of it."""

MAY_READ_ENVIRONMENT = {"bolide.core.env"}

MAY_IMPORT_BY_NAME = {"bolide", "bolide.compat.drop_in", "bolide.core.lazy", "bolide.checkpoint.convert"}
"""Modules that import what a variable names: lazy package attributes (every `__init__`), the drop-in, and the
conversion of old files, which imports what the user writes on the command line."""

PICKLES = {"pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "jsonpickle"}


@dataclass(frozen=True)
class Module:
    """One parsed source file."""

    name: str
    is_package: bool
    source: str
    tree: ast.Module

    @property
    def part(self) -> str:
        """The first part of the name below the package: `core`, `engine`; empty for the package itself."""
        return self.name.partition(".")[2].partition(".")[0]


@dataclass(frozen=True)
class Import:
    """One import: who, what, in which line; `late` when inside a function."""

    importer: str
    target: str
    line: int
    late: bool

    def __str__(self) -> str:
        return f"{self.importer}:{self.line} imports {self.target}"


def parse(name: str, source: str, is_package: bool = False) -> Module:
    return Module(name, is_package, source, ast.parse(source))


def package_modules() -> dict[str, Module]:
    found = {}
    for path in sorted((SOURCES / "bolide").rglob("*.py")):
        parts = path.relative_to(SOURCES).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_package else parts)
        found[name] = parse(name, path.read_text(encoding="utf-8"), is_package)
    return found


@pytest.fixture(scope="module")
def modules() -> dict[str, Module]:
    found = package_modules()
    assert len(found) > 10, "the sources were not found"
    return found


# ---- reading the imports


def _is_type_checking(node: ast.AST) -> bool:
    if not isinstance(node, ast.If):
        return False
    test = node.test
    name = test.attr if isinstance(test, ast.Attribute) else test.id if isinstance(test, ast.Name) else ""
    return name == "TYPE_CHECKING"


def running_nodes(node: ast.AST, late: bool = False) -> Iterator[tuple[ast.AST, bool]]:
    """All nodes that run, with whether they are inside a function; the TYPE_CHECKING branches are left out."""
    for child in ast.iter_child_nodes(node):
        if _is_type_checking(child):
            assert isinstance(child, ast.If)
            for other in child.orelse:
                yield other, late
                yield from running_nodes(other, late)
            continue
        inside = late or isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        yield child, inside
        yield from running_nodes(child, inside)


def _absolute(module: Module, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    parts = module.name.split(".")
    if not module.is_package:
        parts = parts[:-1]
    parts = parts[: len(parts) - (node.level - 1)]
    return ".".join([*parts, node.module] if node.module else parts)


def dotted(node: ast.AST) -> str:
    """`a.b.c` as text, or an empty one where the node is no dotted name."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        base = dotted(node.value)
        return f"{base}.{node.attr}" if base else ""
    return ""


def imports_of(module: Module, modules: dict[str, Module]) -> list[Import]:
    """Every import of `module`; of `from package import name` the submodule, where `name` is one."""
    found = []
    for node, late in running_nodes(module.tree):
        targets: list[str] = []
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(module, node)
            for alias in node.names:
                full = f"{base}.{alias.name}"
                targets.append(full if full in modules else base)
        elif isinstance(node, ast.Call) and dotted(node.func) in ("importlib.import_module", "import_module"):
            if node.args and isinstance(node.args[0], ast.Constant):
                targets = [str(node.args[0].value)]
        line = getattr(node, "lineno", 0)
        found += [Import(module.name, target, line, late) for target in dict.fromkeys(targets)]
    return found


def own_imports(modules: dict[str, Module]) -> list[Import]:
    root = next(iter(modules)).partition(".")[0]
    every = [found for module in modules.values() for found in imports_of(module, modules)]
    return [found for found in every if found.target.partition(".")[0] == root]


def layer(name: str) -> int:
    """The layer of a module; the package itself, which names what is below, is for entries to import."""
    below = name.partition(".")[2]
    while below:
        if below in LAYERS:
            return LAYERS[below]
        below = below.rpartition(".")[0]
    return max(LAYERS.values())


# ---- the rules


def unplaced(modules: dict[str, Module]) -> list[str]:
    return [f"{name} is in no layer" for name, module in modules.items() if module.part and module.part not in LAYERS]


def upward_imports(modules: dict[str, Module]) -> list[str]:
    return [str(found) for found in own_imports(modules) if layer(found.target) > layer(found.importer)]


def imports_across_halves(modules: dict[str, Module]) -> list[str]:
    bad = []
    for found in own_imports(modules):
        parts = found.importer.split(".")[1:2] + found.target.split(".")[1:2]
        if len(parts) == 2 and any(parts[0] in HALVES[i] and parts[1] in HALVES[1 - i] for i in (0, 1)):
            bad.append(str(found))
    return bad


def imports_of_front_doors(modules: dict[str, Module]) -> list[str]:
    return [
        str(found)
        for found in own_imports(modules)
        if layer(found.importer) <= 3 and found.target.split(".")[1:2] and found.target.split(".")[1] in ABOVE_ALL
    ]


def cycles(modules: dict[str, Module]) -> list[str]:
    """Every cycle of imports, those inside functions counted too, one line a cycle."""
    edges: dict[str, set[str]] = {name: set() for name in modules}
    for found in own_imports(modules):
        if found.target in modules and found.target != found.importer:
            edges[found.importer].add(found.target)
    bad: list[str] = []
    done: set[str] = set()

    def visit(name: str, path: list[str]) -> None:
        if name in path:
            bad.append(" -> ".join([*path[path.index(name) :], name]))
            return
        if name in done:
            return
        for target in sorted(edges[name]):
            visit(target, [*path, name])
        done.add(name)

    for name in sorted(edges):
        visit(name, [])
    return bad


def environment_reads(modules: dict[str, Module]) -> list[str]:
    names = {"os.environ", "os.environb", "os.getenv", "os.putenv", "os.unsetenv", "environ", "getenv"}
    bad = []
    for module in modules.values():
        if module.name in MAY_READ_ENVIRONMENT:
            continue
        for node, _ in running_nodes(module.tree):
            is_import = isinstance(node, ast.ImportFrom) and node.module == "os"
            imported = {alias.name for alias in node.names} if isinstance(node, ast.ImportFrom) and is_import else set()
            if dotted(node) in names or imported & names:
                bad.append(f"{module.name}:{getattr(node, 'lineno', 0)} reads the environment")
    return bad


def _is_true(node: ast.Call, keyword: str) -> bool:
    return any(k.arg == keyword and isinstance(k.value, ast.Constant) and k.value.value is True for k in node.keywords)


def unsafe_calls(modules: dict[str, Module]) -> list[str]:
    """Whatever could run code that a file brings along."""
    bad = []
    for module in modules.values():
        for node, _ in running_nodes(module.tree):
            where = f"{module.name}:{getattr(node, 'lineno', 0)}"
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
                if module.name not in MAY_UNPICKLE:
                    bad += [f"{where} imports {name}" for name in names if name.partition(".")[0] in PICKLES]
            if isinstance(node, ast.Attribute) and dotted(node.value) in PICKLES and not node.attr.endswith("Error"):
                bad.append(f"{where} uses {dotted(node)}")
            if not isinstance(node, ast.Call):
                continue
            name = dotted(node.func)
            if name in ("eval", "exec", "compile", "__import__", "builtins.eval", "builtins.exec"):
                bad.append(f"{where} calls {name}")
            if name in ("os.system", "os.popen") or _is_true(node, "shell"):
                bad.append(f"{where} starts a shell")
            if name in ("yaml.load", "yaml.unsafe_load", "yaml.full_load"):
                bad.append(f"{where} calls {name}; write yaml.safe_load")
            if name == "torch.load":
                if module.name not in MAY_UNPICKLE:
                    bad.append(f"{where} calls torch.load; write bolide.checkpoint.file.read_checkpoint")
                elif not _is_true(node, "weights_only"):
                    bad.append(f"{where} calls torch.load without weights_only=True")
            if name in ("importlib.import_module", "import_module"):
                literal = bool(node.args) and isinstance(node.args[0], ast.Constant)
                if not literal and module.name not in MAY_IMPORT_BY_NAME and not module.is_package:
                    bad.append(f"{where} imports what a variable names")
    return bad


def core_offences(modules: dict[str, Module]) -> list[str]:
    """core/ knows neither other processes nor files."""
    bad = []
    for module in modules.values():
        if module.part != "core":
            continue
        bad += [str(found) for found in imports_of(module, modules) if found.target.startswith("torch.distributed")]
        for node, _ in running_nodes(module.tree):
            where = f"{module.name}:{getattr(node, 'lineno', 0)}"
            if isinstance(node, ast.Attribute) and dotted(node).startswith("torch.distributed"):
                bad.append(f"{where} uses torch.distributed")
            if isinstance(node, ast.Call):
                opens = dotted(node.func) in ("open", "io.open", "os.open")
                reads = isinstance(node.func, ast.Attribute) and node.func.attr in (
                    "read_text", "read_bytes", "write_text", "write_bytes", "mkdir", "makedirs", "unlink",
                )  # fmt: skip
                if opens or reads:
                    bad.append(f"{where} touches files")
    return bad


def code_lines(source: str) -> int:
    """Lines that hold code: no blanks, no comments, no docstrings (a string that stands alone)."""
    texts: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            texts |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    skipped = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in skipped:
            lines |= set(range(token.start[0], token.end[0] + 1))
    return len(lines - texts)


def long_files(modules: dict[str, Module]) -> list[str]:
    counts = {name: code_lines(module.source) for name, module in modules.items()}
    return [f"{name} has {count} lines of code" for name, count in counts.items() if count > MAX_CODE_LINES]


def undocumented(modules: dict[str, Module]) -> list[str]:
    return [f"{name} does not say what it is for" for name, m in modules.items() if not ast.get_docstring(m.tree)]


def unreachable(modules: dict[str, Module]) -> list[str]:
    """What stands behind a return or a raise: also a method that slipped into the function above it."""
    bad = []
    for module in modules.values():
        for node in ast.walk(module.tree):
            for block in (getattr(node, field, None) for field in ("body", "orelse", "finalbody")):
                for one, after in pairwise(block) if isinstance(block, list) else ():
                    if isinstance(one, (ast.Return, ast.Raise, ast.Continue, ast.Break)):
                        bad.append(f"{module.name}:{after.lineno} is never reached")
    return bad


def unused(modules: dict[str, Module]) -> list[str]:
    """Functions, classes and constants of a module that no line of the package names, as code or as text."""
    made: list[tuple[str, str, int]] = []
    named: Counter[str] = Counter()
    for module in modules.values():
        for node in module.tree.body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                made.append((module.name, node.name, node.lineno))
            elif isinstance(node, (ast.Assign, ast.AnnAssign)):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                made += [(module.name, target.id, node.lineno) for target in targets if isinstance(target, ast.Name)]
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                named[node.id] += 1
            elif isinstance(node, ast.Attribute):
                named[node.attr] += 1
            elif isinstance(node, ast.alias):
                named[node.name.rpartition(".")[2]] += 1
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                named.update(re.findall(r"\w+", node.value))
    private = [one for one in made if not one[1].startswith("__") and f"{one[0]}.{one[1]}" not in FOR_USERS]
    private = [one for one in private if modules[one[0]].part not in PARTS_FOR_USERS]
    return [f"{where}:{line} {name} is used nowhere" for where, name, line in private if not named[name]]


RULES = [
    unplaced, upward_imports, imports_across_halves, imports_of_front_doors, cycles, environment_reads, unsafe_calls,
    core_offences, long_files, undocumented, unreachable, unused,
]  # fmt: skip


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_package_keeps(rule, modules):
    assert not rule(modules), "\n" + "\n".join(rule(modules))


# ---- each rule sees what it is there for

OFFENCES: dict[str, tuple[object, dict[str, str]]] = {
    "an upward import": (upward_imports, {"p.core.a": "from p.engine import b", "p.engine.b": ""}),
    "an upward import inside a function": (
        upward_imports,
        {"p.log": "def f():\n    import p.trainer.trainer", "p.trainer.trainer": ""},
    ),
    "an upward import by text": (
        upward_imports,
        {"p.data.a": "import importlib\nimportlib.import_module('p.callbacks.c')", "p.callbacks.c": ""},
    ),
    "a relative upward import": (upward_imports, {"p.core.a": "from ..engine import b", "p.engine.b": ""}),
    "the package's own names, from below": (upward_imports, {"p.core.a": "from p import Trainer", "p": ""}),
    "the drop-in is above compat": (upward_imports, {"p.compat.a": "import p.compat.drop_in", "p.compat.drop_in": ""}),
    "the engine and callbacks": (
        imports_across_halves,
        {"p.engine.a": "from p.callbacks.c import C", "p.callbacks.c": ""},
    ),
    "loggers and the engine": (imports_across_halves, {"p.loggers.a": "import p.engine.b", "p.engine.b": ""}),
    "compat from below": (
        imports_of_front_doors,
        {"p.engine.a": "from p.compat import views", "p.compat": "", "p.compat.views": ""},
    ),
    "a cycle of two": (cycles, {"p.core.a": "import p.core.b", "p.core.b": "import p.core.a"}),
    "a cycle through a function": (
        cycles,
        {"p.core.a": "import p.core.b", "p.core.b": "import p.core.c", "p.core.c": "def f(): import p.core.a"},
    ),
    "os.environ": (environment_reads, {"p.engine.a": "import os\nx = os.environ['A']"}),
    "os.getenv": (environment_reads, {"p.engine.a": "from os import getenv"}),
    "pickle": (unsafe_calls, {"p.engine.a": "def f():\n    import pickle"}),
    "eval": (unsafe_calls, {"p.engine.a": "eval('1')"}),
    "a shell": (unsafe_calls, {"p.engine.a": "import subprocess\nsubprocess.run('ls', shell=True)"}),
    "torch.load": (unsafe_calls, {"p.engine.a": "import torch\ntorch.load('f', weights_only=True)"}),
    "torch.load without weights_only": (unsafe_calls, {"bolide.checkpoint.file": "import torch\ntorch.load('f')"}),
    "pickle where only its errors may be used": (
        unsafe_calls,
        {"bolide.checkpoint.file": "import pickle\npickle.loads"},
    ),
    "an import of what a file names": (
        unsafe_calls,
        {"p.checkpoint.a": "import importlib\ndef f(name): importlib.import_module(name)"},
    ),
    "files in core": (core_offences, {"p.core.a": "def f():\n    return open('x')"}),
    "processes in core": (core_offences, {"p.core.a": "import torch\ntorch.distributed.barrier()"}),
    "a part in no layer": (unplaced, {"p.helpers": ""}),
    "a long file": (long_files, {"p.core.a": "x = 1\n" * (MAX_CODE_LINES + 1)}),
    "no docstring": (undocumented, {"p.core.a": "x = 1"}),
    "a method in a function": (
        unreachable,
        {"p.core.a": "def f():\n    return 1\n\n    def method(self): pass"},
    ),
    "a line behind a raise": (unreachable, {"p.core.a": "def f(x):\n    if x:\n        raise x\n        x()"}),
    "a function nobody calls": (unused, {"p.core.a": "def f(): pass"}),
    "a constant nobody reads": (unused, {"p.core.a": "A = 1\nA = 2", "p.core.b": "import p.core.a"}),
}

ALLOWED: dict[str, tuple[object, dict[str, str]]] = {
    "an import for types": (
        upward_imports,
        {
            "p.core.a": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from p.engine import b",
            "p.engine.b": "",
        },
    ),
    "a downward import": (upward_imports, {"p.engine.a": "from p.core import b", "p.core": "", "p.core.b": ""}),
    "the same layer": (upward_imports, {"p.log": "import p.world", "p.world": ""}),
    "a diamond": (
        cycles,
        {"p.a": "import p.b, p.c", "p.b": "import p.d", "p.c": "import p.d", "p.d": ""},
    ),
    "module.eval()": (unsafe_calls, {"p.engine.a": "def f(m): m.eval()"}),
    "a return in a branch": (unreachable, {"p.core.a": "def f(x):\n    if x:\n        return 1\n    return 2"}),
    "an imported function": (unused, {"p.core.a": "def f(): pass", "p.core.b": "from p.core.a import f"}),
    "a name in a table of names": (unused, {"p.core.a": "def f(): pass", "p.core": "__all__ = ['f']"}),
    "comments and docstrings": (long_files, {"p.core.a": '"""' + "text\n" * 600 + '"""\n' + "# why\n\n" * 600}),
}


def made_up(sources: dict[str, str]) -> dict[str, Module]:
    packages = {name.rpartition(".")[0] for name in sources}
    return {name: parse(name, source, name in packages) for name, source in sources.items()}


@pytest.mark.parametrize("case", OFFENCES)
def test_a_rule_sees(case):
    rule, sources = OFFENCES[case]
    assert rule(made_up(sources))


@pytest.mark.parametrize("case", ALLOWED)
def test_a_rule_allows(case):
    rule, sources = ALLOWED[case]
    assert not rule(made_up(sources))


# ---- what importing costs


def run_python(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_bolide_imports_nothing_that_is_optional_or_slow():
    loaded = run_python(
        """
        import sys
        import torch
        before = set(sys.modules)
        import bolide
        print(*sorted({name.partition(".")[0] for name in set(sys.modules) - before}))
        """
    ).split()
    assert "bolide" in loaded
    unwanted = {
        "lightning", "pytorch_lightning", "tensorboard", "tensorflow", "rich", "sklearn", "torchmetrics", "yaml",
        "fsspec", "tqdm", "transformers", "accelerate", "pandas", "matplotlib",
    }  # fmt: skip
    assert not unwanted & set(loaded)


def test_the_public_names_start_no_process_and_open_no_connection():
    seen = run_python(
        """
        import sys
        import torch
        seen = set()
        watched = ("socket.", "subprocess.", "os.system", "os.exec", "os.posix_spawn", "os.fork", "urllib.", "http.")
        sys.addaudithook(lambda event, args: seen.add(event) if event.startswith(watched) else None)
        import bolide
        bolide.Trainer, bolide.LightningModule, bolide.LightningDataModule, bolide.Callback, bolide.seed_everything
        bolide.callbacks.ModelCheckpoint, bolide.loggers.CSVLogger, bolide.utilities
        print(*sorted(seen))
        """
    )
    assert seen.split() == []


def test_every_public_name_is_there():
    run_python(
        """
        import bolide
        for name in bolide.__all__:
            getattr(bolide, name)
        """
    )

"""`bolide checkpoint inspect | verify | consolidate | convert | weights`: what is in it, and whether it is whole.

Owns what is printed and the exit codes; the work is done by checkpoint/. Called by cli/main.py.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from bolide.core.errors import CheckpointError, ConfigError, MissingPackageError
from bolide.core.text import printable

MAX_LINES = 200


def add_parsers(commands: Any, parser_class: Any) -> None:
    """Adds `checkpoint` and its five commands."""
    own = commands.add_parser(
        "checkpoint",
        help="look into a checkpoint, check it, make one file of shards, convert an old one, take the weights out",
        allow_abbrev=False,
    )
    kinds = own.add_subparsers(dest="action", metavar="ACTION", required=True, parser_class=parser_class)
    inspect = kinds.add_parser("inspect", help="what is in it: keys, shapes, sizes, step, versions", allow_abbrev=False)
    inspect.add_argument("path", metavar="PATH", help="a file, the folder of a sharded checkpoint, or a URL")
    verify = kinds.add_parser("verify", help="whether it is whole; exit code 1 where one is not", allow_abbrev=False)
    verify.add_argument("paths", metavar="PATH", nargs="+", help="files, folders of sharded checkpoints, or URLs")
    consolidate = kinds.add_parser(
        "consolidate",
        help="make one file of the folder of a sharded checkpoint",
        description="Writes whole tensors, so that torch, Lightning and every strategy read the file. Nothing that is "
        "there is overwritten, and the folder stays.",
        allow_abbrev=False,
    )
    consolidate.add_argument("path", metavar="DIR", help="the folder of a sharded checkpoint, or its URL")
    consolidate.add_argument("out", metavar="OUT", nargs="?", help="default: DIR with .consolidated before its ending")
    convert = kinds.add_parser(
        "convert",
        help="write an old, pickled file as plain data",
        description="Lists the classes that the file would build, and refuses until each is named after --trust. The "
        "file is read in a process of its own, which builds nothing else. What is no plain data is left out and named.",
        allow_abbrev=False,
    )
    convert.add_argument("old", metavar="OLD")
    convert.add_argument("new", metavar="NEW")
    convert.add_argument(
        "--trust", metavar="NAME", nargs="*", default=[], help="classes and functions that may be imported and called"
    )
    weights = kinds.add_parser("weights", help="write the weights as a safetensors file", allow_abbrev=False)
    weights.add_argument("path", metavar="PATH", help="a file, the folder of a sharded checkpoint, or a URL")
    weights.add_argument("out", metavar="OUT.safetensors")


def run_checkpoint(options: argparse.Namespace) -> int:
    """Runs the action that was asked for; returns the exit code."""
    if options.action == "inspect":
        return inspect_file(options.path)
    if options.action == "verify":
        return verify_files(options.paths)
    if options.action == "consolidate":
        return consolidate_folder(options.path, options.out)
    if options.action == "convert":
        return convert_file(options.old, options.new, options.trust)
    return write_weights(options.path, options.out)


# ---------------------------------------------------------------------- inspect


def inspect_file(path: str) -> int:
    """Prints what is in a file: its place, versions, keys, shapes, sizes. No value but counters and versions."""
    from bolide.checkpoint.read import read_checkpoint, verify_checkpoint
    from bolide.checkpoint.sharded import is_sharded

    report = verify_checkpoint(path)
    if not report.whole:
        raise CheckpointError(f"{path!r} is damaged: {report.problem}")
    checkpoint = without_reading(path) if is_sharded(path) else read_checkpoint(path, mmap=True)
    for line in description(checkpoint, report):
        print(printable(line))
    return 0


def without_reading(path: str) -> dict[str, Any]:
    """A sharded checkpoint with tensors of the right shapes and no memory."""
    import torch

    from bolide.checkpoint.sharded import contents_of
    from bolide.checkpoint.stored import map_stored, opened

    found: dict[str, Any] = map_stored(
        opened(path, contents_of(path)), lambda one: torch.empty(one.shape, dtype=one.dtype, device="meta")
    )
    return found


def description(checkpoint: Mapping[str, Any], report: Any) -> Iterator[str]:
    """The lines that tell what a checkpoint holds."""
    checked = {"sha256": "SHA-256 digests", "crc32": "CRC-32 sums (no digests: not written by Bolide)"}
    yield f"{'folder' if report.shards else 'file':<12}{report.path}"
    if report.shards:
        yield f"shards      {report.shards}"
    yield f"size        {size_text(report.size_bytes)}"
    yield f"whole       yes, by {checked.get(report.by, 'loading it')}"
    own = checkpoint.get("bolide")
    own = own if isinstance(own, Mapping) else {}
    about = report.about
    yield f"format      {own.get('format', 'of Lightning')}"
    if about is not None:
        yield f"written by  Bolide {about.bolide}, torch {about.torch}"
    for name, key in (("epoch", "epoch"), ("step", "global_step"), ("layout", "pytorch-lightning_version")):
        if key in checkpoint:
            yield f"{name:<12}{checkpoint[key]}"
    if about is not None and about.run_id:
        yield f"run         {about.run_id}"
    yield f"to resume   {'no, weights only' if 'optimizer_states' not in checkpoint else 'yes'}"
    for key, what in (
        ("hyper_parameters", "hyperparameters"), ("datamodule_hyper_parameters", "datamodule hyperparameters"),
    ):  # fmt: skip
        values = checkpoint.get(key)
        if isinstance(values, Mapping) and values:
            yield f"{what}: {', '.join(map(str, values))}"
    fingerprint = own.get("fingerprint")
    if isinstance(fingerprint, Mapping):
        yield "environment " + ", ".join(f"{name}={value}" for name, value in fingerprint.items())
    yield ""
    for key, value in checkpoint.items():
        count, size_bytes = tensors_in(value)
        what = f"{count} tensors, {size_text(size_bytes)}" if count else short(value)
        yield f"{key!s:<28}{what}"
    state = checkpoint.get("state_dict")
    if not isinstance(state, Mapping):
        return
    yield ""
    yield "weights"
    for number, (name, value) in enumerate(state.items()):
        if number == MAX_LINES:
            yield f"  ... and {len(state) - MAX_LINES} more"
            break
        yield f"  {name!s:<46}{short(value)}"


def tensors_in(value: Any) -> tuple[int, int]:
    """How many tensors there are in plain data, and their size in bytes."""
    import torch

    if isinstance(value, torch.Tensor):
        return 1, value.numel() * value.element_size()
    if isinstance(value, Mapping):
        value = list(value.values())
    if not isinstance(value, (list, tuple, set)):
        return 0, 0
    found = [tensors_in(one) for one in value]
    return sum(count for count, _ in found), sum(size for _, size in found)


def short(value: Any) -> str:
    """A value's kind and size; never a text that might be a secret."""
    import torch

    if isinstance(value, torch.Tensor):
        size = value.numel() * value.element_size()
        return f"{str(value.dtype).removeprefix('torch.'):<10}{tuple(value.shape)!s:<20} {size_text(size)}"
    if isinstance(value, Mapping):
        return f"{len(value)} entries: {', '.join(str(key)[:40] for key in list(value)[:6])}"
    if isinstance(value, (list, tuple, set)):
        return f"{type(value).__name__} of {len(value)}"
    return str(value) if isinstance(value, (bool, int, float, type(None))) else type(value).__name__


def size_text(size_bytes: int) -> str:
    """Bytes as a person reads them: "1.5 MB"."""
    size, units = float(size_bytes), ["B", "kB", "MB", "GB"]
    while size >= 1000 and len(units) > 1:
        size /= 1000
        units.pop(0)
    return f"{size:.0f} B" if units[0] == "B" else f"{size:.1f} {units[0]}"


# ---------------------------------------------------------------------- verify


def verify_files(paths: list[str]) -> int:
    """Prints a line for each file; returns 1 where one is damaged or missing."""
    from bolide.checkpoint.read import verify_checkpoint

    code = 0
    for path in paths:
        try:
            report = verify_checkpoint(path)
        except (CheckpointError, OSError) as error:
            print(f"FAILED   {printable(path)}: {printable(str(error))}")
            code = 1
            continue
        if not report.whole:
            print(f"DAMAGED  {printable(path)}: {printable(report.problem)}")
            code = 1
            continue
        step = f", step {report.about.step}" if report.about is not None else ""
        by = "" if report.by == "sha256" else f", checked by {'CRC-32' if report.by == 'crc32' else 'loading it'} only"
        shards = f" in {report.shards} shards" if report.shards else ""
        print(f"whole    {printable(path)} ({size_text(report.size_bytes)}{shards}{step}{by})")
    return code


# ---------------------------------------------------------------------- consolidate, convert, weights


def consolidate_folder(path: str, out: str | None) -> int:
    """Writes a sharded checkpoint as one file."""
    from bolide.checkpoint.consolidate import consolidate

    print(f"wrote {printable(consolidate(path, out))}")
    return 0


def convert_file(old: str, new: str, trusted: list[str]) -> int:
    """Writes an old file as plain data, or lists what it needs; returns 1 where that is not trusted."""
    from bolide.checkpoint.convert import convert, needed, refused

    names = needed(old)
    bad = refused(names)
    if bad:
        raise CheckpointError(f"{old!r} names code that is never run: {', '.join(bad)}. Do not load this file.")
    missing = [name for name in names if name not in trusted]
    if missing:
        print(f"{printable(old)} asks to import and call:")
        for name in names:
            print(f"  {printable(name)}{'' if name in missing else '   (trusted)'}")
        print("If you know all of these, and where the file comes from, write:")
        print(f"  bolide checkpoint convert {printable(old)} {printable(new)} --trust {printable(' '.join(names))}")
        return 1
    left_out = convert(old, new, trusted)
    for entry in left_out:
        print(f"left out: {printable(entry)}")
    print(f"wrote {printable(new)}")
    return 0


def write_weights(path: str, out: str) -> int:
    """Writes the `state_dict` of a checkpoint as a safetensors file.

    Raises:
        MissingPackageError: safetensors is not installed.
        CheckpointError: it holds no weights.
    """
    try:
        from safetensors.torch import save
    except ImportError as error:
        raise MissingPackageError("bolide checkpoint weights", "safetensors", "safetensors") from error
    import torch

    from bolide.checkpoint import io
    from bolide.checkpoint.read import read_checkpoint

    if os.path.lexists(out):
        raise ConfigError(f"{out!r} is there already; give another path")
    checkpoint = read_checkpoint(path, mmap=True)
    state = checkpoint.get("state_dict")
    if not isinstance(state, Mapping) or not state:
        raise CheckpointError(f"{path!r} holds no 'state_dict', so it has no weights")
    tensors = {str(name): value for name, value in state.items() if isinstance(value, torch.Tensor)}
    seen: set[int] = set()
    for name, value in tensors.items():
        shared = value.untyped_storage().data_ptr() in seen  # the format holds each tensor by itself
        seen.add(value.untyped_storage().data_ptr())
        tensors[name] = value.detach().clone().contiguous() if shared else value.detach().contiguous()
    counters = {key: str(checkpoint[key]) for key in ("epoch", "global_step") if key in checkpoint}
    data: bytes = save(tensors, {"format": "pt"} | counters)
    io.write_atomically(out, lambda file: file.write(data))
    left_out = [str(name) for name in state if str(name) not in tensors]
    for name in left_out:
        print(f"left out: {printable(name)} is no tensor", file=sys.stderr)
    print(f"wrote {printable(out)}: {len(tensors)} tensors, {size_text(len(data))}")
    return 0

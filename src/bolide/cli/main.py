"""The `bolide` console command: reads the arguments and calls the function that does the work.

Owns the names of the commands and their options, and turns an error that the user can mend into a line and an exit
code. What a command does stands in its own module, imported when it is asked for. Called by the `bolide` script and
by `python -m bolide.cli.main`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import NoReturn

from bolide.cli import checkpoint, estimate, launch
from bolide.core.errors import MisconfigurationException, did_you_mean
from bolide.core.text import printable

COMMANDS = ("checkpoint", "demo", "estimate", "goodput", "launch")


class Parser(argparse.ArgumentParser):
    """argparse's parser; an error ends with how to see the options."""

    def error(self, message: str) -> NoReturn:
        """Prints `message` and ends with exit code 2."""
        self.exit(2, f"{self.prog}: error: {message}\nFor the options write: {self.prog} --help\n")


def positive(text: str) -> int:
    """A whole number of at least 1."""
    number = int(text) if text.strip().lstrip("+-").isdecimal() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} given; expected a whole number of at least 1")
    return number


def build_parser() -> Parser:
    """The parser of the command line."""
    parser = Parser(prog="bolide", description="Trains PyTorch models.", allow_abbrev=False)
    parser.add_argument("--version", action="store_true", help="print the versions of Bolide, torch and Python")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser)
    demo = commands.add_parser(
        "demo",
        help="train a small network on 1,797 scanned digits, on CPU, in under a minute",
        description="Trains a small convolutional network on scikit-learn's handwritten digits, on CPU. "
        "Ctrl-C stops it with a checkpoint from which --resume goes on.",
        allow_abbrev=False,
    )
    demo.add_argument("--epochs", type=positive, default=15, metavar="N", help="how many epochs in all (%(default)s)")
    demo.add_argument("--out", default="runs/digits", metavar="DIR", help="where to write (%(default)s)")
    demo.add_argument("--resume", metavar="PATH", help="the checkpoint to go on from")
    checkpoint.add_parsers(commands, Parser)
    goodput = commands.add_parser("goodput", help="where the time of a run went", allow_abbrev=False)
    goodput.add_argument("folder", metavar="RUN_DIR")
    estimate.add_parser(commands)
    launch.add_parser(commands)
    return parser


def run(options: argparse.Namespace) -> int:
    """Calls the function of the command that was given; returns its exit code."""
    if options.command == "checkpoint":
        return checkpoint.run_checkpoint(options)
    if options.command == "goodput":
        from bolide.cli.goodput import run_goodput

        return run_goodput(options.folder)
    if options.command == "estimate":
        return estimate.run_estimate(options)
    if options.command == "launch":
        return launch.run_launch(options)
    from bolide.cli.demo import run_demo

    return run_demo(epochs=options.epochs, out=options.out, resume=options.resume)


def unknown_command(arguments: Sequence[str]) -> str | None:
    """The first word of `arguments` where a command is due, if there is no such command."""
    for word in arguments:
        if not word.startswith("-"):
            return None if word in COMMANDS else word
    return None


def versions() -> str:
    """One line: what is installed."""
    import torch

    import bolide

    return f"bolide {bolide.__version__} (torch {torch.__version__}, Python {sys.version.split()[0]})"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit code: 0 done, 1 an error told in a line, 2 wrong usage, 130 Ctrl-C."""
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = build_parser()
    unknown = unknown_command(arguments)
    if unknown is not None:
        known = ", ".join(COMMANDS)
        parser.error(f"there is no command {unknown!r}.{did_you_mean(unknown, COMMANDS)} Commands: {known}")
    options = parser.parse_args(arguments)
    if options.version:
        print(versions())
        return 0
    if options.command is None:
        parser.print_help()
        return 2
    try:
        return run(options)
    except (MisconfigurationException, OSError) as error:
        text = "\n".join(printable(line) for line in str(error).splitlines())
        print(f"bolide {options.command}: error: {text}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nstopped", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())

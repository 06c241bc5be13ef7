"""`bolide estimate`: runs a script up to its fit, and prints what that would take. Called by cli/main.py."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from typing import Any

from bolide.core import env
from bolide.core.errors import ConfigError
from bolide.strategies.estimate import memory_of


def add_parser(commands: Any) -> None:
    """The options of `bolide estimate`."""
    parser = commands.add_parser(
        "estimate",
        help="what a script's training takes on each device, before it is started",
        description="Runs SCRIPT up to its first trainer.fit, prints a table of bytes, and ends there.",
        allow_abbrev=False,
    )
    parser.add_argument("--devices", default="1,2,4,8", metavar="N,N", help="numbers of devices (%(default)s)")
    parser.add_argument("--memory", metavar="SIZE", help="what a device has, as 80GB (default: the first GPU's)")
    parser.add_argument("script", metavar="SCRIPT")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...", help="the script's own arguments")


def run_estimate(options: argparse.Namespace) -> int:
    """Runs the script, whose trainer prints the table; returns the exit code.

    Raises:
        ConfigError: no such script, or wrong numbers.
    """
    if not os.path.isfile(options.script):
        raise ConfigError(f"there is no script {options.script!r}")
    if not all(part.strip().isdigit() and int(part) for part in options.devices.split(",")):
        raise ConfigError(f"--devices {options.devices}: expected numbers of at least 1, as in 1,2,4")
    memory_of(options.memory)
    env.set("BOLIDE_ESTIMATE", f"{options.devices};{options.memory or ''}")
    done = subprocess.run([sys.executable, options.script, *options.arguments], check=False)
    return done.returncode

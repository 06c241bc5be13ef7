"""`bolide launch`: starts a script as ranks, on this machine or as one of several. Called by cli/main.py.

What it does is the same as what a Trainer with several devices does for its own script: torch's elastic agent, with a
report of the rank that failed first, and restarts.
"""

from __future__ import annotations

import argparse
import ipaddress
import os
import re
import sys
from typing import Any

from bolide.cli import launch_ray
from bolide.core.errors import ConfigError

ELASTIC_RESTARTS = 3
"""Restarts where the number of machines may change: the loss of one makes the ranks of the others fail."""


def add_parser(commands: Any) -> None:
    """The options of `bolide launch`."""
    parser = commands.add_parser(
        "launch",
        help="run a script as several processes, on this machine or on many",
        description="Starts a script as ranks by torch's elastic agent. On several machines, start the same command on "
        "each, with the same --endpoint and --run-id.",
        allow_abbrev=False,
    )
    parser.add_argument("--nproc", default="auto", metavar="N", help="processes on this machine (auto: one a GPU)")
    parser.add_argument("--nnodes", default="1", metavar="N", help="machines, or the least and the most: 1:4")
    parser.add_argument("--endpoint", metavar="HOST:PORT", help="where the machines meet; needed for several")
    parser.add_argument(
        "--local-addr", metavar="IP",
        help="this machine's address for the others (that from which the way to --endpoint starts)",
    )  # fmt: skip
    parser.add_argument("--run-id", metavar="NAME", help="the same on all machines (bolide)")
    parser.add_argument(
        "--max-restarts", type=int, metavar="N",
        help="restarts of a failed group, counted anew once it came further; the loss of a machine is one "
        f"(0; {ELASTIC_RESTARTS} with --nnodes MIN:MAX)",
    )  # fmt: skip
    parser.add_argument("--hang-timeout-s", type=float, metavar="S", help="silence after which a rank counts as hung")
    launch_ray.add_options(parser)
    parser.add_argument("-m", dest="module", action="store_true", help="SCRIPT is a module's name, as in python -m")
    parser.add_argument("script", metavar="SCRIPT")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...", help="the script's own arguments")


def run_launch(options: argparse.Namespace) -> int:
    """Starts the ranks; returns the group's exit code.

    Raises:
        ConfigError: a number that is none, several machines without a place to meet, no such script.
    """
    if options.ray:
        return launch_ray.run_on_ray(options)
    launch_ray.refuse_without_ray(options)
    count = process_count(options.nproc)
    least, greatest = node_counts(options.nnodes)
    if greatest > 1 and options.endpoint is None:
        raise ConfigError("--nnodes above 1 needs --endpoint HOST:PORT, the same on all machines")
    if options.endpoint is not None and not is_endpoint(options.endpoint):
        raise ConfigError(f"--endpoint {options.endpoint}: expected HOST:PORT, such as head:29400")
    if options.local_addr is not None and not is_address(options.local_addr):
        raise ConfigError(f"--local-addr {options.local_addr}: expected an IP address of this machine")
    restarts = options.max_restarts
    if restarts is None:
        restarts = ELASTIC_RESTARTS if least < greatest else 0
    if restarts < 0 or (options.hang_timeout_s is not None and options.hang_timeout_s <= 0):
        raise ConfigError("--max-restarts must be at least 0, and --hang-timeout-s above 0")
    if not options.module and not os.path.isfile(options.script):
        raise ConfigError(f"there is no script {options.script!r}")
    what = ["-m", options.script] if options.module else [options.script]
    from bolide.launch.agent import Launch, run_ranks

    launch = Launch(
        [sys.executable, *what, *options.arguments],
        count,
        nodes=(least, greatest),
        endpoint=options.endpoint,
        local_address=options.local_addr,
        run_id=options.run_id or "bolide",
        max_restarts=restarts,
        hang_timeout_s=options.hang_timeout_s,
        # a machine that is gone is noticed within some seconds, and the others go on without it
        settings={"keep_alive_interval": 1, "keep_alive_max_attempt": 3, "last_call_timeout": 3}
        if options.endpoint is not None
        else {},
    )
    return run_ranks(launch)


def is_endpoint(text: str) -> bool:
    """Whether `text` is a host, or a host and a port."""
    match = re.fullmatch(r"(\[[0-9a-fA-F:]+\]|[^:/]+)(?::([0-9]{1,5}))?", text)
    return match is not None and int(match[2] or 0) < 1 << 16


def is_address(text: str) -> bool:
    """Whether `text` is an IP address."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def process_count(text: str) -> int:
    """The number of processes that `--nproc` means.

    Raises:
        ConfigError: no number of at least 1.
    """
    if text in ("auto", "gpu"):
        import torch

        return max(torch.cuda.device_count(), 1)
    if not text.isdigit() or int(text) < 1:
        raise ConfigError(f"--nproc {text}: expected a number of at least 1, or auto")
    return int(text)


def node_counts(text: str) -> tuple[int, int]:
    """The least and the greatest number of machines that `--nnodes` means.

    Raises:
        ConfigError: neither N nor MIN:MAX.
    """
    least, _, greatest = text.partition(":")
    greatest = greatest or least
    if not (least.isdigit() and greatest.isdigit()) or not 1 <= int(least) <= int(greatest):
        raise ConfigError(f"--nnodes {text}: expected a number of machines, or the least and the greatest, as in 1:4")
    return int(least), int(greatest)

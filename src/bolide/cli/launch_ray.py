"""`bolide launch --ray`: the options, and what they become for launch/ray. Called by cli/launch."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

from bolide.core.errors import ConfigError
from bolide.core.text import printable

FOR_RAY_ONLY = {
    "num_workers": None, "address": None, "storage_path": None, "working_dir": None, "cpus_per_worker": None,
}  # fmt: skip
FOR_THE_AGENT_ONLY = {"nproc": "auto", "nnodes": "1", "endpoint": None, "local_addr": None, "hang_timeout_s": None}


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options that go with --ray."""
    group = parser.add_argument_group("on a Ray cluster")
    group.add_argument("--ray", action="store_true", help="run the script on a Ray cluster, by Ray Train")
    group.add_argument("--num-workers", type=int, metavar="N", help="processes in all (1)")
    group.add_argument("--address", metavar="HOST:PORT", help="the cluster (RAY_ADDRESS, else Ray is started here)")
    group.add_argument("--storage-path", metavar="DIR", help="a folder or URL that all machines see (ray_results)")
    group.add_argument("--working-dir", metavar="DIR", help="a folder that Ray sends to all machines")
    group.add_argument("--cpus-per-worker", type=float, metavar="N", help="CPU slots for each process (1)")


def refuse_without_ray(options: argparse.Namespace) -> None:
    """Raises ConfigError where an option is given that only --ray has a use for."""
    _refuse(options, FOR_RAY_ONLY, "goes with --ray only")


def run_on_ray(options: argparse.Namespace) -> int:
    """Runs the script on Ray; returns the exit code: 1 where a worker failed for good.

    Raises:
        ConfigError: an option that Ray has no use for, a wrong number, no such script.
        MissingPackageError: Ray is not installed.
    """
    _refuse(options, FOR_THE_AGENT_ONLY, "is for torch's agent; Ray places --num-workers processes, and watches them")
    if not options.module and options.working_dir is None and not os.path.isfile(options.script):
        raise ConfigError(f"there is no script {options.script!r}")
    if options.max_restarts is not None and options.max_restarts < 0:
        raise ConfigError("--max-restarts must be at least 0")
    folder = options.working_dir
    if folder is not None and "://" not in folder and not os.path.exists(folder):
        raise ConfigError(f"--working-dir {folder}: there is no such folder")
    from bolide.launch.processes import RankError
    from bolide.launch.ray import run_script

    given: dict[str, Any] = {
        "num_workers": options.num_workers, "address": options.address, "storage_path": options.storage_path,
        "cpus_per_worker": options.cpus_per_worker, "name": options.run_id,
        "runtime_env": None if options.working_dir is None else {"working_dir": options.working_dir},
    }  # fmt: skip
    asked = {name: value for name, value in given.items() if value is not None}
    try:
        run_script(
            options.script, options.arguments, is_module=options.module, max_failures=options.max_restarts or 0, **asked
        )
    except RankError as error:
        text = "\n".join(printable(line) for line in str(error).splitlines())
        print(f"bolide: {text}", file=sys.stderr, flush=True)
        return 1
    return 0


def _refuse(options: argparse.Namespace, defaults: dict[str, Any], why: str) -> None:
    wrong = [f"--{name.replace('_', '-')} {why}" for name, value in defaults.items() if getattr(options, name) != value]
    if wrong:
        raise ConfigError(wrong)

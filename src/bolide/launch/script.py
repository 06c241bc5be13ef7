"""Whether there is a script that can be run again as ranks, how, and what to do where there is none.

Who calls: the Trainer, when its first function is called and several processes are asked for.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Literal

import torch

from bolide.core import env
from bolide.core.errors import ConfigError
from bolide.launch.environments import RayEnvironment
from bolide.world import in_notebook

Start = Literal["script", "spawn", "fork"]


def script_command() -> list[str] | None:
    """The command that runs this program again; None in a notebook, a REPL, a test, or under `python -c`."""
    main = sys.modules.get("__main__")
    path = getattr(main, "__file__", None)
    if path is None or not os.path.isfile(path) or sys.argv[:1] == ["-c"] or in_notebook() or in_test():
        return None
    if hasattr(sys, "ps1") or sys.flags.interactive:
        return None
    original = list(sys.orig_argv[1:])
    # the folder may have been changed since: name the script itself
    names = [i for i, word in enumerate(original) if os.path.basename(word) == os.path.basename(path)]
    if names and getattr(main, "__spec__", None) is None:
        original[names[0]] = os.path.abspath(path)
    return [sys.executable, *original]


def in_test() -> bool:
    """Whether pytest runs a test in this process."""
    return "_pytest" in sys.modules and env.get("PYTEST_CURRENT_TEST") is not None


def in_event_loop() -> bool:
    """Whether this is called from within a running event loop that is not a notebook's own."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return not in_notebook()


def how_to_start(asked: Start | None, name: str, devices: int) -> tuple[Start, list[str]]:
    """How the ranks are started, and for "script" by which command.

    Args:
        asked: "spawn" or "fork" where the strategy says so.
        name: the strategy's name, for errors.
        devices: how many processes, for errors.

    Raises:
        ConfigError: within a worker of Ray or a running event loop, or forked after CUDA was started.
    """
    if RayEnvironment.detect():
        raise ConfigError(
            f"devices={devices} in a worker of Ray, which starts no processes itself: leave devices= out, and write "
            f"num_workers={devices} (bolide launch --ray --num-workers {devices})"
        )
    if in_event_loop():
        raise ConfigError(
            f"devices={devices} within a running event loop: starting the ranks would block it. Call the trainer "
            "outside of async code, or in a thread that runs no loop (asyncio.to_thread)"
        )
    if asked is None or asked == "script":
        command = script_command()
        if command is not None:
            return "script", command
        asked = "fork" if hasattr(os, "fork") else "spawn"
        if torch.cuda.is_available() and torch.cuda.is_initialized() and not in_notebook():
            asked = "spawn"
    if asked == "fork" and torch.cuda.is_available() and torch.cuda.is_initialized():
        raise ConfigError(
            f"strategy={name!r} forks this process, and CUDA was started in it already (by a tensor.cuda(), or by "
            "torch.cuda functions): restart the kernel and touch no GPU before the trainer does, or write devices=1"
        )
    return asked, []

"""Opening and closing the process group, and what a rank owes to the agent that started it.

Owns the store at which ranks meet, the backend, the heartbeat, and a rank's end when its agent is gone. Who calls: the
strategies, when a run begins; the Trainer, when it is made in a started process.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import errno
import faulthandler
import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist

from bolide.core import env
from bolide.core.errors import ConfigError
from bolide.launch.environments import ClusterEnvironment, restart_count
from bolide.world import World

STACKS_SIGNAL = signal.SIGUSR2
"""The agent asks a rank by it to print the stacks of all its threads."""

BEAT_EVERY_S = 0.25
"""A rank leaves word that it is alive no more often than this."""

END_WITHIN_S = 10.0
"""The first rank waits no longer than so for the others to end."""

_PR_SET_PDEATHSIG = 1


def open_group(world: World, environment: ClusterEnvironment | None, backend: str | None, timeout: timedelta) -> None:
    """Opens the group of all ranks, once a process.

    Args:
        world: this rank among all.
        environment: who started the ranks; None where this process is alone.
        backend: torch's name of it; default: gloo, with NCCL beside it for tensors on CUDA.
        timeout: how long a collective may wait for the slowest rank.

    Raises:
        ConfigError: the port is in use, or there is a group of another size.
    """
    if dist.is_initialized():
        if dist.get_world_size() != world.world_size:
            raise ConfigError(
                f"There is a process group of {dist.get_world_size()} process(es), and this Trainer is for "
                f"{world.world_size}: give it as many devices, or call torch.distributed.destroy_process_group() first"
            )
        return
    if backend is None:
        backend = "cpu:gloo,cuda:nccl" if world.device.type == "cuda" else "gloo"
    try:
        store = _store(world, environment, timeout)
        dist.init_process_group(
            backend, store=store, rank=world.global_rank, world_size=world.world_size, timeout=timeout
        )
    except (RuntimeError, OSError) as error:
        in_use = getattr(error, "errno", None) == errno.EADDRINUSE or "EADDRINUSE" in str(error)
        if in_use or "address already in use" in str(error).lower():
            raise ConfigError(
                f"MASTER_PORT={env.get('MASTER_PORT')}: the port is in use by another program on this machine; set "
                "MASTER_PORT to a free one"
            ) from error
        raise
    opened.store, opened.failed = store, False
    atexit.register(close_group)


def _store(world: World, environment: ClusterEnvironment | None, timeout: timedelta) -> Any:
    if world.world_size == 1:
        return dist.HashStore()
    assert environment is not None
    env.set("MASTER_ADDR", environment.main_address)
    env.set("MASTER_PORT", str(environment.main_port))
    env.set("WORLD_SIZE", str(world.world_size))
    env.set("RANK", str(world.global_rank))
    rendezvous = dist.rendezvous("env://", world.global_rank, world.world_size, timeout=timeout)
    store, _, _ = next(iter(rendezvous))
    if env.get("GROUP_WORLD_SIZE") == "1" and restart_count():
        # a torchrun of which the store outlives the attempt would give us the addresses of dead ranks; until torch
        # prefixes it by itself. Agents of several machines may count differently.
        return dist.PrefixStore(f"attempt_{restart_count()}", store)
    return store


class Opened:
    """The group of this process: its store, and whether a run in it has failed."""

    def __init__(self) -> None:
        self.store: Any = None
        self.failed = False

    def wait_for_the_others(self) -> None:
        """The first rank, whose process has the store, ends last: torch's threads abort where it is gone under them."""
        store, self.store = self.store, None
        if store is None or self.failed or getattr(sys, "last_value", None) is not None:
            return
        with contextlib.suppress(RuntimeError):
            ended = store.add("bolide/ended", 1)
            deadline_s = time.monotonic() + END_WITHIN_S
            while dist.get_rank() == 0 and ended < dist.get_world_size() and time.monotonic() < deadline_s:
                time.sleep(0.01)
                ended = store.add("bolide/ended", 0)


opened = Opened()


def close_group() -> None:
    """Closes the group, at the end of the process."""
    if dist.is_available() and dist.is_initialized():
        opened.wait_for_the_others()
        with contextlib.suppress(RuntimeError):  # the other ranks may be gone
            dist.destroy_process_group()


def die_with_agent() -> None:
    """In a process that an elastic agent started: ends when the agent does; Bolide's may ask it for its stacks."""
    # an agent makes each rank the leader of a session: what is none was started by a program in between
    if env.get("TORCHELASTIC_RUN_ID") is None or os.getsid(0) != os.getpid():
        return
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    agent = env.get("BOLIDE_AGENT_PID")
    if agent is None:
        return
    if os.getppid() != int(agent):
        os._exit(1)  # it died before this line
    if signal.getsignal(STACKS_SIGNAL) == signal.SIG_DFL:
        faulthandler.register(STACKS_SIGNAL, file=sys.__stderr__ or 2, all_threads=True)


class Heartbeat:
    """Word to the agent that this rank is alive, and how far it is: a file a rank, touched at most every so often."""

    def __init__(self, rank: int) -> None:
        folder = env.get("BOLIDE_HEARTBEATS")
        self._path = Path(folder) / f"{rank}.txt" if folder else None
        self._next_s = 0.0

    def beat(self, batches: int) -> None:
        """This rank has done so many batches."""
        if self._path is None:
            return
        now_s = time.monotonic()
        if now_s < self._next_s:
            return
        self._next_s = now_s + BEAT_EVERY_S
        with contextlib.suppress(OSError):  # the agent is gone, and with it the folder
            self._path.write_text(str(batches), encoding="ascii")


def is_watched() -> bool:
    """Whether an agent looks for this rank's signs of life."""
    return env.get("BOLIDE_HEARTBEATS") is not None

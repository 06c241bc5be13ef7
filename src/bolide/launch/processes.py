"""Ranks that are spawned or forked from a running program, and what comes back from the first of them.

Used where there is no script to run again: tests, notebooks, a REPL. The first failure ends all, and is raised in the
program with the rank's traceback. Who calls: the Trainer.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import Any

import torch
import torch.multiprocessing as multiprocessing

from bolide.core import env
from bolide.world import cpu_count

HANDED_DOWN = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
FIRST_ERROR_WITHIN_S = 1.0
"""After one rank has failed, the others' word is waited for so long: the cause may be another's."""

TAKEN_WITHIN_S = 60.0
"""A rank that is done waits so long for its answer to be taken."""


class RankError(RuntimeError):
    """A rank failed; the message holds its traceback."""

    def __init__(self, rank: int, told: str) -> None:
        super().__init__(f"Rank {rank} failed.\n\n{told}")
        self.rank = rank


def run_in_processes(work: Callable[..., Any], arguments: tuple[Any, ...], count: int, fork: bool) -> Any:
    """Runs `work(*arguments)` in `count` new processes, as ranks; returns what it returned on the first.

    Raises:
        RankError: a rank raised or died; the others were ended.
    """
    context: Any = multiprocessing.get_context("fork" if fork else "spawn")
    port = free_port()
    pairs = [context.Pipe() for _ in range(count)]
    threads = 1 if fork else max(1, cpu_count() // count)  # the pool of threads does not survive a fork
    processes = [
        context.Process(
            target=_rank_main, args=(work, arguments, rank, count, port, pairs[rank][1], threads), name=f"rank{rank}"
        )
        for rank in range(count)
    ]
    try:
        for process in processes:
            process.start()
        for _, sender in pairs:
            sender.close()
        return _watched(processes, [receiver for receiver, _ in pairs])
    finally:
        for process in processes:
            if process.pid is not None:
                if process.is_alive():
                    process.kill()
                process.join()
                process.close()


def _watched(processes: list[Any], receivers: list[Connection]) -> Any:
    """Waits for all; the answer of the first rank."""
    answers: dict[int, Any] = {}
    failures: dict[int, tuple[float, str]] = {}
    waiting = set(range(len(processes)))
    deadline_s: float | None = None
    while waiting and (deadline_s is None or time.monotonic() < deadline_s):
        # a rank that dies leaves its pipe open in its forked siblings: its end shows by its sentinel alone
        wait([receivers[rank] for rank in waiting] + [processes[rank].sentinel for rank in waiting], timeout=0.2)
        for rank in sorted(waiting):
            if not receivers[rank].poll():
                if processes[rank].is_alive() or receivers[rank].poll():
                    continue
                code = processes[rank].exitcode or 0
                how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
                failures[rank] = (time.time(), f"The process {how}.")
            else:
                kind, at_s, value = receivers[rank].recv()
                with contextlib.suppress(OSError):
                    receivers[rank].send("taken")
                if kind == "answer":
                    answers[rank] = value
                else:
                    failures[rank] = (at_s, value)
            waiting.discard(rank)
            if failures and deadline_s is None:
                deadline_s = time.monotonic() + FIRST_ERROR_WITHIN_S
    if failures:
        first = min(failures, key=lambda rank: failures[rank][0])
        raise RankError(first, failures[first][1])
    for process in processes:
        process.join()
    return answers.get(0)


def _rank_main(
    work: Callable[..., Any], arguments: tuple[Any, ...], rank: int, count: int, port: int, sender: Connection,
    threads: int,
) -> None:  # fmt: skip
    """A rank's life, in the new process."""
    os.setpgrp()  # Ctrl-C reaches the parent, which ends the ranks
    values = (rank, rank, count, count, "127.0.0.1", port)
    for name, value in zip(HANDED_DOWN, values, strict=True):
        env.set(name, str(value))
    env.set("BOLIDE_AGENT_PID", str(os.getppid()))
    env.unset("PYTEST_CURRENT_TEST")
    torch.set_num_threads(threads)
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, signal.SIG_DFL if signum == signal.SIGTERM else signal.default_int_handler)
    code = 0
    try:
        sender.send(("answer", time.time(), work(*arguments)))
    except BaseException:  # noqa: BLE001  # told to the parent, which raises it
        code = 1
        with contextlib.suppress(OSError, ValueError):
            sender.send(("error", time.time(), traceback.format_exc()))
    finally:
        with contextlib.suppress(OSError, EOFError):
            sender.poll(TAKEN_WITHIN_S)  # tensors are in this process's memory until they are taken
        sender.close()
        from bolide.launch.group import close_group

        close_group()
        os._exit(code)  # what the parent registered for its own end is not run here


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])

"""Torch's elastic agent with Bolide's rules: who dies takes the group along, who hangs is found, progress renews.

Owns the agent, its report and the exit code. Ranks are ordinary programs of their own, started by torch's engine; on
several machines each has an agent, and they meet at a rendezvous. Who calls: the Trainer through launch/script, and
`bolide launch`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch.distributed.elastic.agent.server.api import DEFAULT_ROLE, RunResult, WorkerGroup, WorkerSpec, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousError,
    RendezvousParameters,
    RendezvousTimeoutError,
    registry,
)
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import DEFAULT_PORT
from torch.distributed.elastic.rendezvous.utils import parse_rendezvous_endpoint

from bolide.core import env
from bolide.launch import address
from bolide.launch.group import STACKS_SIGNAL
from bolide.world import cpu_count

KILL_WITHIN_S = 2
"""After the death of a rank the rest of the group is killed at once, and waited for so long."""

STOP_WITHIN_S = 60
"""After a stop from outside the ranks have so long to save, then they are killed."""

MONITOR_EVERY_S = 0.1

ANSWERS_WITHIN_S = 20
"""The machine with the meeting place is taken for gone where nothing is heard from it for so long."""


@dataclass(frozen=True)
class Launch:
    """What the agent starts, and how it watches it.

    Attributes:
        command: the program and its arguments, as each rank runs them.
        count: how many ranks on this machine.
        nodes: the least and the greatest number of machines.
        endpoint: "host:port" of the rendezvous; None: this machine alone.
        local_address: by which the other machines reach this one; None: that from which the way to `endpoint` starts.
        run_id: the rendezvous's name, the same on all machines.
        max_restarts: how often a failed group starts again; the count begins anew once it came further than before.
        hang_timeout_s: a rank that gave no sign of life for so long has the group ended; None: never.
        settings: further settings of the rendezvous.
    """

    command: Sequence[str]
    count: int
    nodes: tuple[int, int] = (1, 1)
    endpoint: str | None = None
    local_address: str | None = None
    run_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    max_restarts: int = 0
    hang_timeout_s: float | None = None
    settings: dict[str, Any] = field(default_factory=dict)


def run_ranks(launch: Launch) -> int:
    """Starts the ranks, watches them to their end, and starts them again as often as is allowed.

    Returns:
        The exit code of the group: 0, or that of the rank that failed first; 128 and the signal where one ended it.
    """
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # the report below says it in a line
    with _prepared(launch) as folder:
        agent, lost = None, False
        try:
            agent = Agent(launch, Heartbeats(folder, launch.count))
            result = agent.run()
        except SignalException as stop:
            return 128 + int(stop.sigval)
        except RendezvousError as error:
            lost = isinstance(error, RendezvousConnectionError)
            _say(why_alone(launch, error))
            return 1
        finally:
            if agent is not None and not lost:  # it would be waited for once more
                with contextlib.suppress(Exception):  # the store is on a machine that may be gone
                    agent.spec.rdzv_handler.shutdown()
        if result is not None and result.is_failed():
            return agent.exit_code
        return 0


@contextlib.contextmanager
def _prepared(launch: Launch) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="bolide_"))
    env.set("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    env.set("TORCHELASTIC_SIGNALS_TO_HANDLE", "SIGTERM,SIGINT,SIGHUP,SIGQUIT")
    env.set("BOLIDE_AGENT_PID", str(os.getpid()))
    env.set("BOLIDE_HEARTBEATS", str(folder))
    if env.get("OMP_NUM_THREADS") is None:
        env.set("OMP_NUM_THREADS", str(max(1, cpu_count() // launch.count)))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class Heartbeats:
    """What the ranks of this machine leave word of: one file each, which says how far it is."""

    def __init__(self, folder: Path, count: int) -> None:
        self.folder, self.count = folder, count

    def clear(self) -> None:
        """A new attempt begins: nobody is watched before its first word."""
        for path in self.folder.glob("*.txt"):
            path.unlink(missing_ok=True)

    def furthest(self) -> int:
        """How many batches the rank that is furthest has done, as last told."""
        found = [-1]
        for path in self.folder.glob("*.txt"):
            with contextlib.suppress(OSError, ValueError):
                found.append(int(path.read_text(encoding="ascii")))
        return max(found)

    def silent(self, timeout_s: float) -> list[tuple[int, float]]:
        """The ranks that have said something and then nothing for longer than `timeout_s`, each with for how long."""
        now_s, found = time.time(), []
        for path in sorted(self.folder.glob("*.txt")):
            with contextlib.suppress(OSError):
                quiet_s = now_s - path.stat().st_mtime
                if quiet_s > timeout_s:
                    found.append((int(path.stem), quiet_s))
        return found


class Agent(LocalElasticAgent):
    """One machine's agent."""

    def __init__(self, launch: Launch, beats: Heartbeats) -> None:
        self.launch, self.beats = launch, beats
        endpoint, place = meeting_place(launch)
        parameters = RendezvousParameters(
            backend="c10d",
            endpoint=endpoint,
            run_id=launch.run_id,
            min_nodes=launch.nodes[0],
            max_nodes=launch.nodes[1],
            **{**place, **launch.settings},
        )
        handler = registry.get_rendezvous_handler(parameters)
        if launch.endpoint is not None:
            address.give_up_after(*parse_rendezvous_endpoint(endpoint, DEFAULT_PORT), ANSWERS_WITHIN_S)
        self.spec = WorkerSpec(
            role="rank",
            local_world_size=launch.count,
            rdzv_handler=handler,
            entrypoint=launch.command[0],
            args=tuple(launch.command[1:]),
            max_restarts=launch.max_restarts,
            monitor_interval=MONITOR_EVERY_S,
        )
        super().__init__(self.spec, logs_specs=DefaultLogsSpecs(), exit_barrier_timeout=STOP_WITHIN_S,
                         shutdown_timeout=STOP_WITHIN_S)  # fmt: skip
        self.exit_code = 1
        self._furthest = -1
        self._starts = 0

    def _invoke_run(self, role: str = DEFAULT_ROLE) -> RunResult:
        try:
            return super()._invoke_run(role)
        except RendezvousError:
            self._kill()  # its ranks wait for those of machines that are gone
            raise

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        self.beats.clear()
        # torch's own count of restarts leaves out those for a machine that came or went
        env.set("BOLIDE_STARTS", str(self._starts))
        self._starts += 1
        return super()._start_workers(worker_group)

    def _stop_workers(self, worker_group: WorkerGroup) -> None:
        if worker_group.state == WorkerState.HEALTHY:
            # machines come or go: the ranks are asked to stop, and save at the next step boundary
            self._shutdown(signal.SIGTERM, timeout=STOP_WITHIN_S)
        else:
            self._kill()

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        failed = self._first_failed()
        if failed is not None:
            # before torch's own look at them, which would ask the others to end and wait: a rank that is blocked in a
            # collective runs no handler
            self._kill()
            self._tell(worker_group, *failed)
        hung = [] if failed is not None else self._hung()
        if hung:
            self._tell_hung(worker_group, hung)
            self._kill()
        result = super()._monitor_workers(worker_group)
        if hung and result.state != WorkerState.SUCCEEDED:
            result = RunResult(state=WorkerState.FAILED, failures=result.failures)
        if result.state == WorkerState.FAILED:
            self._renew()
            self._say_restart()
        return result

    # ------------------------------------------------------------------ the ranks of this machine

    @property
    def _processes(self) -> dict[int, Any]:
        handlers = getattr(self._pcontext, "subprocess_handlers", None) or {}
        return {local_rank: handler.proc for local_rank, handler in handlers.items()}

    def _first_failed(self) -> tuple[int, int, int] | None:
        """(local rank, process, exit code) of a rank that ended otherwise than by 0; a signal that killed it first."""
        ended = {rank: process for rank, process in self._processes.items() if process.poll() not in (None, 0)}
        if not ended:
            return None
        told = [rank for rank in ended if self._error_of(rank) is not None]
        # of several that ended between two looks: who left an error, else who was killed, is likelier the cause
        rank = min(told or ended, key=lambda r: (self._error_time(r), ended[r].returncode > 0, r))
        return rank, ended[rank].pid, ended[rank].returncode

    def _error_file(self, local_rank: int) -> Path | None:
        files = getattr(self._pcontext, "error_files", None) or {}
        return Path(files[local_rank]) if files.get(local_rank) else None

    def _error_of(self, local_rank: int) -> str | None:
        import json

        path = self._error_file(local_rank)
        try:
            found = json.loads(path.read_text(encoding="utf-8")) if path is not None else None
        except (OSError, ValueError):
            return None
        message = (found or {}).get("message")
        if isinstance(message, dict):
            message = message.get("message")
        return str(message) if message else None

    def _error_time(self, local_rank: int) -> float:
        path = self._error_file(local_rank)
        try:
            return path.stat().st_mtime if path is not None else float("inf")
        except OSError:
            return float("inf")

    def _hung(self) -> list[tuple[int, float]]:
        timeout_s = self.launch.hang_timeout_s
        return [] if timeout_s is None else self.beats.silent(timeout_s)

    def _kill(self) -> None:
        """Ends all ranks of this machine at once, with whatever they have started, and waits until they are gone."""
        processes = self._processes.values()
        for process in processes:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                # each rank leads a group of its own, in which its loader workers are, too
                os.killpg(process.pid, signal.SIGKILL)
        deadline_s = time.monotonic() + KILL_WITHIN_S
        for process in processes:
            with contextlib.suppress(Exception):  # one that cannot even be killed is left to the system
                process.wait(max(0.0, deadline_s - time.monotonic()))

    def _renew(self) -> None:
        """Restarts count anew once the group came further than at its last failure."""
        furthest = self.beats.furthest()
        if furthest > self._furthest:
            self._furthest = furthest
            used = self.spec.max_restarts - self._remaining_restarts
            # both, so that the number of the attempt, which is what lies between them, goes on counting
            self.spec.max_restarts = used + self.launch.max_restarts
            self._remaining_restarts = self.launch.max_restarts

    # ------------------------------------------------------------------ the report

    def _tell(self, worker_group: WorkerGroup, local_rank: int, pid: int, code: int) -> None:
        rank = worker_group.workers[local_rank].global_rank
        size = worker_group.workers[local_rank].world_size
        if code < 0:
            self.exit_code, how = 128 - code, f"was ended by {_signal_name(-code)}"
        else:
            self.exit_code, how = code, f"ended with exit code {code}"
        error = self._error_of(local_rank)
        why = f": {error}" if error else ""
        _say(f"Rank {rank} of {size} (process {pid}) {how}{why}. The other ranks were stopped.")

    def _tell_hung(self, worker_group: WorkerGroup, hung: list[tuple[int, float]]) -> None:
        self.exit_code = 1
        who = ", ".join(f"rank {rank} for {quiet_s:.0f} s" for rank, quiet_s in hung)
        _say(
            f"No sign of life from {who} (hang_timeout_s={self.launch.hang_timeout_s:g}). The stacks of all ranks of "
            "this machine follow; then the group is stopped."
        )
        for local_rank, process in sorted(self._processes.items()):
            _say(f"Stacks of rank {worker_group.workers[local_rank].global_rank} (process {process.pid}):")
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, STACKS_SIGNAL)
            time.sleep(0.3)  # so that they come one after the other

    def _say_restart(self) -> None:
        if self._remaining_restarts > 0:
            _say(f"The group starts again; {self._remaining_restarts - 1} more restart(s) after this one.")
        elif self.launch.max_restarts:
            _say(f"max_restarts={self.launch.max_restarts} are used up.")


def meeting_place(launch: Launch) -> tuple[str, dict[str, Any]]:
    """Where the agents meet, and as what this one goes there: its address, and whether the place is its own."""
    if launch.endpoint is None:
        return "127.0.0.1:0", {"local_addr": "127.0.0.1", "is_host": "1"}
    host, port = parse_rendezvous_endpoint(launch.endpoint, default_port=DEFAULT_PORT)
    own = launch.local_address or address.towards(host, port)
    if own is None:
        return launch.endpoint, {}
    if env.get("GLOO_SOCKET_IFNAME") is None:
        interface = address.interface_of(own)
        if interface is not None:  # gloo would take the one that the host's name means
            env.set("GLOO_SOCKET_IFNAME", interface)
    is_host = address.hosts(host, port, own)
    return launch.endpoint, {"local_addr": own, **({} if is_host is None else {"is_host": str(int(is_host))})}


def why_alone(launch: Launch, error: Exception) -> str:
    """Why this machine's agent cannot go on with those of the others."""
    where = f"at {launch.endpoint} ({launch.run_id!r})"
    if isinstance(error, RendezvousClosedError):
        return f"The run {where} is over: the agent of another machine has ended it."
    if isinstance(error, RendezvousTimeoutError):
        return f"Fewer than {launch.nodes[0]} machine(s) came together {where}."
    why = str(error.__cause__ or error).partition("\n")[0]
    return f"The agents meet {where}, and the machine there does not answer (any more): {why}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _say(text: str) -> None:
    print(f"bolide: {text}", file=sys.stderr, flush=True)

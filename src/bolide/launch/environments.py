"""What launchers and clusters tell each process: its number among all, and where the first one is.

Owns the reading of torchrun's, Ray's, LSF's, MPI's, Kubeflow's and a bare launcher's variables, and the order in which
they are looked for; SLURM's are in launch/slurm. It starts nothing. Who calls: the world, when a Trainer is made.
"""

from __future__ import annotations

import importlib.util
import socket
from typing import Any

from bolide.core import env
from bolide.core.errors import ConfigError

DEFAULT_PORT = 12910


class ClusterEnvironment:
    """A launcher that has started this process, or will not start it: then there is one process.

    Subclass it for a launcher of one's own, and give it as `Trainer(plugins=[...])`.
    """

    name = "launcher"

    @staticmethod
    def detect() -> bool:
        """Whether this process was started by it."""
        return False

    @property
    def creates_processes_externally(self) -> bool:
        """Whether all processes are there already, so that the Trainer starts none."""
        return True

    @property
    def main_address(self) -> str:
        """The host of the first process."""
        return env.get("MASTER_ADDR") or "127.0.0.1"

    @property
    def main_port(self) -> int:
        """The port on which the first process meets the others."""
        return _number("MASTER_PORT", DEFAULT_PORT)

    def world_size(self) -> int:
        """How many processes there are."""
        return _number("WORLD_SIZE", 1)

    def global_rank(self) -> int:
        """This process's number among all."""
        return _number("RANK", 0)

    def local_rank(self) -> int:
        """This process's number on its machine."""
        return _number("LOCAL_RANK", 0)

    def node_rank(self) -> int:
        """This machine's number."""
        return _number("GROUP_RANK", 0)

    def local_world_size(self) -> int | None:
        """How many processes this machine has, where the launcher tells."""
        return None

    def set_world_size(self, size: int) -> None:
        """The number of processes is the launcher's to set."""

    def set_global_rank(self, rank: int) -> None:
        """The rank is the launcher's to set."""

    def teardown(self) -> None:
        """A run is over."""


class TorchElasticEnvironment(ClusterEnvironment):
    """torchrun, or Bolide's own agent, which stands on the same engine."""

    name = "torchrun"

    @staticmethod
    def detect() -> bool:
        """Whether torch's elastic agent started this process."""
        return env.get("TORCHELASTIC_RUN_ID") is not None

    def local_world_size(self) -> int | None:
        """How many processes this machine has."""
        return _number("LOCAL_WORLD_SIZE", 1)

    @property
    def restart_count(self) -> int:
        """How often the agent has started this group again."""
        return _number("TORCHELASTIC_RESTART_COUNT", 0)


class RayEnvironment(ClusterEnvironment):
    """A worker of Ray Train's, which launch/ray has started."""

    name = "Ray"

    @staticmethod
    def detect() -> bool:
        """Whether this is such a worker."""
        return env.get("BOLIDE_RAY_ATTEMPT") is not None

    def node_rank(self) -> int:
        """This machine's number."""
        return _number("NODE_RANK", 0)

    def local_world_size(self) -> int | None:
        """How many workers this machine has."""
        return _number("LOCAL_WORLD_SIZE", 1)


class LSFEnvironment(ClusterEnvironment):
    """LSF's jsrun."""

    name = "LSF"

    @staticmethod
    def detect() -> bool:
        """Whether jsrun started this process."""
        needed = ("LSB_JOBID", "LSB_DJOB_RANKFILE", "JSM_NAMESPACE_LOCAL_RANK", "JSM_NAMESPACE_SIZE")
        return all(env.get(name) is not None for name in needed)

    @property
    def main_address(self) -> str:
        """The first host that the job's rank file names behind the launch node."""
        path = env.get("LSB_DJOB_RANKFILE") or ""
        try:
            with open(path, encoding="utf-8") as file:
                hosts = [line.strip() for line in file if line.strip()]
        except OSError as error:
            raise ConfigError(f"LSB_DJOB_RANKFILE={path!r} cannot be read: {error}") from error
        distinct = list(dict.fromkeys(hosts))
        if not distinct:
            raise ConfigError(f"LSB_DJOB_RANKFILE={path!r} names no host")
        return distinct[1] if len(distinct) > 1 else distinct[0]

    @property
    def main_port(self) -> int:
        """The port of MASTER_PORT, else one that the job's number gives."""
        return _number("MASTER_PORT", port_of_job(env.get("LSB_JOBID")))

    def world_size(self) -> int:
        """How many processes there are."""
        return _number("JSM_NAMESPACE_SIZE", 1)

    def global_rank(self) -> int:
        """This process's number among all."""
        return _number("JSM_NAMESPACE_RANK", 0)

    def local_rank(self) -> int:
        """This process's number on its machine."""
        return _number("JSM_NAMESPACE_LOCAL_RANK", 0)

    def node_rank(self) -> int:
        """This machine's number: its place among the hosts of the rank file."""
        with open(env.get("LSB_DJOB_RANKFILE") or "", encoding="utf-8") as file:
            hosts = list(dict.fromkeys(line.strip() for line in file if line.strip()))[1:]
        name = socket.gethostname()
        return hosts.index(name) if name in hosts else 0


class MPIEnvironment(ClusterEnvironment):
    """mpirun, with mpi4py installed."""

    name = "MPI"

    def __init__(self) -> None:
        from mpi4py import MPI

        self._comm: Any = MPI.COMM_WORLD
        self._local: Any = None
        self._address: str | None = None

    @staticmethod
    def detect() -> bool:
        """Whether mpirun started several processes."""
        # importing mpi4py starts MPI, so that is done only where a launcher has left its mark
        if not any(env.get(name) for name in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK")):
            return False
        if importlib.util.find_spec("mpi4py") is None:
            return False
        from mpi4py import MPI

        return bool(MPI.COMM_WORLD.Get_size() > 1)

    @property
    def main_address(self) -> str:
        """The host of rank 0, which tells it to the others."""
        if self._address is None:
            self._address = str(self._comm.bcast(socket.gethostname(), root=0))
        return self._address

    def world_size(self) -> int:
        """How many processes there are."""
        return int(self._comm.Get_size())

    def global_rank(self) -> int:
        """This process's number among all."""
        return int(self._comm.Get_rank())

    def local_rank(self) -> int:
        """This process's number on its machine."""
        if self._local is None:
            hosts = self._comm.allgather(socket.gethostname())
            self._local = hosts[: self.global_rank()].count(socket.gethostname())
        return int(self._local)

    def node_rank(self) -> int:
        """This machine's number, in the order of the ranks."""
        hosts = list(dict.fromkeys(self._comm.allgather(socket.gethostname())))
        return hosts.index(socket.gethostname())


class KubeflowEnvironment(ClusterEnvironment):
    """Kubeflow's PyTorchJob, one process a pod. Give it as a plugin: its variables are those of any launcher."""

    name = "Kubeflow"

    def local_rank(self) -> int:
        """One process a pod."""
        return 0

    def node_rank(self) -> int:
        """The pod's number, which is the process's."""
        return self.global_rank()

    def local_world_size(self) -> int | None:
        """One process a pod."""
        return 1


class LightningEnvironment(ClusterEnvironment):
    """Processes that somebody else started with LOCAL_RANK (and RANK or NODE_RANK) set; else this is the only one."""

    name = "launcher"

    def __init__(self) -> None:
        self._size: int | None = None
        self._rank: int | None = None

    @staticmethod
    def detect() -> bool:
        """Whether LOCAL_RANK is set."""
        return env.get("LOCAL_RANK") is not None

    @property
    def creates_processes_externally(self) -> bool:
        """Whether LOCAL_RANK is set."""
        return self.detect()

    def world_size(self) -> int:
        """WORLD_SIZE, or what was set."""
        return self._size if self._size is not None else _number("WORLD_SIZE", 1)

    def global_rank(self) -> int:
        """RANK, or what was set, or what NODE_RANK and LOCAL_RANK give."""
        if self._rank is not None:
            return self._rank
        each = self.local_world_size()
        return _number("RANK", self.node_rank() * (each or 1) + self.local_rank())

    def node_rank(self) -> int:
        """NODE_RANK or GROUP_RANK."""
        return _number("NODE_RANK", _number("GROUP_RANK", 0))

    def local_world_size(self) -> int | None:
        """LOCAL_WORLD_SIZE, where it is set."""
        return _number("LOCAL_WORLD_SIZE", 0) or None

    def set_world_size(self, size: int) -> None:
        """How many processes there are."""
        self._size = size

    def set_global_rank(self, rank: int) -> None:
        """This process's number among all."""
        self._rank = rank


def restart_count() -> int:
    """How often an elastic agent, or Ray, has started this group again; 0 without one."""
    return _number("TORCHELASTIC_RESTART_COUNT", _number("BOLIDE_RAY_ATTEMPT", 0))


def started_before() -> bool:
    """Whether this process's agent has started the group before: after a failure, or as a machine came or went."""
    return restart_count() > 0 or _number("BOLIDE_STARTS", 0) > 0


def port_of_job(job: str | None) -> int:
    """A port that all processes of a job find, and that jobs of one machine rarely share."""
    digits = "".join(character for character in job or "" if character.isdigit())
    return 15000 + int(digits[-4:]) if digits else DEFAULT_PORT


def _number(name: str, default: int) -> int:
    text = env.get(name)
    if text is None or not text.strip():
        return default
    try:
        return int(text)
    except ValueError as error:
        raise ConfigError(f"The environment variable {name}={text!r} is no number") from error

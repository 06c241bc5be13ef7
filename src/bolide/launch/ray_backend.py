"""What Ray Train does in its workers before the training: it tells each its place, and opens no process group.

Bolide's strategies open the group, with the backend and timeout that they are given; Ray's own would stand in their
way. This module imports Ray at its head, so it is imported late. Who calls: launch/ray; Ray, in its controller.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import ray
import ray.train
from ray.exceptions import RayActorError
from ray.train import UserCallback
from ray.train.backend import Backend
from ray.train.torch import TorchConfig, TorchTrainer

from bolide.core import env
from bolide.engine.ranks import SIGNS_OF_ANOTHERS_END
from bolide.launch.processes import free_port

NOT_OURS = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "BOLIDE_AGENT_PID", "BOLIDE_HEARTBEATS",
            "BOLIDE_RUN_DIR", "GROUP_RANK", "GROUP_WORLD_SIZE")  # fmt: skip
"""What a launcher of the program that called Ray has set; a worker of a local cluster inherits it."""


@dataclass
class PlaceOnly(TorchConfig):
    """Ray Train's settings for torch, with a backend that only sets variables.

    Attributes:
        variables: further ones of core/env's table, for each worker.
    """

    variables: dict[str, str] = field(default_factory=dict)

    @property
    def backend_cls(self) -> type[Backend]:
        """The backend."""
        return PlaceBackend


class PlaceBackend(Backend):
    """Sets the variables by which a Trainer knows its place; one object for all attempts of a run."""

    share_cuda_visible_devices = True
    """The workers of a machine see the GPUs of all of them, and take the one of their local rank."""

    def __init__(self) -> None:
        self.attempt = 0

    def on_start(self, worker_group: Any, backend_config: PlaceOnly) -> None:
        """The workers are there."""
        host, port = worker_group.execute_single(0, meeting_place)
        values = {
            **backend_config.variables,
            "MASTER_ADDR": host,
            "MASTER_PORT": str(port),
            "BOLIDE_RAY_ATTEMPT": str(self.attempt),
        }
        worker_group.execute(take_place, values)
        if self.attempt:
            _say(f"Ray has started the group again: attempt {self.attempt + 1}.")
        self.attempt += 1

    def on_shutdown(self, worker_group: Any, backend_config: PlaceOnly) -> None:
        """Nothing: each worker has closed its group, or is blocked in it, and Ray ends its process."""


def meeting_place() -> tuple[str, int]:
    """In the first worker: its address in the cluster, and a free port."""
    return ray.util.get_node_ip_address(), free_port()


def take_place(values: dict[str, str]) -> None:
    """In each worker: its variables."""
    for name in NOT_OURS:
        env.unset(name)
    context = ray.train.get_context()
    own = {
        "RANK": context.get_world_rank(),
        "WORLD_SIZE": context.get_world_size(),
        "LOCAL_RANK": context.get_local_rank(),
        "LOCAL_WORLD_SIZE": context.get_local_world_size(),
        "NODE_RANK": context.get_node_rank(),
    }
    for name, value in {**values, **own}.items():
        env.set(name, str(value))


class AloneTrainer(TorchTrainer):
    """Ray Train on a Ray that was started for this one run, and ends with it: without the process that tidies up.

    That process asks the dashboard, which such a Ray lacks, and complains each second. Goes when it no longer does.
    """

    def _create_default_callbacks(self) -> list[Any]:
        made = super()._create_default_callbacks()
        return [one for one in made if type(one).__name__ != "PlacementGroupCleanerCallback"]


class Told(UserCallback):
    """Says which rank failed, in few words where its process was lost; Ray's own text is long."""

    def after_exception(self, run_context: Any, worker_exceptions: dict[int, Exception]) -> None:
        """An attempt is over."""
        rank = first_failed(worker_exceptions)
        _say(f"Rank {rank} failed: {told(worker_exceptions[rank])}")


def first_failed(failures: Mapping[int, BaseException]) -> int:
    """The rank whose failure is the cause: of several, one that does not merely say that another one is gone."""
    own = [rank for rank, error in failures.items() if not any(sign in str(error) for sign in SIGNS_OF_ANOTHERS_END)]
    return min(own or failures)


def told(error: BaseException) -> str:
    """What went wrong in a worker: its traceback, or that its process is gone."""
    lost = getattr(error, "health_check_failure", None)
    return "its process was lost (killed, out of memory, or its machine is gone)" if isinstance(
        lost, RayActorError
    ) else str(error)  # fmt: skip


def _say(text: str) -> None:
    print(f"bolide: {text}", file=sys.stderr, flush=True)  # in Ray's controller, which hands it to the program

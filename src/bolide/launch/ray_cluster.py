"""Connecting to Ray, and leaving it: a cluster that is there, or one of this machine's own that ends with the work.

Owns how Ray is started here: on loopback, without a dashboard, without a report of its use to anybody. A Ray cluster
trusts its members: whoever can reach its ports runs code in it. Who calls: launch/ray and tuner/on_ray.
"""

from __future__ import annotations

import contextlib
import importlib.util
import math
import os
from collections.abc import Iterator
from typing import Any

from bolide.core import env
from bolide.core.errors import ConfigError, MissingPackageError
from bolide.core.messages import warn
from bolide.world import cpu_count

NEEDED = ("ray", "pandas", "pyarrow")
"""Ray, and what its Train and Tune import, which Ray alone does not bring."""


def require_ray(feature: str) -> None:
    """Looks whether Ray is there.

    Raises:
        MissingPackageError: it is not, or not with what ray.train and ray.tune need.
    """
    for name in NEEDED:
        if importlib.util.find_spec(name) is None:
            raise MissingPackageError(feature, name, "ray")


@contextlib.contextmanager
def connected(
    feature: str,
    *,
    cpus: float,
    address: str | None = None,
    runtime_env: dict[str, Any] | None = None,
    log_to_driver: bool = True,
) -> Iterator[tuple[Any, bool]]:
    """The package `ray`, connected, and whether Ray was started for it; it is disconnected, and ended, afterwards.

    Args:
        feature: what needs Ray, for an error.
        cpus: how many CPUs the work asks of Ray; a cluster of this machine's own has at least as many slots.
        address: of a cluster, "host:port", "ray://host:port" or "auto"; None: RAY_ADDRESS, else one that is started.
        runtime_env: what Ray prepares on each machine: {"working_dir": ".", "pip": [...]}.
        log_to_driver: whether what the workers print is printed here.

    Raises:
        MissingPackageError: Ray is not installed.
        ConfigError: this process is connected already, and an address or a runtime_env was given; no cluster there.
    """
    require_ray(feature)
    here = (address or env.get("RAY_ADDRESS")) in (None, "", "local")
    if here:
        # Ray has no other way to bind loopback on Linux; where it was imported before, its token alone keeps others out
        env.set("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    import ray

    if ray.is_initialized():
        if address is not None or runtime_env:
            name = "address" if address is not None else "runtime_env"
            raise ConfigError(f"{name}=...: this process is connected to Ray already; leave {name} out")
        _tell_of_shortage(ray, cpus)
        yield ray, False
        return
    options: dict[str, Any] = {"runtime_env": runtime_env, "log_to_driver": log_to_driver, "logging_level": "WARNING"}
    if env.get("RAY_USAGE_STATS_ENABLED") is None:
        env.set("RAY_USAGE_STATS_ENABLED", "0")
    if here:
        options |= {"num_cpus": max(cpu_count(), math.ceil(cpus)), "include_dashboard": False}
    try:
        ray.init(address="local" if here else address or env.get("RAY_ADDRESS"), **options)
    except ConnectionError as error:
        raise ConfigError(f"address={address!r}: no Ray cluster answers there: {error}") from error
    try:
        _tell_of_shortage(ray, cpus)
        yield ray, here
    finally:
        ray.shutdown()


def folder_for_workers(ray: Any) -> str | None:
    """The current folder, in which the workers are to run; None where Ray sends them one."""
    sent = ray.get_runtime_context().runtime_env.get("working_dir")
    return None if sent else os.getcwd()


def enter(folder: str | None) -> None:
    """In a worker: goes to that folder, where the machine has one of that name."""
    if folder is not None and os.path.isdir(folder):
        os.chdir(folder)


def _tell_of_shortage(ray: Any, cpus: float) -> None:
    there = ray.cluster_resources().get("CPU", 0)
    if there < cpus:
        warn(
            f"The Ray cluster has {there:g} CPU slot(s), and this asks for {cpus:g}: it waits until there are more. "
            "Fewer workers, or less than 1 CPU for each, need no waiting"
        )

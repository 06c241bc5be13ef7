"""Getting DeepSpeed ready in a rank: the package, its logger, the operators that it compiles, locks of dead compilers.

Owns nothing of training. DeepSpeed compiles C++ or CUDA at first use and keeps the result in torch's folder for
extensions; a compiler that was killed leaves a lock there, on which every later process waits without a word. Who
calls: DeepSpeedStrategy.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import logging
import os
import sys
import time
import warnings
from pathlib import Path
from typing import Any

from packaging.version import Version

from bolide.core import env
from bolide.core.errors import ConfigError, MissingPackageError
from bolide.core.messages import info, warn
from bolide.strategies.deepspeed_config import get

OLDEST = "0.19.8"
"""The oldest release that is known to train as this package says."""

INFERENCE_OPERATOR = "deepspeed_shm_comm"
"""A reduction for inference on CPUs, which DeepSpeed compiles as it starts, for a minute and more; training has no use
for it."""

YOUNG_LOCK_S = 600.0
"""Where several machines share the folder, a lock so young may be that of a compiler on another one."""

OFFLOADS = ("zero_optimization.offload_optimizer", "zero_optimization.offload_param")


def need_package(name: str) -> None:
    """Refuses the strategy `name` where DeepSpeed is not installed, or is too old.

    Raises:
        MissingPackageError: with the command that installs it.
        ConfigError: of an older release, which would take no notice of what it does not know.
    """
    try:
        found = importlib.util.find_spec("deepspeed") is not None
    except (ImportError, ValueError):
        found = False
    if not found:
        raise MissingPackageError(name, "deepspeed", "deepspeed")
    installed = importlib.metadata.version("deepspeed")
    if Version(installed) < Version(OLDEST):
        raise ConfigError(
            f"{name} needs DeepSpeed {OLDEST} or newer, and {installed} is installed. Write: pip install "
            '"bolide[deepspeed]"'
        )


def load(device_type: str, level: int) -> Any:
    """The package, with its logger at `level`, for devices of that type; without its operator for inference."""
    if device_type == "cpu" and env.get("DS_ACCELERATOR") is None:
        env.set("DS_ACCELERATOR", "cpu")  # else it takes a GPU where there is one
    import deepspeed
    import deepspeed.ops

    logging.getLogger("DeepSpeed").setLevel(level)
    # torch says so at each of DeepSpeed's calls; until DeepSpeed calls these functions by their new names
    old_names = "`torch.distributed.(all_gather_into_tensor|reduce_scatter_tensor)` is deprecated"
    warnings.filterwarnings("ignore", old_names, FutureWarning)
    # a table that DeepSpeed keeps to be edited: what is not compatible is not compiled. Where it is not made yet, a
    # short one spares each rank the compilers that find out, and their complaints
    if device_type == "cpu" and "__compatible_ops__" not in vars(deepspeed.ops):
        deepspeed.ops.__compatible_ops__ = {}
    deepspeed.ops.__compatible_ops__[INFERENCE_OPERATOR] = False
    return deepspeed


def extensions_folders() -> list[Path]:
    """Where torch keeps what it has compiled for this Python: folders with one folder for each extension."""
    given = env.get("TORCH_EXTENSIONS_DIR")
    if given:
        return [Path(given)]
    from torch.utils.cpp_extension import get_default_build_root

    version = f"py{sys.version_info.major}{sys.version_info.minor}"
    return list(Path(get_default_build_root()).glob(f"{version}*"))


def operators() -> list[str]:
    """The names of DeepSpeed's operators, which are those of their folders."""
    from deepspeed.ops.op_builder.all_ops import ALL_OPS

    return list(ALL_OPS)


def held_files() -> set[str] | None:
    """The files that processes of this machine have open, as far as they may be seen; None where nothing tells."""
    root = Path("/proc")
    if not root.is_dir():
        return None
    found = set()
    for folder in root.glob("[0-9]*/fd"):
        try:
            for link in folder.iterdir():
                try:
                    found.add(os.readlink(link))
                except OSError:
                    continue
        except OSError:  # another user's process, or one that has just ended
            continue
    return found


def refuse_stale_locks(folders: list[Path], names: list[str], machines: int = 1) -> None:
    """Refuses to start where a lock of a compiler that is gone would have every rank wait for ever.

    torch's lock is a file that the compiling process has open until it is done. One that no process of this machine has
    open is left over, unless another machine of the run compiles there.

    Raises:
        ConfigError: names the lock and how to delete it.
    """
    locks = [folder / name / "lock" for folder in folders for name in names]
    locks = [lock for lock in locks if lock.exists()]
    if not locks:
        return
    held = held_files()
    stale = [lock for lock in locks if held is None or str(lock.resolve()) not in held]
    for lock in [one for one in locks if one not in stale]:
        info(f"DeepSpeed's operator {lock.parent.name!r} is being compiled by another process: this run waits for it.")
    if not stale:
        return
    which = " ".join(str(lock) for lock in stale)
    ages_s = [time.time() - lock.stat().st_mtime for lock in stale if lock.exists()]
    text = (
        f"{which}: a compiler of DeepSpeed's operators that was killed has left this lock behind, and every process "
        f"that needs the operator would wait for it for ever. Delete it: rm {which}"
    )
    if machines > 1 and ages_s and max(ages_s) < YOUNG_LOCK_S:
        warn(f"{text}\nIt is young, and another machine may be compiling: this run waits for it.")
        return
    raise ConfigError(text)


def refuse_unbuildable(config: dict[str, Any]) -> None:
    """Refuses offloading to disks where the operator for it cannot be compiled, and a folder that is not there.

    Raises:
        ConfigError: says what is missing.
    """
    wanted = [place for place in OFFLOADS if get(config, f"{place}.device") == "nvme"]
    if not wanted:
        return
    from deepspeed.ops.op_builder import AsyncIOBuilder

    if not AsyncIOBuilder().is_compatible(verbose=False):
        raise ConfigError(
            "offloading to 'nvme' needs DeepSpeed's operator async_io, which cannot be compiled here: install the "
            "headers of libaio (Debian: apt install libaio-dev) and a C++ compiler, or offload to 'cpu' with "
            "strategy='deepspeed_stage_3_offload'"
        )
    for place in wanted:
        path = get(config, f"{place}.nvme_path")
        if path is None or not Path(str(path)).is_dir():
            raise ConfigError(f"DeepSpeedStrategy(nvme_path={path!r}): there is no such folder; name one")

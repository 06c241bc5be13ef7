"""What the engine needs to go on from a checkpoint folder that transformers wrote.

Such a folder holds no place in the data; it follows from the step, as the order of an epoch follows from the seed. It
has no manifest either: what was cut short shows in the files themselves. Who calls: folders.py.
"""

from __future__ import annotations

import json
import os
import re
import zipfile
from typing import Any

import numpy as np
import torch
from torch import nn

from bolide.checkpoint import io
from bolide.checkpoint.file import read_trusting
from bolide.core.errors import CheckpointError
from bolide.core.messages import info, warn
from bolide.core.progress import Progress
from bolide.data.position import generator_states, snapshot
from bolide.engine.resume import fingerprint
from bolide.log import Log
from bolide.seed import rng_state
from bolide.transformers import weights
from bolide.transformers.data import Windows
from bolide.transformers.state import read_state


def checkpoint_of(folder: str, owner: Any) -> dict[str, Any]:
    """The engine's own state as it stood when transformers wrote `folder`."""
    record = read_state(os.path.join(folder, "trainer_state.json"))
    step = int(record["global_step"])
    updates = owner._updates_per_epoch
    progress = Progress(step=step, total_batches=step, stepped_batches=step, optimizer_steps=step)
    progress.epoch, batch = divmod(step, updates) if updates else (0, step)
    if batch:
        progress.batch, progress.epoch_open = batch, True
        progress.step_before_epoch = step - batch
    info(
        f"{folder} was written by transformers: its place in the data is computed from step {step}; what callbacks "
        "keep beyond trainer_state.json, and losses logged since the last line, begin anew."
    )
    size = owner.args.gradient_accumulation_steps
    loader: Any = owner._engine_loader
    inner = getattr(loader, "loader", loader)
    now = snapshot(loader)
    reader: dict[str, Any] = {"at_iter": now, "at_first": None, "taken": batch, "pooled": False}
    if isinstance(loader, Windows):
        at = {"at_iter": snapshot(inner), "at_first": None, "taken": batch * size, "pooled": False}
        reader["loader"] = {"reader": at, "taken": batch * size}
    rng, data, log = _random_state(folder, owner.args), _data(loader, reader if batch else None), Log()
    mine = {"rng": rng, "data": data, "log": log.state_dict(nn.Module()), "gradients": None}
    world = _saved_by(folder) or owner.args.world_size
    return {
        "epoch": progress.epoch,
        "global_step": step,
        "callbacks": {},
        "bolide": {
            "format": 1,
            "progress": progress.state_dict(),
            "fingerprint": fingerprint(),
            **mine,
            "world_size": world,
            "ranks": [mine] * world,  # each rank reads the folder itself, and takes its own
            "boundary": None,
            "loggers": [],
            "loop": {
                "validated_this_epoch": False,
                "validation_names": [],
                "stepped_in_batch": True,
                "since_validation_s": 0.0,
                "val_steps_logged": {},
            },
        },
    }


def problem_of(folder: str) -> str | None:
    """Why a folder without a manifest cannot be gone on from; None where it can.

    It must hold the record, which is written last, and weights, and no file that ends too early.
    """
    record = os.path.join(folder, "trainer_state.json")
    if not os.path.isfile(record):
        return "trainer_state.json is missing: it was not written to its end"
    try:
        read_state(record)
    except ValueError:
        return "trainer_state.json was cut short"
    if not weights.are_in(folder):
        return "it holds no weights"
    for name in sorted(os.listdir(folder)):
        if _is_cut_short(os.path.join(folder, name)):
            return f"{name} was cut short"
    return None


def _is_cut_short(path: str) -> bool:
    """Whether a file lacks its end, by what its own format says; its content is not read."""
    if path.endswith(".safetensors"):
        with io.open_read(path) as file:
            header = file.read(int.from_bytes(file.read(8), "little") or 1)
        try:
            ends = [entry["data_offsets"][1] for key, entry in json.loads(header).items() if key != "__metadata__"]
        except ValueError:
            return True
        return os.path.getsize(path) < 8 + len(header) + max(ends, default=0)
    if path.endswith((".pt", ".bin")) and os.path.basename(path) != "training_args.bin":
        with io.open_read(path) as file:
            start = file.read(2)
        # an archive has its directory at its end; older files are no archives
        return not start or (start == b"PK" and not zipfile.is_zipfile(path))
    return False


def random_state_name(rank: int, several: bool) -> str:
    """The file of a process's random states."""
    return f"rng_state_{rank}.pth" if several else "rng_state.pth"


def _saved_by(folder: str) -> int | None:
    """How many processes wrote a folder, by their random states; None where it has none."""
    names = os.listdir(folder)
    if random_state_name(0, False) in names:
        return 1
    return sum(re.fullmatch(r"rng_state_\d+\.pth", name) is not None for name in names) or None


def _data(loader: Any, reader: dict[str, Any] | None) -> dict[str, Any]:
    return {
        "train_generators": [generator_states(loader)],
        "val_generators": [],
        "train_pools": [False],
        "train_loaded_epoch": 0,
        "val_loaded_epoch": -1,
        "position": {"readers": [reader], "together": None} if reader is not None else None,
        "before_ahead": None,
    }


def numpy_arrays() -> dict[str, Any]:
    """What a file needs so that numpy's random state, an array of integers, can be read from it: nothing else."""
    rebuild = np.empty(0).__reduce__()[0]
    names = ("numpy._core.multiarray._reconstruct", "numpy.core.multiarray._reconstruct")
    return {"numpy.dtype": np.dtype, "numpy.ndarray": np.ndarray, **dict.fromkeys(names, rebuild)}


def _random_state(folder: str, args: Any) -> dict[str, Any]:
    """The random states in a folder, as `seed.rng_state` gives them; those of now where they cannot be read."""
    path = os.path.join(folder, random_state_name(args.process_index, args.world_size > 1))
    if not os.path.isfile(path):
        return rng_state()
    try:
        saved = read_trusting(path, numpy_arrays())
    except CheckpointError as error:
        warn(f"The random states in {path!r} cannot be read, so dropout draws other numbers from here on: {error}")
        return rng_state()
    cuda = saved.get("cuda")
    cuda = [cuda] if isinstance(cuda, torch.Tensor) else cuda
    return rng_state((saved["python"], saved["numpy"], saved["cpu"], cuda))

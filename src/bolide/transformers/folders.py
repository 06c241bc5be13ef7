"""Checkpoint folders `checkpoint-<step>`: transformers' layout, with Bolide's exact-resume state and manifest in it.

A folder is written under a temporary name, its manifest last, and renamed when all of it is on the disk. One that was
cut short or damaged is passed over. `FolderFormat` is the checkpoint format that the engine is given. Who calls: the
trainer, and the engine through the format.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from bolide.checkpoint import io
from bolide.checkpoint.digest import DamagedCheckpointError
from bolide.checkpoint.file import read_checkpoint, write_checkpoint
from bolide.core.errors import CheckpointError, CheckpointNotFoundError
from bolide.core.messages import warn
from bolide.seed import generators, states_of
from bolide.transformers import foreign, moving, weights
from bolide.transformers.state import save_state

PREFIX_CHECKPOINT_DIR = "checkpoint"
TRAINER_STATE_NAME = "trainer_state.json"
OPTIMIZER_NAME = "optimizer.pt"
SCHEDULER_NAME = "scheduler.pt"
SCALER_NAME = "scaler.pt"
OWN_STATE_NAME = "bolide_state.ckpt"
MANIFEST_NAME = "bolide_manifest.json"
FORMAT = 1

_NAME = re.compile(rf"{PREFIX_CHECKPOINT_DIR}-(\d+)")
_PART = re.compile(rf"\.({PREFIX_CHECKPOINT_DIR}-\d+)\.[0-9a-f]{{12}}\.part")
_CHUNK_BYTES = 8 << 20


# ---------------------------------------------------------------------- the manifest


def write_manifest(folder: str) -> None:
    """Notes the size and digest of every file in a folder; written last, it says that the folder is whole."""
    files = {}
    for root, _, names in os.walk(folder):
        for name in sorted(names):
            path = os.path.join(root, name)
            relative = os.path.relpath(path, folder)
            if relative != MANIFEST_NAME:
                _sync(path)
                files[relative] = {"bytes": os.path.getsize(path), "sha256": _digest(path)}
        io.sync_dir(root)
    data = json.dumps({"format": FORMAT, "files": files}, indent=1, sort_keys=True).encode() + b"\n"
    io.write_atomically(os.path.join(folder, MANIFEST_NAME), lambda file: file.write(data))


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        io.operations.run("fsync", path, lambda: os.fsync(descriptor))
    finally:
        os.close(descriptor)


def _digest(path: str) -> str:
    found = hashlib.sha256()
    with io.open_read(path) as file:
        while chunk := file.read(_CHUNK_BYTES):
            found.update(chunk)
    return found.hexdigest()


def problem_of(folder: str) -> str | None:
    """Why a folder cannot be gone on from; None where it can.

    A folder of Bolide's is checked against its manifest; one of transformers has none.
    """
    manifest = os.path.join(folder, MANIFEST_NAME)
    if not os.path.isfile(manifest):
        if os.path.exists(os.path.join(folder, OWN_STATE_NAME)):
            return f"{MANIFEST_NAME} is missing: it was not written to its end"
        return foreign.problem_of(folder)
    try:
        content = json.loads(io.read_bytes(manifest))
        if content["format"] > FORMAT:
            return f"a later version of Bolide wrote it (format {content['format']})"
        for name, told in content["files"].items():
            path = os.path.join(folder, name)
            if not os.path.isfile(path):
                return f"{name} is missing"
            if os.path.getsize(path) != told["bytes"]:
                return f"{name} has {os.path.getsize(path)} bytes in place of {told['bytes']}"
            if _digest(path) != told["sha256"]:
                return f"{name} was changed after it was written"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"{MANIFEST_NAME} cannot be read: {error}"
    return None


# ---------------------------------------------------------------------- which folders there are


def step_of(folder: str) -> int:
    """The step in a folder's name; -1 where there is none."""
    match = _NAME.fullmatch(os.path.basename(os.path.normpath(folder)))
    return int(match[1]) if match else -1


def checkpoints_in(output_dir: str, prefix: str = PREFIX_CHECKPOINT_DIR) -> list[str]:
    """The checkpoint folders in a folder, in the order of their steps."""
    name = re.compile(rf"{re.escape(prefix)}-(\d+)")
    found = [os.path.join(output_dir, one) for one in io.list_dir(output_dir) if name.fullmatch(one)]
    return sorted((path for path in found if os.path.isdir(path)), key=lambda path: int(path.rpartition("-")[2]))


def sort_checkpoints(
    output_dir: str,
    checkpoint_prefix: str = PREFIX_CHECKPOINT_DIR,
    use_mtime: bool = False,
    best_model_checkpoint: str | None = None,
) -> list[str]:
    """The checkpoint folders, oldest first, the best one next to last; use_mtime: by when they were written."""
    best = best_model_checkpoint
    found = checkpoints_in(output_dir, checkpoint_prefix)
    if use_mtime:
        found.sort(key=os.path.getmtime)
    same = [path for path in found if best is not None and os.path.abspath(path) == os.path.abspath(best)]
    if same and len(found) > 1 and same[0] != found[-1]:
        found.remove(same[0])
        found.insert(-1, same[0])
    return found


def get_last_checkpoint(output_dir: str) -> str | None:
    """The newest checkpoint folder that is whole; those passed over are told of. None where there is none."""
    recover(output_dir)
    for folder in reversed(checkpoints_in(output_dir)):
        problem = problem_of(folder)
        if problem is None:
            return folder
        warn(f"The checkpoint {folder!r} is passed over: {problem}.")
    return None


def tell_of_earlier_run(output_dir: str) -> None:
    """Warns where a run starts beside the checkpoints of another: by their numbers, they seem to be newer ones."""
    found = checkpoints_in(output_dir)
    if found:
        warn(
            f"Training starts in {output_dir!r}, which holds checkpoints of an earlier run, up to "
            f"{os.path.basename(found[-1])}: resume_from_checkpoint=True would go on from that one. Write another "
            "output_dir, or remove them."
        )


def recover(output_dir: str) -> None:
    """Gives whole folders their names back that a kill left under a temporary one; drops those that are not whole.

    Nobody may be writing there.
    """
    for name in io.list_dir(output_dir):
        match = _PART.fullmatch(name)
        if match is None:
            continue
        part, folder = os.path.join(output_dir, name), os.path.join(output_dir, match[1])
        whole = os.path.isfile(os.path.join(part, MANIFEST_NAME)) and problem_of(part) is None
        if whole and not os.path.exists(folder):
            io.move(part, folder)
        else:
            io.remove(part)


def rotate(output_dir: str, limit: int | None, best: str | None, step: int, final: bool = False) -> None:
    """Removes the oldest checkpoints beyond `limit`; the newest and the best one stay.

    `step` is where the run stands: folders of later steps are an earlier run's, and the first to go. With a limit of
    one, the newest and the best one both stay until the end of training, and then the best one only.
    """
    if limit is None:
        return
    found = sort_checkpoints(output_dir, best_model_checkpoint=best)
    found.sort(key=lambda path: step_of(path) <= step)
    kept = {os.path.abspath(path) for path in found[-1:]} | ({os.path.abspath(best)} if best is not None else set())
    if final and limit == 1 and best is not None:
        kept = {os.path.abspath(best)}
    _remove_oldest(found, kept, max(limit, len(kept)))


def rotate_checkpoints(
    output_dir: str,
    save_total_limit: int | None = None,
    best_model_checkpoint: str | None = None,
    use_mtime: bool = False,
    checkpoint_prefix: str = PREFIX_CHECKPOINT_DIR,
) -> None:
    """Removes the oldest checkpoints beyond the limit, for scripts; the newest and the best one stay."""
    if save_total_limit is None or save_total_limit <= 0:
        return
    best = os.path.abspath(best_model_checkpoint) if best_model_checkpoint is not None else None
    found = sort_checkpoints(output_dir, checkpoint_prefix, use_mtime, best)
    kept = {os.path.abspath(path) for path in found[-1:]} | ({best} if best is not None else set())
    here = sum(os.path.abspath(path) in kept for path in found)
    _remove_oldest(found, kept, max(save_total_limit, here))


def _remove_oldest(found: list[str], kept: set[str], left: int) -> None:
    """Removes folders from the first on, those aside that are kept, until so many are left."""
    old = [path for path in found if os.path.abspath(path) not in kept]
    for path in old[: max(0, len(found) - left)]:
        io.remove(path)


# ---------------------------------------------------------------------- the format


@dataclass
class FolderFormat:
    """Writes and reads checkpoint folders for the engine.

    Args:
        owner: the trainer, which knows how its model and tokenizer are saved, and holds the record of the run.
    """

    owner: Any

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str, storage_options: Any = None) -> None:
        """Writes a folder: under another name first, renamed when all of it is on the disk."""
        path = os.path.abspath(os.fspath(path))
        part = os.path.join(os.path.dirname(path), f".{os.path.basename(path)}.{uuid.uuid4().hex[:12]}.part")
        io.make_dirs(part)
        args, state = self.owner.args, self.owner.state
        try:
            if args.shards_model:  # each process has parts, of which the whole was gathered
                from bolide.transformers.sharding import tied

                self.owner._save(part, tied(self.owner.model, checkpoint["state_dict"]))
            else:
                self.owner._save_model_into(part)
            if not args.save_only_model and "optimizer_states" in checkpoint:
                self._save_training(checkpoint, part)
            save_state(state, os.path.join(part, TRAINER_STATE_NAME))
            write_manifest(part)
        except BaseException:
            with contextlib.suppress(OSError):
                io.remove(part)
            raise
        old = None
        if os.path.lexists(path):  # a run that went on from an earlier checkpoint comes by here again
            old = os.path.join(os.path.dirname(path), f".{os.path.basename(path)}.{uuid.uuid4().hex[:12]}.part")
            io.move(path, old)
        io.move(part, path)
        if old is not None:
            io.remove(old)

    def _save_training(self, checkpoint: dict[str, Any], part: str) -> None:
        rest = dict(checkpoint)
        rest["state_dict"] = {}
        _write_torch(rest.pop("optimizer_states")[0], os.path.join(part, OPTIMIZER_NAME))
        schedulers = rest.pop("lr_schedulers")
        if schedulers:
            _write_torch(schedulers[0], os.path.join(part, SCHEDULER_NAME))
        if "MixedPrecision" in rest:
            _write_torch(rest["MixedPrecision"], os.path.join(part, SCALER_NAME))
        for name, rng in _random_states(rest["bolide"]):
            _write_torch(rng, os.path.join(part, name))
        rest["optimizer_states"], rest["lr_schedulers"] = [], []
        rest["bolide"] = {**rest["bolide"], moving.SAMPLES: self.owner.get_total_train_batch_size()}
        write_checkpoint(rest, os.path.join(part, OWN_STATE_NAME))

    def load_checkpoint(self, path: str, map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:
        """Everything that a folder holds, as the engine takes it; read and checked before anything changes.

        Raises:
            CheckpointNotFoundError: no folder, or one without what training goes on from.
            DamagedCheckpointError: cut short, or changed after it was written.
            CheckpointError: weights of another model.
        """
        path = os.fspath(path)
        if not os.path.isdir(path):
            raise CheckpointNotFoundError(f"resume_from_checkpoint={path!r}: there is no such folder")
        problem = problem_of(path)
        if problem is not None:
            raise DamagedCheckpointError(f"The checkpoint {path!r} cannot be used: {problem}")
        self.owner._goes_on_from = path
        own = self.owner._overrides("_load_from_checkpoint")
        state = {} if own else weights.read_for(self.owner.model, path)
        mismatch = weights.fits(self.owner.model, state, self.owner._engine.strategy.whole_shapes(self.owner.model))
        if mismatch is not None:
            raise CheckpointError(f"The weights in {path!r} do not fit {type(self.owner.model).__name__}: {mismatch}")
        own = os.path.join(path, OWN_STATE_NAME)
        if os.path.isfile(own):
            checkpoint = read_checkpoint(own)
        else:
            checkpoint = foreign.checkpoint_of(path, self.owner)
        before, now = checkpoint["bolide"].get("world_size", 1), self.owner.args.world_size
        if before != now:
            try:
                checkpoint["bolide"] = moving.for_processes_of_now(checkpoint["bolide"], self.owner)
            except moving.OtherStepError as error:
                raise CheckpointError(
                    f"{path!r} was saved by {before} process(es), and there are {now}: {error}"
                ) from None
        elif os.path.isfile(own):
            checkpoint["bolide"] = moving.for_batches_of_now(checkpoint["bolide"], self.owner)
        if self.owner.args.ignore_data_skip:
            begin_epoch_anew(checkpoint["bolide"])
        optimizer = os.path.join(path, OPTIMIZER_NAME)
        if not os.path.isfile(optimizer):
            raise CheckpointNotFoundError(
                f"{path!r} holds no {OPTIMIZER_NAME} (save_only_model=True), so training cannot go on from it; load "
                "the model from it and start a new run"
            )
        checkpoint["optimizer_states"] = [read_checkpoint(optimizer)]
        scheduler = os.path.join(path, SCHEDULER_NAME)
        checkpoint["lr_schedulers"] = [read_checkpoint(scheduler)] if os.path.isfile(scheduler) else []
        scaler = os.path.join(path, SCALER_NAME)
        if os.path.isfile(scaler):
            checkpoint["MixedPrecision"] = read_checkpoint(scaler)
        checkpoint["state_dict"] = state
        return checkpoint

    def remove_checkpoint(self, path: str) -> None:
        """Removes a folder."""
        io.remove(path)


def _random_states(own: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The files of random states that transformers reads, and what is in each: one for each process."""
    ranks = own.get("ranks") or []
    several = len(ranks) > 1
    for number, found in enumerate([states_of(rank["rng"]) for rank in ranks] if several else [generators()]):
        python, numpy, cpu, cuda = found
        rng = {"python": python, "numpy": numpy, "cpu": cpu}
        if cuda is not None:
            rng["cuda"] = cuda if several or len(cuda) > 1 else cuda[0]
        yield foreign.random_state_name(number, several), rng


def begin_epoch_anew(own: dict[str, Any]) -> None:
    """Changes a checkpoint taken within an epoch so that the epoch's data start over; its steps stay counted."""
    progress = own["progress"]
    if progress["epoch_open"] and not progress["epoch_done"] and not progress["is_last_batch"]:
        own["progress"] = {**progress, "batch": 0, "epoch_open": False}
        if own["data"] is not None:
            own["data"] = {**own["data"], "position": None, "before_ahead": None}


def _write_torch(value: Any, path: str) -> None:
    io.write_atomically(path, lambda file: torch.save(value, file))

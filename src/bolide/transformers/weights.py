"""The weights of a model in a folder: written as safetensors, read back whatever wrote them.

Owns tied weights, sharded files, PEFT adapters. Who calls: folders.py for checkpoints, the trainer for save_model and
for the best model at the end.
"""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from bolide.checkpoint import io
from bolide.checkpoint.file import read_checkpoint
from bolide.core.errors import CheckpointNotFoundError, MissingPackageError
from bolide.core.messages import warn
from bolide.strategies.strategy import matching_keys, plain_keys

SAFE_WEIGHTS_NAME = "model.safetensors"
WEIGHTS_NAME = "pytorch_model.bin"
SAFE_WEIGHTS_INDEX_NAME = f"{SAFE_WEIGHTS_NAME}.index.json"
WEIGHTS_INDEX_NAME = f"{WEIGHTS_NAME}.index.json"
ADAPTER_NAME = "adapter_model.safetensors"


def refuse_without_safetensors() -> None:
    """Raises where weights could not be written.

    Raises:
        MissingPackageError: safetensors is not installed.
    """
    if importlib.util.find_spec("safetensors") is None:
        raise MissingPackageError("Saving a model", "safetensors", "safetensors")


def unwrapped(model: Any) -> Any:
    """The module within what torch.compile and parallel wrappers make of it."""
    while True:
        inner = getattr(model, "_orig_mod", None)
        inner = getattr(model, "module", None) if inner is None and type(model).__name__.endswith("Parallel") else inner
        if not isinstance(inner, nn.Module):
            return model
        model = inner


def is_peft(model: Any) -> bool:
    """Whether a model holds PEFT adapters; peft is not imported to find out."""
    return any(cls.__module__.partition(".")[0] == "peft" for cls in type(model).__mro__)


def is_pretrained(model: Any) -> bool:
    """Whether a model knows how to save itself in transformers' layout."""
    return callable(getattr(model, "save_pretrained", None)) and callable(getattr(model, "state_dict", None))


def separate(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The state with each tensor once: of names that share one tensor the first stays; views get storage of their own.

    safetensors refuses shared memory; who loads such a file ties the weights again by loading into a module in which
    they are tied.
    """
    found: dict[str, Tensor] = {}
    seen: set[tuple[Any, ...]] = set()
    storages: set[int] = set()
    for name, tensor in state.items():
        tensor = tensor.detach()
        where = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, tensor.device)
        if tensor.numel() and where in seen:
            continue
        seen.add(where)
        storage = tensor.untyped_storage().data_ptr()
        shares = tensor.numel() and storage in storages
        storages.add(storage)
        found[name] = tensor.clone() if shares else tensor.contiguous()
    return found


def write(model: Any, folder: str, state: Mapping[str, Tensor] | None = None) -> None:
    """Writes the weights of a model, and its configuration where it has one, into a folder.

    Raises:
        MissingPackageError: safetensors is not installed.
    """
    refuse_without_safetensors()
    model = unwrapped(model)
    if is_pretrained(model):
        model.save_pretrained(folder, **({} if state is None else {"state_dict": dict(state)}))
        return
    from safetensors.torch import save_file

    full = plain_keys(model.state_dict() if state is None else state)
    save_file(separate(full), os.path.join(folder, SAFE_WEIGHTS_NAME), metadata={"format": "pt"})


def read(folder: str, device: str = "cpu") -> dict[str, Tensor]:
    """The weights in a folder, by name: safetensors, else torch files, whole or in shards.

    Raises:
        CheckpointNotFoundError: the folder holds no weights.
        MissingPackageError: safetensors is not installed.
    """
    for name in (ADAPTER_NAME, SAFE_WEIGHTS_NAME, WEIGHTS_NAME):
        path = os.path.join(folder, name)
        if os.path.isfile(path):
            return _read_file(path, device)
        index = f"{path}.index.json"
        if os.path.isfile(index):
            shards = sorted(set(json.loads(io.read_bytes(index))["weight_map"].values()))
            found: dict[str, Tensor] = {}
            for shard in shards:
                if os.path.basename(shard) != shard:
                    raise CheckpointNotFoundError(f"{index!r} names {shard!r}, which is outside of its folder")
                found |= _read_file(os.path.join(folder, shard), device)
            return found
    raise CheckpointNotFoundError(
        f"{folder!r} holds no weights: neither {SAFE_WEIGHTS_NAME}, {WEIGHTS_NAME} nor {ADAPTER_NAME}"
    )


def _read_file(path: str, device: str) -> dict[str, Tensor]:
    if not path.endswith(".safetensors"):
        return {key: value for key, value in read_checkpoint(path, device).items() if isinstance(value, Tensor)}
    refuse_without_safetensors()
    from safetensors.torch import load_file

    return dict(load_file(path, device=device))


def load(model: Any, state: Mapping[str, Tensor], source: str) -> None:
    """Gives a model the weights that `read` found; warns of names that are in one of them only, tied ones aside."""
    model = unwrapped(model)
    if is_peft(model):
        from peft import set_peft_model_state_dict

        set_peft_model_state_dict(model, dict(state), adapter_name=model.active_adapters[0])
        return
    missing, unexpected = model.load_state_dict(matching_keys(state, model), strict=False)
    if missing:
        own = model.state_dict(keep_vars=True)
        loaded = {id(own[name]) for name in own if name not in missing}
        missing = [name for name in missing if id(own[name]) not in loaded]
    for what, names in (("are missing in", missing), ("are not the model's, and stand in", unexpected)):
        if names:
            more = f" and {len(names) - 5} more" if len(names) > 5 else ""
            warn(f"Weights that {what} {source!r}: {', '.join(names[:5])}{more}.")


def fits(model: Any, state: Mapping[str, Any], whole: Mapping[str, Any]) -> str | None:
    """Why weights cannot be a model's: a shape that differs; None where they can.

    `whole` has the shapes of those that are spread over processes.
    """
    if is_peft(model):
        return None
    own = unwrapped(model).state_dict()
    for name, value in matching_keys(state, unwrapped(model)).items():
        if name not in own or not isinstance(value, torch.Tensor):
            continue
        shape = whole.get(name, own[name].shape)
        if shape != value.shape:
            return f"{name} is {tuple(value.shape)} in the file and {tuple(shape)} in the model"
    return None

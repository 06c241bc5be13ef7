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
from bolide.core.errors import CheckpointError, CheckpointNotFoundError, MissingPackageError
from bolide.core.messages import warn
from bolide.strategies.strategy import matching_keys, plain_keys

SAFE_WEIGHTS_NAME = "model.safetensors"
WEIGHTS_NAME = "pytorch_model.bin"
SAFE_WEIGHTS_INDEX_NAME = f"{SAFE_WEIGHTS_NAME}.index.json"
WEIGHTS_INDEX_NAME = f"{WEIGHTS_NAME}.index.json"
ADAPTER_NAME = "adapter_model.safetensors"
OF_ADAPTER = "//"
"""Stands in a name between an adapter, where a folder has several or one of a name of its own, and its weight."""


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
    adapters = {
        f"{name}{OF_ADAPTER}{key}": value for name in sub_folders_of_adapters(folder)
        for key, value in _read_file(os.path.join(folder, name, ADAPTER_NAME), device).items()
    }  # fmt: skip
    if adapters and not os.path.isfile(os.path.join(folder, ADAPTER_NAME)):
        return adapters
    for name in (ADAPTER_NAME, SAFE_WEIGHTS_NAME, WEIGHTS_NAME):
        path = os.path.join(folder, name)
        if os.path.isfile(path):
            return adapters | _read_file(path, device)
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


def are_in(folder: str) -> bool:
    """Whether a folder holds weights that `read` finds."""
    names = [name + end for name in (ADAPTER_NAME, SAFE_WEIGHTS_NAME, WEIGHTS_NAME) for end in ("", ".index.json")]
    return bool(set(names) & set(io.list_dir(folder)) or sub_folders_of_adapters(folder))


def sub_folders_of_adapters(folder: str) -> list[str]:
    """The names of adapters that have a folder of their own: all but PEFT's "default"."""
    return [name for name in io.list_dir(folder) if os.path.isfile(os.path.join(folder, name, ADAPTER_NAME))]


def _by_adapter(state: Mapping[str, Any], model: Any) -> dict[str, dict[str, Any]]:
    """What `read` found, for each adapter of a PEFT model; what has no name is its default's, else the active one's."""
    found: dict[str, dict[str, Any]] = {}
    unnamed = "default" if "default" in model.peft_config else model.active_adapters[0]
    for key, value in state.items():
        name, separator, inner = key.partition(OF_ADAPTER)
        found.setdefault(name if separator else unnamed, {})[inner if separator else key] = value
    return found


def _read_file(path: str, device: str) -> dict[str, Tensor]:
    if not path.endswith(".safetensors"):
        return {key: value for key, value in read_checkpoint(path, device).items() if isinstance(value, Tensor)}
    refuse_without_safetensors()
    from safetensors.torch import load_file

    return dict(load_file(path, device=device))


def read_for(model: Any, folder: str) -> dict[str, Tensor]:
    """The weights in a folder, under the names that a model has.

    transformers saves many models (ViT, mixtures of experts) under the names of earlier releases, some of them split,
    and gives them their present ones back only in `from_pretrained`.

    Raises:
        CheckpointError: the names are others than the model's, and its class cannot be made to translate them.
    """
    state = read(folder)
    model = unwrapped(model)
    convert = getattr(model, "from_pretrained", None)
    if is_peft(model) or not callable(convert) or getattr(model, "config", None) is None:
        return state
    own = set(plain_keys(model.state_dict()))
    if own.issuperset(plain_keys(state)):
        return state
    # FSDP gives a model that it spreads a class of torch's
    made_by: Any = next(cls for cls in type(model).__mro__ if not cls.__module__.startswith("torch."))
    try:
        made, told = made_by.from_pretrained(
            None, config=model.config, state_dict=dict(state), output_loading_info=True, ignore_mismatched_sizes=True,
            dtype="auto",
        )  # fmt: skip
    except (TypeError, AttributeError) as error:
        raise CheckpointError(
            f"The weights in {folder!r} have other names than those of {made_by.__name__}, and it cannot be made from "
            f"its configuration to translate them: {error}"
        ) from error
    not_found = {*told["missing_keys"], *(key for key, *_ in told["mismatched_keys"])}
    found = {key: value for key, value in made.state_dict().items() if key not in not_found}
    kept = own | set(told["unexpected_keys"])  # parts that a script has added or replaced have no other names
    return found | {key: value for key, value in state.items() if key in kept}


def load(model: Any, state: Mapping[str, Tensor], source: str) -> None:
    """Gives a model the weights that `read` found; warns of names that are in one of them only, tied ones aside."""
    model = unwrapped(model)
    if is_peft(model):
        from peft import set_peft_model_state_dict

        for name, own in _by_adapter(state, model).items():
            set_peft_model_state_dict(model, own, adapter_name=name)
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
    """Why weights cannot be a model's: a shape that differs, another adapter; None where they can.

    `whole` has the shapes of those that are spread over processes.
    """
    if is_peft(model):
        return _adapters_fit(unwrapped(model), state)
    own = unwrapped(model).state_dict()
    for name, value in matching_keys(state, unwrapped(model)).items():
        if name not in own or not isinstance(value, torch.Tensor):
            continue
        shape = whole.get(name, own[name].shape)
        if shape != value.shape:
            return f"{name} is {tuple(value.shape)} in the file and {tuple(shape)} in the model"
    return None


def _adapters_fit(model: Any, state: Mapping[str, Any]) -> str | None:
    from peft import get_peft_model_state_dict

    for name, given in _by_adapter(state, model).items():
        if name not in model.peft_config:
            return f"they are of the adapter {name!r}, and the model has {', '.join(map(repr, model.peft_config))}"
        own = get_peft_model_state_dict(model, adapter_name=name)
        for key, value in given.items():
            if key in own and own[key].shape != value.shape:
                return f"{key} is {tuple(value.shape)} in the file and {tuple(own[key].shape)} in the adapter {name!r}"
    return None

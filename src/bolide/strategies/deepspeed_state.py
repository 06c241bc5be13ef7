"""The whole weights and optimizer states of a DeepSpeed engine, out of its partitions and back into them.

Owns the translation between torch's format of optimizer states, which files hold, and the flat partitions that ZeRO
keeps. All functions here are called by all ranks. Who calls: DeepSpeedStrategy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from bolide.core.errors import CheckpointError

Groups = list[tuple[dict[str, Any], list[nn.Parameter]]]
"""The optimizer's groups as they were before DeepSpeed put flat tensors into them, each with its parameters."""


def partitioned(parameter: Tensor) -> bool:
    """Whether stage 3 has split this parameter, so that it is empty until it is gathered."""
    return hasattr(parameter, "ds_id")


def shape_of(parameter: Tensor) -> torch.Size:
    """The shape of the whole parameter."""
    shape: torch.Size = parameter.ds_shape if partitioned(parameter) else parameter.shape  # type: ignore[attr-defined]
    return shape


def flats(optimizer: Any) -> Iterator[tuple[list[nn.Parameter], Tensor]]:
    """Each flat fp32 tensor of this rank's partition, with the parameters that have a part in it."""
    if hasattr(optimizer, "fp32_partitioned_groups_flat"):
        yield from zip(optimizer.fp16_groups, optimizer.fp32_partitioned_groups_flat, strict=True)
    elif hasattr(optimizer, "single_partition_of_fp32_groups"):
        yield from zip(optimizer.bit16_groups, optimizer.single_partition_of_fp32_groups, strict=True)


def base_of(optimizer: Any) -> Any:
    """The torch optimizer that DeepSpeed has wrapped; at stage 0 it is not wrapped."""
    return getattr(optimizer, "optimizer", optimizer)


def is_zero(optimizer: Any) -> bool:
    """Whether the optimizer keeps partitions, that is from stage 1 on."""
    return base_of(optimizer) is not optimizer


# ---------------------------------------------------------------------- weights


def whole_weight(parameter: nn.Parameter) -> Tensor:
    """A parameter whole, in fp32 where DeepSpeed keeps it so beside one of half precision."""
    from deepspeed.runtime.zero import GatheredParameters
    from deepspeed.utils import safe_get_full_fp32_param

    if parameter.requires_grad and hasattr(parameter, "_z3_optimizer" if partitioned(parameter) else "_hp_mapping"):
        found = safe_get_full_fp32_param(parameter)
        if found is not None:
            whole: Tensor = found.detach()
            return whole.view(shape_of(parameter))
    if partitioned(parameter):
        with GatheredParameters([parameter]):
            return parameter.detach().clone()
    return parameter.detach()


def weights(module: nn.Module, first: bool, exclude_frozen: bool = False) -> dict[str, Any]:
    """A module's state by name, whole, on the CPU of the first rank; empty tensors elsewhere. One at a time."""
    parameters = dict(module.named_parameters(remove_duplicate=False))
    kept: dict[int, Tensor] = {}
    found: dict[str, Any] = {}
    for name, value in module.state_dict().items():
        parameter = parameters.get(name)
        if parameter is not None and exclude_frozen and not parameter.requires_grad:
            continue
        if parameter is not None:
            if id(parameter) not in kept:  # tied ones stay tied
                whole = whole_weight(parameter)
                kept[id(parameter)] = whole.cpu() if first else torch.empty(0)
            value = kept[id(parameter)]
        elif isinstance(value, Tensor):
            value = value.detach().cpu() if first else torch.empty(0)
        found[name] = value
    return found


def own_part(parameter: nn.Parameter, whole: Tensor) -> Tensor:
    """This rank's part of a whole tensor, as stage 3 splits the parameter: equal parts, the last filled up with zeros.

    DeepSpeed's functions for whole tensors take those only that divide.
    """
    split: Any = parameter
    size = split.ds_tensor.numel()
    start = size * torch.distributed.get_rank(split.ds_process_group)
    part = torch.zeros(size, dtype=torch.float32, device=split.ds_tensor.device)
    mine = whole.reshape(-1)[start : start + size]
    part[: mine.numel()] = mine
    return part


def put_weight(parameter: nn.Parameter, value: Tensor) -> None:
    """Writes a whole tensor into a parameter, and into the fp32 one that DeepSpeed keeps beside it, if it does."""
    from deepspeed.runtime.zero import GatheredParameters
    from deepspeed.utils import safe_set_full_fp32_param, safe_set_local_fp32_param

    if partitioned(parameter):
        with GatheredParameters([parameter], modifier_rank=0), torch.no_grad():
            parameter.data.copy_(value)
        if parameter.requires_grad and hasattr(parameter, "_z3_optimizer"):
            safe_set_local_fp32_param(parameter, own_part(parameter, value))
        return
    with torch.no_grad():
        parameter.data.copy_(value)
    if getattr(parameter, "_hp_mapping", None) is not None:
        safe_set_full_fp32_param(parameter, value.to(parameter.device, torch.float32))


# ---------------------------------------------------------------------- optimizer states


def optimizer_state(optimizer: Any, groups: Groups, first: bool) -> dict[str, Any]:
    """The optimizer's state in torch's format, whole, on the CPU of the first rank.

    Raises:
        CheckpointError: a state that is not one number for each element of a parameter.
    """
    from deepspeed.utils import safe_get_full_optimizer_state

    base = base_of(optimizer)
    if not is_zero(optimizer):
        state: dict[str, Any] = base.state_dict()
        return state
    _link(optimizer)
    numbers = _numbered(groups)
    states: dict[int, dict[str, Any]] = {}
    for parameters, flat in flats(optimizer):
        own = base.state.get(flat, {})
        for parameter in parameters:
            if not parameter.requires_grad or not own:
                continue
            entry: dict[str, Any] = {}
            for key, value in own.items():
                if not isinstance(value, Tensor) or value.dim() == 0:
                    entry[key] = value.detach().cpu().clone() if isinstance(value, Tensor) else value
                    continue
                if value.shape != flat.shape:
                    raise CheckpointError(
                        f"{type(base).__name__} keeps {key!r} of another shape than a parameter's, and ZeRO's "
                        "partitions cannot be put together to it: use an optimizer such as torch.optim.AdamW, or "
                        "ModelCheckpoint(save_weights_only=True)"
                    )
                whole = safe_get_full_optimizer_state(parameter, key)
                entry[key] = whole.detach().view(shape_of(parameter)).cpu() if first else torch.empty(0)
            states[numbers[id(parameter)]] = entry
    return {"state": states, "param_groups": described(groups, numbers)}


def described(groups: Groups, numbers: Mapping[int, int]) -> list[dict[str, Any]]:
    """The groups as torch's format has them: their settings of now, and their parameters' numbers."""
    return [
        {**{key: value for key, value in group.items() if key != "params"}, "params": [numbers[id(p)] for p in members]}
        for group, members in groups
    ]


def _numbered(groups: Groups) -> dict[int, int]:
    order = [parameter for _, members in groups for parameter in members]
    return {id(parameter): number for number, parameter in enumerate(order)}


def _link(optimizer: Any) -> None:
    """Lets DeepSpeed's functions find the states that this rank has.

    It does so itself within its first step, but as soon as the first group has been stepped: it misses the others'.
    """
    from deepspeed.utils import lazy_init_hp_params_optimizer_state

    if hasattr(optimizer, "_lazy_init_hp_params_optimizer_state"):  # stages 1 and 2
        state = base_of(optimizer).state
        for parameters, flat in flats(optimizer):
            if state.get(flat):
                lazy_init_hp_params_optimizer_state(parameters, flat, state)


def load_optimizer_state(optimizer: Any, groups: Groups, state: Mapping[str, Any]) -> None:
    """Takes a whole state in torch's format, of which each rank keeps its part.

    Raises:
        ValueError: other groups, or other shapes, than the optimizer has.
    """
    from deepspeed.utils import safe_set_full_optimizer_state, safe_set_local_optimizer_state

    base = base_of(optimizer)
    if not is_zero(optimizer):
        base.load_state_dict(dict(state))
        return
    saved_groups = state["param_groups"]
    if [len(saved["params"]) for saved in saved_groups] != [len(members) for _, members in groups]:
        raise ValueError(
            f"it has groups of {[len(saved['params']) for saved in saved_groups]} parameters, and the optimizer groups "
            f"of {[len(members) for _, members in groups]}"
        )
    of_file = {
        id(parameter): state["state"].get(number, {})
        for saved, (_, members) in zip(saved_groups, groups, strict=True)
        for number, parameter in zip(saved["params"], members, strict=True)
    }
    for (group, _), saved in zip(groups, saved_groups, strict=True):
        group.update({key: value for key, value in saved.items() if key != "params"})
    for parameters, flat in flats(optimizer):
        entries = [of_file.get(id(parameter), {}) for parameter in parameters]
        base.state[flat] = _blank(entries, parameters, flat)
    _link(optimizer)
    for parameters, flat in flats(optimizer):
        for parameter in parameters:
            for key, value in of_file.get(id(parameter), {}).items():
                if not _is_elementwise(key, value, parameter) or key not in base.state[flat]:
                    continue
                if partitioned(parameter):
                    safe_set_local_optimizer_state(parameter, own_part(parameter, value), key)
                else:
                    safe_set_full_optimizer_state(parameter, value.to(flat.device, torch.float32), key)


def _is_elementwise(key: str, value: Any, parameter: nn.Parameter) -> bool:
    """Whether a state has one number for each element of its parameter; torch counts steps in a scalar."""
    return isinstance(value, Tensor) and value.shape == shape_of(parameter) and key != "step"


def _blank(entries: Iterable[Mapping[str, Any]], parameters: list[nn.Parameter], flat: Tensor) -> dict[str, Any]:
    """A flat partition's state with the keys of its parameters' states: their scalars, and zeros to be filled."""
    made: dict[str, Any] = {}
    for entry, parameter in zip(entries, parameters, strict=True):
        for key, value in entry.items():
            if _is_elementwise(key, value, parameter):
                if key not in made:
                    made[key] = torch.zeros_like(flat)
            elif isinstance(value, Tensor) and value.numel() > 1:
                raise ValueError(
                    f"{key!r} has the shape {tuple(value.shape)}, and its parameter {tuple(shape_of(parameter))}"
                )
            elif key not in made:
                made[key] = value.clone() if isinstance(value, Tensor) else value
            elif made[key] != value:
                raise ValueError(
                    f"{key!r} is {value} of one parameter and {made[key]} of another, and ZeRO keeps one for all: the "
                    "parameters were not trained in the same steps"
                )
    return made

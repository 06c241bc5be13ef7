"""The public path of small tools, under the names that Lightning's users know.

Names are imported when they are first asked for. What they do is owned by the modules they come from.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from bolide.core.errors import did_you_mean
from bolide.core.lazy import submodule

if TYPE_CHECKING:
    from bolide.data.combined import CombinedLoader
    from bolide.hparams import AttributeDict
    from bolide.utilities.apply_func import move_data_to_device
    from bolide.utilities.data import suggested_max_num_workers
    from bolide.utilities.enums import GradClipAlgorithmType, LightningEnum
    from bolide.utilities.grads import grad_norm
    from bolide.utilities.memory import find_shared_parameters, set_shared_parameters
    from bolide.utilities.model_summary import measure_flops
    from bolide.utilities.rank_zero import (
        rank_zero_debug,
        rank_zero_deprecation,
        rank_zero_info,
        rank_zero_only,
        rank_zero_warn,
    )
    from bolide.utilities.warnings import disable_possible_user_warnings

_HOMES = {
    "AttributeDict": "bolide.hparams",
    "CombinedLoader": "bolide.data.combined",
    "GradClipAlgorithmType": "bolide.utilities.enums",
    "LightningEnum": "bolide.utilities.enums",
    "disable_possible_user_warnings": "bolide.utilities.warnings",
    "find_shared_parameters": "bolide.utilities.memory",
    "grad_norm": "bolide.utilities.grads",
    "measure_flops": "bolide.utilities.model_summary",
    "move_data_to_device": "bolide.utilities.apply_func",
    "rank_zero_debug": "bolide.utilities.rank_zero",
    "rank_zero_deprecation": "bolide.utilities.rank_zero",
    "rank_zero_info": "bolide.utilities.rank_zero",
    "rank_zero_only": "bolide.utilities.rank_zero",
    "rank_zero_warn": "bolide.utilities.rank_zero",
    "set_shared_parameters": "bolide.utilities.memory",
    "suggested_max_num_workers": "bolide.utilities.data",
}

__all__ = [
    "AttributeDict",
    "CombinedLoader",
    "GradClipAlgorithmType",
    "LightningEnum",
    "disable_possible_user_warnings",
    "find_shared_parameters",
    "grad_norm",
    "measure_flops",
    "move_data_to_device",
    "rank_zero_debug",
    "rank_zero_deprecation",
    "rank_zero_info",
    "rank_zero_only",
    "rank_zero_warn",
    "set_shared_parameters",
    "suggested_max_num_workers",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    found = submodule(__name__, name)
    if found is not None:
        return found
    raise AttributeError(f"module 'bolide.utilities' has no attribute {name!r}." + did_you_mean(name, _HOMES))

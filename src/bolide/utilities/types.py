"""Types for annotations: what steps, optimizers and loaders may be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict, Union

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from typing_extensions import NotRequired

from bolide.core.protocols import Optimizable, Stateful
from bolide.engine.optimizers import LRSchedulerConfig

__all__ = [
    "EVAL_DATALOADERS",
    "STEP_OUTPUT",
    "TRAIN_DATALOADERS",
    "LRScheduler",
    "LRSchedulerConfig",
    "LRSchedulerConfigType",
    "LRSchedulerPLType",
    "LRSchedulerType",
    "LRSchedulerTypeTuple",
    "LRSchedulerTypeUnion",
    "Optimizable",
    "Optimizer",
    "OptimizerConfig",
    "OptimizerLRScheduler",
    "OptimizerLRSchedulerConfig",
    "ReduceLROnPlateau",
    "Stateful",
]

STEP_OUTPUT = Union[Tensor, Mapping[str, Any], None]  # noqa: UP007 - users subscript and compare these at run time
"""What `training_step`, `validation_step` and `test_step` return."""

TRAIN_DATALOADERS = Any
EVAL_DATALOADERS = Any
"""A DataLoader, any other iterable of batches, or a collection of them."""

LRSchedulerTypeTuple = (LRScheduler, ReduceLROnPlateau)
LRSchedulerTypeUnion = Union[LRScheduler, ReduceLROnPlateau]  # noqa: UP007
LRSchedulerPLType = LRSchedulerTypeUnion
LRSchedulerType = Union[type[LRScheduler], type[ReduceLROnPlateau]]  # noqa: UP007


class LRSchedulerConfigType(TypedDict, total=False):
    """The dictionary that describes a scheduler in `configure_optimizers`."""

    scheduler: Any
    name: str | None
    interval: str
    frequency: int
    reduce_on_plateau: bool
    monitor: str | None
    strict: bool


class OptimizerConfig(TypedDict):
    """The dictionary of an optimizer alone."""

    optimizer: Optimizer


class OptimizerLRSchedulerConfig(TypedDict):
    """The dictionary of an optimizer and its scheduler."""

    optimizer: Optimizer
    lr_scheduler: Any
    monitor: NotRequired[str]


OptimizerLRScheduler = Union[  # noqa: UP007
    Optimizer,
    Sequence[Optimizer],
    tuple[Sequence[Optimizer], Sequence[Any]],
    OptimizerConfig,
    OptimizerLRSchedulerConfig,
    Sequence[OptimizerConfig],
    Sequence[OptimizerLRSchedulerConfig],
    None,
]
"""What `configure_optimizers` returns."""

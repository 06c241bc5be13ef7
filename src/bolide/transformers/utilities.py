"""Small functions that scripts import beside the Trainer, by the names and with the answers of transformers.

Owns none of what the Trainer does. Who calls: user code, through `bolide.transformers`, and the Trainer for figures and
determinism.
"""

from __future__ import annotations

import functools
import inspect
import logging
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from bolide.core import env
from bolide.core.errors import ConfigError
from bolide.seed import seed_everything
from bolide.transformers.schedules import get_scheduler

log_levels = {
    "detail": logging.DEBUG, "debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING,
    "error": logging.ERROR, "critical": logging.CRITICAL,
}  # fmt: skip
trainer_log_levels = {**log_levels, "passive": -1}
SHRINK = 0.9
"""What a batch is multiplied by when memory did not suffice."""


def set_seed(seed: int, deterministic: bool = False) -> None:
    """Seeds python, numpy and torch; with `deterministic`, torch uses deterministic algorithms only."""
    seed_everything(seed, verbose=False)
    if deterministic:
        torch.use_deterministic_algorithms(True)


def enable_full_determinism(seed: int, warn_only: bool = False) -> None:
    """Seeds everything, and has torch use deterministic algorithms only, on CUDA too.

    Args:
        seed: of all generators.
        warn_only: an operation that has no such algorithm is warned of, in the place of an error.
    """
    seed_everything(seed, verbose=False)
    env.set("CUBLAS_WORKSPACE_CONFIG", env.get("CUBLAS_WORKSPACE_CONFIG") or ":16:8")  # cuBLAS refuses without one
    torch.use_deterministic_algorithms(True, warn_only=warn_only)
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False


def speed_metrics(
    split: str,
    start_time: float,
    num_samples: float | None = None,
    num_steps: float | None = None,
    num_tokens: float | None = None,
) -> dict[str, float]:
    """The figures of a run: its seconds, and samples, steps and tokens a second.

    Args:
        split: put before each name.
        start_time: when it began, as of `time.time()`.
        num_samples: samples that it read; None leaves their figure out, as with the next two.
        num_steps: steps or batches.
        num_tokens: tokens.
    """
    runtime = time.time() - start_time
    found = {f"{split}_runtime": round(runtime, 4)}
    if runtime:
        for what, number in (("samples", num_samples), ("steps", num_steps), ("tokens", num_tokens)):
            if number is not None:
                found[f"{split}_{what}_per_second"] = round(number / runtime, 3)
    return found


def number_of_arguments(func: Any) -> int:
    """How many parameters a function has, those aside that a `functools.partial` gives."""
    if isinstance(func, functools.partial):
        return number_of_arguments(func.func) - len(func.args) - len(func.keywords)
    return len(inspect.signature(func).parameters)


def has_length(dataset: Any) -> bool:
    """Whether something knows how long it is."""
    try:
        return len(dataset) is not None
    except (TypeError, AttributeError, NotImplementedError):
        return False


def denumpify_detensorize(metrics: Any) -> Any:
    """Nested metrics with numbers of Python in the place of numpy's and of tensors with one entry."""
    if isinstance(metrics, (list, tuple)):
        return type(metrics)(denumpify_detensorize(value) for value in metrics)
    if isinstance(metrics, dict):
        return type(metrics)({name: denumpify_detensorize(value) for name, value in metrics.items()})
    is_number = isinstance(metrics, np.generic) or (isinstance(metrics, torch.Tensor) and metrics.numel() == 1)
    return metrics.item() if is_number else metrics


def find_executable_batch_size(
    function: Callable[..., Any] | None = None, starting_batch_size: int = 128, auto_find_batch_size: bool = False
) -> Any:
    """A decorator: calls a function with smaller batches until memory suffices.

    Args:
        function: takes the size of a batch as its first argument.
        starting_batch_size: the first that is tried.
        auto_find_batch_size: False: there is one try only.
    """
    if function is None:
        return functools.partial(
            find_executable_batch_size, starting_batch_size=starting_batch_size,
            auto_find_batch_size=auto_find_batch_size,
        )  # fmt: skip
    called: Callable[..., Any] = function

    @functools.wraps(called)
    def tried(*args: Any, **kwargs: Any) -> Any:
        size = starting_batch_size
        while True:
            try:
                return called(size, *args, **kwargs)
            except (torch.OutOfMemoryError, RuntimeError) as error:
                smaller = int(size * SHRINK)
                if not (auto_find_batch_size and lacks_memory(error)) or smaller < 1:
                    raise
                size = smaller
            if torch.cuda.is_initialized():
                torch.cuda.empty_cache()

    return tried


def lacks_memory(error: BaseException) -> bool:
    """Whether an error says that memory did not suffice."""
    text = str(error).lower()
    return "out of memory" in text or "can't allocate memory" in text


# ---------------------------------------------------------------------- schedules by functions of their own


def get_constant_schedule(optimizer: Any, last_epoch: int = -1) -> Any:
    """The rate stays as it is."""
    return _scheduled("constant", optimizer, last_epoch)


def get_constant_schedule_with_warmup(optimizer: Any, num_warmup_steps: int, last_epoch: int = -1) -> Any:
    """The rate grows from 0, and then stays."""
    return _scheduled("constant_with_warmup", optimizer, last_epoch, num_warmup_steps)


def get_linear_schedule_with_warmup(
    optimizer: Any, num_warmup_steps: int, num_training_steps: int, last_epoch: int = -1
) -> Any:
    """The rate grows from 0, and then falls to 0 in a line."""
    return _scheduled("linear", optimizer, last_epoch, num_warmup_steps, num_training_steps)


def get_cosine_schedule_with_warmup(
    optimizer: Any, num_warmup_steps: int, num_training_steps: int, num_cycles: float = 0.5, last_epoch: int = -1
) -> Any:
    """The rate grows from 0, and then follows a cosine; half a wave ends at 0."""
    return _scheduled("cosine", optimizer, last_epoch, num_warmup_steps, num_training_steps, num_cycles=num_cycles)


def get_cosine_with_hard_restarts_schedule_with_warmup(
    optimizer: Any, num_warmup_steps: int, num_training_steps: int, num_cycles: int = 1, last_epoch: int = -1
) -> Any:
    """The rate grows from 0, and then falls along a cosine, as often as there are cycles."""
    return _scheduled(
        "cosine_with_restarts", optimizer, last_epoch, num_warmup_steps, num_training_steps, num_cycles=num_cycles
    )


def get_polynomial_decay_schedule_with_warmup(
    optimizer: Any,
    num_warmup_steps: int,
    num_training_steps: int,
    lr_end: float = 1e-7,
    power: float = 1.0,
    last_epoch: int = -1,
) -> Any:
    """The rate grows from 0, and then falls to `lr_end` along a polynomial."""
    return _scheduled(
        "polynomial", optimizer, last_epoch, num_warmup_steps, num_training_steps, lr_end=lr_end, power=power
    )


def get_inverse_sqrt_schedule(
    optimizer: Any, num_warmup_steps: int, timescale: int | None = None, last_epoch: int = -1
) -> Any:
    """The rate grows from 0, and then falls with the square root of the steps."""
    return _scheduled("inverse_sqrt", optimizer, last_epoch, num_warmup_steps, timescale=timescale)


def get_reduce_on_plateau_schedule(optimizer: Any, **kwargs: Any) -> Any:
    """torch's ReduceLROnPlateau."""
    return get_scheduler("reduce_lr_on_plateau", optimizer, scheduler_specific_kwargs=kwargs)


def get_cosine_with_min_lr_schedule_with_warmup(
    optimizer: Any,
    num_warmup_steps: int,
    num_training_steps: int,
    num_cycles: float = 0.5,
    last_epoch: int = -1,
    min_lr: float | None = None,
    min_lr_rate: float | None = None,
) -> Any:
    """The rate grows from 0, and then falls along a cosine to the least one: a rate, or a share of the highest."""
    return _scheduled(
        "cosine_with_min_lr", optimizer, last_epoch, num_warmup_steps, num_training_steps, num_cycles=num_cycles,
        min_lr=min_lr, min_lr_rate=min_lr_rate,
    )  # fmt: skip


def get_wsd_schedule(
    optimizer: Any,
    num_warmup_steps: int,
    num_decay_steps: int,
    num_training_steps: int | None = None,
    num_stable_steps: int | None = None,
    warmup_type: str = "linear",
    decay_type: str = "cosine",
    min_lr_ratio: float = 0,
    num_cycles: float = 0.5,
    last_epoch: int = -1,
) -> Any:
    """The rate grows, stays, and falls at the end."""
    return _scheduled(
        "warmup_stable_decay", optimizer, last_epoch, num_warmup_steps, num_training_steps,
        num_decay_steps=num_decay_steps, num_stable_steps=num_stable_steps, warmup_type=warmup_type,
        decay_type=decay_type, min_lr_ratio=min_lr_ratio, num_cycles=num_cycles,
    )  # fmt: skip


def _scheduled(
    name: str, optimizer: Any, last_epoch: int, warmup: int | None = None, total: int | None = None, **more: Any
) -> Any:
    """A schedule that stands at the step behind `last_epoch`."""
    for group in optimizer.param_groups if last_epoch >= 0 else ():
        if "initial_lr" not in group:
            raise ConfigError(
                f"last_epoch={last_epoch}: the optimizer's groups have no 'initial_lr' to go on with; leave it out"
            )
        group["lr"] = group["initial_lr"]
    made = get_scheduler(name, optimizer, warmup, total, more)
    for _ in range(last_epoch + 1):
        made.step()
    return made

"""Seeding python, numpy and torch together, and shielding their random states.

Owns what `seed_everything` means, in this process and in the loaders' worker processes. It keeps no state of its own:
the seed is handed to children by the environment. Who calls: users, and the engine around the sanity check.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from bolide.core import env
from bolide.core.errors import ConfigError
from bolide.core.messages import info, warn

LARGEST_SEED = 2**32 - 1
"""The largest seed that numpy takes."""


def seed_everything(seed: int | None = None, workers: bool = False, verbose: bool = True) -> int:
    """Seeds the global generators of python, numpy and torch (all devices). Call it on every rank.

    Args:
        seed: from 0 to 4294967295; None takes the last one (PL_GLOBAL_SEED), or 0.
        workers: whether each training sample draws its random numbers by (seed, epoch, position), so that neither the
            number of workers nor an interruption changes it.
        verbose: whether the seed is told on rank zero.

    Returns:
        The seed.

    Raises:
        ConfigError: no whole number within the bounds.

    Example::

        seed_everything(42, workers=True)
    """
    if seed is None:
        seed = _seed_of_the_environment()
    value = _checked(seed, f"seed_everything({seed!r})")
    env.set("PL_GLOBAL_SEED", str(value))
    env.set("PL_SEED_WORKERS", str(int(workers)))
    random.seed(value)
    np.random.seed(value)
    torch.manual_seed(value)
    if verbose:
        info(f"Seed set to {value}")
    return value


def _seed_of_the_environment() -> int:
    text = env.get("PL_GLOBAL_SEED")
    if text is None:
        warn("seed_everything() found no seed, so it takes 0. Write: seed_everything(42)", stacklevel=3)
        return 0
    return _checked(text, f"The environment variable PL_GLOBAL_SEED={text!r}")


def _checked(seed: object, source: str) -> int:
    try:
        value = int(seed)  # type: ignore[call-overload]
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{source} is no seed: expected a whole number from 0 to {LARGEST_SEED}.") from error
    if not 0 <= value <= LARGEST_SEED:
        raise ConfigError(f"{source} is out of bounds: expected a whole number from 0 to {LARGEST_SEED}.")
    return int(value)


def global_seed() -> tuple[int | None, bool]:
    """The seed that `seed_everything` was last given, if any, and whether it was to reach the loaders' samples."""
    text = env.get("PL_GLOBAL_SEED")
    return (int(text) if text is not None else None), env.get("PL_SEED_WORKERS") == "1"


def reset_seed() -> None:
    """Seeds again with the seed that `seed_everything` was last given, if it was called at all."""
    text = env.get("PL_GLOBAL_SEED")
    if text is not None:
        seed_everything(int(text), workers=env.get("PL_SEED_WORKERS") == "1", verbose=False)


def pl_worker_init_function(worker_id: int, rank: int | None = None) -> None:
    """A `worker_init_fn` that gives each worker of each rank its own streams in python, numpy and torch.

    torch has seeded the worker with a base seed plus `worker_id`; what is drawn here depends on that base, so that
    each epoch differs, and is repeated by a run with the same seed.
    """
    base = torch.initial_seed() - worker_id
    sequence = np.random.SeedSequence([base, worker_id, env.rank() if rank is None else rank])
    for_numpy, for_torch, for_python = sequence.spawn(3)
    np.random.seed(for_numpy.generate_state(4))
    torch.manual_seed(int(for_torch.generate_state(1, dtype=np.uint64)[0]))
    random.seed(int(for_python.generate_state(1, dtype=np.uint64)[0]))


def generators(include_cuda: bool = True) -> tuple[Any, ...]:
    """The states of the global generators as they are: for a way back within this process; `rng_state` is for files."""
    cuda = torch.cuda.get_rng_state_all() if include_cuda and torch.cuda.is_initialized() else None
    return random.getstate(), np.random.get_state(), torch.get_rng_state(), cuda


def set_generators(states: tuple[Any, ...]) -> None:
    """Puts the global generators at states of `generators`."""
    python, numpy, cpu, cuda = states
    random.setstate(python)
    np.random.set_state(numpy)
    torch.set_rng_state(cpu)
    if cuda is not None:
        torch.cuda.set_rng_state_all(cuda)


def rng_state(states: tuple[Any, ...] | None = None) -> dict[str, Any]:
    """The states of the global generators of python, numpy and torch (all started devices), as plain data.

    Args:
        states: what `generators` gave earlier; without it, the states of now.
    """
    (version, words, gauss), numpy, cpu, cuda = states if states is not None else generators()
    name, keys, place, has_gauss, cached = numpy
    state: dict[str, Any] = {
        "python": [version, torch.tensor(words, dtype=torch.int64), gauss],
        "numpy": [name, torch.from_numpy(np.asarray(keys).astype(np.int64)), place, has_gauss, cached],
        "torch": cpu,
    }
    if cuda is not None:
        state["cuda"] = cuda
    return state


def states_of(state: dict[str, Any]) -> tuple[Any, ...]:
    """A state of `rng_state` as `generators` gives it."""
    version, words, gauss = state["python"]
    name, keys, place, has_gauss, cached = state["numpy"]
    python, numpy = (version, tuple(words.tolist()), gauss), (name, keys.numpy().astype(np.uint32), place, has_gauss)
    return python, (*numpy, cached), state["torch"].cpu(), state.get("cuda")


def set_rng_state(state: dict[str, Any]) -> None:
    """Puts the global generators at a state of `rng_state`."""
    python, numpy, cpu, _ = states_of(state)
    set_generators((python, numpy, cpu, None))
    if "cuda" in state and torch.cuda.is_available() and len(state["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all([one.cpu() for one in state["cuda"]])


@contextmanager
def isolate_rng(include_cuda: bool = True) -> Iterator[None]:
    """Within the block, random numbers may be drawn; after it, all generators stand where they stood before.

    Args:
        include_cuda: whether the generators of CUDA devices are put back too. CUDA is not started for that.
    """
    states = generators(include_cuda)
    try:
        yield
    finally:
        set_generators(states)
        if states[-1] is None and include_cuda and torch.cuda.is_initialized():
            # The block started CUDA, whose generators begin at torch's seed.
            torch.cuda.manual_seed_all(torch.initial_seed())

"""Ray Tune's own search spaces (`tune.loguniform(1e-5, 1e-3)`), as optuna's suggestions: scripts for Ray write them.

Ray is not imported: who made such an entry has it. Who calls: tuner/study.
"""

from __future__ import annotations

from typing import Any

from bolide.core.errors import ConfigError


def is_of_ray(entry: Any) -> bool:
    """Whether an entry of a space is one of Ray Tune's."""
    return type(entry).__module__.startswith("ray.tune.") or (isinstance(entry, dict) and set(entry) == {"grid_search"})


def chosen(ask: Any, name: str, entry: Any) -> Any:
    """What optuna chooses out of an entry of Ray's: uniform, loguniform, randint, lograndint, choice, grid_search, and
    quniform and qrandint with their steps.

    Raises:
        ConfigError: another kind of entry.
    """
    if isinstance(entry, dict):
        return ask.suggest_categorical(name, list(entry["grid_search"]))
    kind = type(entry).__name__
    sampler: Any = getattr(entry, "sampler", None)
    if kind == "Categorical":
        return ask.suggest_categorical(name, list(entry.categories))
    step = getattr(sampler, "q", None)
    shape = type(sampler if step is None else sampler.sampler).__name__
    log = shape == "_LogUniform"
    if kind not in ("Float", "Integer") or shape not in ("_Uniform", "_LogUniform") or (log and step is not None):
        raise ConfigError(
            f"space[{name!r}] is Ray's {kind}{shape if kind != 'Function' else ''}, which is not translated; write "
            f"trial.suggest_float({name!r}, low, high) or another of optuna's"
        )
    if kind == "Integer":  # Ray leaves the upper end out, but where it goes in steps
        top = entry.upper if step is not None else entry.upper - 1
        return ask.suggest_int(name, entry.lower, top, step=step or 1, log=log)
    return ask.suggest_float(name, entry.lower, entry.upper, step=step, log=log)

"""What a checkpoint callback decides, as pure functions: names, ranks, due moments, what may be deleted.

Nothing here touches a file or a trainer; what it says depends on its arguments alone. Who calls: ModelCheckpoint.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bolide.core.errors import ConfigError, nearest

_FIELD = re.compile(r"\{([^{}:]*)(:[^{}]*)?\}")
_FORBIDDEN = re.compile(r"[\x00-\x1f\x7f]")


# ---------------------------------------------------------------------- settings


@dataclass(frozen=True)
class Rhythm:
    """How often a save is due. At most one is set; all zero or None: never."""

    every_n_train_steps: int
    every_n_epochs: int
    interval_s: float | None

    @property
    def by_batch(self) -> bool:
        """Whether a save can become due after a batch."""
        return self.every_n_train_steps > 0 or self.interval_s is not None


def rhythm(every_n_train_steps: int | None, every_n_epochs: int | None, interval_s: float | None) -> Rhythm:
    """The rhythm that was asked for; every epoch where nothing was."""
    if every_n_train_steps is None and every_n_epochs is None and interval_s is None:
        return Rhythm(0, 1, None)
    return Rhythm(every_n_train_steps or 0, every_n_epochs or 0, interval_s)


def problems(
    *,
    monitor: str | None,
    mode: str,
    save_top_k: Any,
    save_last: Any,
    every_n_train_steps: int | None,
    every_n_epochs: int | None,
    has_interval: bool,
    filename: str | None,
) -> Iterator[str]:
    """All that is wrong with the settings of a ModelCheckpoint, one sentence each."""
    if mode not in ("min", "max"):
        yield f"mode={mode!r} must be 'min' or 'max'"
    if not isinstance(save_top_k, int) or save_top_k < -1:
        yield f"save_top_k={save_top_k!r} must be a whole number of at least -1 (-1: keep all, 0: none)"
    elif monitor is None and save_top_k > 1:
        yield f"save_top_k={save_top_k} needs a metric to rank by; write monitor='val_loss', or save_top_k=-1 for all"
    if save_last not in (None, True, False, "link"):
        yield f"save_last={save_last!r} must be True, False, None or 'link'"
    for name, value in (("every_n_train_steps", every_n_train_steps), ("every_n_epochs", every_n_epochs)):
        if value is not None and (not isinstance(value, int) or value < 0):
            yield f"{name}={value!r} must be a whole number of at least 0 (0: never)"
            return
    given = [
        name
        for name, on in (
            ("every_n_train_steps", bool(every_n_train_steps)),
            ("every_n_epochs", bool(every_n_epochs)),
            ("train_time_interval", has_interval),
        )
        if on
    ]
    if len(given) > 1:
        yield f"{' and '.join(given)} exclude each other; write one of them, or use a ModelCheckpoint for each"
    if filename:
        yield from template_problems(filename)


# ---------------------------------------------------------------------- names


@dataclass(frozen=True)
class NameStyle:
    """How a file name is put together: "epoch=3-step=7", joined by `join`, names and values by `equals`."""

    join: str = "-"
    equals: str = "="
    insert_names: bool = True


def template_problems(template: str) -> Iterator[str]:
    """What is wrong with a file name template, before any metric is known."""
    rest = _FIELD.sub("", template)
    if "{" in rest or "}" in rest:
        yield f"filename={template!r} has a brace without its partner; fields look like {{val_loss:.2f}}"
        return
    if any(not field.group(1).strip() for field in _FIELD.finditer(template)):
        yield f"filename={template!r} has a field without a name; write for example {{epoch}}"
        return
    reason = name_problem(_FIELD.sub("0", template))
    if reason:
        yield f"filename={template!r} {reason}"


def name_problem(name: str) -> str | None:
    """Why a relative file name is refused, or None: it must stay below its folder."""
    if not name:
        return "is empty"
    if _FORBIDDEN.search(name):
        return "holds a control character"
    if os.path.isabs(name) or name.startswith(("/", "\\")) or re.match(r"^[A-Za-z][A-Za-z0-9+.-]*://", name):
        return "is an absolute path; give the folder as dirpath"
    if ".." in re.split(r"[/\\]", name):
        return "leads out of its folder ('..'); give the folder as dirpath"
    return None


def file_name(template: str, values: Mapping[str, Any], style: NameStyle, prefix: str | None = None) -> str:
    """`template` with its fields filled from `values`, without an extension.

    A field is {name} or {name:format}. A name without a value counts as 0. With `style.insert_names` a field becomes
    "name=value".

    Args:
        template: for example "{epoch:03d}-{val_loss:.2f}".
        values: numbers or 1-element tensors by name.
        style: the characters between the parts.
        prefix: put in front, joined by `style.join`.

    Raises:
        ConfigError: a format that does not fit its value, or a name that leads out of its folder.

    Example::

        file_name("{epoch}-{acc:.2f}", {"epoch": 3, "acc": 0.931}, NameStyle())  # 'epoch=3-acc=0.93'
    """

    def fill(field: re.Match[str]) -> str:
        name, spec = field.group(1), (field.group(2) or ":")[1:]
        value = values.get(name, 0)
        if isinstance(value, Tensor):
            value = value.item()
        try:
            text = format(value, spec)
        except ValueError as error:
            raise ConfigError(
                f"filename={template!r}: {name!r} is {value!r}, which the format {spec!r} does not fit ({error})"
            ) from error
        return f"{name}{style.equals}{text}" if style.insert_names else text

    name = _FIELD.sub(fill, template)
    if prefix:
        name = f"{prefix}{style.join}{name}"
    reason = name_problem(name)
    if reason:
        raise ConfigError(f"filename={template!r} gives the file name {name!r}, which {reason}")
    return name


def first_free(path_of: Callable[[int | None], str], taken: Callable[[str], bool], first_version: int) -> str:
    """The first path that is not `taken`: without a version, then with `first_version` and on."""
    path, version = path_of(None), first_version
    while taken(path):
        path, version = path_of(version), version + 1
    return path


def matches_template(name: str, template: str, join: str = "-") -> bool:
    """Whether `name` can have come from `template`: equal but for the fields, and for a version at the end."""
    parts = re.split(r"\{[^{}]*\}", template)
    pattern = ".*".join(re.escape(part) for part in parts)
    return re.fullmatch(f"{pattern}(?:{re.escape(join)}v\\d+)?", name) is not None


# ---------------------------------------------------------------------- ranks


@dataclass(frozen=True)
class Ranking:
    """The kept checkpoints by path with their scores, best and worst among them."""

    scores: dict[str, Tensor]
    best_path: str
    best_score: Tensor | None
    worst_path: str
    worst_score: Tensor


def worst_possible(mode: str) -> Tensor:
    """The score that every other one beats: infinity for "min", minus infinity for "max"."""
    return torch.tensor(torch.inf if mode == "min" else -torch.inf)


def comparable(score: Tensor, mode: str) -> Tensor:
    """`score` as it is ranked: on the CPU, and what is not a number counts as the worst possible."""
    score = score.detach().cpu()
    return worst_possible(mode) if torch.isnan(score) else score


def is_better(score: Tensor, other: Tensor, mode: str) -> bool:
    """Whether `score` is better than `other`; an equal one is not."""
    return bool(score < other) if mode == "min" else bool(score > other)


def worst_of(scores: Mapping[str, Tensor], mode: str) -> str:
    """The path with the worst score; the oldest one among equals."""
    pick = max if mode == "min" else min
    return pick(scores, key=lambda path: float(scores[path]))


def enters(score: Tensor, scores: Mapping[str, Tensor], save_top_k: int, mode: str) -> bool:
    """Whether a checkpoint with `score` is among the best `save_top_k` of those that are kept."""
    if save_top_k == -1 or len(scores) < save_top_k:
        return True
    if save_top_k == 0:
        return False
    return is_better(comparable(score, mode), scores[worst_of(scores, mode)], mode)


def losing_places(scores: Mapping[str, Tensor], save_top_k: int, mode: str) -> list[str]:
    """The paths that lose their place when one more enters, worst first."""
    if save_top_k < 1:
        return []
    left, lost = dict(scores), []
    while len(left) >= save_top_k:
        lost.append(worst_of(left, mode))
        del left[lost[-1]]
    return lost


def ranked(scores: Mapping[str, Tensor], save_top_k: int, mode: str) -> Ranking:
    """Who is best and worst. There is no worst one while places are free."""
    kept = dict(scores)
    best_path = (min if mode == "min" else max)(kept, key=lambda path: float(kept[path])) if kept else ""
    full = bool(kept) and (save_top_k == -1 or len(kept) >= save_top_k)
    worst_path = worst_of(kept, mode) if full else ""
    return Ranking(
        kept,
        best_path,
        kept.get(best_path),
        worst_path,
        kept[worst_path] if worst_path else worst_possible(mode),
    )


# ---------------------------------------------------------------------- when a save is due


def step_due(step: int, seen_step: int, every_n_train_steps: int, exact: bool = False) -> bool:
    """Whether a save is due at `step`, where `seen_step` was the last one that was asked about.

    A batch may count several steps (manual optimization), so a multiple that was passed over counts too, unless
    `exact` asks for the multiples themselves.
    """
    if every_n_train_steps < 1:
        return False
    if exact:
        return step % every_n_train_steps == 0
    return step // every_n_train_steps > seen_step // every_n_train_steps


def time_due(now_s: float, last_s: float | None, interval_s: float | None) -> bool:
    """Whether `interval_s` seconds have passed since the last save, or since training began."""
    return interval_s is not None and (last_s is None or now_s - last_s >= interval_s)


def epoch_due(epoch: int, every_n_epochs: int) -> bool:
    """Whether a save is due in `epoch`, counted from 0."""
    return every_n_epochs >= 1 and (epoch + 1) % every_n_epochs == 0


def at_train_epoch_end(
    asked: bool | None, val_check_interval: Any, check_val_every_n_epoch: int | None, validates: bool
) -> bool:
    """Whether a save (or a check of a metric) belongs to the end of the training epoch, not of validation.

    Where it was not asked for either way: at the end of validation if that does not run exactly once an epoch.
    """
    if not validates:
        return True
    if asked is not None:
        return asked
    once_an_epoch = isinstance(val_check_interval, float) and val_check_interval == 1.0
    return once_an_epoch and check_val_every_n_epoch == 1


# ---------------------------------------------------------------------- what may be deleted


# ---------------------------------------------------------------------- a metric that is not there


def nearest_first(name: str, known: Iterable[str]) -> list[str]:
    """All `known` names, those that look like `name` first."""
    names = list(dict.fromkeys(known))
    close = nearest(name, names, max(len(names), 1))
    return close + [other for other in names if other not in close]


def missing_metric(owner: str, monitor: str, known: Iterable[str]) -> str:
    """The text of the error that `owner` waits for a metric that nobody logs."""
    names = nearest_first(monitor, known)
    if not names:
        return (
            f"{owner} waits for the metric {monitor!r}, and nothing is logged at all. "
            f"Write self.log({monitor!r}, value) in the module."
        )
    listed = ", ".join(repr(name) for name in names)
    return (
        f"{owner} waits for the metric {monitor!r}, which nobody logs. Logged are: {listed}. "
        f"Write self.log({monitor!r}, value) in the module, or monitor={names[0]!r}."
    )

"""A study of several processes that train each trial together: the first one keeps it, all hear what it says.

Owns the turn of asking, training and telling on all ranks. What a study is, study.py knows. Who calls:
transformers/search, within a launched group of processes.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from bolide import collectives
from bolide.collectives import on_rank_zero
from bolide.core.errors import ConfigError
from bolide.tuner.study import Keeper, Settings, Space, Study, Train, bar_of, best_so_far, points_of
from bolide.tuner.trial import PrunedError, Trial


def run_together(train: Train, space: Space, settings: Settings) -> Study | None:
    """Runs trials until there are so many; every rank calls this, and trains every trial.

    `train` is given the trial on each rank: the settings that the first rank's study chose. The value that it returns
    counts on the first rank; what it reports there, and whether the trial is given up, holds on all.

    Returns:
        The study on the first rank, None on the others.

    Raises:
        ConfigError: lists everything that is wrong with the settings.
        FailedOnRankZero: on the other ranks, where the study itself failed on the first one.
    """
    wrong = settings.problems()
    if settings.n_jobs != 1:
        wrong.append(
            f"n_jobs={settings.n_jobs}: these processes train each trial together, one trial after the other; write "
            "n_jobs=1, or start the script as one process"
        )
    if settings.backend != "optuna":
        wrong.append(f"backend={settings.backend!r} starts processes of its own; start the script as one process")
    if wrong:
        raise ConfigError(wrong)
    grid, total = points_of(space, settings)
    settings = replace(settings, progress_bar=settings.progress_bar and collectives.rank() == 0)
    kept: list[Keeper] = []
    began_s = time.monotonic()

    def opened() -> int:
        kept.append(Keeper(space, settings, grid, total))
        return len(kept[0].missing)

    with bar_of(settings, total, on_rank_zero(opened)) as bar:
        while (found := on_rank_zero(lambda: kept[0].next())) is not None:
            _train_one(train, kept, *found)
            if kept:
                bar.set_postfix_str(best_so_far(kept[0].study))
            bar.update()
    return Study(kept[0].study, time.monotonic() - began_s) if kept else None


def _train_one(train: Train, kept: list[Keeper], index: int, settings: dict[str, Any]) -> None:
    """One trial on all ranks."""

    def tell(value: float, step: int) -> bool:
        return on_rank_zero(lambda: kept[0].report(index, value, step))

    def choose(*asked: Any, **options: Any) -> Any:
        return on_rank_zero(lambda: kept[0].choose(index, *asked, **options))

    trial = Trial(index, settings, tell, choose=choose)
    value: Any = None
    try:
        value = train(trial)
    except PrunedError:
        pass
    on_rank_zero(lambda: kept[0].finish(index, value, trial.results))

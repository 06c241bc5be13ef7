"""Ranks are killed again and again while the agent starts them anew: the end has the bits of an undisturbed run."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import pytest

from bolide.checkpoint.read import verify_checkpoint
from tests.distributed import resumed
from tests.distributed.support import gone

KILLS = {
    "25 of a random rank": (2, 25, False, "ddp"),
    "10 of all ranks": (2, 10, True, "ddp"),
    "10 of a random rank of 4": (4, 10, False, "ddp"),
    "10 of a random rank of FSDP": (2, 10, False, "fsdp"),
    "10 of a random rank of FSDP, 7 of them in a sharded write": (2, 10, False, "fsdp_sharded"),
}
IN_A_WRITE = 7
"""So many of the kills of a sharded run strike between the making of a checkpoint's folder and its manifest."""


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("case", KILLS)
def test_kills_of_ranks(tmp_path: Path, case: str) -> None:
    ranks, count, everyone, strategy = KILLS[case]
    draw = random.Random(case)
    samples = 94 if ranks == 2 else 188
    right = resumed.run(tmp_path / "right", ranks=ranks, samples=samples, epochs=8, strategy=strategy)
    kills: list[Any] = [(i, -1 if everyone else draw.randrange(ranks), draw.uniform(0.05, 0.9)) for i in range(count)]
    if strategy == "fsdp_sharded":
        for i in draw.sample(range(count), IN_A_WRITE):  # a moment of saving has some 40 on rank 0, 12 on rank 1
            rank = draw.randrange(2)
            kills[i] = (i, rank, (draw.choice(["before", "after"]), draw.randint(1, 25 if rank else 90)))
    started_s = time.monotonic()
    found = resumed.run(
        tmp_path / "killed",
        ranks=ranks,
        samples=samples,
        epochs=8,
        strategy=strategy,
        kills=kills,
        pause_s=0.08,
        restarts=count,
    )
    assert found == right, f"after {time.monotonic() - started_s:.0f} s"
    killed = [line.split() for line in (tmp_path / "killed" / "killed").read_text().splitlines()]
    assert len({attempt for attempt, *_ in killed}) >= count * 0.8, "the run ended before most of the kills"
    if strategy == "fsdp_sharded":
        assert sum(1 for *_, where in killed if ".ckpt/" in where) >= count / 2, killed
        names = {path.name for path in (tmp_path / "killed" / "saved").glob("*.ckpt")}
        # a kill between a commit and the removal of what it supersedes leaves that, too
        assert names >= {path.name for path in (tmp_path / "right" / "saved").glob("*.ckpt")}
        for name in names:
            report = verify_checkpoint(tmp_path / "killed" / "saved" / name)
            assert report.whole and report.shards == 2
            assert len(list((tmp_path / "killed" / "saved" / name).iterdir())) == 4
    for rank in range(ranks):
        made = resumed.attempts(tmp_path / "killed", rank)
        assert gone([pid for *_, pid in made], within_s=1)
        starts = {attempt: when for attempt, _, when, _ in made}
        for attempt, _, when_s, _ in killed:
            following = starts.get(int(attempt) + 1)
            # all ranks of the next attempt start when the survivors of this one are gone
            assert following is None or following - float(when_s) < 40

"""A power loss after any file operation: a valid checkpoint is found, and the run ends with the same bits."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from bolide.checkpoint import io, store
from bolide.checkpoint.parts import share_of_this_rank
from bolide.checkpoint.read import read_checkpoint
from bolide.checkpoint.sharded_write import write_folder
from tests.chaos import power
from tests.chaos.killing import forked
from tests.chaos.worlds import differences, left

pytestmark = pytest.mark.timeout(600)

WORLD: dict[str, Any] = {"net": "mlp", "n": 24, "epochs": 2, "every": 1, "accumulate": 2, "val": 4}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Any], Any]:
    """The folder of a run, what the disk may hold after each of its operations, and what the run leaves."""
    folder = tmp_path_factory.mktemp("power")
    out, log = folder / "run", folder / "log.jsonl"
    assert forked(out, {**WORLD, "ckpt": None, "record": str(log)}) == 0
    return out, list(power.states(log)), left(str(out))


def goes_on(out: Path, state: Any, reference: Any, seen_one: bool) -> None:
    """Puts the disk into the state; the run finds a valid checkpoint where one was ever committed, and ends alike."""
    number, content, others = state
    power.build(out, content, others)
    found = store.newest_valid(store.checkpoints_in(str(out / "checkpoints")))
    assert found.path is not None or not seen_one, f"no valid checkpoint after operation {number}"
    power.build(out, content, others)  # what was set aside is back: the run itself must cope
    assert forked(out, WORLD) == 0
    assert differences(reference, left(str(out))) == [], f"after operation {number}"


def committed(content: dict[str, Any]) -> bool:
    return any(path.endswith(".ckpt") and data for path, data in content.items())


def first_commit(states: list[Any]) -> int:
    """The first operation after which every content has a checkpoint."""
    last_without = max((number for number, content, _ in states if not committed(content)), default=0)
    return last_without + 1


def test_the_model_knows_what_is_sure(recorded: tuple[Path, list[Any], Any]) -> None:
    _, states, _ = recorded
    assert len(states) > 20
    cut = [c for _, c, _ in states for path, data in c.items() if path.endswith(".part") and data == b""]
    assert cut  # files that were never flushed are among them
    assert first_commit(states) < max(number for number, _, _ in states) / 2


def test_some_power_losses(recorded: tuple[Path, list[Any], Any]) -> None:
    out, states, reference = recorded
    since = first_commit(states)
    for state in random.Random(1).sample(states, 6):
        goes_on(out, state, reference, state[0] >= since)


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_every_power_loss(recorded: tuple[Path, list[Any], Any]) -> None:
    out, states, reference = recorded
    since = first_commit(states)
    for state in states:
        goes_on(out, state, reference, state[0] >= since)


def test_every_power_loss_within_saves_of_shards(tmp_path: Path) -> None:
    """A folder is written, and written again under its name: what the disk holds is the old one or the new one."""
    out = tmp_path / "run"
    out.mkdir()
    recorder = power.Recorder(tmp_path / "log.jsonl", out)
    written = []
    io.operations.listeners.append(recorder)
    try:
        for step in (1, 2):
            state = {"state_dict": {"w": torch.full((3, 2), float(step))}, "optimizer_states": [], "global_step": step}
            write_folder(share_of_this_rank(state), str(out / "last.ckpt"))
            written.append(recorder.lines)
    finally:
        io.operations.listeners.remove(recorder)
    seen = set()
    for number, content, others in power.states(tmp_path / "log.jsonl"):
        power.build(out, content, others)
        found = store.newest_valid(store.checkpoints_in(str(out)))
        assert not found.rejected, number
        step = found.about.step if found.about is not None else 0
        assert step >= (number >= written[0]) + (number >= written[1])
        if found.path is not None:
            assert read_checkpoint(found.path)["state_dict"]["w"][0, 0] == step
        seen.add((step, number >= written[0]))
    assert seen == {(0, False), (1, False), (1, True), (2, True)}

"""kill -9 at any instant, start again, and the end has the same bits as a run that nobody disturbed.

Compared: every tensor, counter and random state of the final checkpoint, the ranking of the kept checkpoints, the
metric file, and each sample that was trained on, with its augmentation. The short forms run with the other tests, the
long ones with `make chaos`.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.killing import batches_done, cold, forked
from tests.chaos.worlds import differences, left

pytestmark = pytest.mark.timeout(600)

SHORT: dict[str, Any] = {"net": "mlp", "n": 24, "epochs": 2, "every": 1, "accumulate": 2, "val": 4}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What each world leaves when nothing happens to it, found once."""
    known: dict[str, Any] = {}

    def of(options: dict[str, Any]) -> Any:
        key = repr(sorted(options.items()))
        if key not in known:
            out = tmp_path_factory.mktemp("undisturbed") / "run"
            assert forked(out, {**options, "ckpt": None}) == 0
            known[key] = left(str(out))
        return known[key]

    return of


def survives(out: Path, options: dict[str, Any], kills_s: list[float], reference: Any) -> None:
    """Kills attempts in new interpreters so long after their first batch; what is left must be as in `reference`."""
    for kill_after_s in kills_s:
        if cold(out, options, kill_after_s) == 0:
            break
    if not (out / "final.ckpt").exists():
        assert cold(out, options) == 0
    assert differences(reference, left(str(out))) == []


@pytest.mark.parametrize("net", ["mlp", "cnn", "transformer"])
def test_killed_once_at_a_random_instant(tmp_path: Path, undisturbed: Any, net: str) -> None:
    options = {"net": net, "workers": 2 if net == "cnn" else 0}
    survives(tmp_path / "run", options, [random.Random(net).uniform(0.0, 0.6)], undisturbed(options))


def test_killed_in_the_midst_of_writing(tmp_path: Path, undisturbed: Any) -> None:
    out = tmp_path / "run"
    for number in (9, 23, 31):
        assert forked(out, {**SHORT, "die": ["before", number]}) == -9
    assert forked(out, SHORT) == 0
    assert differences(undisturbed(SHORT), left(str(out))) == []


def operations_of(tmp_path: Path) -> int:
    """How many file operations an undisturbed short run does."""
    out = tmp_path / "counted"
    number = 1
    low, high = 1, 4096
    while low < high:  # a run that is told to die after its last operation ends by itself
        number = (low + high) // 2
        code = forked(out.with_name(f"counted-{number}"), {**SHORT, "ckpt": None, "die": ["before", number]})
        low, high = (number + 1, high) if code == -9 else (low, number)
    return low - 1


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_at_every_file_operation(tmp_path: Path, undisturbed: Any, when: str) -> None:
    total = operations_of(tmp_path)
    assert total > 40
    for number in range(1, total + 1):
        out = tmp_path / f"run-{number}"
        assert forked(out, {**SHORT, "die": [when, number]}) == -9
        assert forked(out, SHORT) == 0
        assert differences(undisturbed(SHORT), left(str(out))) == [], f"{when} operation {number} of {total}"


def test_killed_at_some_file_operations(tmp_path: Path, undisturbed: Any) -> None:
    for number in (1, 5, 8, 14, 20, 27, 36):
        out = tmp_path / f"run-{number}"
        assert forked(out, {**SHORT, "die": ["after", number]}) == -9
        assert forked(out, SHORT) == 0
        assert differences(undisturbed(SHORT), left(str(out))) == [], f"operation {number}"


def test_killed_after_the_last_save(tmp_path: Path, undisturbed: Any) -> None:
    """Nothing is left to train, and what the run then saves has the bits of the end all the same."""
    options = {"net": "mlp"}
    out = tmp_path / "run"
    assert forked(out, options) == 0
    (out / "final.ckpt").unlink()
    assert forked(out, options) == 0
    assert differences(undisturbed(options), left(str(out))) == []


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_fifty_random_kills(tmp_path: Path, undisturbed: Any) -> None:
    """Three models, workers or none, up to three kills a run, a third of them within a checkpoint's write."""
    draw = random.Random(50)
    kills = 0
    case = 0
    while kills < 50:
        net = ("mlp", "cnn", "transformer")[case % 3]
        options = {"net": net, "workers": (0, 2)[case // 3 % 2]}
        out = tmp_path / f"run-{case}"
        for _ in range(draw.randint(1, 3)):
            if draw.random() < 1 / 3:
                code = cold(out, {**options, "die": [draw.choice(["before", "after"]), draw.randint(1, 60)]})
            else:
                code = cold(out, options, draw.uniform(0.0, 1.2))
            kills += code == -9
            if code == 0:
                break
        if not (out / "final.ckpt").exists():
            assert cold(out, options) == 0
        assert differences(undisturbed(options), left(str(out))) == [], f"case {case}: {options}"
        case += 1


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_work_lost_is_one_save_interval_at_the_most(tmp_path: Path) -> None:
    options = {"net": "mlp", "every": 2, "accumulate": 2}
    draw = random.Random(7)
    out = tmp_path / "run"
    for _ in range(6):
        if cold(out, options, draw.uniform(0.05, 0.3)) == 0:
            break
    done = batches_done(out)
    steps_back = [
        (a - b) for a, b in zip(map(_place, done), map(_place, done[1:]), strict=False) if _place_is_earlier(b, a)
    ]
    # a batch trained on again is at most one interval (2 steps of 2 batches) and the save in flight away
    assert all(back < 2 * 4 + 1 for back in steps_back), steps_back


def _place(pair: tuple[int, int]) -> int:
    return pair[0] * 18 + pair[1]


def _place_is_earlier(b: int, a: int) -> bool:
    return b <= a


VARIANTS = ({"workers": 0}, {"workers": 2, "prefetch": 3}, {"workers": 1}, {"workers": 3, "persistent": True})


def test_samples_do_not_depend_on_workers_or_kills(tmp_path: Path, undisturbed: Any) -> None:
    """With `seed_everything(seed, workers=True)`: other workers, prefetching and persistence after each kill."""
    base = {"net": "mlp", "keyed": True, "augment": True}
    out = tmp_path / "run"
    draw = random.Random(3)
    for variant in VARIANTS:
        if cold(out, {**base, **variant}, draw.uniform(0.0, 0.25)) == 0:
            break
    if not (out / "final.ckpt").exists():
        assert cold(out, {**base, "workers": 2}) == 0
    assert differences(undisturbed(base), left(str(out))) == []

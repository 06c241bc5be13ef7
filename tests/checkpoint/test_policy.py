import math

import pytest
import torch

from bolide.checkpoint import policy
from bolide.checkpoint.policy import NameStyle, Rhythm
from bolide.core.errors import ConfigError

T = torch.tensor
SETTINGS = {
    "monitor": None, "mode": "min", "save_top_k": 1, "save_last": None, "every_n_train_steps": None,
    "every_n_epochs": None, "has_interval": False, "filename": None,
}  # fmt: skip


# ---------------------------------------------------------------------- settings


def test_without_a_rhythm_a_save_is_due_every_epoch():
    assert policy.rhythm(None, None, None) == Rhythm(0, 1, None)
    assert policy.rhythm(2, None, None) == Rhythm(2, 0, None)
    assert policy.rhythm(None, None, 5.0) == Rhythm(0, 0, 5.0)
    assert policy.rhythm(0, 0, None) == Rhythm(0, 0, None)
    assert policy.rhythm(2, None, None).by_batch and not policy.rhythm(None, 3, None).by_batch


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"mode": "auto"}, "mode='auto'"),
        ({"save_top_k": -2}, "save_top_k=-2"),
        ({"save_top_k": 3}, "needs a metric"),
        ({"save_last": "copy"}, "save_last='copy'"),
        ({"every_n_train_steps": -1}, "every_n_train_steps=-1"),
        ({"every_n_epochs": 0.5}, "every_n_epochs=0.5"),
        ({"every_n_train_steps": 1, "every_n_epochs": 1}, "exclude each other"),
        ({"every_n_train_steps": 1, "has_interval": True}, "train_time_interval"),
        ({"filename": "{epoch"}, "brace"),
        ({"filename": "{}"}, "without a name"),
        ({"filename": "../x"}, "dirpath"),
        ({"filename": "/x"}, "dirpath"),
        ({"filename": "a/../../x-{epoch}"}, "dirpath"),
        ({"filename": "s3://bucket/{epoch}"}, "dirpath"),
        ({"filename": "a\0b"}, "control"),
    ],
)
def test_wrong_settings_are_named(change, word):
    found = list(policy.problems(**{**SETTINGS, **change}))
    assert len(found) == 1 and word in found[0]


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"save_top_k": -1},
        {"save_top_k": 0, "save_last": "link"},
        {"every_n_train_steps": 0, "every_n_epochs": 1},
        {"monitor": "v", "save_top_k": 3, "mode": "max"},
        {"filename": "{epoch:03d}-{val/acc:.2f}"},
        {"filename": "a..b/{v}"},
    ],
)
def test_good_settings_have_no_problem(change):
    assert list(policy.problems(**{**SETTINGS, **change})) == []


# ---------------------------------------------------------------------- names


@pytest.mark.parametrize(
    ("template", "values", "name"),
    [
        ("{epoch}-{step}", {"epoch": T(3), "step": T(7)}, "epoch=3-step=7"),
        ("{epoch:03d}-{acc:.2f}", {"epoch": 3, "acc": T(0.9312)}, "epoch=003-acc=0.93"),
        ("{val/acc:.1f}", {"val/acc": 0.5}, "val/acc=0.5"),
        ("{acc}", {"acc": T(0.9312)}, "acc=0.9312000274658203"),
        ("{acc:.1f}", {"acc": T([2.0])}, "acc=2.0"),
        ("{unknown:.2f}", {}, "unknown=0.00"),
        ("plain", {"epoch": 3}, "plain"),
        ("{a-b:.1f}_{a b}_{a.b}", {"a-b": 1.0, "a b": 2, "a.b": 3}, "a-b=1.0_a b=2_a.b=3"),
        ("{a[0]:.1f}", {"a[0]": 1.0}, "a[0]=1.0"),
        ("{acc_2:.0f}{acc:.0f}", {"acc": 1.0, "acc_2": 2.0}, "acc_2=2acc=1"),
        ("{v:.2f}", {"v": T(math.nan)}, "v=nan"),
    ],
)
def test_file_names(template, values, name):
    assert policy.file_name(template, values, NameStyle()) == name


def test_file_name_styles():
    values = {"epoch": 3, "v": 0.5}
    assert policy.file_name("e{epoch:02d}", values, NameStyle(insert_names=False)) == "e03"
    assert policy.file_name("{epoch}", values, NameStyle(join="_", equals=":"), "pre") == "pre_epoch:3"


def test_a_format_that_does_not_fit_says_so():
    with pytest.raises(ConfigError, match=r"'v' is 0\.5, which the format 'd' does not fit"):
        policy.file_name("{v:d}", {"v": 0.5}, NameStyle())


@pytest.mark.parametrize("name", ["../x", "/etc/x", "a/../../x", "x\n", "x\0", "\\\\host\\x", "C:\\x\\..\\y", ""])
def test_names_stay_below_their_folder(name):
    assert policy.name_problem(name)


def test_a_metric_name_cannot_lead_out_of_the_folder():
    with pytest.raises(ConfigError, match="leads out"):
        policy.file_name("{../../x}", {"../../x": 1.0}, NameStyle())
    with pytest.raises(ConfigError, match="leads out"):
        policy.file_name("a{v:/>3}", {"v": 1}, NameStyle(insert_names=False), "../b")


def test_first_free_version():
    there = {"x", "x-v1", "x-v2"}
    assert policy.first_free(lambda v: "x" if v is None else f"x-v{v}", there.__contains__, 1) == "x-v3"
    assert policy.first_free(lambda v: "y" if v is None else f"y-v{v}", there.__contains__, 1) == "y"


@pytest.mark.parametrize(
    ("name", "template", "fits"),
    [
        ("last", "last", True),
        ("last-v1", "last", True),
        ("last-v12", "last", True),
        ("lastly", "last", False),
        ("epoch=3-last", "{epoch}-last", True),
        ("epoch=3-last-v2", "{epoch}-last", True),
        ("epoch=3", "{epoch}-last", False),
    ],
)
def test_names_of_last_checkpoints_are_known(name, template, fits):
    assert policy.matches_template(name, template) is fits


# ---------------------------------------------------------------------- ranks


def scores(**values):
    return {name: T(value) for name, value in values.items()}


@pytest.mark.parametrize(
    ("score", "kept", "k", "mode", "inside"),
    [
        (1.0, {}, 1, "min", True),
        (1.0, {"a": 2.0}, 1, "min", True),
        (2.0, {"a": 2.0}, 1, "min", False),
        (3.0, {"a": 2.0}, 1, "min", False),
        (3.0, {"a": 2.0}, 1, "max", True),
        (3.0, {"a": 2.0}, 2, "min", True),
        (math.nan, {"a": 2.0}, 1, "min", False),
        (math.nan, {"a": 2.0}, 1, "max", False),
        (math.nan, {}, 1, "max", True),
        (9.0, {"a": 2.0}, -1, "min", True),
        (1.0, {}, 0, "min", False),
    ],
)
def test_who_is_among_the_best(score, kept, k, mode, inside):
    assert policy.enters(T(score), scores(**kept), k, mode) is inside


def test_the_worst_loses_its_place_the_oldest_among_equals():
    assert policy.losing_places(scores(a=1.0, b=3.0), 2, "min") == ["b"]
    assert policy.losing_places(scores(a=1.0, b=3.0), 2, "max") == ["a"]
    assert policy.losing_places(scores(a=2.0, b=2.0), 2, "min") == ["a"]
    assert policy.losing_places(scores(a=2.0), 2, "min") == []
    assert policy.losing_places(scores(a=2.0, b=1.0), -1, "min") == []


def test_a_smaller_k_than_before_drops_all_that_are_too_many():
    assert policy.losing_places(scores(a=1.0, b=3.0, c=2.0), 1, "min") == ["b", "c", "a"]


def test_ranking():
    full = policy.ranked(scores(a=1.0, b=3.0), 2, "min")
    assert (full.best_path, float(full.best_score), full.worst_path, float(full.worst_score)) == ("a", 1.0, "b", 3.0)
    free = policy.ranked(scores(a=1.0), 2, "max")
    assert (free.best_path, free.worst_path, float(free.worst_score)) == ("a", "", -math.inf)
    none = policy.ranked({}, -1, "min")
    assert (none.best_path, none.best_score, float(none.worst_score)) == ("", None, math.inf)


def test_nan_is_ranked_as_the_worst():
    assert policy.comparable(T(math.nan), "min") == math.inf
    assert policy.comparable(T(math.nan), "max") == -math.inf
    assert policy.comparable(T(2.0), "min") == 2.0


# ---------------------------------------------------------------------- due


def test_steps_that_are_due():
    seen, due = 0, []
    for step in (1, 2, 2, 3, 4, 5, 6):
        if policy.step_due(step, seen, 2):
            due.append(step)
        seen = step
    assert due == [2, 4, 6]
    assert not policy.step_due(4, 3, 0)


def test_a_multiple_that_was_passed_over_is_due_unless_exact():
    assert policy.step_due(4, 2, 3) and not policy.step_due(4, 2, 3, exact=True)
    assert policy.step_due(6, 4, 3) and policy.step_due(6, 4, 3, exact=True)


def test_times_and_epochs_that_are_due():
    assert policy.time_due(10.0, 5.0, 5.0) and not policy.time_due(9.0, 5.0, 5.0)
    assert policy.time_due(1.0, None, 5.0) and not policy.time_due(100.0, 0.0, None)
    assert [e for e in range(6) if policy.epoch_due(e, 2)] == [1, 3, 5]
    assert [e for e in range(3) if policy.epoch_due(e, 1)] == [0, 1, 2]
    assert not any(policy.epoch_due(e, 0) for e in range(3))


@pytest.mark.parametrize(
    ("asked", "interval", "every", "validates", "at_epoch_end"),
    [
        (None, 1.0, 1, True, True),
        (None, 0.5, 1, True, False),
        (None, 1, 1, True, False),
        (None, 3, None, True, False),
        (None, "15 min", 1, True, False),
        (None, 1.0, 2, True, False),
        (True, 0.5, 2, True, True),
        (False, 1.0, 1, True, False),
        (None, 1.0, 2, False, True),
        (False, 1.0, 1, False, True),
    ],
)
def test_where_the_moment_is(asked, interval, every, validates, at_epoch_end):
    assert policy.at_train_epoch_end(asked, interval, every, validates) is at_epoch_end


def test_the_nearest_name_comes_first():
    text = policy.missing_metric("EarlyStopping(monitor='val_los')", "val_los", ["acc", "val_loss", "lr"])
    assert text.index("'val_loss'") < text.index("'acc'") < text.index("'lr'")
    assert "monitor='val_loss'" in text
    assert "nothing is logged" in policy.missing_metric("X", "val_loss", [])

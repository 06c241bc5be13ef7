"""CombinedLoader: the order of the batches in each mode, limits, lengths and states."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader

from bolide.core.errors import ConfigError, UserCodeError
from bolide.data.combined import CombinedLoader


class Unsized:
    """Three numbers, without a length."""

    def __iter__(self):
        return iter(range(3))


class Traced:
    """Writes down when it is iterated and what it gives."""

    def __init__(self, name, size, log):
        self.name, self.size, self.log = name, size, log

    def __len__(self):
        return self.size

    def __iter__(self):
        self.log.append(f"iter {self.name}")
        return self._read()

    def _read(self):
        for i in range(self.size):
            self.log.append(f"{self.name}{i}")
            yield i


class Stateful:
    """Counts up from where its state says."""

    def __init__(self):
        self.start = 0

    def __iter__(self):
        return iter(range(self.start, 4))

    def state_dict(self):
        return {"start": 2}

    def load_state_dict(self, state):
        self.start = state["start"]


def batches(loader):
    return [batch for batch, _, _ in loader]


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("min_size", [{"a": 0, "b": 0}, {"a": 1, "b": 1}]),
        ("max_size", [{"a": 0, "b": 0}, {"a": 1, "b": 1}, {"a": None, "b": 2}]),
        ("max_size_cycle", [{"a": 0, "b": 0}, {"a": 1, "b": 1}, {"a": 0, "b": 2}]),
    ],
)
def test_side_by_side_modes_keep_the_structure(mode, expected):
    loader = CombinedLoader({"a": range(2), "b": range(3)}, mode)
    assert list(loader) == [(batch, i, 0) for i, batch in enumerate(expected)]
    assert len(loader) == len(expected)


def test_sequential_counts_batches_of_each_loader():
    loader = CombinedLoader({"a": range(2), "b": range(3)}, "sequential")
    assert list(loader) == [(0, 0, 0), (1, 1, 0), (0, 0, 1), (1, 1, 1), (2, 2, 1)]
    assert len(loader) == 5


def test_a_second_pass_gives_the_same():
    for mode in ("min_size", "max_size", "max_size_cycle", "sequential"):
        loader = CombinedLoader([range(2), range(3)], mode)
        assert list(loader) == list(loader)


def test_the_default_is_min_size():
    assert batches(CombinedLoader([range(1), range(3)])) == [[0, 0]]


def test_nested_collections():
    loader = CombinedLoader({"a": range(2), "b": (range(3), [range(1)])}, "max_size")
    assert batches(loader) == [
        {"a": 0, "b": (0, [0])},
        {"a": 1, "b": (1, [None])},
        {"a": None, "b": (2, [None])},
    ]


def test_a_bare_iterable():
    assert list(CombinedLoader(range(2))) == [(0, 0, 0), (1, 1, 0)]


@pytest.mark.parametrize("mode", ["min_size", "max_size", "max_size_cycle", "sequential"])
@pytest.mark.parametrize("nothing", [[], {}])
def test_an_empty_collection_yields_nothing(mode, nothing):
    loader = CombinedLoader(nothing, mode)
    assert list(loader) == []
    assert len(loader) == 0


def test_an_empty_iterable_among_others():
    assert list(CombinedLoader([range(0), range(2)], "sequential")) == [(0, 0, 1), (1, 1, 1)]
    assert batches(CombinedLoader([range(0), range(2)], "max_size")) == [[None, 0], [None, 1]]
    assert batches(CombinedLoader([range(0), range(2)], "max_size_cycle")) == []
    assert batches(CombinedLoader([range(0), range(2)], "min_size")) == []


def test_side_by_side_reads_in_order_and_starts_all_at_iter():
    log = []
    loader = iter(CombinedLoader([Traced("a", 1, log), Traced("b", 2, log)], "max_size_cycle"))
    assert log == ["iter a", "iter b"]
    next(loader), next(loader)
    assert log == ["iter a", "iter b", "a0", "b0", "iter a", "a0", "b1"]


def test_sequential_starts_one_at_a_time_and_reads_nothing_past_a_limit():
    log = []
    loader = CombinedLoader([Traced("a", 2, log), Traced("b", 3, log)], "sequential")
    loader.limits = 1
    iter(loader)
    assert log == ["iter a"]
    assert list(loader._iterator) == [(0, 0, 0), (0, 0, 1)]
    assert log == ["iter a", "a0", "iter b", "b0"]


@pytest.mark.parametrize(
    ("mode", "limits", "expected"),
    [
        ("sequential", [1, 2], [0, 0, 1]),
        ("sequential", [0, None], [0, 1, 2]),
        ("sequential", float("inf"), [0, 1, 0, 1, 2]),
        ("min_size", [2, 1], [[0, 0]]),
        ("max_size", [None, 1], [[0, 0], [1, None]]),
        ("max_size_cycle", [1, 3], [[0, 0], [0, 1], [0, 2]]),
        ("max_size_cycle", 0, []),
    ],
)
def test_limits_cut_every_iterable_and_the_length_agrees(mode, limits, expected):
    loader = CombinedLoader([range(2), range(3)], mode)
    loader.limits = limits
    assert batches(loader) == expected
    assert len(loader) == len(expected)


def test_limits_of_another_number_are_refused():
    loader = CombinedLoader([range(2), range(3)])
    with pytest.raises(ValueError, match="given 3 numbers.*has 2 iterables"):
        loader.limits = [1, 2, 3]
    loader.limits = [1, 2]
    loader.limits = None
    assert loader.limits is None


def test_flattened_can_be_exchanged_within_the_structure():
    loader = CombinedLoader({"a": range(2), "b": [range(3)]})
    assert loader.flattened == [range(2), range(3)]
    loader.flattened = [range(1), range(5)]
    assert loader.iterables == {"a": range(1), "b": [range(5)]}
    with pytest.raises(ValueError, match="given 1 iterables"):
        loader.flattened = [range(1)]


def test_samplers_keep_the_structure():
    data = DataLoader(torch.arange(4), batch_size=2)
    loader = CombinedLoader({"a": data, "b": range(3)})
    assert loader.sampler == {"a": data.sampler, "b": None}
    assert loader.batch_sampler == {"a": data.batch_sampler, "b": None}


def test_length_and_next_need_iter():
    loader = CombinedLoader([range(2)])
    with pytest.raises(RuntimeError, match=r"iter\(loader\) before len"):
        len(loader)
    with pytest.raises(RuntimeError, match=r"iter\(loader\) before next"):
        next(loader)
    next(iter(loader))
    loader.reset()
    with pytest.raises(RuntimeError, match=r"iter\(loader\) before len"):
        len(loader)


@pytest.mark.parametrize("mode", ["max_size", "max_size_cycle", "sequential"])
def test_length_without_a_sized_iterable_is_a_type_error(mode):
    loader = iter(CombinedLoader([Unsized(), range(4)], mode))
    with pytest.raises(TypeError, match="no length"):
        len(loader)


def test_min_size_knows_its_length_from_the_sized_ones():
    loader = CombinedLoader([Unsized(), range(2)])
    assert batches(loader) == [[0, 0], [1, 1]]
    assert len(loader) == 2


def test_an_unknown_mode_is_refused():
    with pytest.raises(ConfigError, match="mode='biggest'.*'max_size_cycle'"):
        CombinedLoader([], "biggest")


def test_something_that_is_no_iterable_is_refused():
    with pytest.raises(UserCodeError, match="got NoneType"):
        iter(CombinedLoader([range(2), None]))


def test_states_of_stateful_iterables():
    loader = CombinedLoader([Stateful(), range(4)])
    states = loader.state_dicts()
    assert states == [{"start": 2}]
    loader.load_state_dicts(states)
    assert batches(loader) == [[2, 0], [3, 1]]
    loader.load_state_dicts([{}, {}])
    with pytest.raises(UserCodeError, match="1 stateful iterables.*2 states"):
        iter(loader)

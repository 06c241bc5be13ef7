"""Seeding and shielding the random states."""

from __future__ import annotations

import os
import random

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from bolide.core.errors import ConfigError
from bolide.seed import isolate_rng, pl_worker_init_function, reset_seed, seed_everything


@pytest.fixture(autouse=True)
def _environment(monkeypatch):
    monkeypatch.setenv("PL_GLOBAL_SEED", "0")  # so that it is put back to what it was
    monkeypatch.setenv("PL_SEED_WORKERS", "0")
    monkeypatch.delenv("PL_GLOBAL_SEED")
    with isolate_rng():
        yield


def drawn():
    return random.random(), np.random.rand(), torch.rand(1).item()


def test_it_seeds_all_three_as_their_own_functions_do():
    assert seed_everything(42) == 42
    numbers = drawn()
    random.seed(42), np.random.seed(42), torch.manual_seed(42)
    assert drawn() == numbers
    assert (os.environ["PL_GLOBAL_SEED"], os.environ["PL_SEED_WORKERS"]) == ("42", "0")


def test_the_environment_gives_the_seed():
    os.environ["PL_GLOBAL_SEED"] = "17"
    assert seed_everything(workers=True) == 17
    assert os.environ["PL_SEED_WORKERS"] == "1"
    os.environ["PL_GLOBAL_SEED"] = "x"
    with pytest.raises(ConfigError, match="PL_GLOBAL_SEED='x' is no seed"):
        seed_everything()


def test_without_any_seed_it_warns_and_takes_zero():
    with pytest.warns(UserWarning, match="takes 0"):
        assert seed_everything() == 0


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_out_of_bounds(seed):
    with pytest.raises(ValueError, match="out of bounds"):
        seed_everything(seed)


def test_what_is_no_number():
    with pytest.raises(ValueError, match="is no seed"):
        seed_everything("a")
    assert seed_everything("5") == 5
    assert seed_everything(2**32 - 1) == 2**32 - 1


def test_reset():
    reset_seed()  # nothing was seeded yet
    seed_everything(3, workers=True)
    numbers = drawn()
    reset_seed()
    assert drawn() == numbers
    assert os.environ["PL_SEED_WORKERS"] == "1"


def test_isolation():
    seed_everything(1)
    with isolate_rng():
        numbers = drawn()
    assert drawn() == numbers
    with pytest.raises(KeyError), isolate_rng(include_cuda=False):
        numbers = drawn()
        raise KeyError
    assert drawn() == numbers


class Draws(Dataset):
    """Each sample is drawn from all three generators."""

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.tensor([random.random(), np.random.rand(), torch.rand(1).item()], dtype=torch.float64)


def epoch():
    loader = DataLoader(Draws(), batch_size=2, num_workers=2, worker_init_fn=pl_worker_init_function)
    return torch.cat(list(loader))


def test_workers_draw_different_numbers_that_a_seed_repeats():
    torch.manual_seed(5)
    first, second = epoch(), epoch()
    for column in range(3):
        assert len(torch.cat([first, second])[:, column].unique()) == 16
    torch.manual_seed(5)
    assert torch.equal(epoch(), first)


def test_ranks_draw_different_numbers():
    numbers = []
    for rank in (0, 1, 0):
        torch.manual_seed(5)
        pl_worker_init_function(0, rank)
        numbers.append(drawn())
    assert numbers[0] == numbers[2]
    assert all(a != b for a, b in zip(numbers[0], numbers[1], strict=True))

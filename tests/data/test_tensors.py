from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Subset, TensorDataset, WeightedRandomSampler

from bolide.data.tensors import batches_of, is_plain

X, Y = torch.arange(46.0).reshape(23, 2), torch.arange(23)
DATA = TensorDataset(X, Y)


def loaders() -> dict[str, Any]:
    part = Subset(DATA, [5, 3, 9, 1, 22, 7, 8])
    return {
        "in order": lambda: DataLoader(DATA, batch_size=4),
        "shuffled": lambda: DataLoader(DATA, batch_size=4, shuffle=True),
        "drop_last": lambda: DataLoader(DATA, batch_size=4, shuffle=True, drop_last=True),
        "own generator": lambda: DataLoader(
            DATA, batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(3)
        ),
        "subset": lambda: DataLoader(part, batch_size=3, shuffle=True),
        "subset of a subset": lambda: DataLoader(Subset(part, [6, 0, 2]), batch_size=2),
        "sampler": lambda: DataLoader(DATA, batch_size=5, sampler=WeightedRandomSampler([1.0] * 23, 23)),
        "batch sampler": lambda: DataLoader(DATA, batch_sampler=[[1, 2, 3], [4], [0, 22]]),
        "one tensor": lambda: DataLoader(TensorDataset(X), batch_size=4, shuffle=True),
    }


@pytest.mark.parametrize("kind", list(loaders()))
def test_the_same_batches_and_the_same_draws_as_torchs_loader(kind: str) -> None:
    loader = loaders()[kind]()
    assert is_plain(loader)
    reads = []
    for read in (batches_of, iter):
        torch.manual_seed(5)
        fresh = loaders()[kind]()
        passes = [list(read(fresh)) for _ in range(3)]
        reads.append((passes, torch.get_rng_state(), fresh.generator and fresh.generator.get_state()))
    (ours, our_state, our_generator), (torchs, torch_state, torch_generator) = reads
    for mine, theirs in zip(ours, torchs, strict=True):
        assert len(mine) == len(theirs)
        for a, b in zip(mine, theirs, strict=True):
            assert type(a) is type(b) and all(torch.equal(x, y) for x, y in zip(a, b, strict=True))
    assert torch.equal(our_state, torch_state)
    if our_generator is not None:
        assert torch.equal(our_generator, torch_generator)


def test_a_batch_is_no_view_of_the_data() -> None:
    (x, _), *_ = batches_of(DataLoader(DATA, batch_size=4))
    x.zero_()
    assert X[1, 1].item() == 3.0


class Own(TensorDataset):
    def __getitem__(self, index: Any) -> Any:
        return tuple(t + 1 for t in super().__getitem__(index))


@pytest.mark.parametrize(
    "loader",
    [
        DataLoader(Own(X)),
        DataLoader(DATA, num_workers=1),
        DataLoader(DATA, collate_fn=list),
        DataLoader(DATA, batch_size=None),
        DataLoader([1, 2, 3]),
        [X],
    ],
    ids=["own dataset", "workers", "collate", "no batches", "a list", "no loader"],
)
def test_whatever_could_tell_the_difference_goes_through_torch(loader: Any) -> None:
    assert not is_plain(loader)


def test_an_index_out_of_range_is_an_error() -> None:
    with pytest.raises(IndexError):
        list(batches_of(DataLoader(DATA, batch_sampler=[[23]])))

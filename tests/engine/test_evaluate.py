"""Evaluation at its edges: loaders that give nothing, and steps that draw their batches themselves."""

from __future__ import annotations

from typing import Any

import pytest

from bolide.core.errors import UserCodeError
from tests.fixtures import OneWeight, loader, trainer


class Validated(OneWeight):
    """Logs each batch's number, of one loader or several."""

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        self.validated.append((dataloader_idx, batch_idx))
        self.log("number", float(batch_idx))


@pytest.mark.parametrize("empty", [[], range(0), iter(()), [[], range(0)]], ids=["list", "sized", "iterator", "both"])
def test_evaluation_over_loaders_that_give_nothing_is_refused(empty: Any) -> None:
    if empty == []:
        assert trainer().validate(Validated(), empty, verbose=False) == []  # no loader at all: nothing was asked
        return
    with pytest.raises(UserCodeError, match=r"The validation loader.* gave no batch\. Look at"):
        trainer().validate(Validated(), empty, verbose=False)


def test_one_empty_loader_among_others_is_a_warning() -> None:
    module = Validated()
    with pytest.warns(UserWarning, match=r"The validation loader\(s\) 1 gave no batch"):
        results = trainer().validate(module, [loader(2), range(0)], verbose=False)
    assert module.validated == [(0, 0), (0, 1)]
    assert results == [{"number/dataloader_idx_0": 0.5}, {}]


def test_the_sanity_check_finds_an_empty_validation_loader_before_training() -> None:
    module = Validated()
    with pytest.raises(UserCodeError, match="gave no batch"):
        trainer(max_epochs=1, num_sanity_val_steps=2).fit(module, loader(2), range(0))
    assert module.seen == []


def test_a_limit_of_zero_is_meant() -> None:
    assert trainer(limit_val_batches=0).validate(Validated(), loader(2), verbose=False) == [{}]


def test_a_step_that_draws_more_batches_than_there_are_ends_the_pass() -> None:
    class Drawn(OneWeight):
        def __init__(self) -> None:
            super().__init__()
            self.pairs: list[tuple[int, int]] = []

        def validation_step(self, dataloader_iter: Any) -> None:  # type: ignore[override]
            (_, first, _), (_, second, _) = next(dataloader_iter), next(dataloader_iter)
            self.pairs.append((first, second))

        def predict_step(self, dataloader_iter: Any) -> Any:
            (_, first, _), (_, second, _) = next(dataloader_iter), next(dataloader_iter)
            return first, second

    module = Drawn()
    trainer().validate(module, loader(5), verbose=False)
    assert module.pairs == [(0, 1), (2, 3)]
    assert trainer().predict(module, loader(3)) == [(0, 1)]

"""What a Trainer shows."""

from __future__ import annotations

from typing import Any

import pytest

from bolide.core.errors import UserCodeError
from tests.fixtures import OneWeight, loader, trainer


def test_a_profiler_is_there_to_time_actions_with() -> None:
    class Timed(OneWeight):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            with self.trainer.profiler.profile("loss"):
                return super().training_step(batch, batch_idx)

    module = Timed()
    trainer(max_epochs=1).fit(module, loader(2))
    assert len(module.seen) == 2


@pytest.mark.parametrize(
    ("change", "validated"),
    [
        ({"limit_val_batches": 2}, [(8, 0), (8, 1), (16, 0), (16, 1)]),
        ({"limit_val_batches": 0}, []),
        ({"limit_val_batches": 0.5}, [(8, 0), (8, 1), (16, 0), (16, 1)]),
        ({"val_check_interval": 4, "limit_val_batches": 1}, [(8, 0), (12, 0), (16, 0)]),  # from the next epoch on
        ({"limit_train_batches": 3, "limit_val_batches": 1}, [(8, 0), (11, 0)]),
    ],
)
def test_limits_and_the_interval_of_validation_may_change_during_a_fit(
    change: dict[str, Any], validated: list[Any]
) -> None:
    class Changes(OneWeight):
        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            if self.global_step == 2:
                for name, value in change.items():
                    setattr(self.trainer, name, value)

    module = Changes()
    trainer(max_epochs=2).fit(module, loader(8), loader(4))
    assert module.validated == validated


def test_an_interval_that_is_too_long_for_the_epoch_is_refused_when_it_begins() -> None:
    class Changes(OneWeight):
        def on_train_epoch_end(self) -> None:
            self.trainer.val_check_interval = 9

    with pytest.raises(UserCodeError, match="val_check_interval=9 is more than the 8 batches"):
        trainer(max_epochs=2).fit(Changes(), loader(8), loader(4))

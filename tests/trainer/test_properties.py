"""What a Trainer shows."""

from __future__ import annotations

from typing import Any

from tests.fixtures import OneWeight, loader, trainer


def test_a_profiler_is_there_to_time_actions_with() -> None:
    class Timed(OneWeight):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            with self.trainer.profiler.profile("loss"):
                return super().training_step(batch, batch_idx)

    module = Timed()
    trainer(max_epochs=1).fit(module, loader(2))
    assert len(module.seen) == 2

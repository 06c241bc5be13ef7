"""Another number of processes on which the global batch cannot be kept: refused, or scaled with its learning rate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import bolide as pl
from bolide.core.errors import CheckpointError
from bolide.launch.processes import RankError
from tests.distributed.support import Net, data, in_ranks, trainer

SAMPLES, BATCH, EPOCHS = 100, 4, 2
SCALE = {"elastic_batch": "scale"}


class NotedSGD(torch.optim.SGD):
    """Notes the learning rate of each step, as the step has it."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, lr)
        self.rates: list[float] = []

    def step(self, closure: Any = None) -> Any:
        self.rates.append(round(self.param_groups[0]["lr"], 6))
        return super().step(closure)


class Noting(Net):
    """Notes the samples of each batch, with the epoch and the step that it belongs to."""

    def __init__(self, scheduled: bool = False) -> None:
        super().__init__(lr=0.05)
        self.scheduled = scheduled
        self.seen: list[tuple[int, int, list[int]]] = []

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.seen.append((self.current_epoch, self.global_step, [int(n) for n in batch[2]]))
        return torch.nn.functional.mse_loss(self.net(batch[0]), batch[1])

    def configure_optimizers(self) -> Any:
        self.optimizer = NotedSGD(self.parameters(), lr=self.lr)
        if not self.scheduled:
            return self.optimizer
        schedule = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.9)
        return {"optimizer": self.optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def numbered() -> TensorDataset:
    return TensorDataset(*data(SAMPLES).tensors, torch.arange(SAMPLES))


def fit(ranks: int, folder: Path, start: str | None, save_at: int, stop_at: int = -1, **options: Any) -> Any:
    """What each rank saw, its learning rates and its weights; saves `folder/step=...` once, at `save_at`."""
    pl.seed_everything(5 if start is None else 99, verbose=False)
    keep = pl.callbacks.ModelCheckpoint(folder, every_n_train_steps=save_at, save_top_k=-1, filename="{step}")
    module = options.pop("module", None) or Noting(options.pop("scheduled", False))
    one = trainer(
        ranks, strategy="ddp" if ranks > 1 else "auto", max_epochs=EPOCHS, max_steps=stop_at, enable_checkpointing=True,
        callbacks=[keep], **{"resilience": SCALE, **options},
    )  # fmt: skip
    loader = DataLoader(numbered(), batch_size=BATCH, shuffle=True)
    one.fit(module, loader, ckpt_path=None if start is None else folder / start)
    return module.seen, module.optimizer.rates, module.weights, one.accumulate_grad_batches


def steps_of(answers: list[Any]) -> dict[tuple[int, int], list[int]]:
    """The samples of each (epoch, step), of all ranks."""
    found: dict[tuple[int, int], list[int]] = {}
    for seen, *_ in answers:
        for epoch, step, numbers in seen:
            found.setdefault((epoch, step), []).extend(numbers)
    return found


def test_fewer_and_more_ranks_lose_and_repeat_no_sample(tmp_path: Path) -> None:
    first = in_ranks(3, lambda: fit(3, tmp_path, None, 3, 3))
    second = in_ranks(2, lambda: fit(2, tmp_path, "step=3.ckpt", 5, 5))
    third = in_ranks(3, lambda: fit(3, tmp_path, "step=5.ckpt", 1000))
    steps = {**steps_of(first), **steps_of(second), **steps_of(third)}
    assert [len(steps[0, step]) for step in range(5)] == [12, 12, 12, 16, 16]
    for epoch in range(EPOCHS):
        numbers = [n for (of, _), samples in steps.items() if of == epoch for n in samples]
        assert sorted(numbers) == list(range(SAMPLES)), epoch
    assert {accumulate for *_, accumulate in first + third} == {1}
    assert {accumulate for *_, accumulate in second} == {2}
    assert second[0][1] == [round(0.05 * 16 / 12, 6)] * 2
    assert set(third[0][1]) == {0.05}


def test_a_scaled_step_is_that_of_its_samples_at_the_scaled_rate(tmp_path: Path) -> None:
    first = in_ranks(3, lambda: fit(3, tmp_path, None, 3, 3, scheduled=True))
    seen, rates, weights, accumulate = fit(1, tmp_path, "step=3.ckpt", 1000, 6, scheduled=True)
    assert accumulate == 3 and rates == [round(0.05 * 0.9**step, 6) for step in range(3, 6)]  # 12 stay 12
    other = in_ranks(2, lambda: fit(2, tmp_path, "step=3.ckpt", 1000, 6, scheduled=True))
    assert other[0][1] == [round(0.05 * 0.9**step * 16 / 12, 6) for step in range(3, 6)]
    module = Noting()
    start = first[0][2]
    torch.nn.utils.vector_to_parameters(start.clone(), module.parameters())
    x, y, _ = numbered().tensors
    for (_, step), numbers in sorted(steps_of(other).items()):
        module.zero_grad()
        torch.nn.functional.mse_loss(module.net(x[numbers]), y[numbers]).backward()
        with torch.no_grad():
            for parameter in module.parameters():
                parameter -= 0.05 * 0.9**step * 16 / 12 * parameter.grad
    assert torch.allclose(module.weights, other[0][2], atol=1e-6)


def test_a_scaled_run_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    in_ranks(3, lambda: fit(3, tmp_path, None, 3, 3))
    right = in_ranks(2, lambda: fit(2, tmp_path, "step=3.ckpt", 5))
    found = in_ranks(2, lambda: fit(2, tmp_path, "step=5.ckpt", 1000))
    assert torch.equal(right[0][2], found[0][2])
    right_steps, found_steps = steps_of(right), steps_of(found)
    assert {key: found_steps[key] for key in found_steps} == {
        key: right_steps[key] for key in right_steps if key[1] >= 5
    }
    assert set(found[0][1]) == {round(0.05 * 16 / 12, 6)}


def test_it_is_refused_where_it_was_not_asked_for(tmp_path: Path) -> None:
    in_ranks(3, lambda: fit(3, tmp_path, None, 3, 3, resilience={}))
    with pytest.raises(RankError, match="makes 12 to a step; 36 were done in its epoch. 2 process.*elastic_batch"):
        in_ranks(2, lambda: fit(2, tmp_path, "step=3.ckpt", 1000, resilience={}))
    fit(1, tmp_path, "step=3.ckpt", 1000, 4, resilience={})  # 12 divide by 4


class Manual(Noting):
    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()


def test_manual_optimization_accumulates_nothing(tmp_path: Path) -> None:
    in_ranks(2, lambda: fit(2, tmp_path, None, 3, 3, module=Manual()))
    with pytest.raises(CheckpointError, match="manual optimization, which makes 8 to a step.*does not make that"):
        fit(1, tmp_path, "step=3.ckpt", 1000, module=Manual(), resilience={})
    seen, rates, _, accumulate = fit(1, tmp_path, "step=3.ckpt", 1000, 5, module=Manual())
    assert accumulate == 1 and rates == [0.025, 0.025] and [len(numbers) for *_, numbers in seen] == [4, 4]


def test_a_restart_keeps_what_an_earlier_one_accumulates(tmp_path: Path) -> None:
    in_ranks(2, lambda: fit(2, tmp_path, None, 3, 3, resilience={}))
    _, _, right, accumulate = fit(1, tmp_path, "step=3.ckpt", 4, 8, resilience={})
    seen, _, found, again = fit(1, tmp_path, "step=4.ckpt", 1000, 8, resilience={})
    assert accumulate == again == 2 and torch.equal(right, found)
    with pytest.raises(CheckpointError, match="not shared out by index"):
        stream_fit(tmp_path)


@pytest.mark.parametrize("ranks", [1, 4])
def test_a_short_last_window_is_not_trained_on_again(ranks: int, tmp_path: Path) -> None:
    """13 batches by 2: the last step of the epoch has one of them, and the checkpoint stands behind it."""
    right = in_ranks(2, lambda: fit(2, tmp_path, None, 7, accumulate_grad_batches=2, resilience={}))

    def go_on() -> Any:
        return fit(ranks, tmp_path, "step=7.ckpt", 1000, accumulate_grad_batches=2, resilience={})

    found = [go_on()] if ranks == 1 else in_ranks(ranks, go_on)
    wanted, steps = steps_of(right), steps_of(found)
    assert {key: sorted(numbers) for key, numbers in steps.items()} == {
        key: sorted(numbers) for key, numbers in wanted.items() if key[1] >= 7
    }
    assert torch.allclose(found[0][2], right[0][2], atol=1e-6)


def stream_fit(folder: Path) -> None:
    """Goes on with a loader that has no order to begin within."""
    one = trainer(1, max_epochs=EPOCHS, resilience=SCALE, use_distributed_sampler=False, enable_checkpointing=False)
    loader = DataLoader(numbered(), batch_size=3, shuffle=True)
    one.fit(Noting(), loader, ckpt_path=folder / "step=3.ckpt")

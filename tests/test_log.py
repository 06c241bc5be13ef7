"""The values of `self.log`, away from any loop."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from bolide.core.errors import MisconfigurationException
from bolide.core.hooks import HOOKS
from bolide.log import FOLD_AT, Log, batch_size_of, to_numbers


def options(
    prog_bar: bool = False, logger: Any = None, on_step: Any = None, on_epoch: Any = None, reduce_fx: Any = "mean"
) -> tuple[Any, ...]:
    return (prog_bar, logger, on_step, on_epoch, reduce_fx, False, True, False, False)


def in_training(log: Log) -> Log:
    log.scope = HOOKS["training_step"]
    log.open_batch(torch.zeros(3, 2))
    return log


def test_a_forked_metric_has_three_names() -> None:
    log = in_training(Log())
    for value in (1.0, 2.0):
        log.add("x", torch.tensor(value), None, options(on_epoch=True))
    log.publish()
    assert to_numbers(log.callback_metrics) == {"x": 2.0, "x_step": 2.0}
    log.close_epoch_values()
    log.publish()
    assert to_numbers(log.callback_metrics) == {"x": 1.5, "x_step": 2.0, "x_epoch": 1.5}


def test_the_mean_is_weighted_by_batch_size() -> None:
    log = in_training(Log())
    log.add("x", 1.0, None, options(on_step=False, on_epoch=True))
    log.open_batch(torch.zeros(1, 2))
    log.add("x", 5.0, None, options(on_step=False, on_epoch=True))
    log.add("y", 5.0, 7, options(on_step=False, on_epoch=True))
    log.add("y", 1.0, 1, options(on_step=False, on_epoch=True))
    log.close_epoch_values()
    log.publish()
    assert to_numbers(log.callback_metrics) == {"x": 2.0, "y": 4.5}


@pytest.mark.parametrize(("reduce_fx", "right"), [("mean", 99.5), ("sum", 19900.0), ("min", 0.0), (max, 199.0)])
def test_folding_changes_no_value(reduce_fx: Any, right: float) -> None:
    log = in_training(Log())
    for i in range(200):
        log.add("x", torch.tensor(float(i)), 1, options(on_epoch=True, reduce_fx=reduce_fx))
        if i % 7 == 0:
            log.in_batch = False
            log.publish()  # reading folds nothing
            log.in_batch = True
    (slot,) = log.slots.values()
    assert len(slot.values) == 200 % FOLD_AT
    log.close_epoch_values()
    log.publish()
    assert log.callback_metrics["x"].item() == pytest.approx(right)


def test_a_buffer_that_goes_on_changing_is_kept_as_it_was() -> None:
    log = in_training(Log())
    running = torch.zeros(())
    for _ in range(3):
        running += 1
        log.add("x", running, 1, options(on_epoch=True))
    log.close_epoch_values()
    log.publish()
    assert log.callback_metrics["x_epoch"].item() == 2.0


def test_low_precision_is_widened_before_it_is_added_up() -> None:
    log = in_training(Log())
    for _ in range(300):
        log.add("x", torch.tensor(1.0, dtype=torch.bfloat16), 1, options(on_epoch=True, reduce_fx="sum"))
    log.close_epoch_values()
    log.publish()
    assert log.callback_metrics["x_epoch"].item() == 300.0


@pytest.mark.parametrize(
    ("value", "hint"),
    [("a", "number"), ({"a": 1}, "log_dict"), (torch.zeros(2), "mean"), ([1.0], "number"), (None, "number")],
)
def test_what_is_no_number_is_refused(value: Any, hint: str) -> None:
    with pytest.raises(MisconfigurationException, match=hint):
        in_training(Log()).add("x", value, None, options())


@pytest.mark.parametrize(
    ("hook", "given", "hint"),
    [
        ("on_fit_start", {}, "cannot be called in `on_fit_start`"),
        ("predict_step", {}, "cannot be called in `predict_step`"),
        ("on_train_epoch_end", {"on_step": True}, "per epoch"),
        ("training_step", {"on_step": False, "on_epoch": False}, "log nothing"),
        ("training_step", {"reduce_fx": "median"}, "torchmetrics"),
        ("training_step", {"reduce_fx": []}, "torchmetrics"),
    ],
)
def test_what_a_hook_does_not_allow(hook: str, given: dict[str, Any], hint: str) -> None:
    log = in_training(Log())
    log.scope = HOOKS[hook]
    with pytest.raises(MisconfigurationException, match=hint):
        log.add("x", 1.0, 1, options(**given))


def test_two_sets_of_options_for_one_name_are_refused() -> None:
    log = in_training(Log())
    log.add("x", 1.0, 1, options())
    with pytest.raises(MisconfigurationException, match="twice"):
        log.add("x", 1.0, 1, options(prog_bar=True))


def test_outside_of_any_hook() -> None:
    with pytest.raises(MisconfigurationException, match="outside the hooks"):
        Log().add("x", 1.0, 1, options())


@pytest.mark.parametrize(
    ("batch", "size"),
    [
        (torch.zeros(5, 2), 5),
        ([torch.zeros(3), torch.zeros(3)], 3),
        ({"a": {"b": (torch.zeros(4),)}}, 4),
        (torch.zeros(()), 1),
        ({"name": ["text", "more"], "x": torch.zeros(6)}, 6),
    ],
)
def test_batch_sizes(batch: Any, size: int) -> None:
    assert batch_size_of(batch) == size


def test_batches_without_a_size() -> None:
    with pytest.raises(MisconfigurationException, match="batch_size="):
        batch_size_of({"a": object()})
    with pytest.warns(UserWarning, match="different first dimensions"):
        assert batch_size_of([torch.zeros(2), torch.zeros(3)]) == 2


def test_to_numbers_reads_all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[int] = []
    original = torch.Tensor.tolist
    monkeypatch.setattr(torch.Tensor, "tolist", lambda t: (reads.append(1), original(t))[1])
    monkeypatch.setattr(torch.Tensor, "item", lambda t: pytest.fail("one by one"))
    found = to_numbers({"a": torch.tensor(1.0), "b": torch.tensor(2.0), "n": 3})
    assert found == {"a": 1.0, "b": 2.0, "n": 3} and reads == [1]

"""What the original gets wrong, and the right value: accumulation, resume, half-written checkpoints, tied weights."""

from __future__ import annotations

import json
import logging
import os
import shutil
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import bolide.transformers as door
from bolide.checkpoint.digest import DamagedCheckpointError
from bolide.core.errors import UserCodeError
from tests.transformers.models import Net, Rows, Stream, Tied, accuracy, gpt2, points, texts
from tests.transformers.scripts import Shuffled, arguments


def weights(trainer: Any) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in trainer.model.state_dict().items()}


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


# ---------------------------------------------------------------------- accumulation


class Weighted(nn.Module):
    """loss = sum(w * x * mask) / sum(mask), whatever else it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(1))

    def forward(self, x, labels):
        mask = labels != -100
        return {"loss": (self.w * x * mask).sum() / mask.sum()}


class TakesAnything(Weighted):
    """The same, with keywords that it ignores: the original takes that for a promise."""

    def forward(self, x, labels, **ignored):
        return super().forward(x, labels)


class UsesCount(nn.Module):
    """loss = sum(w * x * mask) / the count of the whole step."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(1))

    def forward(self, x, labels, **more):
        mask = labels != -100
        count = more.get("num_items_in_batch")
        return {"loss": (self.w * x * mask).sum() / (mask.sum() if count is None else count)}


class ReadsCount(UsesCount):
    """The same, reading the count as a number."""

    def forward(self, x, labels, **more):
        if "num_items_in_batch" in more:
            more["num_items_in_batch"] = float(more["num_items_in_batch"])
        return super().forward(x, labels, **more)


def uneven() -> Rows:
    """Two samples: four labels that count, and one."""
    x = torch.tensor([[1.0] * 4, [5.0] * 4])
    labels = torch.tensor([[1, 1, 1, 1], [1, -100, -100, -100]])
    return Rows(x=x, labels=labels)


@pytest.mark.parametrize("model", [Weighted, TakesAnything, UsesCount, ReadsCount])
@pytest.mark.parametrize("batch", [1, 2])
def test_c5_a_step_weighs_tokens_however_it_is_cut(tmp_path, model, batch):
    args = arguments(
        door, str(tmp_path), per_device_train_batch_size=batch, gradient_accumulation_steps=2 // batch, max_steps=1,
        max_grad_norm=0.0, optim="sgd", learning_rate=1.0, lr_scheduler_type="constant",
    )  # fmt: skip
    trainer = door.Trainer(model(), args, train_dataset=uneven())
    trainer.train()
    assert trainer.model.w.item() == pytest.approx(-1.8)


def test_c4_every_micro_batch_and_the_short_window(tmp_path):
    seen = []

    class Records(Weighted):
        def forward(self, x, labels):
            seen.append(len(x))
            return super().forward(x, labels)

    rows = Rows(x=torch.ones(9, 4), labels=torch.ones(9, 4, dtype=torch.long))
    args = arguments(
        door, str(tmp_path), per_device_train_batch_size=2, gradient_accumulation_steps=2, num_train_epochs=3
    )
    trainer = door.Trainer(Records(), args, train_dataset=rows)
    trainer.train()
    assert (len(seen), trainer.state.global_step, trainer.state.epoch) == (15, 9, 3.0)


def test_a_short_micro_batch_weighs_its_samples(tmp_path):
    """Ten samples as 4, 4 and 2: the step is that of ten."""

    def trained(batch: int, windows: int) -> torch.Tensor:
        args = arguments(
            door, str(tmp_path / str(batch)), per_device_train_batch_size=batch, gradient_accumulation_steps=windows,
            max_steps=1, optim="sgd", learning_rate=1.0, max_grad_norm=0.0, train_sampling_strategy="sequential",
        )  # fmt: skip
        trainer = door.Trainer(Net(0.0), args, train_dataset=points(10))
        trainer.train()
        return trainer.model.head.weight.detach()

    assert torch.allclose(trained(10, 1), trained(4, 3), atol=1e-6)


def test_a_causal_model_without_a_loss_type_counts_the_labels_that_it_predicts(tmp_path):
    rows = texts(8, padded=True)
    model = gpt2(loss_type=None)
    labels = rows.columns["labels"]
    with torch.no_grad():
        logits = model(input_ids=rows.columns["input_ids"]).logits[:, :-1]
        expected = F.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100).item()
    args = arguments(
        door, str(tmp_path), per_device_train_batch_size=2, gradient_accumulation_steps=4, max_steps=1, logging_steps=1
    )
    trainer = door.Trainer(model, args, train_dataset=rows)
    trainer.train()
    assert trainer.state.log_history[0]["loss"] == pytest.approx(expected, abs=1e-5)


def test_the_end_of_a_stream_is_trained_on(tmp_path):
    """17 batches in windows of two: the pass ends with a window of one, whose gradient goes into a step of its own."""
    args = arguments(
        door, str(tmp_path), per_device_train_batch_size=1, gradient_accumulation_steps=2, max_steps=9, optim="sgd",
        learning_rate=1.0, lr_scheduler_type="constant", max_grad_norm=0.0,
    )  # fmt: skip
    rows = Rows(x=torch.ones(17, 4), labels=torch.ones(17, 4, dtype=torch.long))
    trainer = door.Trainer(Weighted(), args, train_dataset=Stream(rows))
    trainer.train()
    assert trainer.model.w.item() == pytest.approx(-9.0)


# ---------------------------------------------------------------------- going on


def run(out: str, **more: Any) -> Any:
    settings = {"save_strategy": "steps", "save_steps": 3, "num_train_epochs": 2, **more}
    resume = settings.pop("resume", None)
    data = settings.pop("data", None) or points()
    trainer = door.Trainer(Net(), arguments(door, out, **settings), train_dataset=data)
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def test_an_empty_folder_starts(tmp_path, caplog):
    with caplog.at_level(logging.INFO, "bolide"):
        trainer = run(str(tmp_path), resume=True)
    assert trainer.state.global_step == 12
    assert "training starts" in caplog.text


@pytest.mark.parametrize("damage", ["state", "manifest", "bytes", "cut"])
def test_a_half_written_checkpoint_is_passed_over(tmp_path, damage):
    whole = weights(run(str(tmp_path)))
    newest = tmp_path / "checkpoint-12"
    if damage == "state":
        (newest / "trainer_state.json").unlink()
    elif damage == "manifest":
        (newest / "bolide_manifest.json").unlink()
    elif damage == "bytes":
        data = bytearray((newest / "model.safetensors").read_bytes())
        data[-1] ^= 1
        (newest / "model.safetensors").write_bytes(data)
    else:
        with open(newest / "optimizer.pt", "r+b") as file:
            file.truncate(100)
    with pytest.warns(UserWarning, match="checkpoint-12' is passed over"):
        trainer = run(str(tmp_path), resume=True)
    assert same(weights(trainer), whole)
    with pytest.raises(DamagedCheckpointError, match="checkpoint-12"):
        run(str(tmp_path / "other"), resume=str(_damaged(tmp_path)))


def _damaged(tmp_path):
    target = tmp_path / "copy" / "checkpoint-12"
    shutil.copytree(tmp_path / "checkpoint-9", target)
    with open(target / "optimizer.pt", "r+b") as file:
        file.truncate(100)
    return target


def test_a_folder_that_only_lacked_its_name_is_found(tmp_path):
    whole = weights(run(str(tmp_path)))
    shutil.rmtree(tmp_path / "checkpoint-12")
    os.rename(tmp_path / "checkpoint-9", tmp_path / ".checkpoint-9.0123456789ab.part")
    os.makedirs(tmp_path / ".checkpoint-10.0123456789ab.part")
    trainer = run(str(tmp_path), resume=True)
    assert trainer._steps_before == 9
    assert same(weights(trainer), whole)
    assert not [name for name in os.listdir(tmp_path) if name.endswith(".part")]


@pytest.mark.parametrize("windows", [1, 2, 3])
@pytest.mark.parametrize("kind", ["stream", "shuffled stream", "workers", "grouped"])
def test_going_on_gives_the_same_bits(tmp_path, windows, kind):
    more: dict[str, Any] = {"gradient_accumulation_steps": windows, "per_device_train_batch_size": 2, "save_steps": 2}
    if kind == "stream":
        more |= {"data": Stream(points(13)), "max_steps": 14}
    elif kind == "shuffled stream":
        more |= {"data": Shuffled(points(13)), "max_steps": 14}
    elif kind == "workers":
        more |= {"dataloader_num_workers": 2 if windows == 2 else 1}
    else:
        more |= {"train_sampling_strategy": "group_by_length", "length_column_name": "n", "data": Lengths(points())}
    whole = run(str(tmp_path / "a"), **more)
    for step in (4, 6):
        again = run(str(tmp_path / "b"), resume=str(tmp_path / "a" / f"checkpoint-{step}"), **more)
        assert same(weights(again), weights(whole))
        assert comparable(again.state.log_history) == comparable(whole.state.log_history)


class Lengths(Rows):
    """Points with a column of lengths."""

    def __init__(self, rows: Rows) -> None:
        super().__init__(**rows.columns)
        self.column_names = ["x", "labels", "n"]

    def __getitem__(self, i):
        return [(7 * k) % 11 for k in range(len(self))] if i == "n" else super().__getitem__(i)


def comparable(history: list[dict[str, Any]]) -> list[dict[str, Any]]:
    clocks = ("runtime", "per_second", "train_loss")
    return [{k: v for k, v in line.items() if not any(word in k for word in clocks)} for line in history]


def test_what_is_changed_at_resume_takes_effect(tmp_path, caplog):
    run(str(tmp_path), lr_scheduler_type="constant")
    with caplog.at_level(logging.INFO, "bolide"):
        trainer = run(
            str(tmp_path), resume=str(tmp_path / "checkpoint-6"), learning_rate=0.5, logging_steps=1, save_steps=4,
            lr_scheduler_type="constant",
        )  # fmt: skip
    lines = [line for line in trainer.state.log_history if "learning_rate" in line and line["step"] > 6]
    assert [line["step"] for line in lines] == [7, 8, 9, 10, 11, 12]
    assert {line["learning_rate"] for line in lines} == {0.5}
    assert (tmp_path / "checkpoint-8").is_dir()
    assert "learning_rate is 0.5 now, and was 0.01" in caplog.text
    assert "logging_steps 2 -> 1, save_steps 3 -> 4" in caplog.text


def constant(prediction: Any) -> dict[str, float]:
    return {"accuracy": 0.5}


def stopping(out: str, epochs: int, resume: str | None = None, patience: int = 4) -> Any:
    args = arguments(
        door, out, num_train_epochs=epochs, eval_strategy="epoch", save_strategy="epoch", load_best_model_at_end=True,
        metric_for_best_model="accuracy", per_device_train_batch_size=1,
    )  # fmt: skip
    trainer = door.Trainer(
        Net(), args, train_dataset=points(2), eval_dataset=points(2), compute_metrics=constant,
        callbacks=[door.EarlyStoppingCallback(patience)],
    )  # fmt: skip
    trainer.train(resume_from_checkpoint=resume)
    return trainer


@pytest.mark.parametrize("kind", ["ours", "theirs"])
def test_c14_patience_survives(tmp_path, kind, monkeypatch):
    if kind == "theirs":  # the callback of transformers itself
        from transformers import EarlyStoppingCallback

        monkeypatch.setitem(vars(door), "EarlyStoppingCallback", EarlyStoppingCallback)
    assert stopping(str(tmp_path / "whole"), 20).state.epoch == 5
    stopping(str(tmp_path / "cut"), 3)
    again = stopping(str(tmp_path / "cut"), 20, resume=str(tmp_path / "cut" / "checkpoint-6"))
    assert again.state.epoch == 5


# ---------------------------------------------------------------------- saving


def test_tied_weights_are_saved_and_stay_tied(tmp_path):
    rows = texts(8)
    for column in rows.columns.values():
        column %= 11
    args = arguments(door, str(tmp_path), save_strategy="epoch", num_train_epochs=2)
    first = door.Trainer(Tied(), args, train_dataset=rows)
    first.train()
    again = door.Trainer(Tied(), args, train_dataset=rows)
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert same(weights(first), weights(again))
    assert again.model.head.weight is again.model.tokens.weight


def test_nothing_in_a_checkpoint_is_unpickled_as_code(tmp_path):
    run(str(tmp_path))
    folder = tmp_path / "checkpoint-12"
    for name in ("optimizer.pt", "scheduler.pt", "bolide_state.ckpt"):
        torch.load(folder / name, weights_only=True)
    assert not (folder / "training_args.bin").exists()
    manifest = json.loads((folder / "bolide_manifest.json").read_text())
    assert set(manifest["files"]) == set(os.listdir(folder)) - {"bolide_manifest.json"}


def test_a_loss_that_is_not_finite_shows_in_the_log(tmp_path):
    class Breaks(Weighted):
        def forward(self, x, labels):
            loss = super().forward(x, labels)["loss"]
            return {"loss": loss * float("nan") if x[0, 0] == 5 else loss}

    args = arguments(
        door, str(tmp_path), per_device_train_batch_size=1, num_train_epochs=1, learning_rate=0.0, logging_steps=2
    )
    trainer = door.Trainer(Breaks(), args, train_dataset=uneven())
    trainer.train()
    line = trainer.state.log_history[0]
    assert line["non_finite_losses"] == 1
    assert line["loss"] == 0.0


# ---------------------------------------------------------------------- evaluation


def test_a_short_last_batch_weighs_its_samples(tmp_path):
    trainer = door.Trainer(Net(), arguments(door, str(tmp_path)), eval_dataset=points(6))
    rows = points(6).columns
    trainer.model.eval()
    with torch.no_grad():
        expected = trainer.model(**rows)["loss"].item()
    assert trainer.evaluate()["eval_loss"] == pytest.approx(expected, abs=1e-6)


def test_predictions_beyond_the_limit_go_to_a_file(tmp_path, monkeypatch):
    import numpy as np

    from bolide.transformers import evaluation

    trainer = door.Trainer(Net(), arguments(door, str(tmp_path)), compute_metrics=accuracy)
    whole = trainer.predict(points(50))
    monkeypatch.setattr(evaluation.Rows.__init__, "__defaults__", (100,))
    spilled = trainer.predict(points(50))
    assert isinstance(spilled.predictions, np.memmap)
    assert np.array_equal(whole.predictions, spilled.predictions)
    assert whole.metrics["test_accuracy"] == spilled.metrics["test_accuracy"]


def test_labels_that_nobody_finds_are_told_of(tmp_path):
    class Other(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Linear(4, 3)

        def forward(self, x, target=None):
            return {"loss": F.cross_entropy(self.net(x), target), "logits": self.net(x)}

    rows = points(6).columns
    data = Rows(x=rows["x"], target=rows["labels"])
    trainer = door.Trainer(Other(), arguments(door, str(tmp_path)), eval_dataset=data, compute_metrics=accuracy)
    with pytest.warns(UserWarning, match=r"label_names=\[\.\.\.\]"):
        trainer.evaluate()
    trainer = door.Trainer(
        Other(), arguments(door, str(tmp_path), label_names=["target"]), eval_dataset=data, compute_metrics=accuracy
    )
    assert "eval_accuracy" in trainer.evaluate()


# ---------------------------------------------------------------------- learning rates of a run's own, on resume


class Layerwise(door.Trainer):
    """An optimizer with a rate for each group."""

    rates = (1e-2, 1e-3)

    def create_optimizer(self):
        if self.optimizer is None:
            first, second = self.model.body.parameters(), self.model.head.parameters()
            self.optimizer = torch.optim.AdamW(
                [{"params": list(first), "lr": self.rates[0]}, {"params": list(second), "lr": self.rates[1]}]
            )
        return self.optimizer


class OwnBoth(door.Trainer):
    """Makes optimizer and schedule without asking the class it derives from."""

    def create_optimizer_and_scheduler(self, num_training_steps):
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.lr_scheduler = door.get_scheduler("cosine", self.optimizer, 2, num_training_steps)


RATES = {
    "by group": (Layerwise, {}),
    "of an optimizer's class": (door.Trainer, {"optimizer_cls_and_kwargs": (torch.optim.SGD, {"lr": 0.02})}),
    "of both": (OwnBoth, {}),
}


def going_on(kind: str, out: str, resume: str | None = None, **settings: Any) -> Any:
    cls, more = RATES[kind]
    args = arguments(door, out, **{"save_strategy": "steps", "save_steps": 3, "learning_rate": 5e-5, **settings})
    trainer = cls(Net(), args, train_dataset=points(), **more)
    trainer.train(resume_from_checkpoint=resume)
    return trainer


@pytest.mark.parametrize("kind", RATES)
def test_rates_that_are_not_the_arguments_stay_on_resume(tmp_path, kind, caplog):
    whole = going_on(kind, str(tmp_path))
    with caplog.at_level(logging.INFO, "bolide"):
        again = going_on(kind, str(tmp_path), str(tmp_path / "checkpoint-6"))
    assert same(weights(whole), weights(again))
    assert "learning_rate is" not in caplog.text


def test_rates_by_group_that_were_changed_take_effect(tmp_path, caplog, monkeypatch):
    going_on("by group", str(tmp_path), lr_scheduler_type="constant")
    monkeypatch.setattr(Layerwise, "rates", (1e-2, 0.5))
    with caplog.at_level(logging.INFO, "bolide"):
        again = going_on("by group", str(tmp_path), str(tmp_path / "checkpoint-6"), lr_scheduler_type="constant")
    assert [group["lr"] for group in again.optimizer.param_groups] == [1e-2, 0.5]
    assert "learning_rate is 0.01, 0.5 now, and was 0.01, 0.001 in the checkpoint" in caplog.text


def test_an_override_that_makes_no_schedule_is_told(tmp_path):
    class Half(door.Trainer):
        def create_optimizer_and_scheduler(self, num_training_steps):
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    with pytest.raises(UserCodeError, match="Half has made no lr_scheduler; set self.lr_scheduler"):
        Half(Net(), arguments(door, str(tmp_path)), train_dataset=points()).train()

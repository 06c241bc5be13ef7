"""What a script changes, overrides or leaves behind between two parts of the second door, and what must hold then."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import bolide.transformers as door
from bolide.core.errors import UserCodeError
from bolide.transformers.state import read_state
from tests.transformers.models import Net, accuracy, points
from tests.transformers.scripts import arguments

pytest.importorskip("transformers")


def trainer(out: Any, kind: Any = door.Trainer, model: Any = None, **more: Any) -> Any:
    fields = {"compute_metrics", "compute_loss_func", "callbacks", "optimizers", "optimizer_cls_and_kwargs"}
    given = {name: more.pop(name) for name in list(more) if name in fields}
    return kind(
        model if model is not None else Net(0.0), arguments(door, str(out), **more), train_dataset=points(),
        eval_dataset=points(10, 1), **given,
    )  # fmt: skip


def weights_of(model: Any) -> list[Any]:
    return [parameter.detach().clone() for parameter in model.parameters()]


# ---------------------------------------------------------------------- folders of an earlier run


def test_an_earlier_run_s_checkpoints_are_the_first_to_go(tmp_path, caplog):
    steps: dict[str, Any] = {"save_strategy": "steps", "save_total_limit": 2}
    trainer(tmp_path, save_steps=4, num_train_epochs=4, **steps).train()
    assert sorted(os.listdir(tmp_path)) == ["checkpoint-20", "checkpoint-24"]
    assert "holds checkpoints of an earlier run" not in caplog.text
    with pytest.warns(UserWarning, match="holds checkpoints of an earlier run, up to checkpoint-24"):
        trainer(tmp_path, save_steps=2, num_train_epochs=1, **steps).train()
    assert sorted(os.listdir(tmp_path)) == ["checkpoint-4", "checkpoint-6"]


def test_a_run_that_went_back_keeps_its_own_checkpoints(tmp_path):
    steps: dict[str, Any] = {"save_strategy": "steps", "save_steps": 2}
    trainer(tmp_path, **steps).train()
    trainer(tmp_path, save_total_limit=1, max_steps=6, **steps).train(str(tmp_path / "checkpoint-4"))
    assert os.listdir(tmp_path) == ["checkpoint-6"]


# ---------------------------------------------------------------------- models


def test_a_model_in_the_place_of_another_is_evaluated_and_trained(tmp_path):
    one, other = trainer(tmp_path), Net(0.0, seed=9)
    one.train()
    expected = trainer(tmp_path, model=other).evaluate()["eval_loss"]
    one.model = other
    assert one.evaluate()["eval_loss"] == expected
    assert one.predict(points(10, 1)).metrics["test_loss"] == expected
    one.train()
    alone = trainer(tmp_path, model=Net(0.0, seed=9))
    alone.train()
    assert all(torch.equal(a, b) for a, b in zip(weights_of(other), weights_of(alone.model), strict=True))


def test_a_model_put_in_for_an_evaluation_leaves_training_as_it_is(tmp_path):
    class Averages(door.TrainerCallback):
        def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            own, one.model = one.model, Net(0.0, seed=9)
            self.loss = one.evaluate(metric_key_prefix="average")["average_loss"]
            one.model = own

    averages = Averages()
    one, undisturbed = trainer(tmp_path, callbacks=[averages]), trainer(tmp_path)
    one.train()
    undisturbed.train()
    assert all(torch.equal(a, b) for a, b in zip(weights_of(one.model), weights_of(undisturbed.model), strict=True))
    assert averages.loss == trainer(tmp_path, model=Net(0.0, seed=9)).evaluate()["eval_loss"]


class Logits(Net):
    """Gives logits alone, or a tuple of them; the loss is somebody else's."""

    double = False

    def forward(self, x: Any) -> Any:
        logits = self.head(self.body(x))
        return (logits, logits * 2) if self.double else logits


def cross_entropy(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> Any:
    return F.cross_entropy(outputs[0] if isinstance(outputs, tuple) else outputs, labels)


@pytest.mark.parametrize("double", [False, True])
def test_a_model_without_a_loss_in_what_it_returns(tmp_path, double):
    model = Logits(0.0)
    model.double = double
    one = trainer(
        tmp_path, model=model, compute_loss_func=cross_entropy, compute_metrics=accuracy, label_names=["labels"],
        remove_unused_columns=False,
    )  # fmt: skip
    found = one.predict(points(10, 1))
    expected = trainer(tmp_path, compute_metrics=accuracy).predict(points(10, 1))
    logits = found.predictions[0] if double else found.predictions
    assert np.array_equal(logits, expected.predictions)
    assert not double or np.array_equal(found.predictions[1], logits * 2)
    assert found.metrics["test_accuracy"] == expected.metrics["test_accuracy"]
    assert found.metrics["test_loss"] == expected.metrics["test_loss"]


class Silent(Net):
    """Has a place for the loss, and nothing in it."""

    answer: Any = None

    def forward(self, x: Any, labels: Any = None) -> Any:
        return self.answer


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ({"loss": None, "logits": torch.zeros(1)}, "The model returned logits and no 'loss' for the inputs x, labels"),
        ({"loss": None}, "The model returned nothing and no 'loss'"),
        ((None, torch.zeros(1)), "a tuple that begins with a NoneType, where the loss is expected"),
    ],
)
def test_a_model_that_returns_no_loss(tmp_path, answer, text):
    model = Silent()
    model.answer = answer
    with pytest.raises(UserCodeError, match=text):
        trainer(tmp_path, model=model).train()


# ---------------------------------------------------------------------- overrides


def test_an_overridden_save_model_writes_the_checkpoints_too(tmp_path):
    class Adds(door.Trainer):
        def save_model(self, output_dir: Any = None, _internal_call: bool = False) -> None:
            super().save_model(output_dir, _internal_call)
            self.add(output_dir, _internal_call)

        def add(self, folder: Any, internal: bool) -> None:
            with open(os.path.join(folder, "more.txt"), "w", encoding="utf-8") as file:
                file.write(str(internal))

    class AddsAsOfOld(Adds):
        def save_model(self, output_dir: Any = None) -> None:
            self._save(output_dir)
            self.add(output_dir, False)

    for kind, text in ((Adds, "True"), (AddsAsOfOld, "False")):
        out = tmp_path / text
        one = trainer(out, kind, save_strategy="epoch")
        one.train()
        assert (out / "checkpoint-6" / "more.txt").read_text() == text
        again = trainer(out, kind, save_strategy="epoch")
        again.train(resume_from_checkpoint=str(out / "checkpoint-6"))
        assert all(torch.equal(a, b) for a, b in zip(weights_of(one.model), weights_of(again.model), strict=True))


def test_a_log_of_the_older_signature(tmp_path):
    lines = []

    class Logs(door.Trainer):
        def log(self, logs: dict[str, float]) -> None:  # type: ignore[override]
            logs["more"] = 1.0
            lines.append(logs)
            super().log(logs)

    one = trainer(tmp_path, Logs, num_train_epochs=1, eval_strategy="epoch")
    one.train()
    assert len(lines) == len(one.state.log_history) == 5
    assert all(line["more"] == 1.0 for line in one.state.log_history)


def test_an_overridden_create_optimizer_and_scheduler(tmp_path):
    class Makes(door.Trainer):
        def create_optimizer_and_scheduler(self, num_training_steps: int) -> None:
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
            self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: 0.5**step)

    class MakesNone(door.Trainer):
        def create_optimizer_and_scheduler(self, num_training_steps: int) -> None:
            pass

    class Returns(door.Trainer):
        def create_optimizer(self, model: Any = None) -> Any:
            return torch.optim.SGD(self.model.parameters(), lr=0.1)

    one = trainer(tmp_path, Makes, num_train_epochs=1, logging_steps=1)
    one.train()
    rates = [line["learning_rate"] for line in one.state.log_history if "learning_rate" in line]
    assert rates == pytest.approx([0.1 * 0.5**step for step in range(6)])
    with pytest.raises(UserCodeError, match="made no optimizer.* set self.optimizer"):
        trainer(tmp_path, MakesNone).train()
    with pytest.raises(UserCodeError, match="made no optimizer; set self.optimizer"):
        trainer(tmp_path, Returns).train()


def test_a_rate_of_the_optimizer_s_own_arguments_stays_on_resume(tmp_path):
    def made() -> Any:
        return trainer(
            tmp_path, save_strategy="epoch", optimizer_cls_and_kwargs=(torch.optim.SGD, {"lr": 0.3}), logging_steps=1,
        )  # fmt: skip

    whole = made()
    whole.train()
    again = made()
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-6"))
    assert all(torch.equal(a, b) for a, b in zip(weights_of(whole.model), weights_of(again.model), strict=True))


# ---------------------------------------------------------------------- callbacks and metrics


def test_a_list_of_callbacks_that_is_set_anew_is_heard(tmp_path):
    steps = []

    class Counts(door.TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            steps.append(state.global_step)

    one = trainer(tmp_path, num_train_epochs=1)
    one.train()
    one.callback_handler.callbacks = [*one.callback_handler.callbacks, Counts()]
    one.callback_handler.callbacks.append(Counts())
    one.train()
    assert steps == [step for step in range(1, 7) for _ in range(2)]


def test_a_metric_that_is_no_number_is_never_the_best(tmp_path):
    values = iter([float("nan"), 3.0, 2.0, float("nan")])
    one = trainer(
        tmp_path, compute_metrics=lambda prediction: {"m": next(values)}, num_train_epochs=4, eval_strategy="epoch",
        save_strategy="epoch", load_best_model_at_end=True, metric_for_best_model="m", greater_is_better=False,
    )  # fmt: skip
    one.train()
    assert one.state.best_metric == 2.0
    assert one.state.best_model_checkpoint == str(tmp_path / "checkpoint-18")


def test_metrics_that_are_arrays_are_kept(tmp_path):
    one = trainer(
        tmp_path, compute_metrics=lambda prediction: {"f1": np.array([0.25, 0.5]), "all": np.float32(0.5)},
        num_train_epochs=1, eval_strategy="epoch", save_strategy="epoch",
    )  # fmt: skip
    one.train()
    (line,) = [x for x in read_state(str(tmp_path / "checkpoint-6" / "trainer_state.json"))["log_history"]
               if "eval_f1" in x]  # fmt: skip
    assert line["eval_f1"] == [0.25, 0.5] and line["eval_all"] == 0.5

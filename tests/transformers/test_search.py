"""hyperparameter_search: the best run with its checkpoint, pruning, several directions, going on."""

from __future__ import annotations

import logging
import os
from typing import Any

import numpy as np
import pytest
import torch

import bolide.transformers as door
from bolide.core.errors import ConfigError, UserCodeError
from bolide.transformers import weights
from bolide.tuner.trial import Trial
from tests.transformers.models import Net, accuracy, points
from tests.transformers.scripts import arguments

pytest.importorskip("optuna")


def trainer(out: Any, **more: Any) -> Any:
    callbacks = more.pop("callbacks", None)
    settings = {"eval_strategy": "epoch", "save_strategy": "epoch", "load_best_model_at_end": True,
                "logging_strategy": "epoch", **more}  # fmt: skip
    return door.Trainer(
        model_init=lambda: Net(0.0), args=arguments(door, str(out), **settings), train_dataset=points(),
        eval_dataset=points(12, 1), compute_metrics=accuracy, callbacks=callbacks,
    )  # fmt: skip


def space(trial: Any) -> dict[str, Any]:
    return {
        "learning_rate": trial.suggest_float("learning_rate", 1e-4, 0.3, log=True),
        "per_device_train_batch_size": trial.suggest_categorical("per_device_train_batch_size", [4, 8]),
    }


def loss(metrics: dict[str, float]) -> float:
    return metrics["eval_loss"]


def test_the_best_run_and_its_checkpoint(tmp_path):
    one = trainer(tmp_path, callbacks=[door.EarlyStoppingCallback(3)])
    best = one.hyperparameter_search(space, loss, n_trials=5, pruner="none")
    assert set(best.hyperparameters) == {"learning_rate", "per_device_train_batch_size"}
    assert best.objective == pytest.approx(best.metrics["eval_loss"])
    assert os.path.dirname(best.checkpoint) == str(tmp_path / f"run-{best.run_id}")
    assert any("eval_accuracy" in line for line in best.history)
    assert best.objective == min(trial.value for trial in best.run_summary.finished())
    # the trainer is as it was before
    assert one.args.learning_rate == 1e-2
    assert one.args.per_device_train_batch_size == 4
    # the checkpoint is that of the best evaluation of the best run
    found = min(line["eval_loss"] for line in best.history if "eval_loss" in line)
    again = door.Trainer(Net(0.0), arguments(door, str(tmp_path / "again")), eval_dataset=points(12, 1))
    weights.load(again.model, weights.read(best.checkpoint), best.checkpoint)
    assert again.evaluate()["eval_loss"] == pytest.approx(found, abs=1e-6)


def test_pruning_and_the_default_objective(tmp_path):
    grid = {"learning_rate": [0.1, 0.12, 0.14, 0.16, 1e-7]}
    best = trainer(tmp_path).hyperparameter_search(
        grid, direction="maximize", n_trials=9, sampler="grid", progress_bar=False
    )
    states = [trial.state.name for trial in best.run_summary.finished()]
    assert states == ["COMPLETE"] * 4 + ["PRUNED"]
    assert best.objective == pytest.approx(best.metrics["eval_accuracy"])


def test_several_directions_give_the_pareto_front(tmp_path):
    found = trainer(tmp_path).hyperparameter_search(
        space, lambda m: [m["eval_loss"], m["eval_accuracy"]], n_trials=4, direction=["minimize", "maximize"]
    )
    assert 1 <= len(found) <= 4
    assert all(len(run.objective) == 2 and run.checkpoint for run in found)


def test_a_study_in_a_file_goes_on(tmp_path, caplog):
    store = f"sqlite:///{tmp_path}/study.db"
    whole = trainer(tmp_path / "a").hyperparameter_search(space, loss, n_trials=5)
    trainer(tmp_path / "b").hyperparameter_search(space, loss, n_trials=2, storage=store)
    with caplog.at_level(logging.INFO, "bolide"):
        best = trainer(tmp_path / "b").hyperparameter_search(space, loss, n_trials=5, storage=store)
    assert "2 of its 5 trials are done" in caplog.text
    assert (best.run_id, best.objective, best.hyperparameters) == (
        whole.run_id, whole.objective, whole.hyperparameters
    )  # fmt: skip


def test_what_is_refused(tmp_path):
    plain = door.Trainer(Net(), arguments(door, str(tmp_path)))
    with pytest.raises(ConfigError) as told:
        plain.hyperparameter_search(space, backend="sigopt", trials=3)
    assert len(told.value.problems) == 4
    with pytest.raises(ConfigError, match="storage="):
        trainer(tmp_path).hyperparameter_search(space, backend="ray")
    with pytest.warns(UserWarning, match="no training argument"):
        trainer(tmp_path).hyperparameter_search({"width": [3]}, loss, n_trials=1, sampler="grid")


def test_an_error_that_is_caught_ends_its_trial_alone(tmp_path):
    one = trainer(tmp_path)

    def objective(metrics: dict[str, float]) -> float:
        if one.args.learning_rate == 0.1:
            raise ZeroDivisionError
        return metrics["eval_loss"]

    grid = {"learning_rate": [0.2, 0.1, 0.3]}
    with pytest.warns(UserWarning, match="Trial 1 is given up: ZeroDivisionError"):
        best = one.hyperparameter_search(
            grid, objective, sampler="grid", pruner="none", catch=(ZeroDivisionError,), gc_after_trial=True,
            load_if_exists=True, show_progress_bar=False,
        )  # fmt: skip
    assert [trial.state.name for trial in best.run_summary.finished()] == ["COMPLETE", "PRUNED", "COMPLETE"]
    with pytest.raises(ZeroDivisionError):
        one.hyperparameter_search(grid, objective, sampler="grid")
    with pytest.raises(ConfigError, match="write another study_name"):
        one.hyperparameter_search(grid, objective, load_if_exists=False)


def test_names_of_trials_and_memory(tmp_path):
    one = trainer(tmp_path)
    best = one.hyperparameter_search(space, loss, n_trials=2, hp_name=lambda trial: f"trial-{trial.number}")
    assert os.path.basename(os.path.dirname(best.checkpoint)).startswith("trial-")
    assert one.optimizer is None
    assert isinstance(one.model, torch.nn.Module)


def heard(out: Any, chosen: dict[str, Any], **more: Any) -> Any:
    """The arguments that a trial with these settings trains by."""
    found = []

    class Looks(door.TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            found.append(args)

    one = trainer(out, callbacks=[Looks()], **{"num_train_epochs": 1, **more})
    one.hyperparameter_search(lambda trial: dict(chosen), loss, n_trials=1)
    return found[0]


def test_a_setting_has_the_kind_of_its_argument_not_of_what_stood_there(tmp_path):
    args = heard(
        tmp_path, {"num_train_epochs": 1.5, "warmup_steps": 0.25, "per_device_train_batch_size": np.int64(8)},
    )  # fmt: skip
    assert (args.num_train_epochs, args.warmup_steps, args.per_device_train_batch_size) == (1.5, 0.25, 8)
    assert type(args.per_device_train_batch_size) is int


def test_old_names_in_a_space(tmp_path):
    with pytest.warns(FutureWarning, match="warmup_ratio is now warmup_steps"):
        assert heard(tmp_path, {"warmup_ratio": 0.25}).warmup_steps == 0.25
    with pytest.raises(ConfigError, match="past_index is gone"):
        heard(tmp_path, {"past_index": 3})


def test_the_model_may_choose_too(tmp_path):
    one = trainer(tmp_path, num_train_epochs=1)
    widths = []

    def init(trial: Any = None) -> Any:
        if trial is not None:
            widths.append((trial.suggest_categorical("dropout", [0.0, 0.1]), trial.suggest_int("depth", 1, 3)))
            trial.suggest_float("scale", 0.1, 1.0, log=True)
        return Net(widths[-1][0] if widths else 0.0)

    one.model_init = init
    best = one.hyperparameter_search(space, loss, n_trials=3, pruner="none", storage=str(tmp_path / "study.db"))
    chosen = best.hyperparameters
    assert set(chosen) == {"learning_rate", "per_device_train_batch_size", "dropout", "depth", "scale"}
    assert (chosen["dropout"], chosen["depth"]) in widths and len(widths) == 3
    again = one.hyperparameter_search(space, loss, n_trials=3, storage=str(tmp_path / "study.db"))
    assert again.hyperparameters == chosen
    with pytest.raises(ConfigError, match=r"read trial.params\['depth'\]"):
        Trial(0, {}, lambda value, step: False).suggest_int("depth", 1, 3)


def test_a_trial_is_told_by_the_evaluations_of_its_training_alone(tmp_path):
    names = []

    class Evaluates(door.TrainerCallback):
        def on_epoch_end(self, *args: Any, **kwargs: Any) -> None:
            one.evaluate(points(4, 3), metric_key_prefix="other")

        on_train_end = on_epoch_end

    def objective(metrics: dict[str, float]) -> float:
        names.append(sorted(name for name in metrics if name.endswith("_loss")))
        return metrics["eval_a_loss"] + metrics["eval_b_loss"]

    one = trainer(tmp_path, callbacks=[Evaluates()], metric_for_best_model="a_loss")
    one.eval_dataset = {"a": points(8, 1), "b": points(8, 2)}
    best = one.hyperparameter_search(space, objective, n_trials=2)
    assert names and all(found == ["eval_a_loss", "eval_b_loss"] for found in names)
    assert {"eval_a_loss", "eval_b_loss"} <= set(best.metrics)


def test_the_checkpoint_is_of_this_search(tmp_path):
    more = {"load_best_model_at_end": False}
    trainer(tmp_path, num_train_epochs=3, **more).hyperparameter_search(space, loss, n_trials=1)
    best = trainer(tmp_path, num_train_epochs=1, **more).hyperparameter_search(space, loss, n_trials=1)
    assert os.path.basename(best.checkpoint) == f"checkpoint-{best.history[-1]['step']}"


def test_a_search_without_a_value_says_so(tmp_path):
    with pytest.raises(UserCodeError, match="of its 2 trials none came to a value"):
        trainer(tmp_path, num_train_epochs=1).hyperparameter_search(space, lambda metrics: float("nan"), n_trials=2)

"""What a subclass of the Trainer may override: called as under transformers, or refused with what to write instead."""

from __future__ import annotations

import inspect
import os
import re
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import bolide.transformers as ours
from bolide.core.errors import ConfigError
from bolide.transformers.overrides import NEVER_CALLED, OLDER, without_effect
from tests.transformers.models import Net, Rows, Stream, accuracy, gpt2, points, t5, texts
from tests.transformers.scripts import arguments
from tests.transformers.test_both_doors import differences

theirs = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")
DOORS = {"transformers": theirs, "bolide": ours}


def each(script: Any, tmp_path: Any) -> tuple[Any, Any]:
    """What a script gives under transformers, and under Bolide."""
    found = []
    for name, door in DOORS.items():
        torch.manual_seed(0)
        found.append(script(door, str(tmp_path / name)))
    return found[0], found[1]


def same(script: Any, tmp_path: Any) -> Any:
    expected, found = each(script, tmp_path)
    assert differences(expected, found) == []
    return found


def make(kind: Any, door: Any, out: str, model: Any = None, **more: Any) -> Any:
    fields = {"compute_metrics", "callbacks", "model_init"}
    given = {name: more.pop(name) for name in list(more) if name in fields}
    if "model_init" not in given:
        given["model"] = model if model is not None else Net(0.0)
    args = arguments(door, out, **{"num_train_epochs": 2, **more})
    return kind(args=args, train_dataset=points(20), eval_dataset=points(10, 1), **given)


# ---------------------------------------------------------------------- the whole list


def methods(kind: type) -> dict[str, Any]:
    found = {}
    for name in dir(kind):
        value = inspect.getattr_static(kind, name)
        if not name.startswith("__") and inspect.isfunction(value):
            found[name] = value
    return found


def spied(kind: type) -> tuple[type, set[str]]:
    """A subclass that overrides every method with one that notes its name, and calls it."""
    called: set[str] = set()

    def noted(name: str, method: Any) -> Any:
        def own(self: Any, *args: Any, **kwargs: Any) -> Any:
            called.add(name)
            return method(self, *args, **kwargs)

        own.__signature__ = inspect.signature(method)  # type: ignore[attr-defined]
        return own

    shared = set(methods(theirs.Trainer)) - (set(NEVER_CALLED) if kind is ours.Trainer else set())
    own = {name: noted(name, method) for name, method in methods(kind).items() if name in shared}
    return type("Spied", (kind,), own), called


def test_every_method_of_transformers_is_called_here_or_refused(tmp_path):
    def script(door: Any, out: str) -> set[str]:
        kind, called = spied(door.Trainer)
        trainer = kind(
            gpt2(), arguments(door, out, max_steps=4, eval_strategy="steps", eval_steps=2, save_strategy="steps",
                              save_steps=2, load_best_model_at_end=True, gradient_accumulation_steps=2,
                              include_num_input_tokens_seen=True, logging_steps=1),
            train_dataset=texts(16), eval_dataset=texts(5),
        )  # fmt: skip
        trainer.train()
        trainer.train(resume_from_checkpoint=os.path.join(out, "checkpoint-2"))
        trainer.predict(texts(5))
        return called

    expected, found = each(script, tmp_path)
    assert len(expected) > 40
    assert expected - found == set(NEVER_CALLED) & expected  # each of them is refused
    lacking = set(methods(theirs.Trainer)) - set(methods(ours.Trainer)) - {"metrics_format"}
    assert lacking <= set(NEVER_CALLED)
    assert set(NEVER_CALLED) <= set(methods(theirs.Trainer))
    assert not set(OLDER) & set(methods(theirs.Trainer))


@pytest.mark.parametrize("name", NEVER_CALLED)
def test_an_override_without_effect_is_refused(name, tmp_path):
    kind = type("Mine", (ours.Trainer,), {name: lambda self, *args, **kwargs: None})
    with pytest.raises(ConfigError, match=f"Mine.{name} is never called by Bolide's Trainer, so it has no effect; "):
        make(kind, ours, str(tmp_path))


def test_overrides_of_older_releases_are_warned_of(tmp_path):
    kind = type("Mine", (ours.Trainer,), {name: lambda self: None for name in ("_rotate_checkpoints", "num_tokens")})
    with pytest.warns(UserWarning, match=r"no effect: _rotate_checkpoints \(write save_total_limit.*; num_tokens"):
        make(kind, ours, str(tmp_path)).train()


def test_with_a_spread_model_weights_have_one_way():
    kind = type("Mine", (ours.Trainer,), {"save_model": lambda self, output_dir=None: None})
    (text,) = without_effect(kind, ours.Trainer, spread=True)
    assert text.startswith("Mine.save_model is not called with fsdp or deepspeed; override _save(")
    assert not list(without_effect(kind, ours.Trainer, spread=False))


# ---------------------------------------------------------------------- what is logged, evaluated, saved


def test_logging_evaluating_and_saving_in_one_place(tmp_path):
    def script(door: Any, out: str) -> Any:
        seen = []

        class Mine(door.Trainer):
            def _maybe_log_save_evaluate(
                self, tr_loss, grad_norm, model, trial, epoch, ignore_keys_for_eval, start_time, learning_rate=None
            ):
                now = time.time()
                seen.append((float(tr_loss), float(grad_norm), learning_rate, self.control.should_log, trial,
                             type(model).__name__, ignore_keys_for_eval, now >= start_time))  # fmt: skip
                if self.control.should_evaluate:
                    self.log({"extra": self.state.global_step})
                super()._maybe_log_save_evaluate(
                    tr_loss, grad_norm, model, trial, epoch, ignore_keys_for_eval, start_time, learning_rate
                )

            def _determine_best_metric(self, metrics, trial):
                better = super()._determine_best_metric(metrics=metrics, trial=trial)
                seen.append(("better", better, metrics["eval_loss"]))
                return better

            def _get_learning_rate(self):
                return 2 * super()._get_learning_rate()

        trainer = make(Mine, door, out, eval_strategy="epoch", save_strategy="epoch", logging_steps=2,
                       load_best_model_at_end=True)  # fmt: skip
        trainer.train()
        return seen, trainer.state.log_history, sorted(os.listdir(out)), trainer.state.best_metric

    seen, log, *_ = same(script, tmp_path)
    assert len(seen) == 10 + 2 + 2  # steps, epochs, evaluations
    assert [line["extra"] for line in log if "extra" in line] == [5, 10]


def test_losses_that_an_override_logs_itself(tmp_path):
    def script(door: Any, out: str) -> Any:
        class Mine(door.Trainer):
            def _maybe_log_save_evaluate(self, tr_loss, grad_norm, model, *rest, **more):
                if self.control.should_log:
                    steps = self.state.global_step - self._globalstep_last_logged
                    self._globalstep_last_logged = self.state.global_step
                    self._total_loss_scalar += tr_loss.item()
                    mean = tr_loss.item() / steps
                    tr_loss -= tr_loss
                    self.log({"loss": mean, "mine": True})
                super()._maybe_log_save_evaluate(tr_loss, grad_norm, model, *rest, **more)

        trainer = make(Mine, door, out, logging_steps=3)
        return trainer.train().training_loss, trainer.state.log_history

    _, log = same(script, tmp_path)
    assert [line["step"] for line in log if "mine" in line] == [3, 6, 9]


def test_signatures_of_older_releases(tmp_path):
    """`log` without a time, `_maybe_log_save_evaluate` without a time and a rate, `_save_checkpoint` with metrics."""
    seen = []

    class Old(ours.Trainer):
        def log(self, logs):
            seen.append(sorted(logs))
            super().log(logs)

        def _maybe_log_save_evaluate(self, tr_loss, grad_norm, model, trial, epoch, ignore_keys_for_eval):
            seen.append(epoch)
            super()._maybe_log_save_evaluate(tr_loss, grad_norm, model, trial, epoch, ignore_keys_for_eval)

        def _save_checkpoint(self, model, trial, metrics=None):
            super()._save_checkpoint(model, trial, metrics)
            folder = os.path.join(self._get_output_dir(trial=trial), f"checkpoint-{self.state.global_step}")
            with open(os.path.join(folder, "note.txt"), "w") as file:
                file.write("more")

        def create_scheduler(self, num_training_steps):
            return super().create_scheduler(num_training_steps)

        def get_batch_samples(self, epoch_iterator, num_batches):
            seen.append("samples")
            return super().get_batch_samples(epoch_iterator, num_batches, self.args.device)

    trainer = make(Old, ours, str(tmp_path), save_strategy="epoch", logging_steps=5)
    trainer.train()
    assert seen.count("samples") == 10
    assert seen[9] == pytest.approx(1.0)
    assert ["grad_norm", "learning_rate", "loss"] in seen
    assert (tmp_path / "checkpoint-5" / "note.txt").read_text() == "more"
    again = make(ours.Trainer, ours, str(tmp_path))
    assert again.train(resume_from_checkpoint=True).global_step == 10


# ---------------------------------------------------------------------- folders


def test_a_folder_with_weights_of_one_s_own(tmp_path):
    """`save_model` is what a checkpoint is written with, `_load_from_checkpoint` what is read."""

    def script(door: Any, out: str) -> Any:
        seen = []

        class Mine(door.Trainer):
            def save_model(self, output_dir=None, _internal_call=False):
                os.makedirs(output_dir, exist_ok=True)
                torch.save(self.model.state_dict(), os.path.join(output_dir, "mine.pt"))
                seen.append(("saved", _internal_call))

            def _load_from_checkpoint(self, resume_from_checkpoint, model=None):
                state = torch.load(os.path.join(resume_from_checkpoint, "mine.pt"), weights_only=True)
                (model or self.model).load_state_dict(state)
                seen.append(("read", os.path.basename(resume_from_checkpoint)))

        make(Mine, door, out, Net(0.0), save_strategy="epoch").train()
        model = Net(0.0, seed=None)
        trainer = make(Mine, door, out, model, save_strategy="epoch")
        trainer.train(resume_from_checkpoint=os.path.join(out, "checkpoint-5"))
        names = sorted(name for name in os.listdir(os.path.join(out, "checkpoint-10")) if "bolide" not in name)
        return seen, [p.detach() for p in model.parameters()], [name for name in names if name != "training_args.bin"]

    seen, _, names = same(script, tmp_path)
    assert seen == [("saved", True), ("saved", True), ("read", "checkpoint-5"), ("saved", True)]
    assert "mine.pt" in names
    assert "model.safetensors" not in names


def test_weights_of_a_folder_are_read_when_asked(tmp_path):
    def script(door: Any, out: str) -> Any:
        make(door.Trainer, door, out, Net(0.0), save_strategy="epoch").train()
        trainer = make(door.Trainer, door, out, Net(0.0, seed=None))
        trainer._load_from_checkpoint(os.path.join(out, "checkpoint-10"))
        return trainer.evaluate()["eval_loss"]

    same(script, tmp_path)


# ---------------------------------------------------------------------- a step


class Counts(Net):
    """Divides its loss by the labels of the whole step."""

    def forward(self, x: Any, labels: Any = None, **more: Any) -> Any:
        found = super().forward(x, labels)
        if more.get("num_items_in_batch") is not None:
            found["loss"] = found["loss"] * len(x) / more["num_items_in_batch"]
        return found


def test_a_step_s_parts(tmp_path):
    """A count of labels, a clipping, a rate and a moving of one's own; the batches of a last, short step."""

    def script(door: Any, out: str) -> Any:
        seen: list[Any] = []

        class Mine(door.Trainer):
            def _get_num_items_in_batch(self, batch_samples, device):
                count = super()._get_num_items_in_batch(batch_samples, device)
                seen.append(("items", len(batch_samples), int(count)))
                return count * 2

            def _clip_grad_norm(self, model):
                torch.nn.utils.clip_grad_value_(model.parameters(), 1e-3)
                return torch.tensor(0.5)

            def _prepare_input(self, data):
                if isinstance(data, torch.Tensor) and data.is_floating_point():
                    data = data * 1.5
                return super()._prepare_input(data)

            def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
                seen.append((sorted(kwargs), self.current_gradient_accumulation_steps))
                return super().compute_loss(model, inputs, return_outputs, **kwargs)

        trainer = make(
            Mine, door, out, Counts(0.0), gradient_accumulation_steps=3, logging_steps=1, eval_strategy="epoch"
        )
        trainer.train()
        return seen, trainer.state.log_history, [p.detach() for p in trainer.model.parameters()]

    seen, log, _ = same(script, tmp_path)
    assert [entry[1] for entry in seen if entry[0] == "items"] == [3, 2, 1, 1, 1] * 2
    assert [line["grad_norm"] for line in log if "grad_norm" in line] == [0.5] * 4


def test_a_training_step_of_one_s_own(tmp_path):
    """As scripts write it that have copied the step: they divide by the batches of the running one."""

    def script(door: Any, out: str) -> Any:
        class Mine(door.Trainer):
            def training_step(self, model, inputs, num_items_in_batch=None):
                model.train()
                inputs = self._prepare_inputs(inputs)
                with self.compute_loss_context_manager():
                    loss = self.compute_loss(model, inputs)
                loss = loss / self.current_gradient_accumulation_steps
                self.accelerator.backward(loss)
                return loss.detach()

        trainer = make(Mine, door, out, gradient_accumulation_steps=3, logging_steps=1)
        trainer.train()
        return trainer.state.log_history, [p.detach() for p in trainer.model.parameters()]

    same(script, tmp_path)


def test_a_model_that_is_not_moved(tmp_path):
    def script(door: Any, out: str) -> Any:
        seen = []

        class Mine(door.Trainer):
            def _move_model_to_device(self, model, device):
                seen.append((type(model).__name__, str(device)))

            def _validate_args(self):
                super()._validate_args()
                seen.append("checked")

            def add_callback(self, callback):
                seen.append("callback")
                super().add_callback(callback)

        trainer = make(Mine, door, out)
        trainer.train()
        return seen, trainer.state.log_history

    same(script, tmp_path)
    trainer = make(ours.Trainer, ours, str(tmp_path / "c"))
    trainer.place_model_on_device = False
    assert trainer._new_engine().strategy.root_device.type == "cpu"


# ---------------------------------------------------------------------- what a run works with


def test_how_long_a_run_is(tmp_path):
    def script(door: Any, out: str) -> Any:
        seen = []

        class Mine(door.Trainer):
            def set_initial_training_values(self, args, dataloader):
                found = super().set_initial_training_values(args, dataloader)
                seen.append(found)
                return (*found[:-1], 5)  # five steps, whatever was asked for

            def num_examples(self, dataloader):
                return super().num_examples(dataloader) + 1

        trainer = make(Mine, door, out, gradient_accumulation_steps=2)
        trainer.train()
        again = make(door.Trainer, door, out, max_steps=7, gradient_accumulation_steps=3)
        loader = again.get_train_dataloader()
        endless = door.Trainer(Net(), arguments(door, out, max_steps=3, gradient_accumulation_steps=2),
                               train_dataset=Stream(points(20)))  # fmt: skip
        more = endless.set_initial_training_values(endless.args, endless.get_train_dataloader())
        return seen, trainer.state.global_step, again.set_initial_training_values(again.args, loader), more

    seen, steps, *_ = same(script, tmp_path)
    assert seen[0] == (2, 3, 21, 42, 8, 5, 6)
    assert steps == 5


def test_loaders_are_given_what_transformers_gives(tmp_path):
    def script(door: Any, out: str) -> Any:
        seen = []

        class Mine(door.Trainer):
            def get_eval_dataloader(self, eval_dataset):  # no default: transformers always gives it
                seen.append(eval_dataset if isinstance(eval_dataset, str) else len(eval_dataset))
                return super().get_eval_dataloader(eval_dataset)

            def _get_dataloader(self, dataset, description, batch_size, sampler_fn=None, is_training=False, **more):
                seen.append((len(dataset), batch_size, sampler_fn is not None, is_training))
                return super()._get_dataloader(dataset, description, batch_size + 1, sampler_fn, is_training, **more)

            def get_total_train_batch_size(self, args):
                return super().get_total_train_batch_size(args)

        trainer = make(Mine, door, out, eval_strategy="epoch", num_train_epochs=1)
        trainer.train()
        trainer.evaluate({"a": points(3), "b": points(4)})
        trainer.eval_dataset = {"c": points(5)}
        trainer.evaluate()
        return seen, trainer.state.log_history

    assert "c" in same(script, tmp_path)[0]


def test_a_loop_within_another(tmp_path):
    def script(door: Any, out: str) -> Any:
        seen = []

        class Mine(door.Trainer):
            def _inner_training_loop(self, *args, **kwargs):
                seen.append(sorted(kwargs))
                found = super()._inner_training_loop(*args, **kwargs)
                seen.append(found.global_step)
                return found

            def create_accelerator_and_postprocess(self):
                super().create_accelerator_and_postprocess()
                seen.append((self.accelerator.num_processes, callable(self.gather_function)))

        trainer = make(Mine, door, out)
        trainer.train()
        return seen, trainer.state.log_history

    assert same(script, tmp_path)[0][0] == (1, True)


def test_attributes_that_scripts_read(tmp_path):
    names = ("is_model_parallel", "is_distributed_loading_by_transformers", "is_fsdp_xla_enabled", "deepspeed",
             "is_fsdp_xla_v1_enabled", "is_fsdp_xla_v2_enabled", "hp_search_backend", "is_fsdp_enabled",
             "place_model_on_device", "is_deepspeed_enabled")  # fmt: skip

    def script(door: Any, out: str) -> Any:
        trainer = make(door.Trainer, door, out)
        return {name: bool(getattr(trainer, name)) for name in names}, trainer.gather_function(torch.ones(2))

    same(script, tmp_path)
    trainer = make(ours.Trainer, ours, str(tmp_path / "c"))
    trainer.model.hf_device_map = {"body": 0, "head": "cpu"}
    assert not trainer.is_model_parallel
    trainer.model.hf_device_map = {"body": 0, "head": 1}
    assert trainer.is_model_parallel


def test_attributes_that_scripts_set(tmp_path):
    """They hold in the training and the evaluation that follow."""

    class Own(Net):
        def forward(self, x: Any, target: Any = None, return_loss: bool = False) -> Any:
            if target is None and not return_loss:
                return {"logits": super().forward(x)["logits"]}
            return super().forward(x, target if target is not None else torch.zeros(len(x), dtype=torch.long))

    def script(door: Any, out: str) -> Any:
        rows = points(20)
        data = Rows(x=rows.columns["x"], target=rows.columns["labels"])
        args = arguments(door, out, eval_strategy="epoch", remove_unused_columns=False)
        trainer = door.Trainer(Own(0.0), args, train_dataset=data, eval_dataset=data)
        trainer.label_names = ["target"]
        trainer.compute_metrics = accuracy
        trainer.train()
        again = door.Trainer(Own(0.0), args, eval_dataset=Rows(x=rows.columns["x"], return_loss=[True] * 20),
                             data_collator=lambda rows: {"x": torch.stack([row["x"] for row in rows])})  # fmt: skip
        without = sorted(again.evaluate())
        again.can_return_loss = True
        return trainer.state.log_history, trainer.label_names, again.can_return_loss, len(without)

    log, *_ = same(script, tmp_path)
    assert any("eval_accuracy" in line for line in log)


def test_what_searches_is_known_while_it_does(tmp_path):
    pytest.importorskip("optuna")

    def script(door: Any, out: str) -> Any:
        seen = []

        class Looks(door.TrainerCallback):
            def on_train_begin(self, args, state, control, **kwargs):
                seen.append((trainer.hp_search_backend == "optuna", state.trial_name, sorted(state.trial_params)))

        trainer = make(door.Trainer, door, out, model_init=lambda: Net(0.0), callbacks=[Looks()],
                       eval_strategy="epoch", save_strategy="no")  # fmt: skip
        best = trainer.hyperparameter_search(
            lambda trial: {"seed": trial.suggest_int("seed", 1, 9)},
            n_trials=2,
            hp_name=lambda trial: f"n{trial.number}",
        )
        told = callable(trainer.hp_space), callable(trainer.compute_objective), type(trainer.objective).__name__
        return seen, trainer.hp_search_backend, told, sorted(best.hyperparameters)

    seen, *_ = same(script, tmp_path)
    assert seen == [(True, "n0", ["seed"]), (True, "n1", ["seed"])]


# ---------------------------------------------------------------------- telling events oneself


def test_evaluate_and_log_as_scripts_copy_them(tmp_path):
    """A subclass as that of the question-answering examples: it goes through the loop, the handler and its events."""

    def script(door: Any, out: str) -> Any:
        heard = []

        class Hears(door.TrainerCallback):
            def on_evaluate(self, args, state, control, metrics=None, **kwargs):
                heard.append(("evaluate", sorted(metrics), control.should_evaluate, kwargs["model"] is not None))

            def on_log(self, args, state, control, logs=None, **kwargs):
                heard.append(("log", sorted(logs), control.should_log, kwargs["optimizer"] is not None))

            def on_prediction_step(self, args, state, control, eval_dataloader=None, **kwargs):
                heard.append(("batch", len(eval_dataloader)))

        class Mine(door.Trainer):
            def evaluate(self, eval_dataset=None, ignore_keys=None, metric_key_prefix="eval"):
                eval_dataset = self.eval_dataset if eval_dataset is None else eval_dataset
                loader = self.get_eval_dataloader(eval_dataset)
                compute_metrics, self.compute_metrics = self.compute_metrics, None
                start = time.time()
                try:
                    output = self.evaluation_loop(
                        loader, description="Evaluation", ignore_keys=ignore_keys,
                        prediction_loss_only=True if compute_metrics is None else None,
                    )  # fmt: skip
                finally:
                    self.compute_metrics = compute_metrics
                output.metrics.update(utils(door).speed_metrics(metric_key_prefix, start, output.num_samples, 3))
                given = door.EvalPrediction(predictions=output.predictions, label_ids=output.label_ids)
                metrics = {f"{metric_key_prefix}_{k}": v for k, v in self.compute_metrics(given).items()}
                metrics.update(output.metrics)
                if self.args.should_log:
                    self.log(metrics)
                self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
                return metrics

            def log(self, logs, start_time=None):
                self.state.log_history.append({**logs, "epoch": self.state.epoch, "step": self.state.global_step})
                self.control = self.callback_handler.on_log(self.args, self.state, self.control, logs)

            def evaluation_loop(self, dataloader, *args, **kwargs):
                self.callback_handler.eval_dataloader = dataloader
                return super().evaluation_loop(dataloader, *args, **kwargs)

        trainer = make(Mine, door, out, eval_strategy="epoch", compute_metrics=accuracy, callbacks=[Hears()])
        trainer.train()
        handler = trainer.callback_handler
        control = handler.call_event("on_save", trainer.args, trainer.state, trainer.control)
        return heard, trainer.state.log_history, control is trainer.control, handler.optimizer is not None

    heard, log, *_ = same(script, tmp_path)
    assert sum(entry[0] == "batch" for entry in heard) == 6
    assert any("eval_accuracy" in line for line in log)


def utils(door: Any) -> Any:
    """Where a door has what transformers.trainer_utils has."""
    return ours if door is ours else theirs.trainer_utils


def test_each_event_by_its_method():
    from transformers.trainer_callback import CallbackHandler, TrainerControl

    from bolide.transformers.callbacks import CallbackHandler as Own
    from bolide.transformers.state import EVENTS

    def told(handler: Any) -> Any:
        found = {}
        for event in EVENTS:
            control = TrainerControl(True, True, True, True, True)
            more = {"on_log": [{}], "on_evaluate": [{}], "on_predict": [{}]}.get(event, [])
            getattr(handler, event)(SimpleNamespace(), SimpleNamespace(), control, *more)
            found[event] = vars(control)
        return found

    assert told(Own([])) == told(CallbackHandler([], None, None, None, None))


# ---------------------------------------------------------------------- callbacks' own override points


def test_callbacks_with_parts_of_their_own(tmp_path, capsys):
    def script(door: Any, out: str) -> Any:
        seen = []

        class Bar(door.ProgressCallback):
            def on_log(self, args, state, control, logs=None, **kwargs):
                if state.is_world_process_zero and self.training_bar is not None:
                    self.training_bar.write(f"mine {state.global_step}")
                    seen.append(self.prediction_bar is None)

        class Patient(door.EarlyStoppingCallback):
            def check_metric_value(self, args, state, control, metric_value):
                super().check_metric_value(args, state, control, metric_value)
                seen.append((self.early_stopping_patience_counter, metric_value))

        trainer = make(door.Trainer, door, out, eval_strategy="epoch", metric_for_best_model="loss",
                       num_train_epochs=4, learning_rate=0.5, callbacks=[Patient(1), Bar()])  # fmt: skip
        trainer.train()
        again = Patient.from_state({
            "args": {"early_stopping_patience": 3, "early_stopping_threshold": 0.1},
            "attributes": {"early_stopping_patience_counter": 2},
        })  # fmt: skip
        return seen, again.state(), trainer.state.global_step

    same(script, tmp_path)
    assert "mine 5" in capsys.readouterr().out


def test_generated_tokens_are_filled_up_by_an_override(tmp_path):
    rows = texts(5, 4)
    seen = []

    class Mine(ours.Seq2SeqTrainer):
        def _pad_tensors_to_max_len(self, tensor, max_length):
            seen.append((tuple(tensor.shape), max_length))
            return super()._pad_tensors_to_max_len(tensor, max_length)

    args = ours.Seq2SeqTrainingArguments(
        str(tmp_path), use_cpu=True, predict_with_generate=True, generation_max_length=6, per_device_eval_batch_size=5
    )
    trainer = Mine(t5(), args, eval_dataset=Rows(**rows.columns))
    assert trainer.predict(trainer.eval_dataset).predictions.shape == (5, 6)
    assert seen[-1] == ((5, 4), 6)


def test_the_documentation_names_what_is_refused_and_what_is_called():
    text = (Path(__file__).parents[2] / "docs" / "transformers.md").read_text()
    assert [name for name in NEVER_CALLED if f"`{name}`" not in text] == []
    table = text.partition("## What a subclass may override")[2].partition("A checkpoint's weights")[0]
    named = set(re.findall(r"`(\w+)`", table))
    own = {name for name in dir(ours.Seq2SeqTrainer) if callable(getattr(ours.Seq2SeqTrainer, name))}
    assert named <= own
    assert not named & {*NEVER_CALLED, *OLDER}

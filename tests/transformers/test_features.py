"""What the second door offers beyond the scripts that run under both: each thing once, with what it must give."""

from __future__ import annotations

import contextlib
import csv
import os
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import bolide.transformers as door
from bolide.core.errors import CheckpointNotFoundError, ConfigError, MissingPackageError, UserCodeError
from bolide.transformers import reporting, weights
from tests.loggers.test_tensorboard import scalars
from tests.transformers.models import Net, Rows, accuracy, bert, gpt2, labelled_texts, points, texts
from tests.transformers.scripts import arguments

theirs = pytest.importorskip("transformers")


def trainer(out: Any, model: Any = None, callbacks: Any = (), data: Any = None, **more: Any) -> Any:
    fields = {"compute_metrics", "preprocess_logits_for_metrics", "processing_class", "data_collator", "optimizers",
              "optimizer_cls_and_kwargs"}  # fmt: skip
    given = {name: more.pop(name) for name in list(more) if name in fields}
    rows = data if data is not None else points()
    return door.Trainer(
        model if model is not None else Net(), arguments(door, str(out), **more), train_dataset=rows,
        eval_dataset=rows, callbacks=list(callbacks), **given,
    )  # fmt: skip


# ---------------------------------------------------------------------- evaluation


def test_predictions_labels_and_names(tmp_path):
    found = trainer(tmp_path, compute_metrics=accuracy).predict(points(10, 1))
    assert found.predictions.shape == (10, 3)
    assert found.label_ids.shape == (10,)
    assert {"test_loss", "test_accuracy", "test_runtime"} <= set(found.metrics)
    predictions, labels, metrics = found
    assert accuracy((predictions, labels))["accuracy"] == metrics["test_accuracy"]


def test_metrics_batch_by_batch_equal_those_of_all(tmp_path):
    seen = []

    class Counts:
        right = total = 0

        def __call__(self, prediction, compute_result):
            predictions, labels = prediction
            assert isinstance(predictions, torch.Tensor)
            self.right += int((predictions.argmax(-1) == labels).sum())
            self.total += len(labels)
            seen.append(compute_result)
            return {"accuracy": self.right / self.total} if compute_result else {}

    whole = trainer(tmp_path / "a", compute_metrics=accuracy).evaluate()
    by_batch = trainer(tmp_path / "b", compute_metrics=Counts(), batch_eval_metrics=True).evaluate()
    assert by_batch["eval_accuracy"] == pytest.approx(whole["eval_accuracy"])
    assert seen == [False] * 5 + [True]


def test_inputs_and_losses_for_metrics(tmp_path):
    def metrics(prediction):
        predictions, labels, inputs, losses = prediction
        assert len(inputs) == len(losses) == len(labels)
        return {"mean_loss": losses.mean(), "first": inputs[:, 0].mean()}

    class WithInput(Net):
        main_input_name = "x"

    one = trainer(tmp_path, WithInput(), compute_metrics=metrics, include_for_metrics=["inputs", "loss"])
    found = one.evaluate()
    assert found["eval_mean_loss"] == pytest.approx(found["eval_loss"], abs=1e-6)
    assert isinstance(found["eval_first"], float)


def test_inputs_of_a_plain_module_are_what_its_forward_takes_first(tmp_path):
    shapes = []
    one = trainer(
        tmp_path, include_for_metrics=["inputs"], compute_metrics=lambda p: shapes.append(p.inputs.shape) or {}
    )
    one.evaluate(points(9))
    assert shapes == [(9, 4)]


def test_what_is_kept_of_logits(tmp_path):
    one = trainer(tmp_path, preprocess_logits_for_metrics=lambda logits, labels: logits.argmax(-1))
    assert one.predict(points(7)).predictions.shape == (7,)
    one = trainer(tmp_path, eval_do_concat_batches=False)
    assert [len(part) for part in one.predict(points(7)).predictions] == [4, 3]


def test_ragged_predictions_are_filled_up(tmp_path):
    class Ragged(Rows):
        def __getitem__(self, i):
            n = 3 + i // 4
            return {name: column[i][:n] for name, column in self.columns.items()}

    found = trainer(tmp_path, gpt2()).predict(Ragged(**texts(8).columns))
    assert found.predictions.shape == (8, 4, 32)
    assert (found.predictions[:4, 3] == -100).all()
    assert (found.label_ids[:4, 3] == -100).all()
    assert (found.predictions[4:] != -100).all()


def test_evaluating_leaves_training_as_it_was(tmp_path):
    """With dropout: evaluations in between change no bit of what training draws from the same generator's state."""
    one = trainer(tmp_path / "a", eval_strategy="steps", eval_steps=5)
    modes = []

    class Looks(door.TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            modes.append(one.model.training)

    one.add_callback(Looks())
    one.train()
    assert modes == [True] * 12
    assert not one.model.training  # as its last evaluation leaves it
    one.evaluate()
    assert not one.model.training


def test_a_tuple_and_a_loss_alone(tmp_path):
    class Tuples(Net):
        def forward(self, x, labels=None):
            out = super().forward(x, labels)
            return (out["loss"], out["logits"]) if labels is not None else (out["logits"],)

    a = trainer(tmp_path / "a", Tuples())
    a.train()
    b = trainer(tmp_path / "b")
    b.train()
    assert torch.equal(a.model.head.weight, b.model.head.weight)
    assert a.predict(points(5)).predictions.shape == (5, 3)


def test_no_loss_is_told(tmp_path):
    class NoLoss(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Linear(4, 3)

        def forward(self, x, labels=None):
            return {"logits": self.net(x)}

    with pytest.raises(UserCodeError, match="no 'loss' for the inputs x, labels"):
        trainer(tmp_path, NoLoss()).train()


# ---------------------------------------------------------------------- training


def test_a_smaller_batch_where_memory_does_not_suffice(tmp_path):
    class Hungry(Net):
        def forward(self, x, labels=None):
            if len(x) > 6:
                raise torch.OutOfMemoryError("out of memory")
            return super().forward(x, labels)

    one = trainer(tmp_path / "a", Hungry(), auto_find_batch_size=True, per_device_train_batch_size=8)
    one.train()
    assert one.args.per_device_train_batch_size == 6
    plain = trainer(tmp_path / "b", per_device_train_batch_size=6)
    plain.train()
    assert torch.equal(one.model.head.weight, plain.model.head.weight)
    with pytest.raises(torch.OutOfMemoryError):
        trainer(tmp_path / "c", Hungry(), per_device_train_batch_size=8).train()


def test_noise_on_embeddings_is_there_in_training_alone(tmp_path):
    a, b = (
        trainer(tmp_path / "a", gpt2(), neftune_noise_alpha=5.0, data=texts()),
        trainer(tmp_path / "b", gpt2(), data=texts()),
    )
    before = a.evaluate()["eval_loss"]
    assert before == b.evaluate()["eval_loss"]
    a.train()
    b.train()
    assert not torch.equal(a.model.lm_head.weight, b.model.lm_head.weight)
    assert not a.model.get_input_embeddings()._forward_hooks
    with pytest.raises(UserCodeError, match="get_input_embeddings"):
        trainer(tmp_path / "c", neftune_noise_alpha=5.0).train()


def test_recomputed_activations_and_compilation_give_the_same_weights(tmp_path):
    plain = trainer(tmp_path / "a", bert(), data=labelled_texts())
    plain.train()
    options = {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": False}}
    again = trainer(tmp_path / "b", bert(), data=labelled_texts(), **options)
    again.train()
    kwargs = {"every_n_layers": 1, "use_reentrant": False}
    today = trainer(tmp_path / "d", bert(), data=labelled_texts(), activation_checkpointing=True,
                    activation_checkpointing_kwargs=kwargs)  # fmt: skip
    today.train()
    compiled = trainer(tmp_path / "c", bert(), data=labelled_texts(), torch_compile_backend="eager",
                       save_strategy="epoch")  # fmt: skip
    compiled.train()
    for name, value in plain.model.state_dict().items():
        assert torch.allclose(value, again.model.state_dict()[name], atol=1e-6)
        assert torch.allclose(value, today.model.state_dict()[name], atol=1e-6)
        assert torch.allclose(value, compiled.model.state_dict()[name], atol=1e-6)
    theirs.BertForSequenceClassification.from_pretrained(tmp_path / "c" / "checkpoint-8")


def test_the_first_module_that_is_not_finite_is_named(tmp_path):
    class Bursts(Net):
        passes = 0

        def forward(self, x, labels=None):
            self.passes += 1
            with torch.no_grad():
                self.body[1].weight[:] = 1.0 if self.passes == 1 else float("inf")
            return super().forward(x, labels)

    one = trainer(tmp_path, Bursts(), debug="underflow_overflow")
    with pytest.raises(UserCodeError, match=r"forward pass 2, body.1 \(LayerNorm\) has NaN or infinity in its weight"):
        one.train()
    assert not one.model.body[1]._forward_hooks
    calm = trainer(tmp_path, debug="underflow_overflow")
    calm.train()
    plain = trainer(tmp_path)
    plain.train()
    assert torch.equal(calm.model.head.weight, plain.model.head.weight)


@pytest.mark.parametrize("accumulate", [1, 3])
def test_batches_of_like_cost(accumulate):
    from bolide.transformers.data import BalancedBatches

    lengths = [1 + (i * 37) % 64 for i in range(130)]
    batches = BalancedBatches(lengths, 4 * accumulate, accumulate, seed=1)
    found = list(batches)
    assert len(found) == len(batches) == 130 // (4 * accumulate) * accumulate
    for i in range(0, len(found), accumulate):
        step = found[i : i + accumulate]
        assert sum(map(len, step)) == 4 * accumulate
        assert all(step)
    assert len({index for batch in found for index in batch}) == sum(map(len, found))
    if accumulate > 1:  # random batches of four cost up to this
        assert max(map(batches._cost, found)) < 64 * 4 * (1 + 64 / 4096)
    assert len({len(batch) for batch in found}) > 1 or accumulate == 1
    again = list(batches)
    batches.set_epoch(1)
    assert again == found != list(batches)


def test_an_order_of_torch_s_own(tmp_path):
    one = trainer(tmp_path, accelerator_config={"use_seedable_sampler": False})
    assert type(one.get_train_dataloader().sampler) is torch.utils.data.RandomSampler


def test_schedule_free_weights(tmp_path):
    """Evaluated and saved are the averaged weights; training goes on with the others, and after a resume too."""
    pytest.importorskip("schedulefree")
    more = {"optim": "schedule_free_adamw", "lr_scheduler_type": "constant", "weight_decay": 0.1, "warmup_steps": 2,
            "save_strategy": "steps", "save_steps": 4, "learning_rate": 0.05}  # fmt: skip
    whole = trainer(tmp_path, **more)
    whole.train()
    assert whole.optimizer.param_groups[0]["train_mode"] is False
    again = trainer(tmp_path, **more)
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    for a, b in zip(whole.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(a, b)
    last = door.Trainer(Net(), arguments(door, str(tmp_path / "last")), eval_dataset=points())
    last.model.load_state_dict(weights.read(str(tmp_path / "checkpoint-12")))
    assert last.evaluate()["eval_loss"] == whole.evaluate()["eval_loss"]


def test_columns_that_the_model_does_not_take(tmp_path):
    rows = Rows(**points().columns, note=["text"] * 24)
    with pytest.warns(UserWarning, match="The columns note are left out"):
        trainer(tmp_path / "a", data=rows).train()

    class Table(Rows):
        column_names = ["x", "labels", "remark"]  # noqa: RUF012

        def remove_columns(self, names):
            return Rows(**{name: column for name, column in self.columns.items() if name not in names})

    with pytest.warns(UserWarning, match="The columns remark are left out"):
        trainer(tmp_path / "b", data=Table(**points().columns, remark=["text"] * 24)).train()


def test_a_factory_and_a_class_of_optimizers(tmp_path):
    one = trainer(tmp_path / "a", optimizer_cls_and_kwargs=(torch.optim.SGD, {"lr": 0.1}))
    one.train()
    assert type(one.optimizer) is torch.optim.SGD

    def factory(model, lr):
        return torch.optim.Adam(model.head.parameters(), lr=lr)

    two = trainer(tmp_path / "b", optimizer_cls_and_kwargs=(factory, {"lr": 0.1}))
    two.train()
    assert len(two.optimizer.param_groups[0]["params"]) == 2


def test_groups_of_parameters(tmp_path):
    one = trainer(tmp_path, weight_decay=0.1)
    one.create_optimizer_and_scheduler(10)
    assert one.get_learning_rates() == [0.01, 0.01]
    assert one.get_optimizer_group(one.model.head.weight)["weight_decay"] == 0.1
    assert one.get_optimizer_group(one.model.head.bias)["weight_decay"] == 0.0
    assert one.get_num_trainable_parameters() == sum(p.numel() for p in one.model.parameters())


def test_without_weight_decay_files_are_the_same(tmp_path):
    """One group is saved as the two of the original, with the rates of two."""
    one = trainer(tmp_path, save_strategy="epoch", num_train_epochs=1)
    one.train()
    assert len(one.optimizer.param_groups) == 1
    saved = torch.load(tmp_path / "checkpoint-6" / "optimizer.pt", weights_only=True)
    assert [len(group["params"]) for group in saved["param_groups"]] == [2, 4]
    assert len(torch.load(tmp_path / "checkpoint-6" / "scheduler.pt", weights_only=True)["base_lrs"]) == 2


def test_the_accelerator_s_names(tmp_path):
    accelerator = trainer(tmp_path).accelerator
    assert accelerator.device == torch.device("cpu")
    assert (accelerator.num_processes, accelerator.is_main_process) == (1, True)
    value = torch.arange(3)
    assert accelerator.gather(value) is value
    assert accelerator.gather_for_metrics(value) is value
    model = Net()
    compiled = torch.compile(model, backend="eager")
    assert accelerator.unwrap_model(compiled) is model
    assert accelerator.unwrap_model(compiled, keep_torch_compile=True) is compiled
    assert accelerator.unwrap_model(torch.nn.DataParallel(compiled), keep_torch_compile=True) is compiled
    accelerator.wait_for_everyone()
    with accelerator.autocast():
        loss = model(**points(2).columns)["loss"]
    accelerator.backward(loss)
    assert model.head.weight.grad is not None
    assert accelerator.prepare(model) is model
    assert accelerator.prepare_model(model, evaluation_mode=True) is model
    accelerator.clip_grad_value_(model.parameters(), 1e-3)
    assert max(p.grad.abs().max() for p in model.parameters()) <= 1e-3
    assert accelerator.get_state_dict(model).keys() == model.state_dict().keys()
    assert accelerator.on_main_process(lambda: "ran")() == "ran"
    assert (accelerator.state.deepspeed_plugin, accelerator.state.num_processes) == (None, 1)
    assert (accelerator.distributed_type, accelerator.is_last_process) == ("NO", True)
    with accelerator.main_process_first(), accelerator.local_main_process_first():
        pass


def test_the_mean_loss_is_that_of_this_call(tmp_path):
    """Steps before a checkpoint are in its log lines, not in the mean of the run that goes on."""
    more = {"save_strategy": "steps", "save_steps": 5, "logging_steps": 3, "optim": "sgd", "num_train_epochs": 1}
    whole = trainer(tmp_path, Net(0.0), **more)
    whole.train()
    again = trainer(tmp_path, Net(0.0), **more)
    found = again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-5"))
    losses = []

    class Records(door.TrainerCallback):
        def on_log(self, args, state, control, logs=None, **kwargs):
            losses.append(logs.get("loss"))

    each = trainer(tmp_path / "each", Net(0.0), **{**more, "logging_steps": 1}, callbacks=[Records()])
    each.train()
    assert found.training_loss == pytest.approx(losses[5], abs=1e-6)
    assert [line["loss"] for line in again.state.log_history if "loss" in line] == [
        line["loss"] for line in whole.state.log_history if "loss" in line
    ]  # fmt: skip


def test_the_epoch_s_data_may_start_over(tmp_path):
    seen = []

    class Records(Net):
        def forward(self, x, labels=None):
            seen.append(x[0, 0].item())
            return super().forward(x, labels)

    more = {"save_strategy": "steps", "save_steps": 2, "num_train_epochs": 1, "train_sampling_strategy": "sequential"}
    trainer(tmp_path, Records(), **more).train()
    whole = list(seen)
    seen.clear()
    one = trainer(tmp_path, Records(), ignore_data_skip=True, **more)
    one.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    assert (seen, one.state.global_step) == (whole[:2], 6)


def test_weights_cast_for_an_evaluation(tmp_path):
    one = trainer(tmp_path, bert(), data=labelled_texts(), bf16_full_eval=True)
    one.train()
    assert one.model.dtype == torch.float32
    assert one.evaluate()["eval_loss"] > 0
    assert one.model.dtype == torch.bfloat16


def test_how_much_is_said(tmp_path, monkeypatch):
    import logging

    for name in ("bolide", "transformers"):
        monkeypatch.setattr(logging.getLogger(name), "level", logging.getLogger(name).level)
    trainer(tmp_path, log_level="error")
    assert logging.getLogger("bolide").level == logging.ERROR


# ---------------------------------------------------------------------- saving


def test_the_best_is_saved_by_itself(tmp_path):
    one = trainer(
        tmp_path, save_strategy="best", eval_strategy="epoch", metric_for_best_model="accuracy",
        compute_metrics=accuracy, num_train_epochs=4, learning_rate=0.3,
    )  # fmt: skip
    one.train()
    values = [line["eval_accuracy"] for line in one.state.log_history if "eval_accuracy" in line]
    better = [6 * (i + 1) for i, value in enumerate(values) if value > max([-1.0, *values[:i]])]
    assert sorted(int(name[11:]) for name in os.listdir(tmp_path) if name.startswith("check")) == better


def test_weights_alone_cannot_be_gone_on_from(tmp_path):
    trainer(tmp_path, save_strategy="epoch", save_only_model=True).train()
    assert "optimizer.pt" not in os.listdir(tmp_path / "checkpoint-6")
    with pytest.raises(CheckpointNotFoundError, match="save_only_model"):
        trainer(tmp_path).train(resume_from_checkpoint=str(tmp_path / "checkpoint-6"))
    with pytest.raises(CheckpointNotFoundError, match="no such"):
        trainer(tmp_path).train(resume_from_checkpoint=str(tmp_path / "nowhere"))


def test_a_checkpoint_of_another_model_is_refused_before_anything_changes(tmp_path):
    trainer(tmp_path, save_strategy="epoch").train()

    class Wider(Net):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(8, 5)

    one = trainer(tmp_path, Wider())
    before = one.model.head.weight.clone()
    with pytest.raises(Exception, match=r"head.bias is \(3,\) in the file and \(5,\)"):
        one.train(resume_from_checkpoint=str(tmp_path / "checkpoint-12"))
    assert torch.equal(before, one.model.head.weight)


def test_only_so_many_checkpoints_are_kept(tmp_path):
    trainer(tmp_path, save_strategy="steps", save_steps=2, save_total_limit=2).train()
    assert [os.path.basename(path) for path in door.sort_checkpoints(str(tmp_path))] == [
        "checkpoint-10", "checkpoint-12"
    ]  # fmt: skip
    assert door.get_last_checkpoint(str(tmp_path)).endswith("checkpoint-12")


def test_the_tokenizer_is_saved_with_the_model(tmp_path):
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nword")
    tokenizer = theirs.BertTokenizer(str(tmp_path / "vocab.txt"))
    one = trainer(tmp_path / "out", bert(), data=labelled_texts(), processing_class=tokenizer, save_strategy="epoch")
    one.train()
    assert "tokenizer_config.json" in os.listdir(tmp_path / "out" / "checkpoint-4")
    assert one.tokenizer is tokenizer


# ---------------------------------------------------------------------- callbacks and trackers


def test_callbacks_of_transformers_work(tmp_path):
    one = trainer(tmp_path, callbacks=[theirs.PrinterCallback()], num_train_epochs=1)
    assert isinstance(one.pop_callback(theirs.PrinterCallback), theirs.PrinterCallback)
    one.remove_callback(door.PrinterCallback)
    one.add_callback(theirs.trainer_callback.ProgressCallback)
    one.train()
    names = [type(callback).__name__ for callback in one.callback_handler.callbacks]
    assert names == ["DefaultFlowCallback", "ProgressCallback"]


def test_the_bar_and_the_trackers(tmp_path, capsys):
    one = trainer(tmp_path, report_to=["csv", "tensorboard"], disable_tqdm=False, eval_strategy="epoch",
                  logging_dir=str(tmp_path / "logs"))  # fmt: skip
    one.train()
    assert "12/12" in capsys.readouterr().err
    lines = (tmp_path / "csv" / "metrics.csv").read_text().splitlines()
    assert {"train/loss", "eval/loss", "train/learning_rate"} <= set(lines[0].split(","))
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = EventAccumulator(str(tmp_path / "logs"))
    board.Reload()
    assert [event.step for event in board.Scalars("train/loss")] == [2, 4, 6, 8, 10, 12]
    assert len(board.Scalars("eval/loss")) == 2


def test_lines_are_printed_with_four_digits_with_and_without_a_bar(tmp_path, capsys):
    for off in (True, False):
        one = trainer(tmp_path, num_train_epochs=1, disable_tqdm=off)
        one.train()
        loss = one.state.log_history[0]["loss"]
        assert f"{{'loss': {float(f'{loss:.4g}')}, " in capsys.readouterr().out


def test_trackers_that_are_not_there(tmp_path):
    with pytest.raises((MissingPackageError, RuntimeError, ImportError), match="wandb"):
        trainer(tmp_path, report_to="wandb")
    with pytest.raises(ConfigError, match="no tracker"):
        trainer(tmp_path, report_to="paper")


def test_removing_the_flow_still_ends(tmp_path):
    one = trainer(tmp_path)
    one.remove_callback(theirs.DefaultFlowCallback)
    one.train()
    assert one.state.global_step == 12


# ---------------------------------------------------------------------- the hub


def test_pushing_is_a_call_of_the_hub(tmp_path, monkeypatch):
    calls = []

    class Api:
        def __init__(self, token=None):
            self.token = token

        def create_repo(self, name, **kwargs):
            calls.append(("create", name, kwargs, self.token))
            return SimpleNamespace(repo_id=f"me/{name}")

        def upload_folder(self, **kwargs):
            calls.append(("upload", kwargs["repo_id"], sorted(os.listdir(kwargs["folder_path"])), kwargs))
            return "done"

    import huggingface_hub

    monkeypatch.setattr(huggingface_hub, "HfApi", Api)
    one = trainer(tmp_path / "net", hub_token="secret", save_strategy="no")
    one.train()
    assert one.push_to_hub("a message", tags=["tag"]) == "done"
    (_, name, _, token), (_, repo, files, given) = calls
    assert (name, token, repo, given["commit_message"]) == ("net", "secret", "me/net", "a message")
    assert {"README.md", "model.safetensors"} <= set(files)
    assert "- tag" in (tmp_path / "net" / "README.md").read_text()
    calls.clear()
    one = trainer(tmp_path / "net", push_to_hub=True, hub_strategy="checkpoint", save_strategy="epoch")
    one.train()
    pushed = [call[3].get("path_in_repo") for call in calls if call[0] == "upload"]
    assert pushed == [None, "last-checkpoint", None, "last-checkpoint", None]


def test_without_the_hub_s_package(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises((MissingPackageError, ValueError), match="huggingface_hub"):
        trainer(tmp_path).push_to_hub()


def test_numpy_labels_and_numbers(tmp_path):
    rows = [{"x": np.ones(4, np.float32) * i, "label": i % 3, "name": "x"} for i in range(8)]
    batch = door.default_data_collator(rows[:2])
    assert batch["labels"].dtype == torch.long
    assert batch["x"].shape == (2, 4)
    assert "name" not in batch
    assert door.default_data_collator([{"label": 0.5}])["labels"].dtype == torch.float
    assert door.default_data_collator([{"label_ids": [1, 2]}])["labels"].tolist() == [[1, 2]]
    with pytest.raises(UserCodeError, match="A sample is a tuple"):
        door.default_data_collator([(1, 2)])


def test_a_copied_trainer_has_callbacks_of_its_own(tmp_path):
    import copy

    class Hears(door.TrainerCallback):
        steps = 0

        def on_step_end(self, args, state, control, **kwargs):
            self.steps += 1

    one = trainer(tmp_path)
    other = copy.deepcopy(one)
    hears = Hears()
    other.callback_handler.listeners("on_step_end")
    other.add_callback(hears)
    other.train()
    other.remove_callback(hears)
    assert (hears.steps, len(one.callback_handler.callbacks)) == (12, 2)
    assert len(other.callback_handler.listeners("on_step_end")) == 1


# ---------------------------------------------------------------------- the usual step is a short one


def bolide_frames() -> list[str]:
    """Bolide's frames between `engine/fit.py` and the caller's caller, innermost first."""
    found, frame = [], sys._getframe(2)
    while frame is not None and not frame.f_code.co_filename.endswith("engine/fit.py"):
        if "/bolide/" in frame.f_code.co_filename:
            found.append(frame.f_code.co_name)
        frame = frame.f_back
    return found


class Looks(Net):
    """Keeps the frames above its forward pass, of each step."""

    def __init__(self) -> None:
        super().__init__()
        self.__dict__["seen"] = []

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
        self.seen.append(bolide_frames())
        return super().forward(x, labels)


def weights_of(model: nn.Module) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


class OwnLoss(door.Trainer):
    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **more: Any) -> Any:
        return super().compute_loss(model, inputs, return_outputs, **more)


def test_the_usual_step_is_short_and_gives_the_same_bits(tmp_path):
    short, long = Looks(), Looks()
    trainer(tmp_path / "a", short, max_steps=6, logging_steps=3).train()
    OwnLoss(long, arguments(door, str(tmp_path / "b"), max_steps=6, logging_steps=3), train_dataset=points()).train()
    assert short.seen == [["plain_training_step", "manual_step"]] * 6
    assert {tuple(frames) for frames in long.seen} == {
        ("compute_loss", "training_step", "training_step", "manual_step")
    }
    assert all(torch.equal(a, b) for a, b in zip(weights_of(short), weights_of(long)))


def test_the_usual_step_gives_way_to_what_comes_meanwhile(tmp_path):
    heard: list[int] = []

    class Hears(door.TrainerCallback):
        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            heard.append(state.global_step)

    class Comes(door.TrainerCallback):
        """Puts a loss of its own, and later a listener within steps, into the running trainer."""

        def on_epoch_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            if state.epoch >= 1:
                made.compute_loss = lambda model, inputs, **rest: 0.0 * model(**inputs)["loss"]
            if state.epoch >= 2:
                made.add_callback(Hears)

    made = trainer(tmp_path, Net(0.0), [Comes()], num_train_epochs=3, logging_strategy="epoch", weight_decay=0.0)
    assert made.train().global_step > 3
    losses = [line["loss"] for line in made.state.log_history if "loss" in line]
    assert losses[0] > 0.0
    assert losses[1:] == [0.0, 0.0]
    steps = made.state.max_steps
    assert heard == list(range(steps * 2 // 3, steps))


def test_a_loss_that_is_not_finite_is_the_mean_of_those_before_it():
    record = door.losses.LossRecord()
    for value in (1.0, 3.0, float("nan"), 4.0, float("inf")):
        record.add(torch.tensor(value))
    assert record.take() == (pytest.approx((1 + 3 + 2 + 4 + 2.5) / 5), 2)
    record.add(torch.tensor(2.0))
    assert record.take() == (2.0, 0)


def test_the_record_is_right_where_training_breaks_off(tmp_path):
    class Breaks(Looks):
        def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
            if len(self.seen) == 4:
                raise RuntimeError("no more")
            return super().forward(x, labels)

    model = Breaks()
    made = trainer(tmp_path, model, num_train_epochs=2, logging_strategy="no", save_strategy="no")
    with pytest.raises(RuntimeError, match="no more"):
        made.train()
    assert model.seen[-1][0] == "plain_training_step"
    assert (made.state.global_step, made.state.epoch) == (4, pytest.approx(4 / len(made.get_train_dataloader())))


# ---------------------------------------------------------------------- the history in trackers


class Breaks(door.TrainerCallback):
    """Breaks training off at a step."""

    def __init__(self, at: int) -> None:
        self.at = at

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.at:
            raise KeyError("broken off")


def history(out: Any) -> tuple[list[Any], list[str]]:
    """The points of all event files and of the CSV file, without what is of an attempt, not of the run."""
    of_attempts = ("runtime", "per_second", "train_loss")  # the last is that of the last attempt
    points = [one for one in scalars(out) if not any(word in one[0] for word in of_attempts)]
    file = out / "csv" / "metrics.csv"
    with file.open() as rows:
        kept = [{k: v for k, v in row.items() if not any(w in k for w in of_attempts)} for row in csv.DictReader(rows)]
    return sorted(points), [str(row) for row in kept]


@pytest.mark.parametrize("named", [False, True], ids=["a folder of its own", "logging_dir"])
def test_a_run_that_goes_on_has_each_point_of_its_history_once(tmp_path, monkeypatch, named):
    moments = iter(range(100))  # attempts may fall into the same second
    monkeypatch.setattr("bolide.transformers.reporting.socket.gethostname", lambda: f"host{next(moments)}")
    given = {
        "max_steps": 10,
        "save_strategy": "steps",
        "save_steps": 3,
        "logging_steps": 1,
        "report_to": ["tensorboard", "csv"],
    }

    def attempt(out, at, resume):
        if named:
            given["logging_dir"] = str(out / "board")
        made = trainer(out, callbacks=[Breaks(at)], **given)
        with pytest.raises(KeyError) if at < 10 else contextlib.nullcontext():
            made.train(resume_from_checkpoint=resume)

    attempt(tmp_path / "right", 99, None)
    for at in (5, 8, 99):
        attempt(tmp_path / "found", at, True)
    assert history(tmp_path / "found") == history(tmp_path / "right")
    assert len(scalars(tmp_path / "right")) > 10
    folder = tmp_path / "found" / ("board" if named else "runs")
    assert len({file.parent for file in folder.rglob("*tfevents*")}) == 1


def test_a_checkpoint_names_no_folder_outside_of_the_output(tmp_path):
    (tmp_path / "other").mkdir()
    for before in ("../other", "runs/..", "runs/../../other", str(tmp_path / "other"), "runs", "."):
        args = arguments(door, str(tmp_path / "out"))
        (tmp_path / "out/runs").mkdir(parents=True, exist_ok=True)
        chosen = reporting.log_dir(args, before)
        assert os.path.dirname(chosen) == str(tmp_path / "out" / "runs") and os.path.basename(chosen) not in ("", "..")


TOKENS: list[tuple[Any, Any, str | None]] = [
    (0, 0, None), (3, None, None), (3, 3, "[CLS]"), (0, [5, 3], None), (3, [0], None), (3, [3, 0], None),
    ([3, 0], [3, 0], None), ([0, 7], 0, "[CLS]"),
]  # fmt: skip


@pytest.mark.parametrize(("ends", "generated", "begin"), TOKENS)
def test_special_tokens_are_the_tokenizer_s(tmp_path, ends, generated, begin):
    """In the configuration, and in that of generating, where text may end in several ways."""
    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b"]))

    def tokens(package: Any) -> Any:
        tokenizer = theirs.BertTokenizer(str(tmp_path / "vocab.txt"))
        tokenizer.eos_token = "[SEP]"
        if begin is not None:
            tokenizer.bos_token = begin
        model = gpt2()
        model.config.eos_token_id, model.generation_config.eos_token_id = ends, generated
        package.Trainer(
            model, arguments(package, str(tmp_path), max_steps=1), train_dataset=texts(4), processing_class=tokenizer,
            data_collator=lambda rows: {name: torch.stack([row[name] for row in rows]) for name in rows[0]},
        ).train()  # fmt: skip
        return [(c.pad_token_id, c.eos_token_id, c.bos_token_id) for c in (model.config, model.generation_config)]

    assert tokens(door) == tokens(theirs)


# ---------------------------------------------------------------------- settings that reach what they set


def test_settings_of_torch_reach_it(tmp_path, monkeypatch):
    given: list[Any] = []
    monkeypatch.setattr(torch, "compile", lambda model, **more: given.append(more) or model)
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    try:
        for flag in (False, True):
            trainer(tmp_path, tf32=flag, torch_compile_mode="reduce-overhead", max_steps=1).train()
            assert (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32) == (flag, flag)
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before
    assert given == [{"backend": "inductor", "mode": "reduce-overhead"}] * 2


def test_settings_of_ddp_reach_it(tmp_path):
    from bolide.transformers.ranks import strategy_for

    args = arguments(
        door, str(tmp_path), ddp_find_unused_parameters=True, ddp_bucket_cap_mb=7, ddp_broadcast_buffers=False,
        ddp_static_graph=True, ddp_backend="gloo", ddp_timeout=90,
    )  # fmt: skip
    strategy: Any = strategy_for(args, Net())
    options = {"find_unused_parameters": True, "bucket_cap_mb": 7, "broadcast_buffers": False, "static_graph": True}
    assert strategy._ddp_kwargs.items() >= options.items()
    assert (strategy.process_group_backend, strategy.timeout.total_seconds()) == ("gloo", 90)


def test_who_logs_and_saves(tmp_path, monkeypatch):
    settings = {"log_level": "info", "log_level_replica": "error"}
    for rank, local, each, logs in ((0, 0, True, True), (1, 1, True, False), (2, 0, True, True), (2, 0, False, False)):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("LOCAL_RANK", str(local))
        monkeypatch.setenv("WORLD_SIZE", "4")
        args = arguments(door, str(tmp_path), log_on_each_node=each, save_on_each_node=each, **settings)
        assert (args.should_log, args.should_save) == (logs, logs)
        assert args.get_process_log_level() == (20 if logs else 40)


def test_an_evaluation_by_objects_and_nested_predictions(tmp_path):
    class Nested(Net):
        def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
            found = super().forward(x, labels)
            return {**found, "more": {"twice": 2 * found["logits"]}}

    def predicted(package: Any) -> Any:
        args = arguments(package, str(tmp_path), eval_use_gather_object=True)
        return package.Trainer(Nested(), args).predict(points(10)).predictions

    found, expected = predicted(door), predicted(theirs)
    assert np.array_equal(found[0], expected[0])
    assert np.array_equal(found[1]["twice"], expected[1]["twice"])


def test_how_long_preparing_took_where_an_evaluation_comes_first(tmp_path):
    one = trainer(tmp_path)
    assert one.evaluate()["eval_model_preparation_time"] >= 0
    one.train()
    assert one.predict(points(4)).metrics["test_model_preparation_time"] >= 0
    other = trainer(tmp_path)
    other.train()
    assert "eval_model_preparation_time" not in other.evaluate()


def test_an_order_that_a_stream_cannot_have(tmp_path):
    from tests.transformers.models import Stream

    with pytest.warns(UserWarning, match="train_sampling_strategy='group_by_length' has no effect on Stream"):
        trainer(tmp_path, data=Stream(points()), train_sampling_strategy="group_by_length", max_steps=1).train()

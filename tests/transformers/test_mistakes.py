"""What users of the Trainer get wrong, and what they are told; overrides as earlier releases wrote them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

import bolide.transformers as door
from bolide.core.errors import CheckpointNotFoundError, ConfigError, UserCodeError
from tests.transformers.models import Net, Rows, gpt2, points, texts
from tests.transformers.scripts import arguments


def trainer(out: Any, cls: type = door.Trainer, **settings: Any) -> Any:
    return cls(Net(), arguments(door, str(out), **settings), train_dataset=points(), eval_dataset=points(8, 1))


# ---------------------------------------------------------------------- arguments


def test_arguments_of_another_kind_are_refused(tmp_path):
    import transformers

    with pytest.raises(ConfigError, match="of transformers.*from bolide.transformers import Trainer, TrainingArgument"):
        door.Trainer(Net(), transformers.TrainingArguments(str(tmp_path), use_cpu=True), train_dataset=points())
    with pytest.raises(ConfigError, match=r"args is a dictionary; write args=TrainingArguments\(\*\*settings\)"):
        door.Trainer(Net(), {"output_dir": "out"}, train_dataset=points())


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"optim": "adam"}, "Did you mean 'adamw_torch'"),
        ({"lr_scheduler_type": "cosin"}, "Did you mean 'cosine'"),
        ({"predict_with_generate": True}, "it is one of Seq2SeqTrainingArguments"),
    ],
)
def test_words_that_are_nearly_right(settings, told):
    with pytest.raises(ConfigError, match=told):
        door.TrainingArguments("out", **settings)


def test_what_is_no_number_is_told_once():
    with pytest.raises(ConfigError) as error:
        door.TrainingArguments("out", learning_rate="fast", weight_decay=-1)
    assert error.value.problems == [
        "learning_rate='fast' must be a number", "weight_decay=-1 must be a number of at least 0"
    ]  # fmt: skip


def test_one_callback_and_an_iterator(tmp_path):
    callback = door.EarlyStoppingCallback(2)
    with pytest.raises(ConfigError, match=r"callbacks is one EarlyStoppingCallback; .*callbacks=\[...\]"):
        door.Trainer(Net(), arguments(door, str(tmp_path)), callbacks=callback)
    with pytest.raises(ConfigError, match="train_dataset is an iterator, which is read once only"):
        door.Trainer(Net(), arguments(door, str(tmp_path)), train_dataset=iter(points()))


def test_a_folder_to_resume_from_that_is_not_there(tmp_path):
    with pytest.raises(CheckpointNotFoundError, match="resume_from_checkpoint='.*nowhere': there is no such folder"):
        trainer(tmp_path).train(resume_from_checkpoint=str(tmp_path / "nowhere"))


# ---------------------------------------------------------------------- data


def test_columns_of_which_the_model_takes_none(tmp_path):
    rows = Rows(text=["a", "b"], category=[0, 1])
    one = door.Trainer(Net(), arguments(door, str(tmp_path)), train_dataset=rows)
    with pytest.raises(UserCodeError, match="Of the columns category, text, Net.forward takes none.*labels, x"):
        one.train()


# ---------------------------------------------------------------------- overrides


@pytest.mark.parametrize(
    ("returned", "told"),
    [
        (None, "returned a NoneType, and must return the loss, a tensor$"),
        ((1, 2), "returned a tuple.*return_outputs is true only"),
    ],
)
def test_a_compute_loss_that_returns_no_loss(tmp_path, returned, told):
    class Own(door.Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            return returned

    with pytest.raises(UserCodeError, match=f"Own.compute_loss {told}"):
        trainer(tmp_path, Own).train()


@pytest.mark.parametrize("windows", [1, 2], ids=["one batch a step", "two batches a step"])
def test_a_loss_that_no_parameter_had_a_part_in(tmp_path, windows):
    class Detached(Net):
        def forward(self, x, labels=None):
            return {name: value.detach() for name, value in super().forward(x, labels).items()}

    def fit(model: Any) -> None:
        args = arguments(door, str(tmp_path), gradient_accumulation_steps=windows)
        door.Trainer(model, args, train_dataset=points()).train()

    with pytest.raises(UserCodeError, match=r"no trainable parameter of Detached had a part .* without .detach\(\)"):
        fit(Detached())
    with pytest.raises(UserCodeError, match="No parameter of Net trains: requires_grad is False for all of them"):
        fit(Net().requires_grad_(False))


def test_a_peft_model_that_was_loaded_to_predict(tmp_path):
    peft = pytest.importorskip("peft")
    adapter = peft.LoraConfig(target_modules=["c_attn"])
    peft.get_peft_model(gpt2(), adapter).save_pretrained(str(tmp_path / "adapter"))
    loaded = peft.PeftModel.from_pretrained(gpt2(), str(tmp_path / "adapter"))
    with pytest.raises(UserCodeError, match=r"no parameter that trains. .*is_trainable=True"):
        door.Trainer(loaded, arguments(door, str(tmp_path)), train_dataset=texts()).train()


def test_overrides_with_fewer_arguments_as_in_earlier_releases(tmp_path):
    said: list[str] = []

    class Older(door.Trainer):
        def log(self, logs):
            said.append("log")
            super().log(logs)

        def get_batch_samples(self, epoch_iterator, num_batches):
            return [next(epoch_iterator) for _ in range(num_batches)], None

        def create_scheduler(self, num_training_steps):
            said.append("schedule")
            return super().create_scheduler(num_training_steps)

        def _get_train_sampler(self):
            return torch.utils.data.SequentialSampler(self.train_dataset)

        def _evaluate(self, trial, ignore_keys_for_eval, skip_scheduler=False):
            said.append("evaluate")
            return super()._evaluate(trial, ignore_keys_for_eval, skip_scheduler)

    settings = {"eval_strategy": "epoch", "num_train_epochs": 1, "gradient_accumulation_steps": 2}
    older = trainer(tmp_path, Older, logging_strategy="epoch", **settings)
    older.train()
    assert said == ["schedule", "log", "evaluate", "log", "log"]
    today = trainer(tmp_path, train_sampling_strategy="sequential", **settings)
    today.train()
    for a, b in zip(older.model.parameters(), today.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_checkpoints_are_saved_by_an_override_of_save_model(tmp_path):
    class Own(door.Trainer):
        def save_model(self, output_dir=None, _internal_call=False):
            super().save_model(output_dir, _internal_call)
            with open(f"{output_dir}/more.txt", "w", encoding="utf-8") as file:
                file.write(str(_internal_call))

    one = trainer(tmp_path, Own, save_strategy="epoch", num_train_epochs=1)
    one.train()
    assert (tmp_path / "checkpoint-6" / "more.txt").read_text() == "True"
    one.save_model(str(tmp_path / "end"))
    assert (tmp_path / "end" / "more.txt").read_text() == "False"


# ---------------------------------------------------------------------- the hub


def test_the_repository_is_made_before_training_and_as_private_as_asked(tmp_path, monkeypatch):
    import huggingface_hub

    made: list[Any] = []

    class Api:
        def __init__(self, token=None):
            pass

        def create_repo(self, name, private=None, exist_ok=False):
            made.append(private)
            return SimpleNamespace(repo_id=f"me/{name}")

        def upload_folder(self, **kwargs):
            return "done"

    monkeypatch.setattr(huggingface_hub, "HfApi", Api)
    trainer(tmp_path, push_to_hub=True, hub_private_repo=True)
    assert made == [True]
    trainer(tmp_path).push_to_hub(private=True)
    assert made == [True, True]
    assert "private" not in (tmp_path / "README.md").read_text()

"""Checkpoints go both ways: transformers goes on from Bolide's folders, and Bolide from transformers'."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

import bolide.transformers as ours
from bolide.core.errors import CheckpointError
from tests.transformers.models import Net, accuracy, bert, gpt2, labelled_texts, points, texts
from tests.transformers.scripts import arguments

theirs = pytest.importorskip("transformers")


def run(door: Any, out: Path, model: Any, data: Any, resume: Path | None = None, **more: Any) -> Any:
    settings = {"save_strategy": "steps", "save_steps": 4, "num_train_epochs": 3, **more}
    trainer = door.Trainer(model, arguments(door, str(out), **settings), train_dataset=data)
    trainer.train(resume_from_checkpoint=str(resume) if resume else None)
    return trainer


def adapted() -> Any:
    """A GPT-2 with adapters."""
    peft = pytest.importorskip("peft")
    model = gpt2()
    torch.manual_seed(6)
    config = peft.LoraConfig(r=2, target_modules=["c_attn"], lora_dropout=0.1, fan_in_fan_out=True)
    return peft.get_peft_model(model, config)


def named_adapters(*names: str) -> Any:
    """A GPT-2 with adapters of such names, the last of which trains."""
    peft = pytest.importorskip("peft")
    model: Any = gpt2()
    torch.manual_seed(6)
    for rank, name in enumerate(names, start=2):
        config = peft.LoraConfig(r=rank, target_modules=["c_attn"], lora_dropout=0.1, fan_in_fan_out=True)
        if rank == 2:
            model = peft.get_peft_model(model, config, adapter_name=name)
        else:
            model.add_adapter(name, config)
    model.set_adapter(names[-1])
    return model


KINDS = {
    "adapters": (adapted, lambda: texts(24), {}),
    "several adapters": (lambda: named_adapters("default", "other"), lambda: texts(24), {}),
    "an adapter of a name": (lambda: named_adapters("other"), lambda: texts(24), {}),
    "plain": (lambda: Net(), lambda: points(), {}),
    "windows": (lambda: Net(), lambda: points(), {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2}),
    "pretrained": (lambda: bert(0.1), lambda: labelled_texts(), {"num_train_epochs": 4}),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("step", [4, 8])
def test_bolide_goes_on_from_transformers(tmp_path, kind, step):
    """With the same dropout: its random states, place in the data and schedule are all taken over."""
    model, data, more = KINDS[kind]
    whole = run(theirs, tmp_path / "a", model(), data(), **more)
    again = run(ours, tmp_path / "b", model(), data(), tmp_path / "a" / f"checkpoint-{step}", **more)
    for name, value in whole.model.state_dict().items():
        assert torch.allclose(again.model.state_dict()[name], value, atol=1e-6), name
    assert again.state.global_step == whole.state.global_step
    assert len(again.state.log_history) == len(whole.state.log_history)


@pytest.mark.parametrize("kind", KINDS)
def test_transformers_goes_on_from_bolide(tmp_path, kind):
    model, data, more = KINDS[kind]
    whole = run(ours, tmp_path / "a", model(), data(), **more)
    again = run(theirs, tmp_path / "b", model(), data(), tmp_path / "a" / "checkpoint-4", **more)
    for name, value in whole.model.state_dict().items():
        assert torch.allclose(again.model.state_dict()[name], value, atol=1e-6), name
    theirs.TrainerState.load_from_json(str(tmp_path / "a" / "checkpoint-4" / "trainer_state.json"))


def test_a_checkpoint_is_what_from_pretrained_reads(tmp_path):
    trainer = run(ours, tmp_path, gpt2(), texts())
    again = theirs.GPT2LMHeadModel.from_pretrained(tmp_path / "checkpoint-12")
    ids = torch.arange(6)[None]
    trainer.model.eval()
    again.eval()
    assert torch.allclose(trainer.model(ids).logits, again(ids).logits, atol=1e-6)


def test_save_model_and_its_files(tmp_path):
    trainer = ours.Trainer(
        bert(), arguments(ours, str(tmp_path)), eval_dataset=labelled_texts(), compute_metrics=accuracy
    )
    trainer.save_model()
    trainer.save_state()
    metrics = trainer.evaluate()
    trainer.log_metrics("eval", metrics)
    trainer.save_metrics("eval", metrics)
    names = {"model.safetensors", "config.json", "trainer_state.json", "eval_results.json", "all_results.json"}
    assert names <= set(os.listdir(tmp_path))


DAMAGE = {
    "no record": ("trainer_state.json", None, "trainer_state.json is missing"),
    "half a record": ("trainer_state.json", 0.5, "trainer_state.json was cut short"),
    "no weights": ("model.safetensors", None, "it holds no weights"),
    "half the weights": ("model.safetensors", 0.9, "model.safetensors was cut short"),
    "empty weights": ("model.safetensors", 0.0, "model.safetensors was cut short"),
    "half an optimizer": ("optimizer.pt", 0.5, "optimizer.pt was cut short"),
    "an empty schedule": ("scheduler.pt", 0.0, "scheduler.pt was cut short"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_half_written_checkpoint_of_transformers_is_passed_over(tmp_path, kind):
    name, share, text = DAMAGE[kind]
    whole = run(theirs, tmp_path, Net(), points())
    path = tmp_path / "checkpoint-18" / name
    if share is None:
        path.unlink()
    else:
        os.truncate(path, int(path.stat().st_size * share))
    trainer = ours.Trainer(
        Net(), arguments(ours, str(tmp_path), save_strategy="steps", save_steps=4, num_train_epochs=3),
        train_dataset=points(),
    )  # fmt: skip
    with pytest.warns(UserWarning, match=f"passed over: {text}"):
        trainer.train(resume_from_checkpoint=True)
    assert trainer.state.global_step == whole.state.global_step
    assert torch.allclose(trainer.model.head.weight, whole.model.head.weight, atol=1e-6)


def test_an_adapter_that_the_model_does_not_have(tmp_path):
    run(ours, tmp_path, named_adapters("other"), texts(24))
    with pytest.raises(CheckpointError, match="of the adapter 'other', and the model has 'default'"):
        run(ours, tmp_path, adapted(), texts(24), tmp_path / "checkpoint-4")
    with pytest.raises(CheckpointError, match=r"is \(2, 16\) in the file and \(3, 16\) in the adapter 'other'"):
        run(ours, tmp_path, named_adapters("default", "other"), texts(24), tmp_path / "checkpoint-4")

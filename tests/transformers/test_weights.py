"""Weights whose names in a folder are not those of the model, as transformers saves many of its own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from transformers import MixtralConfig, MixtralForCausalLM, ViTConfig, ViTForImageClassification

import bolide.transformers as door
from bolide.core.errors import CheckpointError
from bolide.transformers import weights
from tests.transformers.models import Rows, texts
from tests.transformers.scripts import arguments


def images(n: int = 16) -> Rows:
    pixels = torch.randn(n, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    return Rows(pixel_values=pixels, labels=(pixels.mean((1, 2, 3)) > 0).long())


def vit() -> Any:
    torch.manual_seed(6)
    return ViTForImageClassification(
        ViTConfig(
            image_size=8, patch_size=4, num_channels=1, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
            intermediate_size=32,
        )
    )  # fmt: skip


def mixture_of_experts() -> Any:
    torch.manual_seed(7)
    return MixtralForCausalLM(
        MixtralConfig(
            vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
            num_key_value_heads=2, num_local_experts=3, max_position_embeddings=16,
        )
    )  # fmt: skip


MODELS = {"renamed": (vit, images), "renamed and joined": (mixture_of_experts, texts)}


def same(a: nn.Module, b: nn.Module) -> bool:
    ours, theirs = a.state_dict(), b.state_dict()
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.filterwarnings("error:Weights that")
def test_a_run_goes_on_with_the_weights_of_its_checkpoint(tmp_path, kind):
    model, data = MODELS[kind]
    args = arguments(door, str(tmp_path), save_strategy="epoch")
    first = door.Trainer(model(), args, train_dataset=data())
    first.train()
    saved = load_file(tmp_path / "checkpoint-4/model.safetensors")
    assert not saved.keys() <= first.model.state_dict().keys()  # else this test shows nothing
    again = door.Trainer(model(), args, train_dataset=data())
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    assert same(first.model, again.model)


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.filterwarnings("error:Weights that")
def test_the_best_model_has_the_weights_of_its_checkpoint(tmp_path, kind):
    model, data = MODELS[kind]
    args = arguments(
        door, str(tmp_path), save_strategy="epoch", eval_strategy="epoch", load_best_model_at_end=True,
        metric_for_best_model="first",
    )  # fmt: skip
    found = iter((2.0, 1.0, 0.0))
    trainer = door.Trainer(
        model(), args, train_dataset=data(), eval_dataset=data(), compute_metrics=lambda _: {"first": next(found)}
    )
    trainer.train()
    best = trainer.state.best_model_checkpoint
    assert best is not None and best.endswith("checkpoint-4")
    assert same(trainer.model, type(trainer.model).from_pretrained(best))
    assert trainer.evaluate()["eval_loss"] == trainer.state.log_history[2]["eval_loss"]


def test_parts_that_a_script_replaced_are_found_beside_renamed_ones(tmp_path):
    def changed(seed: int) -> Any:
        model = vit()
        torch.manual_seed(seed)
        model.classifier = nn.Linear(16, 5)
        model.more = nn.Linear(2, 2)
        return model

    one, other = changed(1), changed(2)
    weights.write(one, str(tmp_path))
    assert not same(one, other)
    weights.load(other, weights.read_for(other, str(tmp_path)), str(tmp_path))
    assert same(one, other)


def test_a_class_that_cannot_be_made_to_translate_says_so(tmp_path):
    class Own(ViTForImageClassification):
        def __init__(self, config: Any, needed: int) -> None:
            super().__init__(config)

    own = Own(vit().config, 1)
    weights.write(own, str(tmp_path))
    with pytest.raises(CheckpointError, match="have other names than those of Own.*'needed'"):
        weights.read_for(own, str(tmp_path))

"""`fsdp=` and `fsdp_config=`: a model spread over two processes has the weights, files and answers of one process."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import bolide.transformers as door
from bolide.core.errors import CheckpointError, ConfigError
from bolide.transformers import sharding
from tests.distributed.support import in_ranks
from tests.transformers.models import Net, Tied, accuracy, gpt2, points, t5, texts
from tests.transformers.scripts import arguments

theirs = pytest.importorskip("transformers")


def whole(model: nn.Module) -> torch.Tensor:
    """All weights in one vector, on each process."""
    parts = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in model.parameters()]
    return torch.cat([p.detach().reshape(-1) for p in parts]).clone()


def trained(out: Path, model: Any, data: Any, resume: Any = None, **more: Any) -> Any:
    own = {name: more.pop(name) for name in ("callbacks", "compute_metrics", "eval_dataset") if name in more}
    trainer = door.Trainer(model, arguments(door, str(out), **more), train_dataset=data, **own)
    trainer.train(resume_from_checkpoint=resume)
    return trainer


# biases of keys have a gradient of rounding errors alone, which Adam makes large: by SGD then
CASES: dict[str, Any] = {
    "layers": (gpt2, lambda: texts(19, padded=True), {"gradient_accumulation_steps": 2, "optim": "sgd"},
               {"fsdp": "full_shard auto_wrap"}),
    "clipped": (gpt2, lambda: texts(17, padded=True), {"max_grad_norm": 0.5, "optim": "sgd"},
                {"fsdp": ["shard_grad_op"], "fsdp_config": {"fsdp_transformer_layer_cls_to_wrap": "GPT2Block"}}),
    "recomputed": (gpt2, lambda: texts(16), {"optim": "sgd"},
                   {"fsdp": True, "fsdp_config": {"activation_checkpointing": True}}),
    "plain": (lambda: Net(0.0), lambda: points(23), {"gradient_accumulation_steps": 2},
              {"fsdp": True, "fsdp_config": {"reshard_after_forward": False, "cpu_offload": True}}),
    "by size": (lambda: Net(0.0), lambda: points(23), {"max_grad_norm": 0},
                {"fsdp": "hybrid_shard", "fsdp_config": {"min_num_params": 30}}),
    "tied": (Tied, lambda: texts(9), {}, {"fsdp": True, "fsdp_config": {"auto_wrap_policy": "NO_WRAP"}}),
    "two kinds of layers": (t5, lambda: texts(9), {"optim": "sgd"}, {"fsdp": True}),
}  # fmt: skip


def of_case(out: Path, name: str, batch: int, sharded: bool) -> dict[str, Any]:
    make, data, more, settings = CASES[name]
    if name == "tied":
        rows = data()
        rows.columns = {key: value % 11 for key, value in rows.columns.items()}
        data = lambda: rows  # noqa: E731
    given = {**more, **settings} if sharded else more
    folder = out / name.replace(" ", "-") / str(batch)
    trainer = trained(
        folder, make(), data(), per_device_train_batch_size=batch, per_device_eval_batch_size=2,
        save_strategy="epoch", eval_strategy="epoch", eval_dataset=data(), **given,
    )  # fmt: skip
    predicted = trainer.predict(data())
    trainer.save_model()
    logs = [{key: line[key] for key in ("loss", "grad_norm", "eval_loss") if key in line}
            for line in trainer.state.log_history]  # fmt: skip
    spread = sum(hasattr(p, "full_tensor") for p in trainer.model.parameters())
    predictions = predicted.predictions[0] if isinstance(predicted.predictions, tuple) else predicted.predictions
    return {
        "weights": whole(trainer.model), "logs": logs, "predictions": predictions, "spread": spread,
        "folder": folder, "type": trainer.accelerator.distributed_type, "on": trainer.is_fsdp_enabled,
    }  # fmt: skip


def files(folder: Path) -> set[str]:
    """Those that do not tell of the number of processes."""
    return {name for name in os.listdir(folder) if not name.startswith("rng_state")}


def same_as_one_process(out: Path, names: list[str]) -> None:
    both = in_ranks(2, lambda: {name: of_case(out, name, 2, True) for name in names})
    for name in names:
        alone = of_case(out, name, 4, False)
        for rank in both:
            found = rank[name]
            torch.testing.assert_close(found["weights"], alone["weights"], atol=1e-5, rtol=0, msg=name)
            np.testing.assert_allclose(found["predictions"], alone["predictions"], atol=1e-5)
            assert len(found["logs"]) == len(alone["logs"])
            for mine, other in zip(found["logs"], alone["logs"], strict=True):
                assert mine == pytest.approx(other, abs=1e-5), name
            assert (found["on"], found["type"], found["spread"] > 0) == (True, "FSDP", True)
        newest = sorted(path.name for path in alone["folder"].glob("checkpoint-*"))[-1]
        for part in (newest, "."):
            mine, other = both[0][name]["folder"] / part, alone["folder"] / part
            assert files(mine) == files(other)
            tensors, expected = (load_file(folder / "model.safetensors") for folder in (mine, other))
            assert list(tensors) == list(expected), name
            for key, value in expected.items():
                torch.testing.assert_close(tensors[key], value, atol=1e-5, rtol=0)
        states = [torch.load(found["folder"] / newest / "optimizer.pt", weights_only=True)
                  for found in (both[0][name], alone)]  # fmt: skip
        torch.testing.assert_close(states[0]["state"], states[1]["state"], atol=1e-5, rtol=0)
        assert [group["params"] for group in states[0]["param_groups"]] == [
            group["params"] for group in states[1]["param_groups"]
        ]


def test_weights_answers_and_files_of_one_process(tmp_path):
    same_as_one_process(tmp_path, ["layers", "plain"])


@pytest.mark.slow
def test_each_way_to_shard(tmp_path):
    same_as_one_process(tmp_path, [name for name in CASES if name not in ("layers", "plain")])
    for name in ("two-kinds-of-layers/2", "clipped/2"):  # transformers reads what was saved
        kind = theirs.T5ForConditionalGeneration if "kinds" in name else theirs.GPT2LMHeadModel
        config = json.loads((tmp_path / name / "config.json").read_text())
        assert config["architectures"] == [kind.__name__]
        kind.from_pretrained(tmp_path / name)


def test_the_best_model_is_loaded_and_scripts_find_their_names(tmp_path):
    def work() -> Any:
        trainer = trained(
            tmp_path, Net(0.0), points(24), eval_dataset=points(9, 1), eval_strategy="steps", eval_steps=1,
            save_strategy="steps", save_steps=1, load_best_model_at_end=True, max_steps=3, learning_rate=0.7,
            per_device_train_batch_size=2, compute_metrics=accuracy, fsdp="full_shard",
        )  # fmt: skip
        trainer.accelerator.state.fsdp_plugin.set_state_dict_type("FULL_STATE_DICT")
        state = trainer.accelerator.get_state_dict(trainer.model)
        for p in trainer.model.parameters():
            p.grad = torch.ones_like(p)
        count = sum(p.numel() for p in trainer.model.parameters())
        norm = trainer.accelerator.clip_grad_norm_(trainer.model.parameters(), 1.0)
        assert float(norm) == pytest.approx(count**0.5)
        for i, p in enumerate(trainer.model.parameters()):
            p.grad = torch.ones_like(p) * (i + 1)
        largest = trainer.accelerator.clip_grad_norm_(trainer.model.parameters(), 0.5, norm_type=float("inf"))
        assert float(largest) == len(list(trainer.model.parameters()))
        return state, trainer.state.best_model_checkpoint, whole(trainer.model), trainer.evaluate()["eval_loss"]

    first, second = in_ranks(2, work)
    best = load_file(Path(first[1]) / "model.safetensors")
    assert not first[1].endswith("checkpoint-3")  # at this rate the loss rises
    assert {name: value.tolist() for name, value in first[0].items()} == {n: v.tolist() for n, v in best.items()}
    assert second[0] == {}
    assert torch.equal(first[2], second[2])
    record = json.loads((tmp_path / "checkpoint-3/trainer_state.json").read_text())
    assert first[3] == pytest.approx(record["best_metric"], abs=1e-6)


# ---------------------------------------------------------------------- going on


class Halts(door.TrainerCallback):
    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        control.should_training_stop |= state.global_step == 4


def of_seven_steps(out: Path, batch: int, windows: int, resume: Any = None, halt: bool = False, **more: Any) -> Any:
    """Steps of 8 samples, 5 to an epoch; saved behind the third."""
    trainer = trained(
        out, Net(more.pop("dropout", 0.0)), points(40), str(resume) if resume else None, max_steps=7, save_steps=3,
        per_device_train_batch_size=batch, gradient_accumulation_steps=windows, save_strategy="steps",
        callbacks=[Halts()] if halt else [], **more,
    )  # fmt: skip
    return whole(trainer.model)


def test_it_goes_on_with_as_many_processes_and_with_others(tmp_path):
    def work() -> Any:
        undisturbed = of_seven_steps(tmp_path / "a", 2, 2, fsdp=True, dropout=0.3)
        of_seven_steps(tmp_path / "b", 2, 2, fsdp=True, dropout=0.3, halt=True)
        again = of_seven_steps(tmp_path / "b", 2, 2, tmp_path / "b/checkpoint-3", fsdp=True, dropout=0.3)
        of_seven_steps(tmp_path / "c", 2, 2, fsdp=True, halt=True)
        from_one = of_seven_steps(tmp_path / "d", 4, 1, tmp_path / "one/checkpoint-3", fsdp=True)
        with pytest.raises(CheckpointError, match="steps are of 8 samples, and those of now of 16"):
            of_seven_steps(tmp_path / "d", 4, 2, tmp_path / "one/checkpoint-3", fsdp=True)
        return undisturbed, again, from_one

    of_seven_steps(tmp_path / "one", 2, 4, halt=True)
    whole_run = of_seven_steps(tmp_path / "whole", 8, 1)
    for undisturbed, again, from_one in in_ranks(2, work):
        assert torch.equal(undisturbed, again)
        torch.testing.assert_close(from_one, whole_run, atol=1e-6, rtol=0)
    for batch, windows in ((8, 1), (2, 4)):
        found = of_seven_steps(tmp_path / "e", batch, windows, tmp_path / "c/checkpoint-3")
        torch.testing.assert_close(found, whole_run, atol=1e-6, rtol=0)


# ---------------------------------------------------------------------- the settings


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"fsdp": True}, "start the script with `torchrun"),
        ({"fsdp": "full_shard auto_warp"}, "Did you mean 'auto_wrap'"),
        ({"fsdp": True, "fsdp_config": {"fsdp_min_num_param": 2}}, "Did you mean 'min_num_params'"),
        ({"fsdp": True, "fsdp_config": {"xla": True}}, "XLA is not built"),
        ({"fsdp": True, "fsdp_config": {"auto_wrap_policy": "BY_LAYER"}}, "must be one of TRANSFORMER_BASED_WRAP"),
        ({"fsdp": True, "fsdp_config": {"auto_wrap_policy": "SIZE_BASED_WRAP"}}, "add 'min_num_params'"),
        ({"fsdp": True, "fsdp_config": {"state_dict_type": "LOCAL_STATE_DICT"}}, "must be FULL_STATE_DICT"),
        ({"fsdp": True, "fsdp_config": {"reshard_after_forward": "half"}}, "no way to shard"),
        ({"fsdp": True, "gradient_checkpointing": True, "fsdp_config": {"activation_checkpointing": True}}, "both"),
        ({"fsdp": True, "fsdp_config": {"activation_checkpointing": True, "auto_wrap_policy": "NO_WRAP"}}, "layers"),
        ({"fsdp": True, "torch_compile": True}, "was not tried"),
        ({"fsdp": True, "optim": "adafactor"}, "was not tried on a sharded model"),
        ({"fsdp": True, "push_to_hub": True}, "save the model at the end"),
    ],
)
def test_what_is_wrong_is_told(given, text):
    with pytest.raises(ConfigError, match=text):
        door.TrainingArguments("out", **given)


def test_nothing_is_sharded_unless_asked_for(tmp_path):
    path = tmp_path / "fsdp.json"
    path.write_text(json.dumps({"fsdp_transformer_layer_cls_to_wrap": ["GPT2Block"]}))
    args = door.TrainingArguments("out", fsdp="", fsdp_config=str(path))
    assert not args.shards_model
    assert sharding.settings_of(args) == {"transformer_layer_cls_to_wrap": ["GPT2Block"]}


def test_which_parts_are_gathered_by_themselves():
    def chosen(model: nn.Module, **config: Any) -> list[str]:
        parts = sharding.chosen_parts(model, config)
        return [name for name, part in model.named_modules() if id(part) in parts]

    blocks = ["transformer.h.0", "transformer.h.1"]
    assert chosen(gpt2()) == blocks
    assert chosen(gpt2(), transformer_layer_cls_to_wrap="GPT2MLP, GPT2Attention") == [
        f"{block}.{part}" for block in blocks for part in ("attn", "mlp")
    ]
    assert chosen(Net()) == chosen(gpt2(), auto_wrap_policy="NO_WRAP") == []
    assert chosen(Net(), min_num_params=30) == ["body.0"]  # what is left of `body` and `head` is less
    assert "transformer.wte" not in chosen(gpt2(), min_num_params=500)  # the output layer has its weight, too
    assert chosen(Tied(), min_num_params=10) == []
    with pytest.raises(ConfigError, match="no module of class GPT2Blok. Did you mean 'GPT2Block'"):
        chosen(gpt2(), transformer_layer_cls_to_wrap="GPT2Blok")

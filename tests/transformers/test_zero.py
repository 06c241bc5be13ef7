"""`deepspeed=`: DeepSpeed on two processes has the weights, files and answers of one process without it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import bolide.transformers as door
from bolide.core.errors import CheckpointError, ConfigError
from tests.distributed.support import in_ranks
from tests.transformers.models import Net, gpt2, points, texts
from tests.transformers.scripts import arguments

pytest.importorskip("transformers")
pytest.importorskip("deepspeed")

AUTO = {
    "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto", "train_batch_size": "auto",
    "gradient_clipping": "auto", "bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto"},
}  # fmt: skip


def configured(stage: int, **more: Any) -> dict[str, Any]:
    buckets = ("reduce_bucket_size", "stage3_prefetch_bucket_size", "stage3_param_persistence_threshold")
    return {**AUTO, "zero_optimization": {"stage": stage, **dict.fromkeys(buckets, "auto")}, **more}


ADAM = {"type": "AdamW", "params": dict.fromkeys(("lr", "betas", "eps", "weight_decay"), "auto")}
CASES: dict[str, Any] = {
    "clipped": (lambda: Net(0.0), lambda: points(23), {"gradient_accumulation_steps": 2, "max_grad_norm": 0.4}, {}),
    "tokens": (gpt2, lambda: texts(19, padded=True), {"gradient_accumulation_steps": 2, "optim": "sgd"}, {}),
    "its optimizer": (
        lambda: Net(0.0), lambda: points(23), {"weight_decay": 0.1, "max_grad_norm": 0}, {"optimizer": ADAM},
    ),
}  # fmt: skip


def of_case(out: Path, name: str, batch: int, deepspeed: Any) -> dict[str, Any]:
    make, data, more, _ = CASES[name]
    args = arguments(
        door, str(out / name / str(batch)), per_device_train_batch_size=batch, per_device_eval_batch_size=2,
        save_strategy="epoch", eval_strategy="epoch", deepspeed=deepspeed, **more,
    )  # fmt: skip
    trainer = door.Trainer(make(), args, train_dataset=data(), eval_dataset=data())
    trainer.train()
    predictions = trainer.predict(data()).predictions
    trainer.save_model()
    logs = [{key: line[key] for key in ("loss", "grad_norm", "eval_loss") if key in line}
            for line in trainer.state.log_history]  # fmt: skip
    kind = trainer.accelerator.distributed_type
    return {"logs": logs, "predictions": predictions, "folder": Path(args.output_dir), "type": kind}


def same_as_one_process(out: Path, stage: int, names: list[str]) -> None:
    def work() -> Any:
        return {name: of_case(out / str(stage), name, 2, configured(stage, **CASES[name][3])) for name in names}

    both = in_ranks(2, work)
    for name in names:
        alone = of_case(out / "alone", name, 4, None)
        for found in (rank[name] for rank in both):
            np.testing.assert_allclose(found["predictions"], alone["predictions"], atol=1e-5)
            assert found["type"] == "DEEPSPEED"
            assert len(found["logs"]) == len(alone["logs"])
            for mine, other in zip(found["logs"], alone["logs"], strict=True):
                assert mine == pytest.approx(other, abs=1e-5), name
        newest = sorted(path.name for path in alone["folder"].glob("checkpoint-*"))[-1]
        for part in (newest, "."):
            mine, other = both[0][name]["folder"] / part, alone["folder"] / part
            names_in = [{one for one in os.listdir(folder) if not one.startswith("rng_")} for folder in (mine, other)]
            assert names_in[0] == names_in[1]
            tensors, expected = (load_file(folder / "model.safetensors") for folder in (mine, other))
            assert list(tensors) == list(expected), name
            for key, value in expected.items():
                torch.testing.assert_close(tensors[key], value, atol=1e-5, rtol=0)
        states = [torch.load(found["folder"] / newest / "optimizer.pt", weights_only=True)
                  for found in (both[0][name], alone)]  # fmt: skip
        groups = [[group["params"] for group in state["param_groups"]] for state in states]
        assert groups[0] == groups[1]
        for number, entry in states[0]["state"].items():
            for key, value in entry.items():
                torch.testing.assert_close(value, states[1]["state"][number][key], atol=1e-5, rtol=0)


def test_weights_answers_and_files_of_one_process(tmp_path):
    same_as_one_process(tmp_path, 2, ["clipped"])


@pytest.mark.slow
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_each_stage(tmp_path, stage):
    same_as_one_process(tmp_path, stage, list(CASES))


# ---------------------------------------------------------------------- going on, and all that comes twice


class Halts(door.TrainerCallback):
    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        control.should_training_stop |= state.global_step == 4


def of_seven_steps(out: Path, batch: int, windows: int, resume: Any = None, halt: bool = False, **more: Any) -> Any:
    """Steps of 8 samples, 5 to an epoch; saved behind the third. Returns the weights, whole, on the first process."""
    args = arguments(
        door, str(out), max_steps=7, save_steps=3, per_device_train_batch_size=batch, save_strategy="steps",
        gradient_accumulation_steps=windows, **{"learning_rate": 1e-2, **more},
    )  # fmt: skip
    trainer = door.Trainer(Net(0.0), args, train_dataset=points(40), callbacks=[Halts()] if halt else [])
    trainer.train(resume_from_checkpoint=str(resume) if resume else None)
    return trainer.accelerator.get_state_dict(trainer.model)


def close(found: Any, expected: Any, atol: float = 1e-5) -> None:
    torch.testing.assert_close(dict(found), dict(expected), atol=atol, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize("stage", [2, 3])
def test_it_goes_on_with_as_many_processes_and_with_others(tmp_path, stage):
    config = configured(stage)

    def work() -> Any:
        undisturbed = of_seven_steps(tmp_path / "a", 2, 2, deepspeed=config)
        of_seven_steps(tmp_path / "b", 2, 2, deepspeed=config, halt=True)
        again = of_seven_steps(tmp_path / "b", 2, 2, tmp_path / "b/checkpoint-3", deepspeed=config)
        from_one = of_seven_steps(tmp_path / "c", 4, 1, tmp_path / "one/checkpoint-3", deepspeed=config)
        with pytest.raises(CheckpointError, match="steps are of 8 samples, and those of now of 16"):
            of_seven_steps(tmp_path / "c", 4, 2, tmp_path / "one/checkpoint-3", deepspeed=config)
        return undisturbed, again, from_one

    of_seven_steps(tmp_path / "one", 2, 4, halt=True)
    whole = of_seven_steps(tmp_path / "whole", 8, 1)
    undisturbed, again, from_one = in_ranks(2, work)[0]
    close(again, undisturbed, 0)
    close(from_one, whole)
    close(of_seven_steps(tmp_path / "d", 8, 1, tmp_path / "b/checkpoint-3"), whole)


@pytest.mark.slow
@pytest.mark.parametrize("stage", [2, 3])
def test_the_best_model_another_training_and_an_evaluation_before(tmp_path, stage):
    def run(out: str, batch: int, config: Any) -> Any:
        args = arguments(
            door, str(tmp_path / out), eval_strategy="steps", eval_steps=1, save_strategy="steps", save_steps=1,
            load_best_model_at_end=True, max_steps=3, learning_rate=0.7, per_device_train_batch_size=batch,
            deepspeed=config,
        )  # fmt: skip
        trainer = door.Trainer(Net(0.0), args, train_dataset=points(24), eval_dataset=points(9, 1))
        before = trainer.evaluate()["eval_loss"]
        trainer.train()
        best = trainer.state.best_model_checkpoint
        found = [before, trainer.evaluate()["eval_loss"]]
        weights = {name: value.clone() for name, value in trainer.accelerator.get_state_dict(trainer.model).items()}
        if config is not None and stage == 3:
            with pytest.raises(ConfigError, match="second time is not built at DeepSpeed's stage 3"):
                trainer.train()
        elif config is not None:  # with an optimizer and a schedule of its own
            trainer.train()
            assert trainer.state.global_step == 3
            assert trainer.state.log_history[0]["eval_loss"] != found[1]
        return os.path.basename(best), found, weights

    alone = run("one", 4, None)
    found, other = in_ranks(2, lambda: run("two", 2, configured(stage)))
    assert found[0] == other[0] == alone[0] != "checkpoint-3"
    assert found[1] == other[1] == pytest.approx(alone[1], abs=1e-5)
    close(found[2], alone[2])


@pytest.mark.slow
def test_its_scheduler_and_bfloat16(tmp_path):
    params = {"warmup_min_lr": "auto", "warmup_max_lr": "auto", "warmup_num_steps": "auto", "warmup_type": "linear"}
    decays = {"type": "WarmupDecayLR", "params": {**params, "total_num_steps": "auto"}}

    def rates(out: str, **more: Any) -> Any:
        args = arguments(door, str(tmp_path / out), max_steps=6, logging_steps=1, warmup_steps=2, **more)
        trainer = door.Trainer(Net(0.0), args, train_dataset=points(40))
        trainer.train()
        lines = [line for line in trainer.state.log_history if "loss" in line]
        return [line["learning_rate"] for line in lines], [line["loss"] for line in lines]

    linear = rates("a", per_device_train_batch_size=4)
    more = {"per_device_train_batch_size": 2, "deepspeed": configured(2, scheduler=decays)}
    for found in in_ranks(2, lambda: rates("b", **more)):
        assert found[0] == pytest.approx([0.0, *linear[0][:-1]], abs=1e-9)  # DeepSpeed's own begin a step later
        full = found[1]
        assert full[0] == pytest.approx(linear[1][0], abs=1e-5)
    for found in in_ranks(2, lambda: rates("c", **more, bf16=True)):
        assert found[1] == pytest.approx(full, abs=0.05)
        assert found[1] != pytest.approx(full, abs=1e-5)


# ---------------------------------------------------------------------- the settings


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({}, "start the script with `torchrun"),
        ({"fsdp": True}, "fsdp and deepspeed contradict each other"),
        ({"deepspeed": configured(2, gradient_clipping=2.0)}, "gradient_clipping is 2.0, and max_grad_norm 1.0"),
        ({"deepspeed": configured(2, train_micro_batch_size_per_gpu=3)}, "and per_device_train_batch_size 8"),
        ({"deepspeed": configured(2, gradient_accumulation_steps=3)}, "and gradient_accumulation_steps 1"),
        ({"deepspeed": configured(2, train_batch_size=64)}, "train_batch_size is 64"),
        ({"deepspeed": configured(2, optimizer={"type": "AdamW", "params": {"lr": 1.0}})}, "learning_rate 5e-05"),
        ({"deepspeed": configured(2, optimizer={"type": "Lamb"})}, "optimizer.type='Lamb' is not built"),
        ({"deepspeed": configured(2, scheduler={"type": "OneCycle"})}, "scheduler.type='OneCycle' is not built"),
        ({"deepspeed": configured(2, bf16={"enabled": True})}, "bf16.enabled is True, and bf16 False"),
        ({"deepspeed": configured(0)}, "must be 1, 2 or 3"),
        ({"deepspeed": {**AUTO, "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}}, "tried"),
        ({"fp16": True}, "write bf16=True"),
        ({"gradient_checkpointing": True}, "was not tried"),
        ({"optim": "adagrad"}, "was not tried under DeepSpeed"),
    ],
)
def test_what_is_wrong_is_told(given, text):
    with pytest.raises(ConfigError, match=text):
        door.TrainingArguments("out", **{"deepspeed": configured(2), **given})


def test_auto_is_filled_from_arguments_and_model(tmp_path):
    from bolide.transformers import zero

    path = tmp_path / "zero.json"
    schedule = {
        "type": "WarmupLR",
        "params": dict.fromkeys(("warmup_min_lr", "warmup_max_lr", "warmup_num_steps"), "auto"),
    }
    path.write_text(json.dumps(configured(3, optimizer=ADAM, scheduler=schedule)))

    def work() -> Any:
        args = door.TrainingArguments(
            "out", deepspeed=str(path), bf16=True, gradient_accumulation_steps=3, max_grad_norm=0.5, warmup_steps=0.1,
            use_cpu=True,
        )  # fmt: skip
        return zero.filled(args, gpt2(), 50), zero.optimizer_of(args)

    config, optimizer = in_ranks(2, work)[0]
    assert config == {
        "train_micro_batch_size_per_gpu": 8, "gradient_accumulation_steps": 3, "train_batch_size": 48,
        "gradient_clipping": 0.5, "bf16": {"enabled": True}, "fp16": {"enabled": False},
        "zero_optimization": {"stage": 3, "reduce_bucket_size": 256, "stage3_prefetch_bucket_size": 230,
                              "stage3_param_persistence_threshold": 160},
        "optimizer": {"type": "AdamW", "params": {"lr": 5e-5, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.0}},
        "scheduler": {"type": "WarmupLR",
                      "params": {"warmup_min_lr": 0, "warmup_max_lr": 5e-5, "warmup_num_steps": 5}},
    }  # fmt: skip
    assert optimizer == (torch.optim.AdamW, {"lr": 5e-5, "betas": (0.9, 0.999), "eps": 1e-8})

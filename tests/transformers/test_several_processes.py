"""The second door on two processes: the weights, evaluations, checkpoints and decisions of one, each sample once."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import bolide.transformers as door
from bolide.collectives import FailedOnRankZero
from bolide.core.errors import CheckpointError, ConfigError, UserCodeError
from tests.distributed.support import in_ranks, run_script
from tests.transformers.models import Net, Rows, Stream, accuracy, bert, gpt2, labelled_texts, points, texts
from tests.transformers.scripts import arguments
from tests.transformers.test_both_doors import differences

theirs = pytest.importorskip("transformers")

TIMED = re.compile("second|runtime|_time$")
"""Figures of a clock, by their names."""


def vector(model: nn.Module) -> torch.Tensor:
    """All weights in one vector."""
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()]).clone()


def trained(out: Any, model: Any, data: Any, **more: Any) -> Any:
    own = {name: more.pop(name) for name in ("callbacks", "compute_metrics", "eval_dataset") if name in more}
    trainer = door.Trainer(model, arguments(door, str(out), **more), train_dataset=data, **own)
    trainer.train()
    return trainer


def losses_of(trainer: Any) -> list[float]:
    return [line["loss"] for line in trainer.state.log_history if "loss" in line]


CASES: dict[str, Any] = {
    # the last global batch is ragged: 3 samples over two ranks, then 1
    "plain": (lambda: Net(0.0), lambda: points(23), {}),
    "fewer samples than ranks": (lambda: Net(0.0), lambda: points(25), {}),
    "accumulated by samples": (lambda: Net(0.0), lambda: points(21), {"gradient_accumulation_steps": 2}),
    # by SGD: biases of keys have a gradient of rounding errors alone, which Adam makes large
    "a model that uses the count": (
        gpt2, lambda: texts(19, padded=True), {"gradient_accumulation_steps": 2, "optim": "sgd"},
    ),
    "a model that does not": (
        lambda: ByTokens(), lambda: texts(19, padded=True), {"gradient_accumulation_steps": 2, "max_grad_norm": 0.5},
    ),
    "by tokens, without accumulation": (gpt2, lambda: texts(17, padded=True), {"optim": "sgd"}),
    "a stream": (lambda: Net(0.0), lambda: Stream(points(23)), {"max_steps": 9, "gradient_accumulation_steps": 2}),
    "groups of like length": (
        gpt2, lambda: texts(16, padded=True), {"train_sampling_strategy": "group_by_length", "optim": "sgd"},
    ),
    "workers": (lambda: Net(0.0), lambda: points(23), {"dataloader_num_workers": 1}),
    "of like cost": (gpt2, lambda: Lengths(), {
        "train_sampling_strategy": "batch_rebalance", "optim": "sgd", "gradient_accumulation_steps": 2,
    }),
}  # fmt: skip


class ByTokens(nn.Module):
    """A language model whose loss is the mean over its own tokens."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.tokens, self.head = nn.Embedding(32, 6), nn.Linear(6, 32)

    def forward(self, input_ids: Any, labels: Any) -> Any:
        logits = self.head(self.tokens(input_ids))
        return {"loss": nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()), "logits": logits}


class Lengths(Rows):
    """Texts with a column of lengths; all are as long, so that a batch has no padding."""

    def __init__(self) -> None:
        super().__init__(**texts(22, padded=True).columns)
        self.column_names = ["input_ids", "labels", "length"]

    def __getitem__(self, i: Any) -> Any:
        return [1 + (7 * k) % 11 for k in range(len(self))] if i == "length" else super().__getitem__(i)


def test_the_weights_of_one_process_with_the_global_batch(tmp_path):
    def run(name: str, batch: int) -> Any:
        model, data, more = CASES[name]
        found = trained(tmp_path / name, model(), data(), per_device_train_batch_size=batch, **more)
        return vector(found.model), losses_of(found), found.state.global_step

    both = in_ranks(2, lambda: {name: run(name, 2) for name in CASES})
    for name in CASES:
        weights, losses, steps = run(name, 4)
        for rank in both:
            assert rank[name][2] == steps, name
            torch.testing.assert_close(rank[name][0], weights, atol=1e-6, rtol=0, msg=name)
            assert rank[name][1] == pytest.approx(losses, abs=1e-6), name
        assert torch.equal(both[0][name][0], both[1][name][0])


SCRIPT = """
from bolide.transformers import Trainer, TrainingArguments
from tests.transformers.models import Net, points
args = TrainingArguments("out", per_device_train_batch_size=int(sys.argv[1]), num_train_epochs=2, logging_steps=2,
    learning_rate=1e-2, use_cpu=True, save_steps=4, report_to=[], eval_strategy="epoch")
trainer = Trainer(Net(0.0), args, train_dataset=points(23), eval_dataset=points(9, 1))
trainer.train()
weights = torch.cat([p.detach().reshape(-1) for p in trainer.model.parameters()])
torch.save(weights, f"weights{trainer.args.process_index}.pt")
"""


def test_a_script_that_was_launched(tmp_path):
    """`bolide launch`, which stands on torchrun's engine; the first rank alone prints, draws the bar and writes."""
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
    launcher = [sys.executable, "-m", "bolide.cli.main", "launch", "--nproc", "2"]
    results = [run_script(one, SCRIPT, "4"), run_script(two, SCRIPT, "2", launcher=launcher)]
    for result in results:
        assert result.returncode == 0, result.stderr[-3000:]
    whole = torch.load(one / "weights0.pt")
    for rank in range(2):
        torch.testing.assert_close(torch.load(two / f"weights{rank}.pt"), whole, atol=1e-6, rtol=0)
    lines = [[line for line in result.stdout.splitlines() if "'eval_loss'" in line] for result in results]
    assert len(lines[0]) == len(lines[1]) == 2
    assert sorted(os.listdir(one / "out")) == sorted(os.listdir(two / "out"))
    states = [json.loads((folder / "out/checkpoint-12/trainer_state.json").read_text()) for folder in (one, two)]
    histories = [
        [{key: value for key, value in line.items() if not TIMED.search(key)} for line in
         state["log_history"]] for state in states
    ]  # fmt: skip
    for mine, other in zip(*histories, strict=True):
        assert mine == pytest.approx(other, abs=1e-6)


# ---------------------------------------------------------------------- evaluation


def test_each_sample_is_evaluated_once(tmp_path):
    def metrics(prediction: Any) -> dict[str, float]:
        return {**accuracy(prediction), "count": len(prediction.label_ids)}

    class Counts:
        right = total = 0

        def __call__(self, prediction: Any, compute_result: bool) -> Any:
            predictions, labels = prediction
            self.right += int((predictions.argmax(-1) == labels).sum())
            self.total += len(labels)
            return {"accuracy": self.right / self.total, "count": self.total} if compute_result else {}

    def run(size: int) -> Any:
        found = {}
        for kind, data in (("rows", points(11)), ("few", points(1)), ("stream", Stream(points(11)))):
            args = arguments(door, str(tmp_path), per_device_eval_batch_size=size)
            trainer = door.Trainer(Net(), args, eval_dataset=data, compute_metrics=metrics)
            evaluated, predicted = trainer.evaluate(), trainer.predict(data)
            found[kind] = (evaluated, predicted.predictions, predicted.label_ids, predicted.metrics)
        args = arguments(door, str(tmp_path), per_device_eval_batch_size=size, batch_eval_metrics=True)
        by_batch = door.Trainer(Net(), args, eval_dataset=points(11), compute_metrics=Counts()).evaluate()
        found["by batch"] = (by_batch, None, None, {})
        trainer = door.Trainer(gpt2(), arguments(door, str(tmp_path), per_device_eval_batch_size=size),
                               eval_dataset={"a": texts(7, padded=True), "b": texts(5)})  # fmt: skip
        found["several"] = (trainer.evaluate(), None, None, {})
        more = {"train_sampling_strategy": "sequential", "per_device_train_batch_size": size}
        args = arguments(door, str(tmp_path), **more)
        trainer = door.Trainer(Net(), args, train_dataset=points(11), compute_metrics=metrics)
        output = trainer.evaluation_loop(trainer.get_train_dataloader(), "Evaluation")
        found["a training loader"] = (output.metrics, output.predictions, output.label_ids, {})
        return found

    both = in_ranks(2, lambda: run(2))
    alone = run(2)
    for rank in both:
        for kind, (evaluated, predictions, labels, more) in alone.items():
            for mine, other in ((rank[kind][0], evaluated), (rank[kind][3], more)):
                figures = {key: value for key, value in other.items() if not TIMED.search(key)}
                assert {key: mine[key] for key in figures} == figures, kind
            assert np.array_equal(rank[kind][1], predictions) if predictions is not None else rank[kind][1] is None
            assert np.array_equal(rank[kind][2], labels) if labels is not None else rank[kind][2] is None
        assert rank["rows"][0]["eval_count"] == 11
    assert both[0]["rows"][0] == both[1]["rows"][0]
    halved = in_ranks(2, lambda: run(1)["rows"])
    assert halved[0][0]["eval_loss"] == pytest.approx(alone["rows"][0]["eval_loss"], abs=1e-6)
    np.testing.assert_allclose(halved[1][1], alone["rows"][1], atol=1e-6)
    assert np.array_equal(halved[1][2], alone["rows"][2])


def test_a_sampler_that_counts_twice_is_refused(tmp_path):
    def work() -> str:
        trainer = door.Trainer(Net(), arguments(door, str(tmp_path)), eval_dataset=points(5))
        sampler = torch.utils.data.DistributedSampler(points(5), shuffle=False)
        loader = torch.utils.data.DataLoader(points(5), 2, sampler=sampler)
        with pytest.raises(ConfigError, match="leave the sampler out") as caught:
            trainer.evaluation_loop(loader, "Evaluation")
        return str(caught.value)

    assert len(in_ranks(2, work)) == 2


# ---------------------------------------------------------------------- checkpoints and decisions


class Halts(door.TrainerCallback):
    def __init__(self, step: int, rank: int | None = None) -> None:
        self.step, self.rank = step, rank

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.step and self.rank in (None, args.process_index):
            control.should_training_stop = True


class Asks(door.TrainerCallback):
    """One rank alone asks for an evaluation and a save."""

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 3 and args.process_index == 1:
            control.should_evaluate = control.should_save = True


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_resumed_run_has_the_same_bits(tmp_path, accumulate):
    def run(out: Path, halt: bool = False, resume: Any = None) -> Any:
        args = arguments(
            door, str(out), per_device_train_batch_size=2, save_strategy="steps", save_steps=2, save_total_limit=2,
            gradient_accumulation_steps=accumulate, eval_strategy="steps", eval_steps=2, num_train_epochs=3,
        )  # fmt: skip
        torch.manual_seed(5)
        trainer = door.Trainer(
            Net(0.3, seed=None), args, train_dataset=points(15), eval_dataset=points(5, 1),
            callbacks=[Halts(7 - 2 * accumulate)] if halt else [],
        )  # fmt: skip
        result = trainer.train(resume_from_checkpoint=resume)
        lines = [{k: v for k, v in line.items() if "second" not in k and "runtime" not in k and "train_loss" not in k}
                 for line in trainer.state.log_history]  # fmt: skip
        return vector(trainer.model), lines, result.global_step, sorted(os.listdir(out))

    def work() -> Any:
        whole = run(tmp_path / "whole")
        run(tmp_path / "cut", halt=True)
        return whole, run(tmp_path / "cut", resume=True)

    for whole, resumed in in_ranks(2, work):
        assert torch.equal(whole[0], resumed[0])
        assert whole[2:] == resumed[2:]
        assert whole[1][:-1] == [line for line in resumed[1] if "total_flos" not in line]
    shutil.rmtree(tmp_path / "cut" / "checkpoint-2", ignore_errors=True)
    newest = sorted(tmp_path.glob("whole/checkpoint-*"))[-1]
    trainer = door.Trainer(Net(), arguments(door, str(tmp_path / "one")), train_dataset=points(15))
    if accumulate == 1:  # a step of 4 samples, as of two processes with 2 each
        trainer.train(resume_from_checkpoint=str(newest))
    else:
        with pytest.raises(CheckpointError, match="saved by 2 process.*steps are of 8 samples, and those of now of 4"):
            trainer.train(resume_from_checkpoint=str(newest))


def test_the_epoch_s_data_start_over_on_each_rank(tmp_path):
    class Records(Net):
        def forward(self, x: Any, labels: Any = None) -> Any:
            seen.append(x[0, 0].item())
            return super().forward(x, labels)

    seen: list[float] = []

    def run(resume: Any = None) -> list[float]:
        seen.clear()
        args = arguments(
            door, str(tmp_path), per_device_train_batch_size=2, save_strategy="steps", save_steps=2, num_train_epochs=1,
            train_sampling_strategy="sequential", ignore_data_skip=True,
        )  # fmt: skip
        door.Trainer(Records(), args, train_dataset=points(24)).train(resume_from_checkpoint=resume)
        return list(seen)

    for whole, again in in_ranks(2, lambda: (run(), run(str(tmp_path / "checkpoint-4")))):
        assert (len(whole), again) == (6, whole[:2])


def test_it_goes_on_with_another_number_of_processes(tmp_path):
    """Behind the samples that were trained on, whatever the order comes from; 8 samples to a step, 5 steps an epoch."""
    kinds: dict[str, Any] = {
        "by seed": (points(40), {}),
        "by the global generator": (points(40), {"accelerator_config": {"use_seedable_sampler": False}}),
        "a stream": (Stream(points(40)), {}),
        "workers": (points(40), {"dataloader_num_workers": 1}),
    }

    def run(kind: str, out: str, batch: int, windows: int, resume: str | None = None, halt: bool = False) -> Any:
        data, more = kinds[kind]
        args = arguments(
            door, str(tmp_path / kind / out), per_device_train_batch_size=batch, gradient_accumulation_steps=windows,
            max_steps=7, save_strategy="steps", save_steps=3, **more,
        )  # fmt: skip
        trainer = door.Trainer(Net(0.0), args, train_dataset=data, callbacks=[Halts(4)] if halt else [])
        torch.manual_seed(3)
        trainer.train(resume_from_checkpoint=str(tmp_path / kind / resume / "checkpoint-3") if resume else None)
        return vector(trainer.model)

    whole = {kind: run(kind, "whole", 4, 2) for kind in kinds}
    for kind in kinds:
        run(kind, "one", 2, 4, halt=True)

    def work() -> Any:
        for kind in kinds:
            run(kind, "two", 2, 2, halt=True)
        return {kind: run(kind, "a", 4, 1, "one") for kind in kinds}

    for found in in_ranks(2, work):
        torch.testing.assert_close(found, whole, atol=1e-6, rtol=0)
    for batch, windows in ((8, 1), (4, 2)):
        found = {kind: run(kind, "b", batch, windows, "two") for kind in kinds}
        torch.testing.assert_close(found, whole, atol=1e-6, rtol=0)


def test_three_ranks_and_a_stream_go_on_with_the_same_bits(tmp_path):
    def run(name: str, data: Any, resume: Any = None) -> Any:
        args = arguments(
            door, str(tmp_path / name), per_device_train_batch_size=2, max_steps=7, save_strategy="steps", save_steps=3
        )
        trainer = door.Trainer(Net(0.3), args, train_dataset=data)
        trainer.train(resume_from_checkpoint=str(tmp_path / name / "checkpoint-3") if resume else None)
        return vector(trainer.model)

    def work() -> bool:
        kinds = {"rows": points(25), "stream": Stream(points(25))}
        return all(torch.equal(run(name, data), run(name, data, True)) for name, data in kinds.items())

    assert in_ranks(3, work) == [True] * 3


def test_what_one_rank_decides_all_do(tmp_path):
    def work() -> Any:
        args = {"per_device_train_batch_size": 2, "num_train_epochs": 4}
        halted = trained(tmp_path / "a", Net(), points(), callbacks=[Halts(5, rank=1)], **args)
        asked = trained(tmp_path / "b", Net(), points(), callbacks=[Asks()], eval_dataset=points(5), max_steps=4)
        calm = trained(tmp_path / "c", Net(), points(), max_steps=7, **args)
        patient = trained(
            tmp_path / "d", Net(), points(), eval_dataset=points(5), eval_strategy="steps", eval_steps=1,
            metric_for_best_model="loss", load_best_model_at_end=True, save_strategy="steps", save_steps=1,
            learning_rate=2.0, max_steps=30, callbacks=[door.EarlyStoppingCallback(2)],
        )  # fmt: skip
        evaluated = [line["step"] for line in asked.state.log_history if "eval_loss" in line]
        return (
            halted.state.global_step, evaluated, calm.state.global_step, patient.state.global_step,
            patient.state.best_model_checkpoint, vector(patient.model),
        )  # fmt: skip

    first, second = in_ranks(2, work)
    assert first[:3] == second[:3] == (5, [3], 7)
    assert first[3:5] == second[3:5]
    assert first[3] < 30
    assert torch.equal(first[5], second[5])
    assert os.listdir(tmp_path / "b") == ["checkpoint-3"]


def test_a_search_is_one_of_all_ranks(tmp_path):
    """The first rank's study chooses, prunes and keeps; all ranks train each trial, and get the best run."""
    pytest.importorskip("optuna")

    def search(out: Path, batch: int, n_trials: int, **more: Any) -> Any:
        args = arguments(
            door, str(out), per_device_train_batch_size=batch, eval_strategy="epoch", save_strategy="epoch",
            load_best_model_at_end=True,
        )  # fmt: skip
        trainer = door.Trainer(
            model_init=lambda trial: Net(0.0, seed=1), args=args, train_dataset=points(), eval_dataset=points(12, 1),
            compute_metrics=accuracy,
        )  # fmt: skip
        best = trainer.hyperparameter_search(
            {"learning_rate": [0.1, 0.12, 0.14, 0.16, 1e-7]}, lambda metrics: metrics["eval_accuracy"],
            direction="maximize", n_trials=n_trials, sampler="grid", storage=str(out / "study.db"), gc_after_trial=True,
            **more,
        )  # fmt: skip
        states = [trial.state.name for trial in best.run_summary.finished()] if best.run_summary else None
        return best._replace(run_summary=states), trainer.args.learning_rate

    def work() -> Any:
        search(tmp_path / "two", 2, 2)
        return search(tmp_path / "two", 2, 5)

    (first, rate), (second, _) = in_ranks(2, work)
    assert first.run_summary == ["COMPLETE"] * 4 + ["PRUNED"]
    assert second == first._replace(run_summary=None)
    assert rate == 1e-2
    assert os.path.isdir(first.checkpoint)
    alone, _ = search(tmp_path / "one", 4, 5)
    assert (first.run_id, first.hyperparameters, first.objective) == (
        alone.run_id, alone.hyperparameters, alone.objective
    )  # fmt: skip
    assert first.metrics["eval_loss"] == pytest.approx(alone.metrics["eval_loss"], abs=1e-5)


def test_a_search_that_fails_on_the_first_rank_fails_on_all(tmp_path):
    pytest.importorskip("optuna")

    def space(trial: Any) -> dict[str, Any]:
        raise ValueError("no such space")

    def work() -> str:
        trainer = door.Trainer(
            model_init=lambda: Net(), args=arguments(door, str(tmp_path)), train_dataset=points(), eval_dataset=points()
        )
        with pytest.raises((ValueError, FailedOnRankZero), match="no such space") as caught:
            trainer.hyperparameter_search(space, n_trials=1)
        return type(caught.value).__name__

    assert in_ranks(2, work) == ["ValueError", "FailedOnRankZero"]


def test_how_batches_are_split_and_who_reads(tmp_path):
    """A batch of all processes, cut; batches that the first process alone reads, and sends."""
    reads = tmp_path / "reads"
    reads.mkdir()

    class Noted(Stream):
        def __iter__(self) -> Any:
            (reads / str(os.getpid())).touch()
            return super().__iter__()

    def run(data: Any, batch: int, **more: Any) -> Any:
        found = trained(tmp_path / "out", Net(0.0), data, per_device_train_batch_size=batch, max_steps=9, **more)
        return vector(found.model), found.get_total_train_batch_size()

    def work() -> Any:
        split = run(points(23), 4, accelerator_config={"split_batches": True})
        sent = [run(data, 2, accelerator_config={"dispatch_batches": True}) for data in (points(23), Noted(points(23)))]
        with pytest.raises(ConfigError, match="divides by 2"):
            run(points(23), 3, accelerator_config={"split_batches": True})
        return split, *sent

    both = in_ranks(2, work)
    assert len(list(reads.iterdir())) == 1
    for data, kinds in ((points(23), (0, 1)), (Stream(points(23)), (2,))):
        weights, size = run(data, 4)
        for rank in both:
            for kind in kinds:
                torch.testing.assert_close(rank[kind][0], weights, atol=1e-6, rtol=0)
                assert rank[kind][1] == size


def test_who_is_who(tmp_path):
    def work() -> Any:
        args = arguments(door, str(tmp_path))
        with args.main_process_first():
            pass
        trainer = door.Trainer(Net(), args, train_dataset=points())
        return (
            args.world_size, args.process_index, args.local_process_index, args.should_save, args.should_log,
            trainer.is_world_process_zero(), trainer.is_local_process_zero(), trainer.state.is_world_process_zero,
            trainer.accelerator.num_processes, trainer.accelerator.is_main_process, trainer.accelerator.process_index,
            args.parallel_mode.value, trainer.get_total_train_batch_size(),
        )  # fmt: skip

    assert in_ranks(2, work) == [
        (2, 0, 0, True, True, True, True, True, 2, True, 0, "distributed", 8),
        (2, 1, 1, False, False, False, False, False, 2, False, 1, "distributed", 8),
    ]


# ---------------------------------------------------------------------- the accelerator, and overrides


def test_what_scripts_ask_of_the_accelerator(tmp_path):
    class Own(door.Trainer):
        def evaluation_loop(self, dataloader: Any, *args: Any, **kwargs: Any) -> Any:
            labels, names = [], []
            for batch in self.accelerator.prepare(dataloader):
                labels.append(self.accelerator.gather_for_metrics(batch["labels"]))
                names += self.accelerator.gather_for_metrics([float(x) for x in batch["labels"]])
            assert torch.cat(labels).tolist() == names
            return torch.cat(labels)

    def work() -> Any:
        model = Net()
        trainer = Own(model, arguments(door, str(tmp_path)), eval_dataset=points(11))
        own, rank = trainer.accelerator, trainer.args.process_index
        own.wait_for_everyone()
        joined = own.gather({"a": torch.full((2, 3), rank), "b": torch.tensor(float(rank))})
        uneven = own.gather(torch.full((rank + 1,), rank))
        assert own.unwrap_model(trainer.model_wrapped) is model
        assert own.reduce(torch.tensor(rank + 1.0)) == 3
        with pytest.raises(UserCodeError, match="pad_across_processes"):
            own.gather(torch.zeros(1, rank + 1))
        padded = own.pad_across_processes(torch.ones(1, rank + 1), dim=1, pad_index=-100)
        labels = trainer.evaluation_loop(trainer.get_eval_dataloader())
        return joined["a"].tolist(), joined["b"].tolist(), uneven.tolist(), padded.tolist(), labels.tolist()

    first, second = in_ranks(2, work)
    assert first[:3] == second[:3] == ([[0] * 3] * 2 + [[1] * 3] * 2, [0.0, 1.0], [0, 1, 1])
    assert (first[3], second[3]) == ([[1, -100]], [[1, 1]])
    assert first[4] == second[4] == points(11).columns["labels"].tolist()


class Overrides(door.Trainer):
    """Parts of a step and of a checkpoint of one's own."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.seen: list[Any] = []
        super().__init__(*args, **kwargs)

    def _maybe_log_save_evaluate(self, tr_loss: Any, *rest: Any, **more: Any) -> None:
        self.seen.append((self.state.global_step, round(float(tr_loss), 6), self.control.should_log))
        super()._maybe_log_save_evaluate(tr_loss, *rest, **more)

    def _clip_grad_norm(self, model: Any) -> Any:
        return torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-2)

    def _get_learning_rate(self) -> float:
        return 3 * super()._get_learning_rate()

    def save_model(self, output_dir: Any = None, _internal_call: bool = False) -> None:
        if self.args.should_save:
            torch.save(self.model.state_dict(), os.path.join(output_dir, "mine.pt"))

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        self.model.load_state_dict(torch.load(os.path.join(resume_from_checkpoint, "mine.pt"), weights_only=True))


def test_overrides_are_called_on_each_process(tmp_path):
    def run(out: str, batch: int, resume: Any = None) -> Any:
        args = arguments(door, out, per_device_train_batch_size=batch, eval_strategy="epoch", save_strategy="epoch",
                         logging_steps=2, num_train_epochs=2)  # fmt: skip
        trainer = Overrides(Net(0.0), args, train_dataset=points(16), eval_dataset=points(9, 1))
        trainer.train(resume_from_checkpoint=resume)
        lines = [
            {k: v for k, v in line.items() if "_runtime" not in k and "_per_second" not in k}
            for line in trainer.state.log_history
        ]
        return trainer.seen, lines, [p.detach().tolist() for p in trainer.model.parameters()]

    whole, other = in_ranks(2, lambda: run(str(tmp_path / "two"), 2))
    assert whole == other
    alone = run(str(tmp_path / "one"), 4)
    assert differences(alone, whole) == []
    again, _ = in_ranks(2, lambda: run(str(tmp_path / "two"), 2, str(tmp_path / "two" / "checkpoint-4")))
    assert differences(whole[2], again[2]) == []
    assert os.path.exists(tmp_path / "two" / "checkpoint-8" / "mine.pt")


def test_flags_parts_and_accumulation_of_the_accelerator(tmp_path):
    class Script(door.Trainer):
        """A loop over a step's batches of one's own, exchanging gradients in the last of them."""

        def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
            with self.accelerator.accumulate(model):
                loss = self.compute_loss(model, inputs) / self.current_gradient_accumulation_steps
                self.accelerator.backward(loss)
            return loss.detach()

    def work() -> Any:
        args = arguments(door, str(tmp_path), gradient_accumulation_steps=2, per_device_train_batch_size=2)
        trainer = Script(Net(0.0), args, train_dataset=points(16))
        own, rank = trainer.accelerator, trainer.args.process_index
        flags = [own.check_trigger()]
        if rank == 1:
            own.set_trigger()
        flags += [own.check_trigger(), own.check_trigger()]
        with own.split_between_processes([1, 2, 3], apply_padding=True) as mine:
            parts = list(mine)
        with own.split_between_processes({"x": torch.arange(3)}) as found:
            parts += found["x"].tolist()
        said = [own.on_last_process(lambda: "last")(), own.on_process(lambda: "first", process_index=0)()]
        own.save({"rank": rank}, str(tmp_path / "saved.pt"))
        own.wait_for_everyone()
        saved = torch.load(tmp_path / "saved.pt", weights_only=True)
        trainer.train()
        whole = [p.detach().tolist() for p in trainer.model.parameters()]
        return flags, parts, said, saved, own.use_distributed, own.multi_device, whole

    first, second = in_ranks(2, work)
    assert first[0] == second[0] == [False, True, False]
    assert (first[1], second[1]) == ([1, 2, 0, 1], [3, 3, 2])
    assert (first[2], second[2]) == ([None, "first"], ["last", None])
    assert first[3:] == second[3:]
    assert first[3:6] == ({"rank": 0}, True, False)
    alone = door.Trainer(
        Net(0.0), arguments(door, str(tmp_path / "alone"), gradient_accumulation_steps=2), train_dataset=points(16)
    )
    alone.train()
    for mine, expected in zip(first[6], alone.model.parameters(), strict=True):
        assert torch.allclose(torch.tensor(mine), expected, atol=1e-6)


class OwnStep(door.Trainer):
    """As of older scripts: forward, backward, no weights."""

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
        model.train()
        loss = self.compute_loss(model, inputs)
        self.accelerator.backward(loss)
        return loss.detach()


class Alone(OwnStep):
    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
        loss = self.compute_loss(model, inputs)
        loss.backward()
        return loss.detach()


class Calls(door.Trainer):
    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        return super().training_step(*args, **kwargs)


def test_an_overridden_training_step(tmp_path):
    def run(kind: Any, batch: int) -> Any:
        args = arguments(door, str(tmp_path), per_device_train_batch_size=batch)
        trainer = kind(Net(0.0), args, train_dataset=points(23))
        trainer.train()
        return vector(trainer.model), losses_of(trainer)

    def work() -> Any:
        found = [run(kind, 2) for kind in (OwnStep, Calls)]
        with pytest.raises(UserCodeError, match="accelerator.backward"):
            run(Alone, 2)
        return found

    for rank in in_ranks(2, work):
        for kind, (weights, losses) in zip((OwnStep, Calls), rank, strict=True):
            alone = run(kind, 4)
            torch.testing.assert_close(weights, alone[0], atol=1e-6, rtol=0)
            assert losses == pytest.approx(alone[1], abs=1e-6)


def test_tokens_operations_and_generation(tmp_path):
    def run(batch: int) -> Any:
        trainer = trained(
            tmp_path, gpt2(), texts(10), per_device_train_batch_size=batch, include_num_input_tokens_seen="all",
            eval_dataset=texts(5), eval_strategy="epoch",
        )  # fmt: skip
        return trainer.state.num_input_tokens_seen, trainer.state.total_flos

    alone = run(4)
    assert in_ranks(2, lambda: run(2)) == [alone, alone]


def test_parameters_that_have_no_gradient(tmp_path):
    """As under transformers, a model of its own is searched for them, with all others they are an error of torch's."""

    def work() -> Any:
        model = bert()
        model.spare = nn.Linear(2, 2)
        trainer = trained(tmp_path, model, labelled_texts(), max_steps=2)
        return vector(trainer.model)

    first, second = in_ranks(2, work)
    assert torch.equal(first, second)


def test_what_is_refused(tmp_path):
    def work() -> Any:
        with pytest.raises(ConfigError, match="auto_find_batch_size=True with several processes"):
            door.Trainer(Net(), arguments(door, str(tmp_path), auto_find_batch_size=True), train_dataset=points())
        trainer = door.Trainer(
            model_init=lambda: Net(), args=arguments(door, str(tmp_path)), train_dataset=points(), eval_dataset=points()
        )
        for more, text in (
            ({"n_jobs": 2}, "n_jobs=2"),
            ({"backend": "ray"}, "backend='ray'"),
            ({"catch": OSError}, "catch"),
        ):
            with pytest.raises(ConfigError, match=text):
                trainer.hyperparameter_search(lambda trial: {}, n_trials=1, storage=f"{tmp_path}/refused.db", **more)

        class Own(Stream):
            def __iter__(self) -> Any:
                return (self.rows[i] for i in range(torch.distributed.get_rank(), len(self.rows), 2))

        with pytest.raises(UserCodeError, match="do not split it by rank"):
            trained(tmp_path, Net(), Own(points()), max_steps=2)
        return True

    assert in_ranks(2, work) == [True, True]

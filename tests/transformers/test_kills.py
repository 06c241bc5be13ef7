"""kill -9 of a Trainer.train() at any instant, start again, and the end has the same bits as an undisturbed run."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import bolide.transformers as door
from bolide.checkpoint import io
from bolide.transformers.weights import load, read
from tests.transformers.models import Net, Stream, accuracy, points
from tests.transformers.scripts import arguments

LOADED = (door.Trainer, door.TrainerCallback, door.EarlyStoppingCallback)  # imported once, before the forks

CLOCKS = ("runtime", "per_second", "train_loss", "total_flos")


class Noisy(type(points())):  # type: ignore[misc]
    """Points with noise drawn anew each time they are read."""

    def __getitem__(self, i: int) -> Any:
        row = super().__getitem__(i)
        return {**row, "x": row["x"] + 0.1 * torch.randn(4) + 0.1 * random.random()}


KINDS: dict[str, dict[str, Any]] = {
    "plain": {"save_steps": 3},
    "windows": {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "save_steps": 2, "noisy": True},
    "best": {"save_strategy": "epoch", "load_best_model_at_end": True, "save_total_limit": 1},
    "stream": {"max_steps": 14, "stream": True, "save_steps": 3},
}


def run(out: Path, kind: str, delay_s: float = 0.0) -> None:
    """One attempt: goes on from what is there, or starts; writes what it ends with."""
    options = dict(KINDS[kind])
    stream, noisy = options.pop("stream", False), options.pop("noisy", False)
    data = points(22)
    data = Stream(data) if stream else Noisy(**data.columns) if noisy else data

    class Slow(door.TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            time.sleep(delay_s)

    settings = {"save_strategy": "steps", "eval_strategy": options.get("save_strategy", "steps"), "eval_steps": 4,
                "num_train_epochs": 3, "metric_for_best_model": "accuracy", "logging_steps": 3}  # fmt: skip
    trainer = door.Trainer(
        Net(), arguments(door, str(out), **{**settings, **options}), train_dataset=data, eval_dataset=points(9, 1),
        compute_metrics=accuracy, callbacks=[door.EarlyStoppingCallback(3), Slow()],
    )  # fmt: skip
    trainer.train(resume_from_checkpoint=True)
    history = [
        {key: value for key, value in line.items() if not any(word in key for word in CLOCKS)}
        for line in trainer.state.log_history
    ]
    torch.save({"weights": trainer.model.state_dict(), "history": json.dumps(history, sort_keys=True)}, out / "end.pt")


def search(out: Path) -> None:
    """A search whose study is in a file; writes its best run and the values of all trials."""
    args = arguments(door, str(out), eval_strategy="epoch", save_strategy="epoch", load_best_model_at_end=True)
    trainer = door.Trainer(
        model_init=lambda: Net(), args=args, train_dataset=points(22), eval_dataset=points(9, 1),
        compute_metrics=accuracy,
    )  # fmt: skip
    best = trainer.hyperparameter_search(
        {"learning_rate": (1e-4, 0.3, "log"), "per_device_train_batch_size": [4, 8]},
        lambda metrics: metrics["eval_loss"], n_trials=4, storage=str(out / "study.db"), progress_bar=False,
    )  # fmt: skip
    found = [(trial.state.name, trial.value, trial.params) for trial in best.run_summary.finished()]
    weights = door.Trainer(Net(), arguments(door, str(out))).model
    load(weights, read(best.checkpoint), best.checkpoint)
    history = json.dumps([best.run_id, best.objective, best.hyperparameters, found], sort_keys=True)
    torch.save({"weights": weights.state_dict(), "history": history}, out / "end.pt")


def forked(out: Path, kind: str, kill: tuple[str, int] | None = None, kill_after_s: float | None = None) -> int:
    """An attempt in a fork, killed before or after its file operation of that number, or so long after its start."""
    out.mkdir(parents=True, exist_ok=True)
    pid = os.fork()
    if pid == 0:
        first = io.operations.count

        def die(at: str, count: int, what: str, path: str) -> None:
            if kill is not None and (at, count - first) == kill:
                os.kill(os.getpid(), signal.SIGKILL)

        io.operations.listeners.append(die)
        with contextlib.suppress(BaseException), open(out / "errors.txt", "a") as errors:
            os.dup2(errors.fileno(), 2)
            warnings.simplefilter("ignore")
            if kind == "search":
                search(out)
            else:
                run(out, kind, 0.01 if kill_after_s is not None else 0.0)
            os._exit(0)
        os._exit(1)
    if kill_after_s is not None:
        time.sleep(kill_after_s)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code in (0, -signal.SIGKILL), (out / "errors.txt").read_text()[-3000:]
    return code


def end(out: Path) -> tuple[dict[str, torch.Tensor], str]:
    found = torch.load(out / "end.pt", weights_only=True)
    return found["weights"], found["history"]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    known: dict[str, Any] = {}

    def of(kind: str) -> Any:
        if kind not in known:
            out = tmp_path_factory.mktemp("undisturbed") / kind
            assert forked(out, kind) == 0
            known[kind] = end(out)
        return known[kind]

    return of


def ends_as(out: Path, kind: str, expected: Any) -> None:
    assert forked(out, kind) == 0
    weights, history = end(out)
    assert history == expected[1]
    assert all(torch.equal(weights[name], expected[0][name]) for name in expected[0])


@pytest.mark.parametrize("kind", KINDS)
def test_killed_at_ten_random_instants(tmp_path, undisturbed, kind):
    """Ten kills, each in what the last one left: within writes, between them, and by the clock."""
    draw = random.Random(kind)
    kills = runs = 0
    out = tmp_path / kind
    while kills < 10:
        if kills % 3 == 2:
            code = forked(out, kind, kill_after_s=draw.uniform(0.02, 0.25))
        else:
            code = forked(out, kind, (draw.choice(["before", "after"]), draw.randint(1, 60)))
        kills += code == -signal.SIGKILL
        if code == 0:  # it came to its end before its kill was due: the next ones are another run's
            assert end(out)[1] == undisturbed(kind)[1]
            runs += 1
            out = tmp_path / f"{kind}-{runs}"
    ends_as(out, kind, undisturbed(kind))


@pytest.mark.slow
def test_a_search_that_is_killed_at_three_instants(tmp_path, undisturbed):
    """Within the first trial, later, and near the end, each in what the last one left: the same trials, and bits."""
    pytest.importorskip("optuna")
    out = tmp_path / "search"
    for kill in (("after", 7), ("before", 40), ("after", 31)):
        assert forked(out, "search", kill) == -signal.SIGKILL
    ends_as(out, "search", undisturbed("search"))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["plain", "best"])
def test_killed_at_every_file_operation(tmp_path, undisturbed, kind):
    number = 0
    while True:
        number += 1
        out = tmp_path / f"{kind}-{number}"
        if forked(out, kind, (("before", "after")[number % 2], number)) == 0:
            break
        ends_as(out, kind, undisturbed(kind))
    assert number > 40


def test_told_to_stop_it_saves_and_goes_on(tmp_path):
    """SIGTERM in the midst of training: the step is saved, and the rest gives the same bits."""
    from bolide.core.errors import SIGTERMException

    def trainer(out: str, callback: Any = None) -> Any:
        return door.Trainer(
            Net(), arguments(door, out, save_strategy="epoch"), train_dataset=points(),
            callbacks=[callback] if callback else [],
        )  # fmt: skip

    class Stops(door.TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == 4:
                os.kill(os.getpid(), signal.SIGTERM)

    whole = trainer(str(tmp_path / "whole"))
    whole.train()
    with pytest.raises(SIGTERMException):
        trainer(str(tmp_path / "cut"), Stops()).train()
    again = trainer(str(tmp_path / "cut"))
    assert (tmp_path / "cut" / "checkpoint-4").is_dir()
    again.train(resume_from_checkpoint=True)
    for a, b in zip(whole.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(a, b)

"""A search over a LightningModule: the best of grid, random and TPE, pruning, and going on after a kill."""

from __future__ import annotations

import json
import os
import random
import signal
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import bolide as pl
from bolide.checkpoint import io
from bolide.core.errors import ConfigError, MissingPackageError, UserCodeError
from bolide.tuner import search

optuna = pytest.importorskip("optuna")


class Line(pl.LightningModule):
    """One weight on its way to 2; `lr` decides how near it comes, `start` where it begins."""

    def __init__(self, lr: float, start: float = 0.0) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.tensor(float(start)))
        self.lr = lr

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return (self.w - 2) ** 2

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", (self.w - 2) ** 2)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=self.lr)


def loader() -> Any:
    return DataLoader(TensorDataset(torch.zeros(2, 1)), batch_size=1)


def run(space: Any, out: Any, **more: Any) -> Any:
    settings = {"n_trials": 6, "progress_bar": False, "trainer": {"max_epochs": 3, "accelerator": "cpu"}, **more}
    return search(Line, space, train_dataloaders=loader, val_dataloaders=loader, output_dir=str(out), **settings)


def test_a_grid_tries_each_point_once(tmp_path):
    best = run({"lr": [0.01, 0.4, 0.1], "start": [0.0, 5.0]}, tmp_path, sampler="grid", n_trials=50, pruner="none")
    assert [trial.user_attrs["settings"] for trial in best.study.finished()] == [
        {"lr": lr, "start": start} for lr in (0.01, 0.4, 0.1) for start in (0.0, 5.0)
    ]
    assert best.settings == {"lr": 0.4, "start": 0.0}
    again = Line.load_from_checkpoint(best.checkpoint, lr=0.4)
    assert float((again.w.detach() - 2) ** 2) == pytest.approx(best.value)
    assert best.metrics["val_loss"] == pytest.approx(best.value)
    assert [step for step, _ in best.history] == [2, 4, 6]


@pytest.mark.parametrize("sampler", ["random", "tpe"])
def test_ranges_are_kept_and_seeded(tmp_path, sampler):
    space = {"lr": (1e-3, 0.5, "log"), "start": (0, 3)}
    a = run(space, tmp_path / "a", sampler=sampler, seed=3)
    b = run(space, tmp_path / "b", sampler=sampler, seed=3)
    chosen = [trial.user_attrs["settings"] for trial in a.study.finished()]
    assert chosen == [trial.user_attrs["settings"] for trial in b.study.finished()]
    assert all(1e-3 <= one["lr"] <= 0.5 and one["start"] in (0, 1, 2, 3) for one in chosen)
    assert len({one["lr"] for one in chosen}) == 6
    assert a.value == min(trial.value for trial in a.study.finished() if trial.value is not None)


def test_bad_trials_are_given_up(tmp_path):
    best = run({"lr": [0.4, 0.3, 0.35, 0.38, 1e-6, 2e-6]}, tmp_path, sampler="grid")
    states = [trial.state.name for trial in best.study.finished()]
    assert states == ["COMPLETE"] * 4 + ["PRUNED"] * 2
    assert len(best.study.finished()[-1].intermediate_values) == 1


def test_a_trial_that_diverges_is_no_winner(tmp_path):
    best = run({"lr": [1e30, 0.3]}, tmp_path, sampler="grid", pruner="none")
    assert best.settings == {"lr": 0.3}


def test_a_function_as_a_space_and_a_plot(tmp_path):
    pytest.importorskip("plotly")
    best = run(lambda trial: {"lr": trial.suggest_float("lr", 0.01, 0.4)}, tmp_path, n_trials=4, pruner="none")
    best.study.plot(tmp_path / "study.html")
    page = (tmp_path / "study.html").read_text()
    assert "Optimization History" in page
    assert "Hyperparameter Importances" in page


def test_all_that_is_wrong_is_told():
    with pytest.raises(ConfigError) as told:
        run({}, "out", n_trials=0, sampler="tepe", direction="down", pruner="mean", n_jobs=2)
    assert len(told.value.problems) == 5
    with pytest.raises(ConfigError, match=r"space\['lr'\]"):
        run({"lr": 3}, "out")
    with pytest.raises(ConfigError, match="all lists"):
        run({"lr": (1, 2)}, "out", sampler="grid")
    with pytest.raises(UserCodeError, match="Did you mean 'val_loss'"):
        run({"lr": [0.1]}, "out", monitor="valid_loss")


SPACE = {"lr": (1e-2, 0.4, "log"), "start": (0.0, 1.0)}


def summary(out: Any, **more: Any) -> dict[str, Any]:
    best = run(SPACE, out / "trials", storage=str(out / "study.db"), n_trials=7, **more)
    return {
        "settings": best.settings, "value": best.value, "history": best.history,
        "trials": [
            (t.user_attrs["settings"], t.value, t.state.name, t.intermediate_values) for t in best.study.finished()
        ],
    }  # fmt: skip


def killed(out: Any, number: int) -> None:
    """A search in a process of its own, which kills itself at its file operation `number`."""
    pid = os.fork()
    if pid == 0:
        first = io.operations.count

        def die(at: str, count: int, kind: str, path: str) -> None:
            if count - first == number:
                os.kill(os.getpid(), signal.SIGKILL)

        io.operations.listeners.append(die)
        try:
            summary(out)
        finally:
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status)


def test_killed_three_times_it_ends_as_undisturbed(tmp_path):
    whole = json.loads(json.dumps(summary(tmp_path / "whole")))
    draw = random.Random(4)
    for number in (5, draw.randint(20, 40), draw.randint(20, 40)):
        killed(tmp_path / "cut", number)
    assert json.loads(json.dumps(summary(tmp_path / "cut"))) == whole


def test_two_processes_share_a_study(tmp_path):
    best = run(
        {"lr": [0.01, 0.1, 0.2, 0.3, 0.4]}, tmp_path / "trials", sampler="grid", storage=str(tmp_path / "study.db"),
        n_jobs=2, pruner="none",
    )  # fmt: skip
    assert [trial.user_attrs["index"] for trial in best.study.finished()] == [0, 1, 2, 3, 4]
    assert best.settings == {"lr": 0.4}
    assert os.path.exists(best.checkpoint)


def test_ray_asks_for_its_package_and_for_a_file(tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match="max_failures=-1(.|\n)*storage='study.db'"):
        run({"lr": [0.1]}, tmp_path, backend="ray", max_failures=-1)
    monkeypatch.setattr("bolide.launch.ray_cluster.NEEDED", ("no_such_package",))
    with pytest.raises(MissingPackageError, match=r'pip install "bolide\[ray\]"'):
        run({"lr": [0.1]}, tmp_path, backend="ray", storage=tmp_path / "study.db")
    assert not (tmp_path / "study.db").exists()

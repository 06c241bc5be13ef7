"""A search by Ray Tune: one study, bad trials given up, a killed trial goes on, an error ends it; for both doors.

Run by test_ray in a process of its own.
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from bolide.tuner import search
from tests.tuner.test_search import Line, loader, run

pytestmark = pytest.mark.timeout(600)
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def cluster() -> Any:
    import ray

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(ROOT / "src")]))  # trials import these tests, too
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        ray.init(address="local", include_dashboard=False, log_to_driver=False, num_cpus=2, logging_level="ERROR")
        try:
            yield
        finally:
            ray.shutdown()


class Fragile(Line):
    """Notes where each process begins; kills its own once, where `folder` holds no mark of that yet."""

    def __init__(self, lr: float, folder: str, kill: bool = True) -> None:
        super().__init__(lr)
        self.folder, self.kill = folder, kill

    def on_train_start(self) -> None:
        with open(os.path.join(self.folder, "starts"), "a", encoding="utf-8") as file:
            file.write(json.dumps([self.lr, self.global_step]) + "\n")

    def on_train_epoch_start(self) -> None:
        mark = os.path.join(self.folder, "killed")
        if self.kill and self.lr == 0.3 and self.current_epoch == 2 and not os.path.exists(mark):
            Path(mark).touch()
            os.kill(os.getpid(), signal.SIGKILL)


def fragile(folder: Path, kill: bool, **more: Any) -> Any:
    folder.mkdir()
    grid = {"lr": [0.1, 0.3], "folder": [str(folder)], "kill": [kill]}
    return search(
        Fragile, grid, train_dataloaders=loader, val_dataloaders=loader, output_dir=folder / "trials", sampler="grid",
        n_trials=2, pruner="none", progress_bar=False, trainer={"max_epochs": 4, "accelerator": "cpu"}, **more,
    )  # fmt: skip


def test_a_killed_trial_goes_on_from_its_newest_checkpoint(tmp_path, cluster):
    whole = fragile(tmp_path / "whole", kill=False)
    found = fragile(tmp_path / "ray", kill=True, storage=str(tmp_path / "study.db"), backend="ray", n_jobs=2)
    starts = sorted(map(json.loads, (tmp_path / "ray/starts").read_text().splitlines()))
    assert starts[:2] == [[0.1, 0], [0.3, 0]] and len(starts) == 3
    assert starts[2][0] == 0.3 and starts[2][1] in (2, 4)  # two epochs, less at most the save in flight
    assert [t.value for t in found.study.finished()] == [t.value for t in whole.study.finished()]
    assert (found.settings["lr"], found.value, found.history) == (0.3, whole.value, whole.history)
    kept, alone = (torch.load(one.checkpoint, weights_only=True)["state_dict"]["w"] for one in (found, whole))
    assert torch.equal(kept, alone)


def test_trials_share_a_study(tmp_path, cluster):
    best = run(
        {"lr": [0.4, 0.3, 0.35, 0.38, 1e-6]}, tmp_path / "trials", sampler="grid", storage=str(tmp_path / "study.db"),
        backend="ray", n_jobs=1,
    )  # fmt: skip
    assert [trial.state.name for trial in best.study.finished()] == ["COMPLETE"] * 4 + ["PRUNED"]
    assert best.settings == {"lr": 0.4}
    assert os.path.exists(best.checkpoint)
    last = best.study.finished()[-1]
    assert len(last.user_attrs["history"]) == len(last.intermediate_values) < 3


def test_an_error_ends_the_search_and_the_study_goes_on(tmp_path, cluster):
    class Faulty(Line):
        def on_train_start(self) -> None:
            if self.lr == 0.2 and not (tmp_path / "mended").exists():
                raise ValueError("what is wrong")

    grid = {"lr": [0.1, 0.2, 0.3]}
    settings = {
        "train_dataloaders": loader, "val_dataloaders": loader, "output_dir": tmp_path / "trials", "sampler": "grid",
        "storage": str(tmp_path / "study.db"), "backend": "ray", "trainer": {"max_epochs": 1, "accelerator": "cpu"},
        "progress_bar": False,
    }  # fmt: skip
    with pytest.raises(RuntimeError, match=r"Trial 1 failed(.|\n)*what is wrong"):
        search(Faulty, grid, n_trials=3, **settings)
    (tmp_path / "mended").touch()
    best = search(Faulty, grid, n_trials=3, **settings)
    assert [trial.user_attrs["settings"]["lr"] for trial in best.study.finished()] == [0.1, 0.2, 0.3]
    assert (tmp_path / "trials/trial-0/best.ckpt").stat().st_mtime < (tmp_path / "mended").stat().st_mtime


def test_the_second_door_on_ray(tmp_path, cluster):
    import bolide.transformers as door
    from tests.transformers.test_search import loss, space, trainer

    class Kills(door.TrainerCallback):
        """Kills the process of one trial, once."""

        def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step > 0 and not (tmp_path / "killed").exists():
                (tmp_path / "killed").touch()
                os.kill(os.getpid(), signal.SIGKILL)

        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            with open(tmp_path / "starts", "a", encoding="utf-8") as file:
                file.write(f"{state.global_step}\n")

    alone = trainer(tmp_path / "a").hyperparameter_search(space, loss, n_trials=2, pruner="none")
    best = trainer(tmp_path / "b", callbacks=[Kills()]).hyperparameter_search(
        space, loss, n_trials=2, pruner="none", backend="ray", storage=str(tmp_path / "study.db")
    )
    starts = [int(line) for line in (tmp_path / "starts").read_text().split()]
    assert len(starts) == 3 and starts.count(0) == 2 and max(starts) in (3, 6)  # the end of the first epoch
    assert (best.run_id, best.hyperparameters) == (alone.run_id, alone.hyperparameters)
    assert best.objective == pytest.approx(alone.objective, abs=1e-6)
    assert os.path.isdir(best.checkpoint)

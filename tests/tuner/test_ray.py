"""A search on Ray: trials as tasks, one study, bad trials given up; for both doors."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.tuner.test_search import run

ray = pytest.importorskip("ray")
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def cluster() -> Any:
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "src")])  # tasks import these tests, too
    ray.init(include_dashboard=False, log_to_driver=False, num_cpus=2)
    yield
    ray.shutdown()
    if before is None:
        del os.environ["PYTHONPATH"]
    else:
        os.environ["PYTHONPATH"] = before


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_tasks_share_a_study(tmp_path, cluster):
    best = run(
        {"lr": [0.4, 0.3, 0.35, 0.38, 1e-6]}, tmp_path / "trials", sampler="grid", storage=str(tmp_path / "study.db"),
        backend="ray", n_jobs=1,
    )  # fmt: skip
    assert [trial.state.name for trial in best.study.finished()] == ["COMPLETE"] * 4 + ["PRUNED"]
    assert best.settings == {"lr": 0.4}
    assert os.path.exists(best.checkpoint)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_second_door_on_ray(tmp_path, cluster):
    from tests.transformers.test_search import loss, space, trainer

    alone = trainer(tmp_path / "a").hyperparameter_search(space, loss, n_trials=3, pruner="none")
    best = trainer(tmp_path / "b").hyperparameter_search(
        space, loss, n_trials=3, pruner="none", backend="ray", storage=str(tmp_path / "study.db")
    )
    assert (best.run_id, best.hyperparameters) == (alone.run_id, alone.hyperparameters)
    assert best.objective == pytest.approx(alone.objective, abs=1e-6)
    assert os.path.isdir(best.checkpoint)

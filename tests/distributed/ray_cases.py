"""`fit` and `run` on a local Ray: what comes back, what an error says. Run by test_ray in a process of its own."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

import bolide as pl
from bolide.core.errors import ConfigError
from bolide.launch import ray as on_ray
from bolide.launch.processes import RankError
from tests.distributed.support import Net, batches, trainer

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: Any) -> Any:
    """One Ray for the tests below, whose workers find these tests."""
    import ray

    root = Path(__file__).parents[2]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(root), str(root / "src")]))
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.chdir(tmp_path_factory.mktemp("ray"))
        ray.init(address="local", num_cpus=2, include_dashboard=False, logging_level="WARNING")
        try:
            yield ray
        finally:
            ray.shutdown()


class Logged(Net):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self.loss(batch)
        self.log("loss", loss, on_step=False, on_epoch=True, sync_dist=True)
        return loss


def test_fit_brings_weights_metrics_and_the_checkpoint_back(cluster: Any, tmp_path: Path) -> None:
    module = Logged()
    quiet = {"accelerator": "cpu", "max_epochs": 2, "enable_progress_bar": False, "enable_model_summary": False,
             "num_sanity_val_steps": 0}  # fmt: skip
    done = on_ray.fit(
        module, lambda: batches(32, 4), trainer=quiet, num_workers=2, cpus_per_worker=0.5,
        storage_path=tmp_path / "runs", name="one",
    )  # fmt: skip
    alone = Logged()
    one = trainer(1)
    one.fit(alone, batches(32, 8))
    assert torch.allclose(module.weights, alone.weights, atol=1e-6)
    assert done.metrics["loss"] == pytest.approx(float(one.callback_metrics["loss"]), abs=1e-6)
    assert (done.global_step, done.restarts) == (8, 0)
    assert done.checkpoint is not None and done.checkpoint.startswith(str(tmp_path / "runs/one"))
    kept = torch.load(done.checkpoint, weights_only=True)["state_dict"]
    assert all(torch.equal(kept[name], value) for name, value in module.state_dict().items())
    with pytest.raises(ConfigError, match="address"):
        on_ray.run(print, address="auto")


def test_an_error_names_its_rank(cluster: Any) -> None:
    def train() -> None:
        if pl.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False).global_rank == 0:
            raise ValueError("what is wrong")

    with pytest.raises(RankError, match="what is wrong") as told:
        on_ray.run(train, num_workers=1, cpus_per_worker=0.5)
    assert told.value.rank == 0

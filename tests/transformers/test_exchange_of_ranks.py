"""Checkpoints of two processes go both ways between transformers and Bolide: weights, place in the data, randomness."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import bolide.transformers as door
from bolide.core.errors import CheckpointError
from tests.distributed.support import run_script
from tests.transformers.models import Net, points
from tests.transformers.scripts import arguments

pytest.importorskip("transformers")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SCRIPT = """
package, out, windows, resume = sys.argv[1:]
if package == "transformers":
    import transformers as door
else:
    import bolide.transformers as door
from tests.transformers.models import Net, points
from tests.transformers.scripts import arguments

class Draws(door.TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        torch.rand(3)

args = arguments(door, out, per_device_train_batch_size=2, save_strategy="steps", save_steps=4, num_train_epochs=4,
    gradient_accumulation_steps=int(windows), max_steps=12)
trainer = door.Trainer(Net(0.0), args, train_dataset=points(), callbacks=[Draws()])
torch.rand(1 + args.process_index)
trainer.train(resume_from_checkpoint=resume if resume != "-" else None)
losses = [line["loss"] for line in trainer.state.log_history if "loss" in line]
end = {"weights": trainer.model.state_dict(), "random": torch.get_rng_state(), "losses": losses}
torch.save(end, f"{out}/end{args.process_index}.pt")
"""
LAUNCHER = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


def ends(folder: Path, package: str, windows: int, resume: Path | None = None) -> list[dict[str, Any]]:
    """What both processes ended with."""
    folder.mkdir()
    result = run_script(folder, SCRIPT, package, "out", str(windows), str(resume or "-"), launcher=LAUNCHER,
                        timeout_s=240)  # fmt: skip
    assert result.returncode == 0, result.stderr[-3000:]
    return [torch.load(folder / f"out/end{rank}.pt", weights_only=True) for rank in range(2)]


@pytest.mark.parametrize("windows", [1, 2])
def test_each_goes_on_from_the_other(tmp_path, windows):
    """Within an epoch (step 4): the same weights and losses, and each process draws on from its own random state."""
    whole = {package: ends(tmp_path / package, package, windows) for package in ("transformers", "bolide")}
    for package, other in (("bolide", "transformers"), ("transformers", "bolide")):
        again = ends(tmp_path / f"{package} on", package, windows, tmp_path / other / "out" / "checkpoint-4")
        assert not torch.equal(again[0]["random"], again[1]["random"])
        for mine, theirs in zip(again, whole[other], strict=True):
            assert torch.equal(mine["random"], theirs["random"])
            assert mine["losses"] == pytest.approx(theirs["losses"], abs=1e-6)
            for name, value in theirs["weights"].items():
                torch.testing.assert_close(mine["weights"][name], value, atol=1e-6, rtol=0)


def test_another_number_of_processes_is_refused(tmp_path):
    ends(tmp_path / "two", "transformers", 1)
    trainer = door.Trainer(Net(), arguments(door, str(tmp_path / "one")), train_dataset=points())
    with pytest.raises(CheckpointError, match="saved by 2 process"):
        trainer.train(resume_from_checkpoint=str(tmp_path / "two" / "out" / "checkpoint-4"))

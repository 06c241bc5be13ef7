"""What a training takes, told before it is started, beside what it takes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import bolide as pl
from bolide.core.errors import ConfigError
from bolide.strategies.estimate import memory_of
from tests.distributed.support import Net, batches, bytes_held, run_script, trainer


class Adam(Net):
    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=0.01)


class Weighing(pl.Callback):
    def on_before_optimizer_step(self, trainer: Any, module: Any, optimizer: Any) -> None:
        self.seen = bytes_held(module, trainer.optimizers)


@pytest.mark.parametrize("kind", [Net, Adam])
def test_the_bytes_are_those_of_a_step(kind: type[Net]) -> None:
    weighing, loader = Weighing(), batches(32, 8)
    trainer(1, callbacks=[weighing]).fit(kind(), loader)
    found = pl.estimate(kind(), next(iter(loader)), devices=[1, 4])
    single = found.rows[0]
    for name in ("parameters", "gradients", "optimizer"):
        assert getattr(single, name) == weighing.seen[name], name
    # of the batch: its input (for the first layer's weight), tanh's output, and the error, no more than some copies
    assert single.activations is not None and 8 * 4 * 4 <= single.activations <= 8 * 4 * (4 + 8 + 8 + 4)
    zero = {row.strategy: row for row in found.rows if row.strategy.startswith("deepspeed")}
    assert zero["deepspeed_stage_1"].gradients == single.gradients > 3 * zero["deepspeed_stage_2"].gradients
    assert zero["deepspeed_stage_2"].parameters == single.parameters > 3 * zero["deepspeed_stage_3"].parameters
    sharded = next(row for row in found.rows if row.strategy == "fsdp, by layer")
    for name in ("parameters", "gradients", "optimizer"):
        assert getattr(sharded, name) <= 0.3 * getattr(single, name) + 4


def test_nothing_of_the_module_is_changed_and_what_is_unknown_is_said() -> None:
    module = Net()
    before = module.weights
    text = str(pl.estimate(module, devices=[2], memory="500B"))
    assert torch.equal(before, module.weights) and all(p.grad is None for p in module.parameters())
    assert "Activations are unknown: give a batch." in text and " no" in text and "A device has 500 B" in text

    class Branching(Net):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return self.loss(batch) if float(batch[0].sum()) > 0 else self.loss(batch) * 2

    assert "cannot be traced" in str(pl.estimate(Branching(), next(iter(batches(8, 4)))))
    assert pl.estimate(nn.Linear(3, 3)).rows[0].optimizer == 2 * 12 * 4
    assert memory_of("80GB") == 80 * 10**9 and memory_of("1.5 GiB") == 3 * 2**29 and memory_of(7) == 7
    for wrong in ("much", "3 cows"):
        with pytest.raises(ConfigError, match="memory="):
            memory_of(wrong)
    with pytest.raises(ConfigError, match="devices="):
        pl.estimate(module, devices=[0])


def test_the_command_prints_the_table_of_a_script_and_trains_nothing(tmp_path: Path) -> None:
    body = """
    trainer(1).fit(Net(), batches(32, 8))
    print("trained")
    """
    command = [sys.executable, "-m", "bolide.cli.main", "estimate", "--devices", "1,4", "--memory", "24GB"]
    done = run_script(tmp_path, body, launcher=command)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "single device" in done.stdout and "fsdp, by layer" in done.stdout and "A device has 24.00 GB" in done.stdout
    assert "trained" not in done.stdout

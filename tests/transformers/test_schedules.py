"""Every schedule by name gives transformers' rates, and goes on from its state."""

from __future__ import annotations

import pytest
import torch

from bolide.core.errors import ConfigError
from bolide.transformers import get_scheduler
from bolide.transformers.optimizers import decaying

theirs = pytest.importorskip("transformers")

CASES = [
    ("linear", {}), ("cosine", {}), ("cosine", {"num_cycles": 1.5}), ("cosine_with_restarts", {"num_cycles": 3}),
    ("polynomial", {"lr_end": 1e-4, "power": 2.0}), ("constant", {}), ("constant_with_warmup", {}),
    ("inverse_sqrt", {}), ("inverse_sqrt", {"timescale": 5}), ("cosine_with_min_lr", {"min_lr": 1e-3}),
    ("cosine_with_min_lr", {"min_lr_rate": 0.2}), ("cosine_warmup_with_min_lr", {"min_lr": 1e-3}),
    ("cosine_warmup_with_min_lr", {"min_lr_rate": 0.1, "warmup_lr_rate": 0.3}),
    ("warmup_stable_decay", {"num_decay_steps": 6}),
    ("warmup_stable_decay", {"num_decay_steps": 6, "min_lr_ratio": 0.1, "decay_type": "linear"}),
    ("warmup_stable_decay", {"num_decay_steps": 6, "decay_type": "1-sqrt", "warmup_type": "cosine"}),
]  # fmt: skip


def rates(make, name, options, warmup, total=20):
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    schedule = make(name, optimizer, warmup, total, scheduler_specific_kwargs=options)
    found = []
    for _ in range(total + 3):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return found, schedule.state_dict()


@pytest.mark.parametrize("warmup", [0, 4])
@pytest.mark.parametrize(("name", "options"), CASES)
def test_the_rates(name, options, warmup):
    expected, their_state = rates(theirs.get_scheduler, name, dict(options), warmup)
    found, state = rates(get_scheduler, name, dict(options), warmup)
    assert found == pytest.approx(expected, rel=1e-12, abs=1e-15)
    assert state["last_epoch"] == their_state["last_epoch"]
    assert set(their_state) <= {*state, "lr_lambdas"}


def test_arguments_that_a_schedule_does_not_take():
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    for name, options, text in (
        ("linear", {"num_cycles": 2}, "num_cycles"),
        ("cosine_with_min_lr", {}, "min_lr"),
        ("lineer", {}, "Did you mean 'linear'"),
        ("polynomial", {"lr_end": 1.0}, "lr_end"),
    ):
        with pytest.raises(ConfigError, match=text):
            get_scheduler(name, optimizer, 0, 10, options)


def test_warmup_as_long_as_all_steps():
    """Where the original divides by zero."""
    for name in ("linear", "cosine", "polynomial"):
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
        schedule = get_scheduler(name, optimizer, 4, 4)
        rates = []
        for _ in range(4):
            optimizer.step()
            schedule.step()
            rates.append(optimizer.param_groups[0]["lr"])
        assert rates[:3] == pytest.approx([0.025, 0.05, 0.075]) and 0 <= rates[3] <= 0.1


def test_which_parameters_decay(tmp_path):
    class RMSNorm(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(2))

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(2, 2)
            self.ln = torch.nn.LayerNorm(2)
            self.norm = RMSNorm()
            self.final_norm = RMSNorm()
            self.normal = torch.nn.Linear(2, 2)
            self.rmsnorm_1 = RMSNorm()
            self.embed = torch.nn.Embedding(2, 2)
            self.batch = torch.nn.BatchNorm1d(2)
            self.scale = torch.nn.Parameter(torch.ones(1))

        def forward(self, x):
            return x

    args = theirs.TrainingArguments(str(tmp_path), use_cpu=True)
    expected = theirs.Trainer(Net(), args).get_decay_parameter_names(Net())
    assert sorted(decaying(Net())) == sorted(expected)

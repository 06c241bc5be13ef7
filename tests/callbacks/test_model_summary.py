import logging

import pytest
import torch

from bolide.callbacks import LambdaCallback, ModelSummary, RichModelSummary
from tests.callbacks.support import Scored, fit


class WithExample(Scored):
    def __init__(self, example=None):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Dropout(0.5))
        self.example_input_array = torch.ones(2, 3) if example is None else example

    def forward(self, x):
        return self.net(x)


def test_the_table_is_said_at_the_start(caplog):
    with caplog.at_level(logging.INFO, logger="bolide"):
        fit(ModelSummary(max_depth=2), module=WithExample(), max_epochs=1, enable_model_summary=True)
    table = next(r.getMessage() for r in caplog.records if "Total params" in r.getMessage())
    assert "net.0" in table and "[2, 3]" in table


def test_depth_zero_says_nothing(caplog):
    with caplog.at_level(logging.INFO, logger="bolide"):
        fit(ModelSummary(max_depth=0), max_epochs=1, enable_model_summary=True)
    assert not any("Total params" in r.getMessage() for r in caplog.records)


def test_rich_prints_a_table(capsys):
    fit(RichModelSummary(max_depth=2), module=WithExample(), max_epochs=1, enable_model_summary=True)
    printed = capsys.readouterr().out
    assert "net.0" in printed and "Trainable params: 17" in printed


def test_an_own_form():
    class Own(ModelSummary):
        @staticmethod
        def summarize(summary_data, total_parameters, *args, **kwargs):
            found.append((dict(summary_data)["Name"], total_parameters))

    found = []
    fit(Own(), module=WithExample(), max_epochs=1, enable_model_summary=True)
    assert found == [(["net", "other params"], 17)]


def test_the_summary_moves_neither_the_random_state_nor_the_modes():
    module = WithExample()
    module.net.eval()
    seen = []
    watch = LambdaCallback(on_fit_start=lambda *_: seen.append((torch.get_rng_state(), module.net.training)))
    torch.manual_seed(3)
    before = torch.get_rng_state()
    fit(ModelSummary(), watch, module=module, max_epochs=1, enable_model_summary=True)
    assert torch.equal(seen[0][0], before) and seen[0][1] is False


def test_the_example_runs_in_the_precision_of_the_trainer():
    module = WithExample()
    seen = []
    module.net.register_forward_hook(lambda m, inputs, output: seen.append(output.dtype))
    fit(ModelSummary(), module=module, max_epochs=1, enable_model_summary=True, precision="bf16-true")
    fit(ModelSummary(), module=WithExample(), max_epochs=1, enable_model_summary=True, precision="64-true")
    assert seen[0] is torch.bfloat16


def test_an_example_that_does_not_fit_says_so():
    with pytest.raises(RuntimeError, match="example_input_array"):
        fit(ModelSummary(), module=WithExample(torch.ones(2, 5)), max_epochs=1, enable_model_summary=True)

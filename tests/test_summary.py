import pytest
import torch
from torch import nn

from bolide.core.errors import ConfigError
from bolide.summary import (
    LayerSummary,
    ModelSummary,
    get_formatted_model_size,
    get_human_readable_count,
    parse_batch_shape,
    summarize,
)


class Net(nn.Module):
    def __init__(self, example=None):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4), nn.ReLU())
        self.head = nn.Linear(4, 2)
        self.example_input_array = example

    def forward(self, x, y=None):
        return self.head(self.net(x if y is None else x + y))


def test_direct_children():
    summary = summarize(Net())
    assert summary.layer_names == ["net", "head"]
    assert summary.layer_types == ["Sequential", "Linear"]
    assert summary.param_nums == [44, 10]
    assert summary.in_sizes == summary.out_sizes == ["?", "?"]
    assert (summary.total_parameters, summary.trainable_parameters, summary.total_layer_params) == (54, 54, 54)
    assert summary.model_size == pytest.approx(54 * 4 / 1e6)
    assert summary.total_training_modes == {"train": 5, "eval": 0} and summary.total_flops == 0


@pytest.mark.parametrize(("depth", "count"), [(0, 0), (1, 2), (2, 5), (-1, 5)])
def test_depth(depth, count):
    assert len(ModelSummary(Net(), max_depth=depth).layer_names) == count


def test_frozen_parameters_and_modes():
    model = Net()
    model.head.requires_grad_(False)
    model.net.eval()
    summary = summarize(model)
    assert (summary.total_parameters, summary.trainable_parameters) == (54, 44)
    assert summary.training_modes == [False, True] and summary.total_training_modes == {"train": 1, "eval": 4}


def test_half_precision_counts_two_bytes():
    assert summarize(Net().half()).model_size == pytest.approx(54 * 2 / 1e6)


@pytest.mark.parametrize(
    "example", [torch.rand(3, 8), (torch.rand(3, 8), torch.rand(3, 8)), {"x": torch.rand(3, 8), "y": torch.rand(3, 8)}]
)
def test_shapes_and_flops_from_the_example(example):
    model = Net(example)
    running = model.net[1].running_mean.clone()
    summary = summarize(model, max_depth=-1)
    assert summary.in_sizes == [[3, 8], [3, 8], [3, 4], [3, 4], [3, 4]]
    assert summary.out_sizes == [[3, 4], [3, 4], [3, 4], [3, 4], [3, 2]]
    assert summary.total_flops == 2 * 3 * (8 * 4 + 4 * 2)
    assert model.training and torch.equal(model.net[1].running_mean, running)
    assert not any(module._forward_hooks for module in model.modules())


def test_parameters_of_the_model_itself_have_a_row():
    model = Net()
    model.extra = nn.Parameter(torch.zeros(3, 3))
    text = str(summarize(model))
    assert "other params" in text and summarize(model).total_parameters == 63


def test_lazy_layers_are_said():
    model = nn.Sequential(nn.LazyLinear(3))
    with pytest.warns(UserWarning, match="lazy"):
        assert summarize(model).total_parameters == 0


def test_an_empty_model():
    summary = summarize(nn.Identity())
    assert summary.layer_names == [] and "Total params" in str(summary)


@pytest.mark.parametrize("depth", [-2, "x", 1.5])
def test_a_wrong_depth_is_refused(depth):
    with pytest.raises(ConfigError, match="max_depth"):
        ModelSummary(Net(), max_depth=depth)


def test_a_layer_watches_one_pass():
    layer = LayerSummary(nn.LSTM(3, 4))
    layer._module(torch.zeros(2, 5, 3))
    assert layer.in_size == [2, 5, 3] and layer.out_size == [[2, 5, 4], [[1, 5, 4], [1, 5, 4]]]
    assert layer.layer_type == "LSTM" and layer.num_parameters == 144


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0  "), (999, "999  "), (1234, "1.2 K"), (12345, "12.3 K"), (123456, "123 K"), (2 * 10**6, "2.0 M"),
     (3 * 10**9, "3.0 B"), (4 * 10**14, "400 T"), (5 * 10**15, "5,000 T")],
)  # fmt: skip
def test_counts_are_short(number, text):
    assert get_human_readable_count(number) == text


def test_sizes_and_shapes():
    assert get_formatted_model_size(1234.5) == "1,234.500"
    assert parse_batch_shape([torch.zeros(2, 3), [torch.zeros(1)], 5]) == [[2, 3], [[1]], "?"]


@pytest.mark.parametrize("depth", [0, 1, 2, -1])
def test_the_numbers_are_lightnings(depth):
    pl = pytest.importorskip("lightning.pytorch")
    from lightning.pytorch.utilities.model_summary import summarize as theirs

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 4))
            self.frozen = nn.Linear(4, 4).requires_grad_(False)
            self.example_input_array = torch.rand(2, 1, 4, 4)

        def forward(self, x):
            return self.frozen(self.net(x))

    module = Module()
    module.frozen.eval()
    ours, peers = summarize(module, depth), theirs(module, depth)
    for name in (
        "layer_names", "layer_types", "param_nums", "in_sizes", "out_sizes", "total_parameters", "trainable_parameters",
        "total_layer_params", "training_modes", "total_training_modes", "total_flops", "flop_counts",
    ):  # fmt: skip
        assert getattr(ours, name) == getattr(peers, name), name
    assert ours.model_size == pytest.approx(peers.model_size)

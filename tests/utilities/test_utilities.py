"""The small tools under Lightning's names."""

from __future__ import annotations

import argparse
import inspect
import logging
import operator
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import bolide as pl
from bolide.core.errors import CheckpointError, ConfigError, MisconfigurationException, UserCodeError
from bolide.core.messages import PossibleUserWarning, said, warn
from bolide.demos.boring_classes import BoringModel, RandomDataset, RandomIterableDataset
from bolide.utilities import apply_func, data, imports, memory, model_helpers, parsing, saving
from bolide.utilities.compile import from_compiled, to_uncompiled
from bolide.utilities.enums import GradClipAlgorithmType, LightningEnum
from bolide.utilities.grads import grad_norm
from bolide.utilities.model_summary import measure_flops
from bolide.utilities.rank_zero import (
    LightningDeprecationWarning,
    rank_zero_debug,
    rank_zero_deprecation,
    rank_zero_info,
    rank_zero_only,
    rank_zero_warn,
)
from bolide.utilities.warnings import disable_possible_user_warnings

# ---- gradients and operations


@pytest.fixture
def module():
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    module(torch.ones(1, 2)).sum().backward()
    return module


@pytest.mark.parametrize("order", [1, 2, 2.0, "inf", 3])
def test_grad_norm(module, order):
    norms = grad_norm(module, order)
    order = float(order)
    flat = torch.cat([parameter.grad.flatten() for parameter in module.parameters()])
    assert torch.allclose(norms.pop(f"grad_{order}_norm_total"), flat.norm(order))
    assert set(norms) == {f"grad_{order}_norm/{i}.{kind}" for i in (0, 1) for kind in ("weight", "bias")}
    assert torch.equal(norms[f"grad_{order}_norm/0.weight"], module[0].weight.grad.norm(order))


def test_grad_norm_without_gradients_and_with_a_wrong_norm(module):
    module.zero_grad()
    assert grad_norm(module, 2) == {}
    with pytest.raises(ConfigError, match="above zero"):
        grad_norm(module, 0)
    module(torch.ones(1, 2)).sum().backward()
    assert "grad_2.0_norm.0.bias" in grad_norm(module, 2, group_separator=".")


def test_measure_flops():
    with torch.device("meta"):
        model, x = nn.Linear(8, 4), torch.randn(3, 8)
    forward = measure_flops(model, lambda: model(x))
    assert forward == 2 * 3 * 8 * 4
    assert measure_flops(model, lambda: model(x), torch.sum) > forward


# ---- saying things


def test_rank_zero_only(monkeypatch):
    @rank_zero_only
    def told(x):
        """Says it."""
        return x

    other = rank_zero_only(lambda: 1, default=0)
    assert (told(3), other(), told.__doc__, rank_zero_only.rank) == (3, 1, "Says it.", 0)
    monkeypatch.setenv("RANK", "2")
    assert (told(3), other(), rank_zero_only.rank) == (None, 0, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rank_zero_warn("not here")


def test_rank_zero_messages(caplog):
    with caplog.at_level(logging.DEBUG, logger="bolide"):
        rank_zero_info("one %d", 1)
        rank_zero_info("100%")
        rank_zero_debug("two %d", 2)
    assert [record.getMessage() for record in caplog.records] == ["one 1", "100%", "two 2"]


def test_warnings_point_at_the_caller():
    here = inspect.currentframe()
    with pytest.warns(UserWarning, match="careful") as told:
        rank_zero_warn("careful")
    assert told[0].filename == here.f_code.co_filename
    assert told[0].lineno == here.f_lineno - 2
    with pytest.warns(LightningDeprecationWarning, match="goes"):
        rank_zero_deprecation("goes")
    with pytest.warns(FutureWarning, match="later"):
        rank_zero_warn(FutureWarning("later"))


def test_possible_user_warnings_can_be_silenced():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        disable_possible_user_warnings()
        warn("perhaps", PossibleUserWarning)
        with pytest.raises(UserWarning):
            warn("surely")


# ---- batches and loaders


class NoLength:
    def __iter__(self):
        yield 1


@pytest.fixture(autouse=True)
def _say_again():
    said.clear()
    yield
    said.clear()


@pytest.mark.parametrize(
    ("batch", "size"),
    [(torch.ones(3, 2), 3), ([torch.ones(3), torch.ones(3)], 3), ({"a": {"b": torch.ones(4)}}, 4),
     (["abc", torch.ones(5)], 5), (torch.tensor(1.0), 1)],
)  # fmt: skip
def test_batch_size(batch, size):
    assert data.extract_batch_size(batch) == size


def test_batch_size_that_is_not_clear():
    with pytest.warns(PossibleUserWarning, match="different first dimensions"):
        assert data.extract_batch_size({"a": torch.ones(2, 1), "b": torch.ones(5)}) == 2
    for batch in ([], None, [1, 2]):
        with pytest.raises(MisconfigurationException, match="batch_size="):
            data.extract_batch_size(batch)


def test_lengths():
    assert data.sized_len([1]) == 1
    assert data.sized_len(NoLength()) is None
    assert data.sized_len(DataLoader(RandomIterableDataset(2, 3))) is None
    assert data.has_len([1])
    assert data.has_len_all_ranks([1])
    assert not data.has_len(NoLength())
    with pytest.warns(UserWarning, match="list has the length 0"):
        assert data.has_len([])
    assert data.has_iterable_dataset(DataLoader(RandomIterableDataset(2, 3)))
    assert not data.has_iterable_dataset(DataLoader(RandomDataset(2, 3)))


def test_workers(monkeypatch):
    monkeypatch.setattr(data, "cpu_count", lambda: 8)
    assert [data.suggested_max_num_workers(n) for n in (1, 2, 4, 16)] == [7, 3, 1, 1]
    with pytest.raises(ConfigError, match="at least 1"):
        data.suggested_max_num_workers(0)


def test_moving_and_mapping():
    batch = {"a": [torch.ones(1), "x"], "b": (torch.ones(2), 3)}
    moved = apply_func.move_data_to_device(batch, "meta")
    assert moved["a"][0].device.type == moved["b"][0].device.type == "meta"
    assert (moved["a"][1], moved["b"][1]) == ("x", 3)
    doubled = apply_func.apply_to_collection(batch, int, lambda x, y: x * y, 2)
    assert doubled["b"][1] == 6
    assert apply_func.apply_to_collection([[1], [2, 3]], list, len) == 2


# ---- enumerations, packages, memory


class Colour(LightningEnum):
    RED = "red"
    DEEP_BLUE = "deep-blue"


def test_enumerations():
    assert Colour.RED == "Red"
    assert Colour.RED != "blue"
    assert Colour.RED != Colour.DEEP_BLUE
    assert {"red": 1}[Colour.RED] == 1
    assert str(Colour.RED) == "red"
    assert Colour.from_str("DEEP_BLUE") is Colour.from_str("deep-blue") is Colour.DEEP_BLUE
    assert Colour.try_from_str("green") is None
    with pytest.raises(ValueError, match="'green' is no Colour: expected one of 'red', 'deep-blue'"):
        Colour.from_str("green")
    assert GradClipAlgorithmType.supported_types() == ["value", "norm"]
    assert GradClipAlgorithmType.supported_type("norm")


def test_packages():
    assert imports.package_available("torch")
    assert not imports.package_available("no_such_package")
    assert imports.module_available("torch.nn")
    assert not imports.module_available("torch.no_such_module")
    assert not imports.module_available("no_such_package.module")
    assert imports.compare_version("torch", operator.ge, "2.0")
    assert not imports.compare_version("torch", operator.lt, "2.0")
    assert not imports.compare_version("no_such_package", operator.ge, "0")
    assert imports.RequirementCache("torch>=2.0")
    assert "met" in str(imports.RequirementCache("torch>=2.0"))
    too_old = imports.RequirementCache("torch>=99")
    assert not too_old
    assert "does not meet 'torch>=99'" in str(too_old)
    assert "pip install 'no_such_package>1'" in str(imports.RequirementCache("no_such_package>1"))
    assert imports.RequirementCache(module="torch.nn")
    assert imports.RequirementCache("no_such_package", module="torch.nn")
    with pytest.raises(ValueError, match="needs a requirement"):
        imports.RequirementCache()


@pytest.mark.parametrize(
    ("error", "out"),
    [
        (RuntimeError("CUDA out of memory. Tried to allocate"), True),
        (torch.cuda.OutOfMemoryError("any text"), True),
        (RuntimeError("cuDNN error: CUDNN_STATUS_NOT_SUPPORTED. This"), True),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), True),
        (RuntimeError("shape mismatch"), False),
        (ValueError("CUDA out of memory"), False),
    ],
)
def test_errors_of_memory(error, out):
    assert memory.is_oom_error(error) == out


def test_detaching():
    graph = torch.ones(1, requires_grad=True) * 2
    detached = memory.recursive_detach({"a": [graph, 1]}, to_cpu=True)
    assert not detached["a"][0].requires_grad
    assert detached["a"][1] == 1
    memory.garbage_collection_cuda()


def test_shared_parameters():
    class Tied(nn.Module):
        def __init__(self, tie):
            super().__init__()
            self.a, self.b, self.c = nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2)
            if tie:
                self.b.weight = self.a.weight

    groups = memory.find_shared_parameters(Tied(True))
    assert groups == [["a.weight", "b.weight"]]
    free = memory.set_shared_parameters(Tied(False), groups)
    assert free.b.weight is free.a.weight
    assert free.c.weight is not free.a.weight


def test_compiled_modules():
    module = BoringModel()
    compiled = torch.compile(module, backend="eager")
    assert from_compiled(compiled) is module
    assert to_uncompiled(compiled) is module
    assert to_uncompiled(module) is module
    with pytest.raises(UserCodeError, match="got BoringModel"):
        from_compiled(module)
    with pytest.raises(UserCodeError, match="got int"):
        to_uncompiled(3)


# ---- hooks and hyperparameters


def test_is_overridden():
    class Model(pl.LightningModule):
        def training_step(self, batch, batch_idx):
            pass

    model = Model()
    assert model_helpers.is_overridden("training_step", model)
    assert not model_helpers.is_overridden("validation_step", model)
    assert not model_helpers.is_overridden("configure_optimizers", model)
    assert not model_helpers.is_overridden("training_step", None)
    assert model_helpers.is_overridden("training_step", BoringModel(), parent=pl.LightningModule)
    model.validation_step = lambda batch, batch_idx: None
    assert model_helpers.is_overridden("validation_step", model)
    with pytest.raises(ValueError, match="expected a LightningModule"):
        model_helpers.is_overridden("forward", nn.Linear(1, 1))
    with pytest.raises(ValueError, match="no method 'never'"):
        model.never = print
        model_helpers.is_overridden("never", model)


class Tuned(BoringModel):
    def __init__(self, lr=0.1):
        super().__init__()
        self.save_hyperparameters()
        self.width = 3


def test_attributes_wherever_they_are():
    model = Tuned()
    assert parsing.lightning_hasattr(model, "lr")
    assert parsing.lightning_hasattr(model, "width")
    assert not parsing.lightning_hasattr(model, "depth")
    assert (parsing.lightning_getattr(model, "lr"), parsing.lightning_getattr(model, "width")) == (0.1, 3)
    parsing.lightning_setattr(model, "lr", 0.5)
    parsing.lightning_setattr(model, "width", 4)
    assert (model.hparams.lr, model.width) == (0.5, 4)
    for call in (parsing.lightning_getattr, lambda m, a: parsing.lightning_setattr(m, a, 1)):
        with pytest.raises(AttributeError, match=r"'widht' is neither.*Did you mean 'width'"):
            call(model, "widht")


def test_attributes_of_the_datamodule():
    class Data(pl.LightningDataModule):
        def __init__(self):
            super().__init__()
            self.batch_size = 4

        def train_dataloader(self):
            return DataLoader(RandomDataset(32, 8), batch_size=self.batch_size)

    found = []

    class Ask(pl.Callback):
        def on_train_start(self, trainer, pl_module):
            found.append(parsing.lightning_getattr(pl_module, "batch_size"))
            parsing.lightning_setattr(pl_module, "batch_size", 8)

    data_module = Data()
    pl.Trainer(
        max_steps=1, callbacks=[Ask()], logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, limit_val_batches=0, accelerator="cpu",
    ).fit(BoringModel(), datamodule=data_module)  # fmt: skip
    assert found == [4]
    assert data_module.batch_size == 8


def test_constructor_arguments():
    class Made:
        def __init__(self, a, *args, b=2, **kwargs):
            self.arguments = parsing.get_init_args(inspect.currentframe())

    assert Made(1, 5, c=3).arguments == {"a": 1, "b": 2, "c": 3}
    assert parsing.get_init_args(inspect.currentframe()) == {}
    assert parsing.parse_class_init_keys(Made) == ("self", "args", "kwargs")
    assert parsing.parse_class_init_keys(Tuned) == ("self", None, None)


def test_hyperparameters_in_files(tmp_path):
    path = tmp_path / "hparams.yaml"
    saving.save_hparams_to_yaml(path, {"lr": 0.1, "where": Path("p"), "sizes": (1, 2)})
    assert saving.load_hparams_from_yaml(path) == {"lr": 0.1, "where": "p", "sizes": [1, 2]}
    saving.save_hparams_to_yaml(path, argparse.Namespace(a=1))
    assert saving.load_hparams_from_yaml(path) == {"a": 1}
    with pytest.warns(UserWarning, match="api_key"):
        saving.save_hparams_to_yaml(path, {"api_key": "of-the-service"})
    assert saving.load_hparams_from_yaml(path) == {"api_key": "***"}
    (tmp_path / "h.csv").write_text("key,value\na,1\nb,text\n")
    assert saving.load_hparams_from_tags_csv(tmp_path / "h.csv") == {"a": 1, "b": "text"}
    with pytest.raises(CheckpointError, match="does not exist"):
        saving.save_hparams_to_yaml(tmp_path / "missing" / "h.yaml", {})


def test_file_systems(tmp_path):
    from bolide.utilities.cloud_io import get_filesystem

    assert get_filesystem(tmp_path).isdir(str(tmp_path))
    assert get_filesystem("memory://a").protocol == "memory"

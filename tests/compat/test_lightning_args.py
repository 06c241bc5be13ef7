"""Every row of the table of old Trainer arguments: accepted with one warning, or refused with what to write."""

from __future__ import annotations

import pytest

from bolide.compat.lightning_args import ROWS, TRAINER_ARGUMENTS, VALUE_ROWS, docs_table, translate, unknown_argument
from bolide.core.config import RunConfig
from bolide.core.errors import ConfigError

CALLBACK = object()

# argument, value, the new arguments, a part of the warning
ACCEPTED = [
    ("gpus", 4, {"accelerator": "gpu", "devices": 4}, 'accelerator="gpu", devices=4'),
    ("gpus", [0, 2], {"accelerator": "gpu", "devices": [0, 2]}, "devices=[0, 2]"),
    ("gpus", (1,), {"accelerator": "gpu", "devices": [1]}, "devices=[1]"),
    ("gpus", "0,1", {"accelerator": "gpu", "devices": "0,1"}, "devices='0,1'"),
    ("gpus", "3", {"accelerator": "gpu", "devices": 3}, "devices=3"),
    ("gpus", -1, {"accelerator": "gpu", "devices": -1}, "devices=-1"),
    ("gpus", "-1", {"accelerator": "gpu", "devices": -1}, "devices=-1"),
    ("gpus", 0, {"accelerator": "cpu"}, 'accelerator="cpu"'),
    ("gpus", [], {"accelerator": "cpu"}, 'accelerator="cpu"'),
    ("gpus", None, {}, "leave it out"),
    ("tpu_cores", None, {}, "leave it out"),
    ("ipus", None, {}, "leave it out"),
    ("hpus", 0, {}, "leave it out"),
    ("num_processes", 2, {"accelerator": "cpu", "devices": 2, "strategy": "ddp"}, 'strategy="ddp"'),
    ("num_processes", 1, {}, "leave it out"),
    ("auto_select_gpus", True, {}, "find_usable_cuda_devices"),
    ("distributed_backend", "ddp", {"strategy": "ddp"}, "strategy='ddp'"),
    ("distributed_backend", "ddp_cpu", {"accelerator": "cpu", "strategy": "ddp"}, 'accelerator="cpu"'),
    ("distributed_backend", None, {}, "leave it out"),
    ("amp_backend", "native", {}, "leave it out"),
    ("amp_level", "O2", {}, "apex"),
    ("resume_from_checkpoint", "a.ckpt", {"resume_from_checkpoint": "a.ckpt"}, "fit(model, ckpt_path='a.ckpt')"),
    ("resume_from_checkpoint", None, {}, "leave it out"),
    ("checkpoint_callback", True, {"enable_checkpointing": True}, "enable_checkpointing=True"),
    ("checkpoint_callback", False, {"enable_checkpointing": False}, "enable_checkpointing=False"),
    ("early_stop_callback", False, {}, "leave it out"),
    ("weights_save_path", None, {}, "leave it out"),
    ("weights_summary", "top", {"enable_model_summary": True}, "enable_model_summary=True"),
    ("weights_summary", None, {"enable_model_summary": False}, "enable_model_summary=False"),
    ("progress_bar_refresh_rate", 0, {"enable_progress_bar": False}, "enable_progress_bar=False"),
    ("progress_bar_refresh_rate", None, {}, "leave it out"),
    ("process_position", 0, {}, "leave it out"),
    ("auto_lr_find", False, {}, "leave it out"),
    ("auto_scale_batch_size", None, {}, "leave it out"),
    ("truncated_bptt_steps", None, {}, "leave it out"),
    ("reload_dataloaders_every_epoch", True, {"reload_dataloaders_every_n_epochs": 1}, "every_n_epochs=1"),
    ("reload_dataloaders_every_epoch", False, {"reload_dataloaders_every_n_epochs": 0}, "every_n_epochs=0"),
    ("replace_sampler_ddp", False, {"use_distributed_sampler": False}, "use_distributed_sampler=False"),
    ("multiple_trainloader_mode", "max_size_cycle", {}, "leave it out"),
    ("stochastic_weight_avg", False, {}, "leave it out"),
    ("track_grad_norm", -1, {}, "leave it out"),
    ("terminate_on_nan", True, {"detect_anomaly": True}, "detect_anomaly=True"),
    ("terminate_on_nan", False, {}, "leave it out"),
    ("log_gpu_memory", "all", {}, "DeviceStatsMonitor()"),
    ("gpu_metrics", True, {}, "DeviceStatsMonitor"),
    ("flush_logs_every_n_steps", 10, {}, "CSVLogger"),
    ("row_log_interval", 10, {"log_every_n_steps": 10}, "log_every_n_steps=10"),
    ("log_save_interval", 10, {}, "CSVLogger"),
    ("move_metrics_to_cpu", True, {}, "compute_on_cpu=True"),
    ("prepare_data_per_node", True, {}, "leave it out"),
    ("val_percent_check", 1, {"limit_val_batches": 1.0}, "limit_val_batches=1.0"),
    ("train_percent_check", 0.1, {"limit_train_batches": 0.1}, "limit_train_batches=0.1"),
    ("test_percent_check", 0.1, {"limit_test_batches": 0.1}, "limit_test_batches=0.1"),
    ("overfit_pct", 0.01, {"overfit_batches": 0.01}, "overfit_batches=0.01"),
    ("nb_gpu_nodes", 2, {"num_nodes": 2}, "num_nodes=2"),
    ("num_gpu_nodes", 1, {"num_nodes": 1}, "num_nodes=1"),
    ("max_nb_epochs", 3, {"max_epochs": 3}, "max_epochs=3"),
    ("min_nb_epochs", 1, {"min_epochs": 1}, "min_epochs=1"),
    ("nb_sanity_val_steps", 0, {"num_sanity_val_steps": 0}, "num_sanity_val_steps=0"),
    ("gradient_clip", 0.5, {"gradient_clip_val": 0.5}, "gradient_clip_val=0.5"),
    ("default_save_path", "x", {"default_root_dir": "x"}, "default_root_dir='x'"),
    ("show_progress_bar", 0, {"enable_progress_bar": False}, "enable_progress_bar=False"),
    ("use_amp", True, {"precision": "16-mixed"}, 'precision="16-mixed"'),
    ("use_amp", False, {}, "leave it out"),
    ("print_nan_grads", True, {"detect_anomaly": True}, "detect_anomaly=True"),
    ("automatic_optimization", True, {}, "leave it out"),
    ("enable_pl_optimizer", True, {}, "leave it out"),
    ("accelerator", "ddp", {"strategy": "ddp", "accelerator": "auto"}, "strategy='ddp'"),
    ("accelerator", "ddp_cpu", {"strategy": "ddp", "accelerator": "cpu"}, 'accelerator="cpu", strategy="ddp"'),
    ("strategy", "ddp_sharded", {"strategy": "fsdp"}, 'strategy="fsdp"'),
    ("strategy", "dp", {"strategy": "ddp"}, 'strategy="ddp"'),
    ("strategy", "fsdp_native", {"strategy": "fsdp"}, 'strategy="fsdp"'),
    ("plugins", "ddp_sharded", {"strategy": "fsdp", "plugins": None}, 'strategy="fsdp"'),
    ("plugins", ["ddp", CALLBACK], {"strategy": "ddp", "plugins": [CALLBACK]}, "strategy='ddp'"),
    ("precision", 16, {"precision": "16-mixed"}, 'precision="16-mixed"'),
    ("precision", "bf16", {"precision": "bf16-mixed"}, 'precision="bf16-mixed"'),
    ("max_steps", None, {"max_steps": -1}, "max_steps=-1"),
]

# argument, value, a part of the error
REFUSED = [
    ("tpu_cores", 8, "TPUs are not supported"),
    ("ipus", 4, "Graphcore"),
    ("hpus", 1, "Habana"),
    ("distributed_backend", "horovod", 'Write: strategy="ddp"'),
    ("amp_backend", "apex", 'Write: precision="16-mixed"'),
    ("auto_lr_find", True, "Tuner(trainer).lr_find(model)"),
    ("auto_scale_batch_size", "binsearch", "Tuner(trainer).scale_batch_size(model)"),
    ("truncated_bptt_steps", 5, "self.automatic_optimization = False"),
    ("multiple_trainloader_mode", "min_size", "CombinedLoader(loaders, mode='min_size')"),
    ("stochastic_weight_avg", True, "StochasticWeightAveraging(swa_lrs=1e-2)"),
    ("prepare_data_per_node", False, "self.prepare_data_per_node = False"),
    ("automatic_optimization", False, "self.automatic_optimization = False"),
    ("weights_summary", "some", "ModelSummary(max_depth=1)"),
    ("strategy", "ddp2", 'Write: strategy="ddp"'),
    ("strategy", "horovod", 'Write: strategy="ddp"'),
    ("strategy", "bagua", 'Write: strategy="ddp"'),
    ("strategy", "colossalai", 'strategy="fsdp"'),
    ("strategy", "hivemind", 'Write: strategy="ddp"'),
    ("strategy", "tpu_spawn", "TPUs are not supported"),
    ("strategy", "hpu_parallel", "Habana"),
    ("plugins", ["ddp", "dp"], "2 strategies among the plugins"),
]


def one(name, value):
    """The translation of one argument, wherever it belongs."""
    return translate({name: value}, {}) if name in ROWS else translate({}, {name: value})


@pytest.mark.parametrize(("name", "value", "new", "written"), ACCEPTED)
def test_accepted_with_one_warning(name, value, new, written):
    translated, problems, warnings, additions = one(name, value)
    assert translated == new
    assert problems == []
    assert additions == []
    (text,) = warnings
    assert text.startswith(f"Trainer({name}={value!r}) is an old spelling")
    assert written in text


@pytest.mark.parametrize(("name", "value", "advice"), REFUSED)
def test_refused_with_what_to_write(name, value, advice):
    _, problems, warnings, _ = one(name, value)
    assert warnings == []
    (text,) = problems
    assert text.startswith(f"Trainer({name}={value!r})")
    assert advice in text


# argument, value, the class of the callback, some of its attributes
CALLBACKS = [
    ("early_stop_callback", True, "EarlyStopping", {"monitor": "val_loss"}),
    ("weights_save_path", "somewhere", "ModelCheckpoint", {}),
    ("weights_summary", "full", "ModelSummary", {}),
    ("progress_bar_refresh_rate", 20, "TQDMProgressBar", {"refresh_rate": 20}),
    ("process_position", 2, "TQDMProgressBar", {"process_position": 2}),
    ("track_grad_norm", 2, "LambdaCallback", {}),
    ("accumulate_grad_batches", {0: 4}, "GradientAccumulationScheduler", {}),
]


@pytest.mark.parametrize(("name", "value", "kind", "attributes"), CALLBACKS)
def test_some_become_callbacks(name, value, kind, attributes):
    new, problems, warnings, (callback,) = one(name, value)
    assert type(callback).__name__ == kind
    for attribute, expected in attributes.items():
        assert getattr(callback, attribute) == expected
    assert problems == []
    assert len(warnings) == 1
    assert new == ({"accumulate_grad_batches": 1} if name == "accumulate_grad_batches" else {})


@pytest.mark.parametrize("name", ["checkpoint_callback", "early_stop_callback"])
def test_callbacks_given_as_arguments_are_added(name):
    assert one(name, CALLBACK)[3] == [CALLBACK]


def test_every_row_is_tried():
    tried = {name for name, *_ in (*ACCEPTED, *REFUSED, *CALLBACKS)}
    assert {*ROWS, *VALUE_ROWS} == tried


def test_no_row_is_an_argument_of_today():
    assert not set(ROWS) & set(TRAINER_ARGUMENTS)
    assert set(VALUE_ROWS) <= set(TRAINER_ARGUMENTS)
    assert set(TRAINER_ARGUMENTS) == set(RunConfig.__dataclass_fields__)


@pytest.mark.parametrize(
    ("name", "value"),
    [("accelerator", "gpu"), ("strategy", "ddp"), ("strategy", "fsdp"), ("strategy", None), ("plugins", None),
     ("plugins", [CALLBACK]), ("precision", "16-mixed"), ("precision", 32), ("accumulate_grad_batches", 4),
     ("max_steps", -1)],
)  # fmt: skip
def test_values_of_today_are_not_touched(name, value):
    assert translate({}, {name: value}) == ({}, [], [], [])


def test_a_tutorial_of_2021():
    new, problems, warnings, additions = translate(
        {"gpus": 4, "amp_level": "O2", "amp_backend": "native"}, {"precision": 16}
    )
    assert new == {"accelerator": "gpu", "devices": 4, "precision": "16-mixed"}
    assert problems == []
    assert additions == []
    assert len(warnings) == 4


def test_old_arguments_work_together():
    assert translate({"gpus": 2}, {"accelerator": "ddp"})[:2] == (
        {"accelerator": "gpu", "devices": 2, "strategy": "ddp"},
        [],
    )
    new, problems, _, _ = translate({"num_processes": 2}, {"accelerator": "ddp_cpu"})
    assert new == {"accelerator": "cpu", "devices": 2, "strategy": "ddp"}
    assert problems == []
    new, problems, _, _ = translate({"gpus": 1, "num_processes": 2}, {})
    assert new == {"accelerator": "gpu", "devices": 1}
    assert problems == []


def test_one_bar_of_two_arguments():
    _, _, warnings, (bar,) = translate({"progress_bar_refresh_rate": 5, "process_position": 1}, {})
    assert (bar.refresh_rate, bar.process_position) == (5, 1)
    assert len(warnings) == 2


def test_a_bar_or_checkpoint_of_the_users_own_stays():
    from bolide.callbacks import ModelCheckpoint, TQDMProgressBar

    _, problems, warnings, additions = translate({"progress_bar_refresh_rate": 5}, {"callbacks": TQDMProgressBar()})
    assert (problems, additions) == ([], [])
    assert "left as it is" in warnings[0]
    _, problems, _, additions = translate({"weights_save_path": "x"}, {"callbacks": [ModelCheckpoint()]})
    assert additions == []
    assert "ModelCheckpoint(..., dirpath='x')" in problems[0]


def test_contradictions_are_told():
    _, problems, _, _ = translate({"gpus": 2}, {"devices": 3})
    assert problems == ["Trainer(gpus=2) means devices=2, which contradicts devices=3: leave one of them out"]
    _, problems, _, _ = translate({"max_nb_epochs": 2}, {"max_epochs": 2})
    assert problems == []
    _, problems, _, _ = translate({"nb_gpu_nodes": 2, "num_gpu_nodes": 3}, {})
    assert "contradicts nb_gpu_nodes=2" in problems[0]


def test_a_strategy_object_among_the_plugins():
    from bolide.strategies import SingleDeviceStrategy

    strategy = SingleDeviceStrategy()
    new, _, (text,), _ = translate({}, {"plugins": [strategy]})
    assert new == {"strategy": strategy, "plugins": None}
    assert "strategy=" in text


def test_unknown_arguments_name_the_nearest():
    assert "Did you mean 'max_epochs'?" in unknown_argument("max_epoch")
    assert "Did you mean 'gpus'?" in unknown_argument("gpu")
    assert "Trainer has no argument 'xyzzy'." in unknown_argument("xyzzy")
    assert translate({"xyzzy": 1}, {})[1] == [unknown_argument("xyzzy")]


def test_the_table_for_the_documentation_has_every_row():
    lines = docs_table().splitlines()
    assert len(lines) == 2 + len(ROWS) + len(VALUE_ROWS)
    assert all(line.count("|") == 4 for line in lines)
    assert any(line.startswith('| `gpus=` | `accelerator="gpu", devices=N` | accepted') for line in lines)


def test_old_arguments_of_methods_warn_and_work() -> None:
    from tests.fixtures import OneWeight, loader, trainer

    class Counting(OneWeight):
        def test_step(self, batch, batch_idx):
            self.log("n", 1.0)

        def validation_step(self, batch, batch_idx):
            self.log("v", 1.0)

    fit = trainer(max_epochs=1)
    with pytest.warns(FutureWarning, match="write train_dataloaders="):
        fit.fit(Counting(), train_dataloader=loader(3), val_dataloaders=loader(1))
    assert fit.global_step == 3
    with pytest.warns(FutureWarning, match="write dataloaders="):
        assert fit.validate(Counting(), val_dataloaders=loader(2), verbose=False) == [{"v": 1.0}]
    with pytest.warns(FutureWarning, match="write dataloaders="):
        assert fit.test(Counting(), test_dataloaders=loader(2), verbose=False) == [{"n": 1.0}]
    with pytest.raises(ConfigError, match="given, too"):
        fit.fit(Counting(), loader(3), train_dataloader=loader(3))
    with pytest.raises(TypeError, match="no argument 'train_loader'. Did you mean 'train_dataloaders'"):
        fit.fit(Counting(), train_loader=loader(3))

from __future__ import annotations

from typing import Any

import pytest

import bolide as pl
from bolide.core.config import COMPATS, Compat, Resilience, RunConfig, filled, problems
from bolide.core.errors import ConfigError


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"max_epochs": -2}, "max_epochs"),
        ({"max_epochs": 1.5}, "max_epochs"),
        ({"max_steps": -2}, "max_steps"),
        ({"min_epochs": -1}, "min_epochs"),
        ({"limit_train_batches": 1.5}, "limit_train_batches"),
        ({"limit_val_batches": -1}, "limit_val_batches"),
        ({"overfit_batches": -0.1}, "overfit_batches"),
        ({"val_check_interval": 2.0}, "val_check_interval"),
        ({"val_check_interval": "5 parsecs"}, "val_check_interval"),
        ({"val_check_interval": 0.5, "check_val_every_n_epoch": None}, "check_val_every_n_epoch"),
        ({"check_val_every_n_epoch": 0}, "check_val_every_n_epoch"),
        ({"num_sanity_val_steps": -2}, "num_sanity_val_steps"),
        ({"log_every_n_steps": -1}, "log_every_n_steps"),
        ({"accumulate_grad_batches": 0}, "accumulate_grad_batches"),
        ({"accumulate_grad_batches": 2.0}, "accumulate_grad_batches"),
        ({"gradient_clip_val": "1"}, "gradient_clip_val"),
        ({"gradient_clip_algorithm": "l2"}, "gradient_clip_algorithm"),
        ({"precision": "bf17"}, "precision"),
        ({"precision": "transformer-engine"}, "precision"),
        ({"max_time": "five"}, "max_time"),
        ({"deterministic": "always"}, "deterministic"),
        ({"compat": "keras"}, "compat"),
        ({"fast_dev_run": -1}, "fast_dev_run"),
        ({"reload_dataloaders_every_n_epochs": -1}, "reload_dataloaders_every_n_epochs"),
        ({"profiler": "simple"}, "profiler"),
        ({"model_registry": "x"}, "model_registry"),
        ({"num_nodes": 0}, "num_nodes"),
        ({"resilience": Resilience(max_restarts=-1)}, "max_restarts"),
        ({"resilience": Resilience(hang_timeout_s=0)}, "hang_timeout_s"),
        ({"barebones": True, "fast_dev_run": True}, "fast_dev_run"),
        ({"barebones": True, "detect_anomaly": True}, "detect_anomaly"),
    ],
)
def test_every_rule_names_the_argument(given: dict[str, Any], named: str) -> None:
    found = problems(RunConfig(**given))
    assert len(found) == 1 and named in found[0], found
    assert problems(RunConfig()) == []


def test_all_problems_come_in_one_error_before_anything_is_built() -> None:
    with pytest.raises(ConfigError) as caught:
        pl.Trainer(max_epochs=-5, limit_val_batches=2.5, precision="half", devices=0, strategy="dpp", gpu=1)
    text = str(caught.value)
    for named in ("max_epochs", "limit_val_batches", "precision", "devices", "strategy", "gpu"):
        assert named in text
    assert len(caught.value.problems) == 6


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"devices": 2, "accelerator": "cpu", "strategy": "single_device"}, "devices=2"),
        ({"devices": "2", "accelerator": "cpu", "strategy": "single_device"}, "devices='2'"),
        ({"devices": [0, 1], "accelerator": "cpu"}, "devices"),
        ({"num_nodes": 2, "accelerator": "cpu"}, "num_nodes=2"),
        ({"devices": []}, "devices"),
        ({"devices": "all"}, "devices"),
        ({"strategy": "ddpp"}, "strategy"),
        ({"strategy": "xla"}, "strategy"),
        ({"strategy": "dpd"}, "strategy"),
        ({"accelerator": "tpu"}, "accelerator"),
        ({"accelerator": "cpuu"}, "accelerator"),
        ({"checkpointing": {"asink": True}}, "checkpointing"),
        ({"checkpointing": 3}, "checkpointing"),
        ({"checkpointing": {"on_save_error": "ignore"}}, "on_save_error"),
        ({"checkpointing": {"async": "yes"}}, "async"),
        ({"resilience": {"elastic_batch": "scaled"}}, "elastic_batch"),
        ({"performance": {"on_oom": "halve"}}, "performance"),
        ({"watch": {"dashboard": True}}, "watch"),
        ({"plugins": object()}, "plugins"),
        ({"callbacks": [object()]}, "callbacks"),
        ({"callbacks": [pl.Callback]}, "callbacks"),
        ({"logger": object()}, "logger"),
    ],
)
def test_what_is_wrong_or_not_built_is_refused_by_name(given: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        pl.Trainer(**{"max_epochs": 1, **given})


def test_groups_are_dictionaries_or_dataclasses() -> None:
    from bolide.core.config import Checkpointing

    by_dict = pl.Trainer(max_epochs=1, checkpointing={"on_save_error": "raise"}, logger=False)
    by_class = pl.Trainer(max_epochs=1, checkpointing=Checkpointing(on_save_error="raise"), logger=False)
    assert by_dict.config.checkpointing == by_class.config.checkpointing


def test_all_42_arguments_are_there() -> None:
    import inspect

    from tests.core.arguments import LIGHTNING_ARGUMENTS

    parameters = inspect.signature(pl.Trainer.__init__).parameters
    defaults = {name: parameters[name].default for name in LIGHTNING_ARGUMENTS}
    assert defaults == LIGHTNING_ARGUMENTS
    assert len(LIGHTNING_ARGUMENTS) == 42


def test_filled_defaults() -> None:
    config = filled(RunConfig())
    assert (config.limit_train_batches, config.num_sanity_val_steps, config.log_every_n_steps) == (1.0, 2, 50)
    assert filled(RunConfig(max_steps=5)).max_epochs == -1
    assert filled(RunConfig(min_steps=5)).min_epochs == 1
    dry = filled(RunConfig(fast_dev_run=3, max_epochs=9))
    assert (dry.max_epochs, dry.max_steps, dry.limit_train_batches, dry.num_sanity_val_steps) == (1, 3, 3, 0)
    bare = filled(RunConfig(barebones=True))
    assert bare.logger is False and not bare.enable_checkpointing and bare.log_every_n_steps == 0


def test_compat_turns_every_switch() -> None:
    assert all(vars(COMPATS["lightning"]).values())
    assert not any(vars(Compat()).values())


def test_no_limit_warns_of_a_thousand_epochs() -> None:
    from tests.fixtures import OneWeight, loader

    trainer = pl.Trainer(logger=False, enable_checkpointing=False, enable_progress_bar=False, limit_train_batches=0)
    assert trainer.max_epochs == 1000
    with pytest.warns(UserWarning, match="1000 epochs"):
        trainer.fit(OneWeight(), loader(1))


def test_arguments_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PL_TRAINER_MAX_EPOCHS", "7")
    monkeypatch.setenv("PL_TRAINER_PRECISION", "bf16-mixed")
    trainer = pl.Trainer(logger=False)
    assert (trainer.max_epochs, trainer.precision) == (7, "bf16-mixed")
    assert pl.Trainer(max_epochs=2, logger=False).max_epochs == 2


def test_an_attribute_that_is_set_is_checked() -> None:
    trainer = pl.Trainer(max_epochs=1, logger=False)
    trainer.accumulate_grad_batches = 4
    assert trainer.config.accumulate_grad_batches == 4
    with pytest.raises(ConfigError, match="accumulate_grad_batches"):
        trainer.accumulate_grad_batches = 0
    assert trainer.accumulate_grad_batches == 4

from __future__ import annotations

from dataclasses import fields
from typing import Any

import bolide as pl
from bolide.core.hooks import EVENTS, HOOKS, Hooks, Receivers, listeners, overrides, resolve
from bolide.log import Log


class Quiet(pl.LightningModule):
    pass


class Loud(pl.LightningModule):
    def on_train_start(self) -> None:
        pass


def test_the_record_has_a_slot_for_each_event() -> None:
    assert [f.name for f in fields(Hooks)] == list(EVENTS)


def test_every_hook_of_the_base_classes_is_in_the_table() -> None:
    for base in (pl.LightningModule, pl.Callback, pl.LightningDataModule):
        stubs = {name for name in dir(base) if getattr(getattr(base, name), "_is_stub", False)}
        assert stubs - set(HOOKS) == {"configure_sharded_model"} & stubs


def test_every_event_is_a_stub_of_its_receivers() -> None:
    bases = {"callbacks": pl.Callback, "module": pl.LightningModule, "datamodule": pl.LightningDataModule}
    for spec in EVENTS.values():
        for receiver in spec.receivers:
            assert getattr(getattr(bases[receiver], spec.name), "_is_stub", False), (receiver, spec.name)


def test_what_nobody_overrides_is_an_empty_tuple() -> None:
    hooks = resolve(Receivers(None, Quiet(), None, [pl.Callback()]), Log())
    assert all(getattr(hooks, f.name) == () for f in fields(Hooks))
    assert len(resolve(Receivers(None, Loud(), None, []), Log()).on_train_start) == 1


def test_a_method_put_on_the_instance_counts() -> None:
    module = Quiet()
    assert not overrides(module, "on_train_start")
    module.on_train_start = lambda: None  # type: ignore[method-assign]
    assert overrides(module, "on_train_start")
    assert not overrides(None, "on_train_start")


def test_callbacks_that_look_at_metrics_hear_the_epochs_end_last() -> None:
    order: list[str] = []

    class Early(pl.Callback):
        def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            order.append("callback")

    class Late(Early):
        monitors_metrics = True

        def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            order.append("monitoring")

    class Module(pl.LightningModule):
        def on_train_epoch_end(self) -> None:
            order.append("module")

    for hook in listeners(EVENTS["on_train_epoch_end"], Receivers(None, Module(), None, [Late(), Early()])):
        hook()
    assert order == ["callback", "module", "monitoring"]


def test_the_scope_is_the_hook_that_runs_and_is_put_back() -> None:
    log = Log()
    seen: list[Any] = []

    class Module(pl.LightningModule):
        def on_train_start(self) -> None:
            seen.append(log.scope)
            raise ValueError

    hooks = resolve(Receivers(None, Module(), None, []), log)
    try:
        hooks.on_train_start[0]()
    except ValueError:
        pass
    assert seen == [EVENTS["on_train_start"]] and log.scope is None

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml

import bolide as pl
from bolide.callbacks import Checkpoint, ModelCheckpoint
from bolide.checkpoint import io
from bolide.core.config import COMPATS, Compat
from bolide.core.errors import ConfigError, MisconfigurationException, UserCodeError
from tests.callbacks.support import NAN, Scored, fit, rows, saved, trainer


class Saves(pl.Callback):
    """The step of each checkpoint that is written."""

    def __init__(self):
        self.steps = []

    def on_save_checkpoint(self, trainer, pl_module, checkpoint):
        self.steps.append(checkpoint["global_step"])


def kept(folder, values=(), **arguments):
    """Fits once; what the checkpoint callback kept."""
    run = {name: arguments.pop(name) for name in list(arguments) if name in RUN}
    callback = ModelCheckpoint(dirpath=folder, **arguments)
    fit(callback, values=values, **run)
    return callback


RUN = {
    "max_epochs", "max_steps", "val_check_interval", "check_val_every_n_epoch", "module", "train", "val", "compat",
    "accumulate_grad_batches", "limit_train_batches", "fast_dev_run", "fit",
}  # fmt: skip


# ---------------------------------------------------------------------- what is kept


@pytest.mark.parametrize(
    ("values", "arguments", "files"),
    [
        ((), {}, {"epoch=2-step=15.ckpt": 15}),
        ((), {"save_top_k": -1}, {"epoch=0-step=5.ckpt": 5, "epoch=1-step=10.ckpt": 10, "epoch=2-step=15.ckpt": 15}),
        ((), {"save_top_k": 0}, {}),
        ((3, 2, 1), {"monitor": "v"}, {"epoch=2-step=15.ckpt": 15}),
        ((1, 2, 3), {"monitor": "v"}, {"epoch=0-step=5.ckpt": 5}),
        ((1, 3, 2), {"monitor": "v", "save_top_k": 2}, {"epoch=0-step=5.ckpt": 5, "epoch=2-step=15.ckpt": 15}),
        ((1, 3, 2), {"monitor": "v", "mode": "max"}, {"epoch=1-step=10.ckpt": 10}),
        ((NAN, 3, 4), {"monitor": "v"}, {"epoch=1-step=10.ckpt": 10}),
        ((1, NAN, NAN), {"monitor": "v", "save_top_k": 2}, {"epoch=0-step=5.ckpt": 5, "epoch=1-step=10.ckpt": 10}),
        ((2, 2, 2), {"monitor": "v"}, {"epoch=0-step=5.ckpt": 5}),
        ((), {"every_n_epochs": 2}, {"epoch=1-step=10.ckpt": 10}),
        ((), {"every_n_epochs": 0}, {}),
        ((), {"every_n_train_steps": 7, "save_top_k": -1}, {"epoch=1-step=7.ckpt": 7, "epoch=2-step=14.ckpt": 14}),
        ((), {"save_last": True, "save_top_k": 0}, {"last.ckpt": 15}),
        ((), {"save_last": True, "save_top_k": 0, "every_n_epochs": 0}, {"last.ckpt": 15}),
        ((), {"limit_train_batches": 0, "save_last": True}, {}),
        ((), {"fast_dev_run": 2, "save_last": True}, {}),
        ((3, 2, 1), {"monitor": "v", "filename": "f", "save_top_k": 2}, {"f.ckpt": 15, "f-v1.ckpt": 10}),
        ((3, 2, 1), {"monitor": "v", "filename": "s/{v:.0f}", "save_top_k": 1}, {"s/v=1.ckpt": 15}),
        ((), {"filename": "same", "save_top_k": -1}, {"same.ckpt": 5, "same-v1.ckpt": 10, "same-v2.ckpt": 15}),
        ((), {"filename": "same", "save_top_k": -1, "enable_version_counter": False}, {"same.ckpt": 15}),
    ],
)
def test_what_is_on_the_disk_after_a_fit(tmp_path, values, arguments, files):
    kept(tmp_path, values, **arguments)
    assert saved(tmp_path) == files


def test_the_state_after_a_fit_with_a_monitor(tmp_path):
    callback = kept(tmp_path, (1, 3, 2), monitor="v", save_top_k=2)
    state = callback.state_dict()
    first, third = str(tmp_path / "epoch=0-step=5.ckpt"), str(tmp_path / "epoch=2-step=15.ckpt")
    assert list(state) == [
        "monitor", "best_model_score", "best_model_path", "current_score", "dirpath", "best_k_models",
        "kth_best_model_path", "kth_value", "last_model_path",
    ]  # fmt: skip
    assert state["best_model_path"] == first and state["kth_best_model_path"] == third
    assert {path: float(score) for path, score in state["best_k_models"].items()} == {first: 1.0, third: 2.0}
    assert (float(state["best_model_score"]), float(state["kth_value"]), float(state["current_score"])) == (1, 2, 2)


def test_a_file_holds_the_ranking_with_itself_in_it(tmp_path):
    callback = kept(tmp_path, (3, 2, 1), monitor="v")
    inside = torch.load(callback.best_model_path, weights_only=True)["callbacks"][callback.state_key]
    assert inside["best_model_path"] == callback.best_model_path and float(inside["best_model_score"]) == 1.0


def test_the_last_checkpoint_is_the_newest_state_though_the_metric_never_improves(tmp_path):
    callback = kept(tmp_path, (0, 1, 2, 3), monitor="v", save_top_k=1, save_last=True, max_epochs=4)
    assert saved(tmp_path) == {"epoch=0-step=5.ckpt": 5, "last.ckpt": 20}
    assert callback.last_model_path == str(tmp_path / "last.ckpt")


def test_in_compat_mode_the_last_checkpoint_is_the_last_ranked_one(tmp_path):
    kept(tmp_path, (0, 1, 2, 3), monitor="v", save_top_k=1, save_last=True, max_epochs=4, compat="lightning")
    assert saved(tmp_path) == {"epoch=0-step=5.ckpt": 5, "last.ckpt": 5}


def test_the_last_checkpoint_holds_the_end_of_training(tmp_path):
    kept(tmp_path, every_n_train_steps=4, save_last=True, max_steps=6)
    assert saved(tmp_path) == {"epoch=0-step=4.ckpt": 4, "last.ckpt": 6}


def test_last_as_a_link(tmp_path):
    kept(tmp_path, (3, 2, 1), monitor="v", save_last="link")
    last = tmp_path / "last.ckpt"
    assert last.is_symlink() and last.resolve().name == "epoch=2-step=15.ckpt"
    assert not Path(last.readlink()).is_absolute()


def test_a_linked_last_becomes_a_file_where_nothing_was_ranked(tmp_path):
    kept(tmp_path, (1, 2, 3), monitor="v", save_last="link")
    assert not (tmp_path / "last.ckpt").is_symlink()
    assert saved(tmp_path) == {"epoch=0-step=5.ckpt": 5, "last.ckpt": 15}


@pytest.mark.parametrize(
    ("arguments", "steps"),
    [
        ({}, [5, 10, 15]),
        ({"every_n_train_steps": 2}, [2, 4, 6, 8, 10, 12, 14]),
        ({"every_n_train_steps": 2, "accumulate_grad_batches": 2}, [2, 4, 6, 8]),
        ({"train_time_interval": timedelta(0), "max_epochs": 1}, [1, 2, 3, 4, 5]),
        ({"train_time_interval": "1 h"}, []),
        ({"val_check_interval": 2, "max_epochs": 2}, [2, 4, 7, 9]),
        ({"val_check_interval": 2, "max_epochs": 2, "save_on_train_epoch_end": True}, [5, 10]),
        ({"check_val_every_n_epoch": 2}, [10]),
        ({"check_val_every_n_epoch": 2, "val": 0}, [5, 10, 15]),
        ({"save_on_train_epoch_end": False, "val": 0}, [5, 10, 15]),
    ],
)
def test_when_it_saves(tmp_path, arguments, steps):
    run = {name: arguments.pop(name) for name in list(arguments) if name in RUN}
    watcher = Saves()
    fit(watcher, ModelCheckpoint(dirpath=tmp_path, save_top_k=-1, **arguments), **run)
    assert watcher.steps == steps


def test_weights_only(tmp_path):
    callback = kept(tmp_path, save_weights_only=True)
    content = torch.load(callback.best_model_path, weights_only=True)
    assert "state_dict" in content and "optimizer_states" not in content and "callbacks" not in content


def test_what_is_newer_is_there_before_what_it_supersedes_goes(tmp_path):
    happened = []

    def watch(moment, number, kind, path):
        if moment == "after" and kind in ("rename", "remove"):
            happened.append((kind, Path(path).name))

    io.operations.listeners.append(watch)
    try:
        kept(tmp_path, (3, 2), monitor="v", save_last=True, max_epochs=2)
    finally:
        io.operations.listeners.remove(watch)
    assert happened == [
        ("rename", "epoch=0-step=5.ckpt"),
        ("rename", "last.ckpt"),
        ("rename", "epoch=1-step=10.ckpt"),
        ("rename", "last.ckpt"),
        ("remove", "epoch=0-step=5.ckpt"),
        ("rename", "finished.json"),
    ]


def test_a_failed_write_leaves_files_and_ranking_as_they_were(tmp_path):
    callback = ModelCheckpoint(dirpath=tmp_path, monitor="v")

    def fail(moment, number, kind, path):
        if moment == "before" and kind == "rename" and "step=10" in path:
            raise OSError(28, "No space left on device")

    io.operations.listeners.append(fail)
    try:
        with pytest.raises(OSError, match="No space left"):
            fit(callback, values=(3, 2, 1))
    finally:
        io.operations.listeners.remove(fail)
    assert [path.name for path in tmp_path.iterdir()] == ["epoch=0-step=5.ckpt"]
    assert callback.best_model_path == str(tmp_path / "epoch=0-step=5.ckpt") and float(callback.best_model_score) == 3


# ---------------------------------------------------------------------- metrics that are not there


def test_a_monitor_that_nobody_logs_is_an_error_that_lists_the_nearest_first(tmp_path):
    with pytest.raises(UserCodeError, match="'vv', which nobody logs. Logged are: 'v', ") as caught:
        kept(tmp_path, (1, 2), monitor="vv", module=Scored((1, 2), log_train=True))
    assert isinstance(caught.value, MisconfigurationException) and saved(tmp_path) == {}


def test_a_monitor_that_nobody_logs_is_an_error_where_steps_decide_too(tmp_path):
    with pytest.raises(UserCodeError, match="'nope', which nobody logs"):
        kept(tmp_path, (1, 2), monitor="nope", every_n_train_steps=2)


def test_a_step_save_waits_for_the_metric_of_validation(tmp_path):
    callback = kept(
        tmp_path, (1, 2), monitor="v", every_n_train_steps=5, save_top_k=-1, filename="{step}-{v:.0f}", max_epochs=1
    )
    assert saved(tmp_path) == {"step=5-v=1.ckpt": 5}
    assert float(callback.best_model_score) == 1.0


def test_an_epoch_save_waits_for_the_first_validation(tmp_path):
    kept(tmp_path, (1, 2), monitor="v", save_on_train_epoch_end=True, check_val_every_n_epoch=2, max_epochs=2)
    assert saved(tmp_path) == {"epoch=1-step=10.ckpt": 10}


def test_a_metric_that_did_not_come_in_time_is_said(tmp_path):
    with pytest.warns(UserWarning, match="waits for the metric 'v'"):
        kept(tmp_path, (1,), monitor="v", every_n_train_steps=2, max_steps=3, val_check_interval=5)
    assert saved(tmp_path) == {}


def test_metrics_of_the_training_epoch_can_be_monitored(tmp_path):
    kept(tmp_path, monitor="end", mode="max", module=Scored(log_end=True))
    assert saved(tmp_path) == {"epoch=2-step=15.ckpt": 15}


# ---------------------------------------------------------------------- exceptions


class Fails(Scored):
    def training_step(self, batch, batch_idx):
        if self.global_step == 7:
            raise KeyboardInterrupt
        return super().training_step(batch, batch_idx)


def test_save_on_exception(tmp_path):
    callback = ModelCheckpoint(dirpath=tmp_path, save_on_exception=True, save_last=True)
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        fit(callback, module=Fails())
    assert saved(tmp_path) == {"epoch=0-step=5.ckpt": 5, "epoch=1-step=7.ckpt": 7, "last.ckpt": 7}
    assert callback.best_model_path == str(tmp_path / "epoch=0-step=5.ckpt")


def test_without_save_on_exception_nothing_is_saved(tmp_path):
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        fit(ModelCheckpoint(dirpath=tmp_path), module=Fails())
    assert saved(tmp_path) == {"epoch=0-step=5.ckpt": 5}


# ---------------------------------------------------------------------- several, and again


def test_two_that_differ_in_name_and_count_work_and_are_restored(tmp_path):
    def pair():
        return (
            ModelCheckpoint(dirpath=tmp_path, monitor="v", filename="a-{epoch}", save_top_k=1),
            ModelCheckpoint(dirpath=tmp_path, monitor="v", filename="b-{epoch}", save_top_k=2),
        )

    first = pair()
    fit(*first, values=(1, 2), max_epochs=2)
    assert saved(tmp_path) == {"a-epoch=0.ckpt": 5, "b-epoch=0.ckpt": 5, "b-epoch=1.ckpt": 10}
    second = pair()
    fit(*second, values=(3,), max_epochs=3, fit={"ckpt_path": str(tmp_path / "b-epoch=1.ckpt")})
    assert [sorted(c.best_k_models) for c in second] == [sorted(c.best_k_models) for c in first]


def test_two_in_one_folder_do_not_overwrite_each_other(tmp_path):
    fit(ModelCheckpoint(dirpath=tmp_path), ModelCheckpoint(dirpath=tmp_path, monitor="v"), values=(2, 1), max_epochs=2)
    assert saved(tmp_path) == {"epoch=1-step=10.ckpt": 10, "epoch=1-step=10-v1.ckpt": 10}


def test_resuming_goes_on_with_the_ranking_and_keeps_the_file_it_came_from(tmp_path):
    kept(tmp_path, (3, 2), monitor="v", max_epochs=2)
    came_from = str(tmp_path / "epoch=1-step=10.ckpt")
    callback = kept(tmp_path, (4, 1), monitor="v", max_epochs=4, fit={"ckpt_path": came_from})
    assert saved(tmp_path) == {"epoch=1-step=10.ckpt": 10, "epoch=3-step=20.ckpt": 20}
    assert {path: float(v) for path, v in callback.best_k_models.items()} == {str(tmp_path / "epoch=3-step=20.ckpt"): 1}


def test_resuming_into_another_folder_starts_the_ranking_anew(tmp_path):
    kept(tmp_path / "one", (3, 2), monitor="v", save_last=True, max_epochs=2)
    last = str(tmp_path / "one" / "last.ckpt")
    with pytest.warns(UserWarning, match="the ranking starts anew"):
        kept(tmp_path / "two", (9,), monitor="v", save_last=True, max_epochs=3, fit={"ckpt_path": last})
    assert saved(tmp_path / "one") == {"epoch=1-step=10.ckpt": 10, "last.ckpt": 10}
    assert saved(tmp_path / "two") == {"epoch=2-step=15.ckpt": 15, "last.ckpt": 15}


def test_a_folder_in_use_is_said_and_its_files_stay(tmp_path):
    kept(tmp_path, save_last=True, max_epochs=1)
    with pytest.warns(UserWarning, match="is not empty"):
        kept(tmp_path, save_last=True, max_epochs=1)
    assert set(saved(tmp_path)) == {"epoch=0-step=5.ckpt", "epoch=0-step=5-v1.ckpt", "last.ckpt", "last-v1.ckpt"}


# ---------------------------------------------------------------------- names, settings, surface


def test_class_attributes_shape_the_names(tmp_path):
    class Own(ModelCheckpoint):
        CHECKPOINT_JOIN_CHAR = "_"
        CHECKPOINT_EQUALS_CHAR = ":"
        CHECKPOINT_NAME_LAST = "{epoch}-newest"
        FILE_EXTENSION = ".pt"
        STARTING_VERSION = 0

    callback = Own(dirpath=tmp_path, save_last=True)
    assert callback.format_checkpoint_name({"epoch": 1, "step": 2}, ver=0) == str(tmp_path / "epoch:1_step:2_v0.pt")
    fit(callback, max_epochs=2)
    assert sorted(path.name for path in tmp_path.glob("*.pt")) == ["epoch:1-newest.pt", "epoch:1_step:10.pt"]
    assert callback.last_candidates(trainer()) == [str(tmp_path / "epoch:1-newest.pt")]


def test_all_wrong_settings_in_one_error():
    with pytest.raises(ConfigError) as caught:
        ModelCheckpoint(mode="best", save_top_k=-2, every_n_epochs=1, every_n_train_steps=1, filename="../{epoch}")
    assert len(caught.value.problems) == 4


def test_a_name_that_leads_out_of_the_folder_is_refused_where_the_metric_brings_it(tmp_path):
    callback = ModelCheckpoint(dirpath=tmp_path, filename="{x}")
    with pytest.raises(ConfigError, match="dirpath"):
        callback.format_checkpoint_name({}, filename="{../x}")


def test_where_the_folder_is(tmp_path):
    from bolide.loggers import CSVLogger

    def folder(**arguments):
        callback = ModelCheckpoint()
        fit(callback, max_epochs=1, train=1, val=0, default_root_dir=tmp_path, **arguments)
        return Path(callback.dirpath).relative_to(tmp_path).as_posix()

    assert folder() == "checkpoints"
    assert folder(logger=CSVLogger(tmp_path)) == "lightning_logs/version_0/checkpoints"
    assert folder(logger=CSVLogger(tmp_path, name=None, version="run")) == "run/checkpoints"
    assert (
        folder(logger=[CSVLogger(tmp_path / "a", name="n"), CSVLogger(tmp_path / "b")]) == "a/n/version_0/checkpoints"
    )


def test_a_relative_folder_is_made_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert ModelCheckpoint(dirpath="sub/x").dirpath == str(tmp_path.resolve() / "sub" / "x")


def test_to_yaml(tmp_path):
    callback = kept(tmp_path, (2, 1), monitor="v", save_top_k=2, max_epochs=2)
    callback.to_yaml()
    scores = yaml.safe_load((tmp_path / "best_k_models.yaml").read_text())
    assert scores == {str(tmp_path / "epoch=0-step=5.ckpt"): 2.0, str(tmp_path / "epoch=1-step=10.ckpt"): 1.0}


def test_loggers_are_told_of_each_file(tmp_path):
    from bolide.loggers.logger import DummyLogger

    class Told(DummyLogger):
        def __init__(self):
            self.paths = []

        def after_save_checkpoint(self, checkpoint_callback):
            self.paths.append(Path(checkpoint_callback._last_checkpoint_saved).name)

    logger = Told()
    fit(ModelCheckpoint(dirpath=tmp_path, save_last=True), max_epochs=1, logger=logger)
    assert logger.paths == ["epoch=0-step=5.ckpt", "last.ckpt"]


def test_a_step_that_is_logged_names_the_file(tmp_path):
    class OwnStep(Scored):
        def on_train_epoch_end(self):
            self.log("step", 100.0 + self.current_epoch)

    kept(tmp_path, module=OwnStep(), max_epochs=1)
    assert list(saved(tmp_path)) == ["epoch=0-step=100.ckpt"]


def test_an_own_checkpoint_class_can_be_the_only_one(tmp_path):
    class Own(Checkpoint):
        def on_train_end(self, trainer, pl_module):
            trainer.save_checkpoint(tmp_path / "own.ckpt")

    fit(Own(), max_epochs=1)
    assert saved(tmp_path) == {"own.ckpt": 5}


def test_the_saved_run_goes_on_from_last(tmp_path):
    kept(tmp_path, save_last=True, max_epochs=1)
    watcher = Saves()
    callback = ModelCheckpoint(dirpath=tmp_path, save_last=True)
    made = trainer(watcher, callback, max_epochs=2)
    made.fit(Scored(), rows(5), rows(1), ckpt_path="last")
    assert made.global_step == 10 and set(watcher.steps) == {10}


# ---------------------------------------------------------------------- like Lightning


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"monitor": "v", "mode": "max"},
        {"every_n_train_steps": 3},
        {"every_n_epochs": 2},
        {"train_time_interval": timedelta(minutes=1)},
    ],
)
def test_state_key_and_names_are_lightnings(arguments):
    theirs = pytest.importorskip("lightning.pytorch.callbacks").ModelCheckpoint
    ours, peer = ModelCheckpoint(**arguments), theirs(**arguments)
    assert ours.state_key == peer.state_key
    assert list(ours.state_dict()) == list(peer.state_dict())
    metrics = {
        "epoch": torch.tensor(3),
        "step": torch.tensor(7),
        "val/acc": torch.tensor(0.9312),
        "a-b": torch.tensor(2),
    }
    for template in (None, "{epoch:02d}", "{val/acc:.2f}-{a-b}", "x-{missing:.1f}", "plain", "{val/acc}"):
        for version in (None, 2):
            expected = peer.format_checkpoint_name(dict(metrics), template, version)
            assert ours.format_checkpoint_name(metrics, template, version) == expected


@pytest.mark.parametrize(
    ("switch", "arguments", "files"),
    [
        ("same_name_is_overwritten", {"filename": "same", "save_top_k": -1}, {"same.ckpt": 15}),
        (
            "deferred_save_is_dropped",
            {"monitor": "v", "every_n_train_steps": 5, "save_top_k": -1, "filename": "{step}-{v:.0f}"},
            {"step=10-v=1.ckpt": 10, "step=15-v=2.ckpt": 15},
        ),
        ("step_per_optimizer", {"every_n_train_steps": 7, "save_top_k": -1, "filename": "{step}"},
         {"step=7.ckpt": 7, "step=14.ckpt": 14}),
    ],
)  # fmt: skip
def test_switches_give_lightnings_files(tmp_path, monkeypatch, switch, arguments, files):
    switches = {**vars(pl.Trainer().compat), switch: True, "saves_within_hooks": True}
    monkeypatch.setattr(pl.Trainer, "compat", SimpleNamespace(**switches))
    monkeypatch.setitem(COMPATS, None, replace(Compat(), saves_within_hooks=True))
    kept(tmp_path, (1, 2, 3), **arguments)
    assert saved(tmp_path) == files


def test_a_file_that_auto_found_goes_once_a_newer_one_is_whole(tmp_path):
    kept(tmp_path, (3,), monitor="v", max_epochs=1)
    (tmp_path / "finished.json").unlink()
    kept(tmp_path, (2,), monitor="v", max_epochs=2, fit={"ckpt_path": "auto"})
    assert saved(tmp_path) == {"epoch=1-step=10.ckpt": 10}


@pytest.mark.parametrize("monitor", [None, "v"])
def test_verbose_says_what_was_saved(tmp_path, caplog, monitor):
    caplog.set_level("INFO", logger="bolide")
    saver = ModelCheckpoint(dirpath=tmp_path, monitor=monitor, verbose=True)
    fit(saver, values=(2, 1), max_epochs=2, train=3)
    said = [record.getMessage() for record in caplog.records if "saved as" in record.getMessage()]
    assert len(said) == 2 and said[1].startswith("Epoch 1, step 6: ") and said[1].endswith(saver.best_model_path)


@pytest.mark.parametrize("interval", ["soon", "3 epochs", 5, {"fortnights": 1}])
def test_an_interval_that_is_no_time_is_told_with_the_other_settings(interval):
    with pytest.raises(ConfigError) as caught:
        ModelCheckpoint(train_time_interval=interval, mode="best")
    assert "mode='best'" in str(caught.value)
    assert f"train_time_interval={interval!r} is no length of time" in str(caught.value)

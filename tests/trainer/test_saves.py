"""Saves while training goes on: what is in a file, what a failed save leaves, and when everybody hears of it."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
import time
import warnings
from pathlib import Path
from typing import ClassVar

import pytest
import torch

import bolide as pl
from bolide.callbacks import Callback, ModelCheckpoint, OnExceptionCheckpoint
from bolide.checkpoint import io
from bolide.checkpoint.writer import SaveError
from bolide.core.errors import ConfigError, SIGTERMException
from bolide.engine import fit as fit_loop
from bolide.trainer import trainer as trainer_module
from tests.callbacks.support import Scored, fit, rows, saved, trainer

ASYNC, SYNC = {"async": True}, {"async": False}


@pytest.fixture
def write(monkeypatch):
    """The function that writes a file, with a place to put something before it: `write.before(path)`."""
    original = trainer_module.write_checkpoint

    def write(checkpoint, path):
        write.threads.append(threading.current_thread().name)
        write.before(str(path))
        original(checkpoint, path)
        write.paths.append(Path(path).name)

    write.before, write.paths, write.threads = lambda path: None, [], []
    monkeypatch.setattr(trainer_module, "write_checkpoint", write)
    return write


class Steps(Callback):
    def __init__(self, act):
        self.act = act

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.act(trainer, pl_module, batch_idx)


def every_step(tmp_path, **settings):
    return ModelCheckpoint(dirpath=tmp_path, every_n_train_steps=1, save_top_k=-1, filename="{step}", **settings)


# ---- what is written, and by whom


def test_a_thread_writes_while_training_goes_on(tmp_path, write):
    """The first write ends only after the second batch: were it waited for, the batch would never come."""
    second = threading.Event()
    write.before = lambda path: second.wait(60) if "step=1." in path else None
    seen = Steps(lambda trainer, module, batch: second.set() if batch == 1 else None)
    fit(seen, ModelCheckpoint(dirpath=tmp_path, every_n_train_steps=2, filename="{step}"), max_epochs=1, train=4)
    fit(seen, every_step(tmp_path / "all"), max_epochs=1, train=2)
    assert second.is_set() and set(write.threads) == {"bolide-writer"}


def test_what_is_saved_is_the_state_at_the_call(tmp_path, write):
    """The weight falls by one at each step, and the file of a step holds that step's, however late it is written."""
    held = threading.Event()
    write.before = lambda path: held.wait(60) if "step=2." in path else None
    seen = Steps(lambda trainer, module, batch: held.set() if batch == 3 else None)
    saver = ModelCheckpoint(dirpath=tmp_path, every_n_train_steps=2, save_top_k=-1, filename="{step}")
    fit(seen, saver, max_epochs=1, train=5)
    for step in (2, 4):
        assert torch.load(tmp_path / f"step={step}.ckpt", weights_only=True)["state_dict"]["w"].item() == -step


@pytest.mark.parametrize("save_last", [True, "link"])
def test_the_files_are_those_of_a_run_that_waits(tmp_path, save_last):
    found = {}
    for name, settings in (("async", ASYNC), ("sync", SYNC)):
        torch.manual_seed(0)
        callback = ModelCheckpoint(
            dirpath=tmp_path / name, monitor="v", save_top_k=2, save_last=save_last, filename="{epoch}-{v:.0f}"
        )
        fit(callback, values=(3, 1, 2, 5), max_epochs=4, checkpointing=settings)
        files = {path: torch.load(path, weights_only=True) for path in (tmp_path / name).glob("*.ckpt")}
        found[name] = {path.name: (f["global_step"], f["state_dict"]["w"].item()) for path, f in files.items()}
    assert found["async"] == found["sync"]
    assert sorted(found["sync"]) == ["epoch=1-v=1.ckpt", "epoch=2-v=2.ckpt", "last.ckpt"]


def test_a_checkpoint_asked_for_by_name_is_there_when_the_call_returns(tmp_path, write):
    there = []

    def save(trainer, module, batch):
        trainer.save_checkpoint(tmp_path / f"own-{batch}.ckpt")
        there.append((tmp_path / f"own-{batch}.ckpt").exists())

    fit(Steps(save), every_step(tmp_path), max_epochs=1, train=3)
    assert there == [True] * 3 and len(saved(tmp_path)) == 6


def test_synchronous_saves_are_written_by_the_thread_that_trains(tmp_path, write):
    fit(every_step(tmp_path), max_epochs=1, train=3, checkpointing=SYNC)
    assert set(write.threads) == {"MainThread"} and len(write.paths) == 3


def test_a_checkpoint_format_of_ones_own_is_called_by_the_thread_that_trains(tmp_path):
    class Own(pl.plugins.io.TorchCheckpointIO):
        threads: ClassVar[set[str]] = set()

        def save_checkpoint(self, checkpoint, path, storage_options=None):
            self.threads.add(threading.current_thread().name)
            super().save_checkpoint(checkpoint, path, storage_options)

    fit(every_step(tmp_path), max_epochs=1, train=3, plugins=[Own()])
    assert Own.threads == {"MainThread"} and len(saved(tmp_path)) == 3


def test_like_lightning_saves_are_synchronous(tmp_path, write):
    fit(every_step(tmp_path), max_epochs=1, train=3, compat="lightning")
    assert set(write.threads) == {"MainThread"}


# ---- what follows the commit


def test_deleting_and_the_loggers_notices_follow_the_commit(tmp_path, write):
    from bolide.loggers.logger import DummyLogger

    told = []

    class Told(DummyLogger):
        def after_save_checkpoint(self, checkpoint_callback):
            path = Path(checkpoint_callback._last_checkpoint_saved)
            told.append((path.name, path.exists()))

    def before(path):
        if "step=2." in path:
            time.sleep(0.2)
            told.append(("step=1 is kept", (tmp_path / "step=1.ckpt").exists()))

    write.before = before
    callback = ModelCheckpoint(dirpath=tmp_path, every_n_train_steps=1, filename="{step}")
    fit(callback, max_epochs=1, train=3, logger=Told())
    assert told == [
        ("step=1.ckpt", True), ("step=1 is kept", True), ("step=2.ckpt", True), ("step=3.ckpt", True),
    ]  # fmt: skip
    assert list(saved(tmp_path)) == ["step=3.ckpt"]


def test_all_is_on_the_disk_before_the_end_hooks(tmp_path, write):
    there = []

    class AtEnd(Callback):
        def on_train_end(self, trainer, pl_module):
            there.append(sorted(path.name for path in tmp_path.glob("*.ckpt")))

    write.before = lambda path: time.sleep(0.1)
    fit(AtEnd(), ModelCheckpoint(dirpath=tmp_path, filename="{step}"), max_epochs=1, train=3)
    assert there == [["step=3.ckpt"]]


def test_an_exception_leaves_when_the_save_in_flight_is_on_the_disk(tmp_path, write):
    def stop(trainer, module, batch):
        if batch == 2:
            raise ZeroDivisionError

    write.before = lambda path: time.sleep(0.2)
    with pytest.raises(ZeroDivisionError):
        fit(Steps(stop), every_step(tmp_path), max_epochs=1, train=4)
    assert saved(tmp_path) == {"step=1.ckpt": 1, "step=2.ckpt": 2}


# ---- saves that fail


def fails(write, *names):
    def before(path):
        if Path(path).name in names:
            raise OSError(28, "No space left on device")

    write.before = before


def test_a_failed_save_ends_the_run_at_the_next_boundary(tmp_path, write):
    fails(write, "step=2.ckpt")
    callback = ModelCheckpoint(dirpath=tmp_path, every_n_train_steps=2, filename="{step}")
    made = trainer(callback, max_epochs=1)
    with pytest.raises(SaveError, match=r"step=2.ckpt.*No space left.*stays valid"):
        made.fit(Scored(), rows(9))
    assert 3 <= made.global_step <= 4 and made.state.status == "interrupted"


@pytest.mark.parametrize("settings", [ASYNC, SYNC])
def test_a_failed_save_may_be_a_warning(tmp_path, write, settings):
    fails(write, "step=2.ckpt", "step=3.ckpt")
    callback = ModelCheckpoint(dirpath=tmp_path, every_n_train_steps=1, filename="{step}")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        made = fit(callback, max_epochs=1, train=4, checkpointing={**settings, "on_save_error": "warn"})
    said = [str(one.message) for one in caught if "No space left" in str(one.message)]
    assert len(said) == 2 and "step=2.ckpt" in said[0] and "Training goes on" in said[0]
    assert made.global_step == 4 and saved(tmp_path) == {"step=4.ckpt": 4}
    assert callback.best_model_path.endswith("step=4.ckpt")


@pytest.mark.parametrize("settings", [ASYNC, SYNC])
def test_after_a_failed_save_the_ranking_is_what_it_was_and_nothing_is_deleted(tmp_path, write, settings):
    """Scores 3, 2, 1: the third, the best of all, cannot be written, so the second stays the best."""
    fails(write, "epoch=2.ckpt")
    callback = ModelCheckpoint(dirpath=tmp_path, monitor="v", save_top_k=2, filename="{epoch}")
    with pytest.warns(UserWarning, match="No space left"):
        fit(callback, values=(3, 2, 1), max_epochs=3, checkpointing={**settings, "on_save_error": "warn"})
    assert list(saved(tmp_path)) == ["epoch=0.ckpt", "epoch=1.ckpt"]
    assert callback.best_model_path == str(tmp_path / "epoch=1.ckpt") and callback.best_model_score == 2
    assert sorted(Path(path).name for path in callback.best_k_models) == ["epoch=0.ckpt", "epoch=1.ckpt"]


def test_a_failed_save_does_not_hide_what_ends_the_run(tmp_path, write):
    def stop(trainer, module, batch):
        if batch == 1:
            raise ZeroDivisionError

    def before(path):
        time.sleep(0.2)
        raise OSError(28, "No space left on device")

    write.before = before
    with (
        pytest.warns(UserWarning, match="No space left.*ends with ZeroDivisionError"),
        pytest.raises(ZeroDivisionError),
    ):
        fit(Steps(stop), every_step(tmp_path), max_epochs=1, train=4)


def test_a_stop_saves_though_the_save_before_failed(tmp_path, write):
    fails(write, "step=1.ckpt")
    seen = Steps(lambda trainer, module, batch: trainer.save_and_stop("enough") if batch == 1 else None)
    callback = ModelCheckpoint(dirpath=tmp_path, every_n_train_steps=1, save_top_k=1, filename="{step}", save_last=True)
    made = trainer(seen, callback, max_epochs=1, checkpointing={"on_save_error": "warn"})
    with pytest.warns(UserWarning, match="No space left"), pytest.raises(SIGTERMException):
        made.fit(Scored(), rows(5))
    assert saved(tmp_path)["last.ckpt"] == 2


def test_on_exception_saves_though_the_save_before_failed(tmp_path, write):
    def stop(trainer, module, batch):
        if batch == 1:
            raise ZeroDivisionError

    fails(write, "step=1.ckpt")
    with pytest.warns(UserWarning, match="No space left"), pytest.raises(ZeroDivisionError):
        fit(Steps(stop), OnExceptionCheckpoint(tmp_path), every_step(tmp_path), max_epochs=1, train=4)
    assert "on_exception.ckpt" in saved(tmp_path)


# ---- memory


def test_memory_for_the_copy_is_asked_for_after_the_first_step(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(fit_loop, "READY_FROM_BYTES", 1)
    monkeypatch.setattr("bolide.checkpoint.writer.Writer.reserve", lambda self, nbytes: asked.append(nbytes))
    fit(ModelCheckpoint(dirpath=tmp_path), max_epochs=2, train=3)
    assert len(asked) == 1 and asked[0] >= 4
    fit(ModelCheckpoint(dirpath=tmp_path / "sync"), max_epochs=2, train=3, checkpointing=SYNC)
    assert len(asked) == 1


def test_wrong_settings_are_told_at_once():
    with pytest.raises(ConfigError, match=r"(?s)'on_save_error': 'ignore'.*'async': 'yes'"):
        pl.Trainer(checkpointing={"on_save_error": "ignore", "async": "yes"})


# ---- together with others


def test_the_best_checkpoint_within_a_run_is_on_the_disk(tmp_path, write):
    write.before = lambda path: time.sleep(0.1)
    module = Scored()
    saver = ModelCheckpoint(dirpath=tmp_path, every_n_train_steps=2, filename="{step}", save_last=True)
    made, seen = trainer(saver, max_epochs=1), {}
    for progress in made.steps(module, rows(6), rows(1)):
        if progress.step in (2, 4):
            weight = module.w.item()
            made.validate(module, rows(1), ckpt_path="best" if progress.step == 2 else "last", verbose=False)
            seen[progress.step] = (module.w.item(), weight)
    assert seen == {2: (-2.0, -2.0), 4: (-4.0, -4.0)}


@pytest.mark.parametrize("save_last", [True, "link"])
def test_a_file_named_last_and_the_last_file_are_two(tmp_path, save_last):
    callback = ModelCheckpoint(dirpath=tmp_path, filename="last", save_last=save_last, monitor="v")
    fit(callback, values=(1, 2, 3), max_epochs=3)
    found = saved(tmp_path)
    assert Path(callback.best_model_path).name == "last.ckpt" and found["last.ckpt"] == 5
    assert Path(callback.last_model_path).name == "last-v1.ckpt"
    assert found["last-v1.ckpt"] == 15


def test_a_checkpoint_after_a_failed_save_knows_no_file_that_is_not_there(tmp_path, write):
    fails(write, "step=2.ckpt")

    def save(trainer, module, batch):
        if batch == 2:
            trainer.save_checkpoint(tmp_path / "own.ckpt")

    saver = ModelCheckpoint(dirpath=tmp_path, every_n_train_steps=2, filename="{step}")
    with pytest.warns(UserWarning, match="No space left"):
        fit(Steps(save), saver, max_epochs=1, train=3, checkpointing={"on_save_error": "warn"})
    state = torch.load(tmp_path / "own.ckpt", weights_only=True)["callbacks"]
    assert [one["best_model_path"] for one in state.values() if "best_model_path" in one] == [""]


def test_what_was_due_where_a_failed_save_is_told_is_saved_by_the_run_that_goes_on(tmp_path, write):
    def before(path):
        if "a-step=2" in path:
            raise OSError(28, "No space left on device")

    def savers():
        return [
            OnExceptionCheckpoint(tmp_path),
            ModelCheckpoint(dirpath=tmp_path, filename="a-{step}", every_n_train_steps=2, save_top_k=-1),
            ModelCheckpoint(dirpath=tmp_path, filename="b-{step}", every_n_train_steps=3, save_top_k=-1),
        ]

    write.before = before
    # the save has ended, and is told, at the third batch
    waits = Steps(lambda trainer, module, batch: trainer._run.writer._saving.ended.wait(60) if batch == 2 else None)
    with pytest.raises(SaveError):
        fit(waits, *savers(), max_epochs=1, train=6)
    write.before = lambda path: None
    fit(*savers(), max_epochs=1, train=6, fit={"ckpt_path": "auto"})
    assert set(saved(tmp_path)) == {"a-step=4.ckpt", "a-step=6.ckpt", "b-step=3.ckpt", "b-step=6.ckpt"}


def test_a_disk_that_is_full_at_the_very_end_does_not_fail_a_run_that_only_warns(tmp_path):
    full = []

    def listen(at, number, kind, path):
        if full and at == "before" and kind in ("open", "write"):
            raise OSError(28, "No space left on device", path)

    fills = Steps(lambda trainer, module, batch: full.append(1) if batch == 2 else None)
    saver = ModelCheckpoint(dirpath=tmp_path, every_n_train_steps=2, save_last=True, filename="{step}")
    io.operations.listeners.append(listen)
    try:
        with pytest.warns(UserWarning, match="No space left"):
            made = fit(fills, saver, max_epochs=1, train=5, checkpointing={"on_save_error": "warn"})
    finally:
        io.operations.listeners.remove(listen)
    assert made.state.status == "finished" and not (tmp_path / "finished.json").exists()


@pytest.mark.parametrize("settings", [ASYNC, SYNC])
def test_a_state_that_cannot_be_saved_is_a_failed_save(tmp_path, settings):
    class Odd(Scored):
        def get_extra_state(self):
            return {"lock": threading.Lock()}

        def set_extra_state(self, state):
            pass

    saver = ModelCheckpoint(dirpath=tmp_path, every_n_train_steps=2)
    with pytest.warns(UserWarning, match="could not be saved"):
        made = fit(saver, module=Odd(), max_epochs=1, train=4, checkpointing={**settings, "on_save_error": "warn"})
    assert made.global_step == 4 and saver.best_model_path == "" and saved(tmp_path) == {}


def test_a_second_signal_ends_the_wait_for_a_disk_that_hangs(tmp_path):
    code = f"""
        import time
        from bolide.callbacks import ModelCheckpoint
        from bolide.trainer import trainer as module
        from tests.callbacks.support import fit
        module.write_checkpoint = lambda checkpoint, path: (print("writing", flush=True), time.sleep(1000))
        fit(ModelCheckpoint(dirpath={str(tmp_path)!r}, every_n_train_steps=2), max_epochs=1, train=2)
    """
    root = Path(__file__).parents[2]
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], cwd=root, stdout=subprocess.PIPE)
    try:
        assert process.stdout.readline() == b"writing\n"
        time.sleep(0.5)
        process.terminate()
        time.sleep(0.5)
        assert process.poll() is None  # the first one waits for the save
        process.terminate()
        assert process.wait(30) == 143
    finally:
        process.kill()
        process.wait()
        process.stdout.close()

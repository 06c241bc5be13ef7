"""Signals: what the watch hears and when it raises, what `act` does in which order, and whole runs that are stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import bolide as pl
from bolide.callbacks import Callback, ModelCheckpoint
from bolide.checkpoint.writer import SaveError
from bolide.core.errors import SIGTERMException
from bolide.engine import signals
from bolide.engine.signals import SignalWatch, act, watched
from bolide.loggers.logger import DummyLogger

TERM, INT, USR1 = signal.SIGTERM, signal.SIGINT, signal.SIGUSR1


class Queue:
    """A cluster's queue that remembers what it was asked."""

    auto_requeue, requeue_signal = True, int(USR1)

    def __init__(self, told=None):
        self.told = [] if told is None else told

    def requeue(self):
        self.told.append("requeue")
        return True


@pytest.fixture(autouse=True)
def handlers_stay():
    """No test leaves a handler behind, and a SIGTERM that nobody hears does not end the tests."""
    outside = signal.signal(TERM, lambda signum, frame: None)
    before = {signum: signal.getsignal(signum) for signum in (TERM, INT, USR1, signal.SIGCHLD)}
    yield
    after = {signum: signal.getsignal(signum) for signum in before}
    for signum, handler in before.items():
        signal.signal(signum, handler)
    signal.signal(TERM, outside)
    assert after == before


def training(watch):
    watch.at_once = False
    return watch


# ---- hearing


def test_a_signal_is_kept_and_counted():
    with training(SignalWatch()) as watch:
        assert (watch.received, watch.count) == (None, 0)
        signal.raise_signal(TERM)
        assert (watch.received, watch.count) == (TERM, 1)
        watch.answered = True


def test_the_handlers_come_back():
    before = signal.getsignal(TERM), signal.getsignal(INT)
    with SignalWatch():
        assert signal.getsignal(TERM) != before[0] and signal.getsignal(INT) != before[1]
    assert (signal.getsignal(TERM), signal.getsignal(INT)) == before


def test_the_handlers_come_back_after_an_exception():
    before = signal.getsignal(TERM)
    with pytest.raises(ZeroDivisionError), SignalWatch():
        _ = 1 / 0
    assert signal.getsignal(TERM) == before


def test_a_users_handler_for_sigterm_is_called_too():
    heard = []
    before = signal.signal(TERM, lambda signum, frame: heard.append(signum))
    try:
        with training(SignalWatch()) as watch:
            signal.raise_signal(TERM)
            watch.answered = True
        assert heard == [TERM] and watch.received == TERM
    finally:
        signal.signal(TERM, before)


def test_a_users_handler_for_ctrl_c_is_left_alone():
    heard = []
    before = signal.signal(INT, lambda signum, frame: heard.append(signum))
    try:
        with training(SignalWatch()) as watch:
            signal.raise_signal(INT)
        assert heard == [INT] and watch.received is None
    finally:
        signal.signal(INT, before)


@pytest.mark.parametrize("signum", [TERM, INT])
def test_an_ignored_signal_stays_ignored(signum):
    before = signal.signal(signum, signal.SIG_IGN)
    try:
        with training(SignalWatch()) as watch:
            signal.raise_signal(signum)
        assert watch.received is None
    finally:
        signal.signal(signum, before)


@pytest.mark.parametrize(("signum", "error"), [(TERM, SIGTERMException), (INT, KeyboardInterrupt)])
def test_before_training_a_signal_ends_the_run_at_once(signum, error):
    with pytest.raises(error) as caught, SignalWatch():
        signal.raise_signal(signum)
        pytest.fail("the program went on")
    assert caught.value.checkpoint_settled


def test_the_second_ctrl_c_does_not_wait():
    with pytest.raises(KeyboardInterrupt) as caught, training(SignalWatch()):
        signal.raise_signal(INT)
        signal.raise_signal(INT)
        pytest.fail("the program went on")
    assert caught.value.checkpoint_settled


def test_the_second_sigterm_skips_the_save(monkeypatch):
    monkeypatch.setattr(signals, "ECHO_S", 0.0)
    with training(SignalWatch()) as watch:
        signal.raise_signal(TERM)
        assert not watch.skips_save
        signal.raise_signal(TERM)
        assert watch.skips_save and watch.count == 2
        watch.answered = True


def test_a_sigterm_handed_on_by_a_launcher_is_no_second_one(monkeypatch):
    monkeypatch.setattr(signals, "ECHO_S", 1e9)
    with training(SignalWatch()) as watch:
        signal.raise_signal(TERM)
        signal.raise_signal(TERM)
        assert watch.count == 1 and not watch.skips_save
        watch.answered = True


def test_sigterm_counts_more_than_ctrl_c():
    with training(SignalWatch()) as watch:
        signal.raise_signal(INT)
        signal.raise_signal(TERM)
        assert watch.received == TERM and not watch.skips_save
        watch.answered = True


@pytest.mark.parametrize(("signum", "error"), [(TERM, SIGTERMException), (INT, KeyboardInterrupt)])
def test_what_came_after_the_last_boundary_still_ends_the_program(signum, error):
    before = signal.getsignal(signum)
    with pytest.raises(error), training(SignalWatch()):
        signal.raise_signal(signum)
    assert signal.getsignal(signum) == before


def test_the_queues_signal_is_heard_only_where_there_is_a_queue():
    before = signal.getsignal(USR1)
    with SignalWatch():
        assert signal.getsignal(USR1) == before
    no = Queue()
    no.auto_requeue = False
    with SignalWatch(no):
        assert signal.getsignal(USR1) == before
    with SignalWatch(Queue()) as watch:
        signal.raise_signal(USR1)
        assert watch.received == USR1


def test_in_another_thread_nothing_is_installed(caplog):
    before, seen = signal.getsignal(TERM), []

    def work():
        with SignalWatch():
            seen.append(signal.getsignal(TERM))

    with caplog.at_level("INFO", "bolide"):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert seen == [before]
    assert "in a thread that is not the main one" in caplog.text


def test_anybody_may_ask_from_a_thread():
    watch = training(SignalWatch())
    thread = threading.Thread(target=watch.ask, args=("preempted",))
    thread.start()
    thread.join()
    assert (watch.received, watch.reason) == (TERM, "preempted")


def test_a_watch_within_a_watch_hears_and_tells_the_outer_one():
    with training(SignalWatch()) as outer:
        with training(SignalWatch()) as inner:
            signal.raise_signal(INT)
            assert (inner.received, outer.received) == (INT, INT)
            inner.answered = True
        outer.answered = True


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_dies_of_sigterm_as_ever():
    code = """
        import os, signal, time
        from bolide.engine.signals import SignalWatch
        watch = SignalWatch()
        watch.at_once = False
        with watch:
            child = os.fork()
            if child == 0:
                time.sleep(60)
                os._exit(0)
            time.sleep(0.2)
            os.kill(child, signal.SIGTERM)
            _, status = os.waitpid(child, 0)
        print(os.WTERMSIG(status), watch.received)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=100)
    assert done.stdout.split() == ["15", "None"], done.stderr


def three_steps(seen, watch):
    try:
        for i in range(3):
            seen.append(watch.paused)
            yield i
    finally:
        seen.append("closed")


def test_between_steps_a_signal_does_what_it_did_before():
    heard, seen = [], []
    before = signal.signal(TERM, lambda signum, frame: heard.append(signum))
    try:
        outside, watch = signal.getsignal(TERM), training(SignalWatch())
        mine = watched(three_steps(seen, watch), watch)
        for i in mine:
            signal.raise_signal(TERM)
            assert heard == [TERM] * (i + 1) and (watch.received, watch.count) == (None, 0)
            with pytest.raises(KeyboardInterrupt) as caught:
                signal.raise_signal(INT)
            assert not hasattr(caught.value, "checkpoint_settled")
            if i == 1:
                break
        mine.close()
        assert seen == [False, False, "closed"]
        assert signal.getsignal(TERM) == outside
        watch = SignalWatch()
        assert list(watched(three_steps(seen, watch), watch)) == [0, 1, 2]
        assert signal.getsignal(TERM) == outside
    finally:
        signal.signal(TERM, before)


def test_between_steps_sigterm_ends_a_program_that_hears_none():
    code = """
        import signal
        from bolide.engine.signals import SignalWatch, watched
        for _ in watched((i for i in range(3)), SignalWatch()):
            signal.raise_signal(signal.SIGTERM)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=100)
    assert done.returncode == -TERM, done.stderr


def test_steps_install_their_handlers_once(monkeypatch):
    calls, install = [], signal.signal
    watch = training(SignalWatch())
    monkeypatch.setattr(signal, "signal", lambda *args: (calls.append(args[0]), install(*args))[1])
    for _ in watched((i for i in range(100)), watch):
        pass
    assert sorted(calls) == sorted([TERM, INT] * 2)


def test_a_handler_installed_between_steps_stays():
    before = signal.getsignal(TERM)
    mine = training(SignalWatch())
    try:
        for i in watched((i for i in range(3)), mine):
            if i == 1:
                signal.signal(TERM, signal.SIG_IGN)
        assert signal.getsignal(TERM) == signal.SIG_IGN
    finally:
        signal.signal(TERM, before)


def test_two_runs_by_turns_hear_each_its_own():
    first, second = training(SignalWatch()), training(SignalWatch())

    def steps(which):
        for i in range(3):
            if (which, i) == ("first", 1):
                signal.raise_signal(TERM)
            yield i

    before = {signum: signal.getsignal(signum) for signum in (TERM, INT)}
    one, two = watched(steps("first"), first), watched(steps("second"), second)
    for _ in range(3):
        next(one)
        next(two)
    assert (first.received, second.received) == (TERM, None)
    first.answered = True
    assert list(two) == [] and list(one) == []
    assert {signum: signal.getsignal(signum) for signum in before} == before


# ---- the answer


class Saver:
    def __init__(self, told, path="here/last.ckpt", failure=None):
        self.told, self.path, self.failure = told, path, failure

    def save_on_stop(self, trainer):
        self.told.append("save")
        if self.failure is not None:
            raise self.failure
        return self.path


def fake_run(*savers, finish_saves=lambda: None):
    trainer = SimpleNamespace(
        checkpoint_callbacks=list(savers), fast_dev_run=False, received_sigterm=False, stop_reason=None,
        finish_saves=finish_saves,
    )  # fmt: skip
    return SimpleNamespace(trainer=trainer, progress=SimpleNamespace(step=7))


def heard(signum, queue=None, times=1):
    watch = training(SignalWatch(queue))
    watch.received, watch._times = signum, {signum: times}
    return watch


def test_sigterm_waits_for_the_save_in_flight_saves_and_raises():
    told = []
    run = fake_run(Saver(told), finish_saves=lambda: told.append("finish"))
    with pytest.raises(SIGTERMException) as caught:
        act(run, heard(TERM))
    assert caught.value.code == 143 and caught.value.checkpoint_settled
    assert told == ["finish", "save"]
    assert run.trainer.received_sigterm and run.trainer.stop_reason == "SIGTERM"


def test_ctrl_c_saves_and_reaches_the_caller():
    told = []
    run = fake_run(Saver(told))
    with pytest.raises(KeyboardInterrupt):
        act(run, heard(INT))
    assert told == ["save"] and not run.trainer.received_sigterm


def test_the_queue_is_asked_after_the_commit():
    told = []
    with pytest.raises(SIGTERMException):
        act(fake_run(Saver(told)), heard(USR1, Queue(told)))
    assert told == ["save", "requeue"]


def test_without_a_checkpoint_a_requeue_says_what_it_means():
    told = []
    with pytest.warns(UserWarning, match="or start from the beginning"), pytest.raises(SIGTERMException):
        act(fake_run(), heard(USR1, Queue(told)))
    assert told == ["requeue"]


def test_a_save_that_fails_does_not_requeue_and_is_not_settled():
    told, failure = [], OSError(28, "No space left on device")
    with pytest.warns(UserWarning, match="No space left"), pytest.raises(SIGTERMException) as caught:
        act(fake_run(Saver(told, failure=failure)), heard(USR1, Queue(told)))
    assert told == ["save"] and caught.value.__cause__ is failure
    assert not hasattr(caught.value, "checkpoint_settled")


def test_a_save_in_flight_that_failed_does_not_keep_the_last_one_from_being_made():
    told = []

    def finish():
        raise SaveError("The checkpoint 'a.ckpt' could not be saved.")

    run = fake_run(Saver(told), finish_saves=finish)
    with pytest.warns(UserWarning, match="a.ckpt.*all the same"), pytest.raises(SIGTERMException) as caught:
        act(run, heard(TERM))
    assert told == ["save"] and caught.value.checkpoint_settled


def test_the_first_callback_that_can_saves_and_no_other():
    told = []
    weights_only, first, second = Saver(told, path=None), Saver(told), Saver(told)
    with pytest.raises(SIGTERMException):
        act(fake_run(SimpleNamespace(), weights_only, first, second), heard(TERM))
    assert told == ["save", "save"]


def test_a_second_sigterm_saves_nothing():
    told = []
    with pytest.raises(SIGTERMException) as caught:
        act(fake_run(Saver(told)), heard(TERM, times=2))
    assert told == [] and caught.value.checkpoint_settled


def test_a_second_sigterm_ends_a_save_that_is_running(monkeypatch):
    monkeypatch.setattr(signals, "ECHO_S", 0.0)
    told = []

    class Slow(Saver):
        def save_on_stop(self, trainer):
            told.append("begins")
            signal.raise_signal(TERM)
            told.append("goes on")

    with pytest.raises(SIGTERMException) as caught, training(SignalWatch()) as watch:
        signal.raise_signal(TERM)
        act(fake_run(Slow(told)), watch)
    assert told == ["begins"] and caught.value.checkpoint_settled


# ---- whole runs, in this process


class Slow(pl.LightningModule):
    """Validates after every fifth batch; `at` maps (where, number) to a signal that this process gets there."""

    def __init__(self, at=None):
        super().__init__()
        self.layer, self.drop = torch.nn.Linear(2, 1), torch.nn.Dropout(0.5)
        self.at, self.seen = dict(at or {}), []

    def step(self, where, batch, batch_idx):
        if (where, batch_idx) in self.at:
            signal.raise_signal(self.at.pop((where, batch_idx)))
        self.seen.append((where, batch_idx))
        return self.layer(self.drop(batch[0])).pow(2).mean()

    def training_step(self, batch, batch_idx):
        return self.step("train", batch, batch_idx)

    def validation_step(self, batch, batch_idx):
        self.log("v", self.step("val", batch, batch_idx))
        torch.rand(1)  # validation draws from the global stream, too

    def predict_step(self, batch, batch_idx):
        return self.step("predict", batch, batch_idx)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1, momentum=0.9)


class Told(DummyLogger):
    def __init__(self):
        self.statuses = []

    def finalize(self, status):
        self.statuses.append(status)


def rows(count=20):
    return DataLoader(TensorDataset(torch.arange(2.0 * count).reshape(count, 2) / count))


def trainer_of(folder, *callbacks, **arguments):
    return pl.Trainer(
        **{
            "accelerator": "cpu", "max_epochs": 2, "logger": Told(), "enable_progress_bar": False,
            "enable_model_summary": False, "num_sanity_val_steps": 0, "val_check_interval": 5,
            "callbacks": [*callbacks, ModelCheckpoint(folder, every_n_epochs=1)], "default_root_dir": folder,
            **arguments,
        }
    )  # fmt: skip


def weights(module):
    return [parameter.detach().clone() for parameter in module.parameters()]


def undisturbed(tmp_path):
    pl.seed_everything(1, verbose=False)
    module = Slow()
    trainer_of(tmp_path / "whole").fit(module, rows(), rows(3))
    return module


@pytest.mark.parametrize(
    ("where", "signum", "error"),
    [
        (("train", 7), TERM, SIGTERMException),
        (("train", 7), INT, KeyboardInterrupt),
        (("train", 9), TERM, SIGTERMException),
        (("train", 19), TERM, SIGTERMException),
        (("val", 1), TERM, SIGTERMException),
        (("val", 2), INT, KeyboardInterrupt),
    ],
)
def test_a_stopped_run_goes_on_with_the_same_bits(tmp_path, where, signum, error):
    expected = undisturbed(tmp_path)
    pl.seed_everything(1, verbose=False)
    module, trainer = Slow({where: signum}), trainer_of(tmp_path / "stopped")
    with pytest.raises(error) as caught:
        trainer.fit(module, rows(), rows(3))
    assert caught.value.checkpoint_settled and trainer.logger.statuses == ["interrupted"]
    assert all(part.training for part in module.modules())
    assert not module.at and module.seen[-1][0] == where[0]
    path = trainer.checkpoint_callback.last_model_path
    assert Path(path).name == "last.ckpt"
    torch.manual_seed(999)
    again = Slow()
    trainer_of(tmp_path / "stopped").fit(again, rows(), rows(3), ckpt_path=path)
    for mine, theirs in zip(weights(again), weights(expected), strict=True):
        assert torch.equal(mine, theirs)
    lost = 0 if where[0] == "train" else where[1] + 1  # a validation that was broken off runs again, from its start
    assert len(module.seen) + len(again.seen) == len(expected.seen) + lost


def test_after_ctrl_c_the_trainer_and_the_module_can_be_used(tmp_path):
    module, trainer = Slow({("train", 7): INT}), trainer_of(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        trainer.fit(module, rows(), rows(3))
    assert trainer.global_step == 8 and trainer.interrupted
    trainer.validate(module, rows(3), verbose=False)
    trainer.fit(module, rows(), rows(3))
    assert trainer.current_epoch == 2 and trainer.state.finished
    assert torch.isfinite(torch.cat([weight.flatten() for weight in weights(module)])).all()


def test_a_ctrl_c_that_user_code_raises_reaches_the_caller(tmp_path):
    class Raises(Callback):
        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
            if batch_idx == 2:
                raise KeyboardInterrupt

    trainer = trainer_of(tmp_path, Raises())
    with pytest.raises(KeyboardInterrupt):
        trainer.fit(Slow(), rows(), rows(3))
    assert trainer.logger.statuses == ["interrupted"]


def test_in_setup_the_sanity_check_and_prediction_nothing_waits_for_a_batch(tmp_path):
    class InSetup(Callback):
        def setup(self, trainer, pl_module, stage):
            signal.raise_signal(TERM)
            pytest.fail("went on")

    with pytest.raises(SIGTERMException):
        trainer_of(tmp_path, InSetup()).fit(Slow(), rows(), rows(3))
    for run in (
        lambda module: trainer_of(tmp_path, num_sanity_val_steps=2).fit(module, rows(), rows(3)),
        lambda module: trainer_of(tmp_path).validate(module, rows(3)),
    ):
        module = Slow({("val", 0): TERM})
        with pytest.raises(SIGTERMException):
            run(module)
        assert module.seen == []
    module = Slow({("predict", 1): INT})
    with pytest.raises(KeyboardInterrupt):
        trainer_of(tmp_path).predict(module, rows(3))
    assert module.seen == [("predict", 0)]
    assert list(tmp_path.rglob("*.ckpt")) == []


def test_an_evaluation_in_a_hook_of_a_fit_is_not_broken_off(tmp_path):
    class Evaluates(Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            if batch_idx == 2:
                other = trainer_of(tmp_path / "other")
                other.validate(Slow({("val", 0): TERM}), rows(3), verbose=False)
                assert other.state.finished

    trainer = trainer_of(tmp_path, Evaluates())
    with pytest.raises(SIGTERMException):
        trainer.fit(Slow(), rows(), rows(3))
    assert trainer.global_step == 3 and (tmp_path / "last.ckpt").exists()


def test_without_checkpoint_callbacks_nothing_is_saved(tmp_path):
    trainer = trainer_of(tmp_path, enable_checkpointing=False, callbacks=[])
    with pytest.raises(SIGTERMException):
        trainer.fit(Slow({("train", 3): TERM}), rows(), rows(3))
    assert trainer.global_step == 4 and trainer.received_sigterm
    assert list(tmp_path.rglob("*.ckpt")) == []


def test_steps_are_stopped_at_a_boundary_too(tmp_path):
    trainer, done = trainer_of(tmp_path), 0
    with pytest.raises(SIGTERMException):
        for _ in trainer.steps(Slow({("train", 3): TERM}), rows(), rows(3)):
            done += 1
    assert done == 3 and trainer.global_step == 4
    assert trainer.logger.statuses == ["interrupted"]


def test_a_part_of_the_program_may_ask(tmp_path):
    class Asks(Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            if batch_idx == 2:
                trainer.save_and_stop("preempted")

    trainer = trainer_of(tmp_path, Asks())
    with pytest.raises(SIGTERMException):
        trainer.fit(Slow(), rows(), rows(3))
    assert trainer.global_step == 3 and trainer.stop_reason == "preempted" and not trainer.received_sigterm
    assert torch.load(tmp_path / "last.ckpt", weights_only=True)["global_step"] == 3


# ---- whole runs, in processes of their own

SCRIPT = """
import sys, time
import torch
import bolide as pl
from bolide.callbacks import Callback, ModelCheckpoint
from bolide.loggers import CSVLogger
from torch.utils.data import DataLoader, TensorDataset

folder, workers, plugins = sys.argv[1], int(sys.argv[2]), []
if len(sys.argv) > 3:
    from bolide.plugins.environments import SLURMEnvironment
    plugins = [SLURMEnvironment()]

class Slow(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def training_step(self, batch, batch_idx):
        time.sleep(0.005)
        return self.layer(batch[0]).pow(2).mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)

class Logger(CSVLogger):
    def finalize(self, status):
        print("finalized", status, flush=True)
        super().finalize(status)

class Ready(Callback):
    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if batch_idx == 10:
            print("ready", flush=True)

trainer = pl.Trainer(
    accelerator="cpu", max_epochs=1, logger=Logger(folder), enable_progress_bar=False, enable_model_summary=False,
    callbacks=[Ready(), ModelCheckpoint(folder + "/saved", save_on_exception=True)], plugins=plugins or None,
)
trainer.fit(Slow(), DataLoader(TensorDataset(torch.randn(2000, 4)), num_workers=workers))
print("ended by itself", flush=True)
"""


def start(folder, workers=0, *more, **environment):
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(folder), str(workers), *more], stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, start_new_session=True, env={**os.environ, **environment},
    )  # fmt: skip
    said = ""
    for line in process.stdout:
        said += line
        if line == "ready\n":
            return process
    raise AssertionError(said + process.communicate(timeout=100)[1])


def end(process):
    try:
        out, err = process.communicate(timeout=100)
    finally:
        if process.poll() is None:
            process.kill()
    return process.returncode, out, err


@pytest.mark.parametrize(("workers", "whole_group"), [(0, False), (2, True)])
def test_sigterm_ends_with_143_and_a_checkpoint(tmp_path, workers, whole_group):
    process = start(tmp_path, workers)
    (os.killpg if whole_group else os.kill)(process.pid, TERM)
    code, out, err = end(process)
    assert (code, out) == (143, "finalized interrupted\n"), err
    assert [path.name for path in (tmp_path / "saved").iterdir()] == ["last.ckpt"]
    saved = torch.load(tmp_path / "saved/last.ckpt", weights_only=True)
    assert 11 <= saved["global_step"] < 2000
    assert "Traceback" not in err


def test_slurms_signal_saves_and_puts_the_job_back(tmp_path):
    tools = tmp_path / "tools"
    tools.mkdir()
    scontrol = tools / "scontrol"
    scontrol.write_text(f'#!/bin/sh\nls {tmp_path}/saved > {tmp_path}/seen; echo "$@" >> {tmp_path}/asked\n')
    scontrol.chmod(0o755)
    process = start(tmp_path, 0, "slurm", PATH=f"{tools}:{os.environ['PATH']}", SLURM_JOB_ID="123")
    os.kill(process.pid, USR1)
    code, out, err = end(process)
    assert (code, out) == (143, "finalized interrupted\n"), err
    assert (tmp_path / "asked").read_text() == "requeue 123\n"
    assert (tmp_path / "seen").read_text() == "last.ckpt\n"

import pytest
import torch

import bolide as pl
from bolide.callbacks import EarlyStopping
from bolide.callbacks.early_stopping import EarlyStoppingReason as Reason
from bolide.core.errors import ConfigError, MisconfigurationException
from tests.callbacks.support import INF, NAN, Scored, fit


def stopped(values, arguments=None, **run):
    callback = EarlyStopping(**{"monitor": "v", **(arguments or {})})
    trainer = fit(callback, values=values, train=2, **{"max_epochs": len(values), **run})
    return callback, trainer


@pytest.mark.parametrize(
    ("values", "arguments", "epochs", "wait", "best", "reason"),
    [
        ([3, 2, 1, 1, 1, 1, 1, 1], {}, 6, 3, 1, Reason.PATIENCE_EXHAUSTED),
        ([3, 2, 1, 1, 1, 1, 1], {"patience": 1}, 4, 1, 1, Reason.PATIENCE_EXHAUSTED),
        ([3, 2.9, 2.8, 1, 1], {"patience": 2, "min_delta": 0.5}, 3, 2, 3, Reason.PATIENCE_EXHAUSTED),
        ([1, 2, 3, 3, 3, 3], {"patience": 2, "min_delta": 0.5, "mode": "max"}, 5, 2, 3, Reason.PATIENCE_EXHAUSTED),
        ([1, 2, NAN, 3], {"mode": "max"}, 3, 0, 2, Reason.NON_FINITE_METRIC),
        ([1, 2, INF, 3], {"mode": "max"}, 3, 0, 2, Reason.NON_FINITE_METRIC),
        ([1, NAN, NAN, 3], {"check_finite": False, "patience": 2}, 3, 2, 1, Reason.PATIENCE_EXHAUSTED),
        ([3, 2, 0.5, 0.2], {"stopping_threshold": 0.6}, 3, 0, 2, Reason.STOPPING_THRESHOLD),
        ([3, 2, 0.5, 0.2], {"stopping_threshold": 0.5}, 4, 0, 0.5, Reason.STOPPING_THRESHOLD),
        ([3, 2, 10, 0.5], {"divergence_threshold": 5}, 3, 0, 2, Reason.DIVERGENCE_THRESHOLD),
        ([4, 3, 2, 1], {}, 4, 0, 1, Reason.NOT_STOPPED),
    ],
)
def test_when_and_why_it_stops(values, arguments, epochs, wait, best, reason):
    callback, trainer = stopped(values, arguments)
    assert trainer.current_epoch == epochs
    assert (callback.wait_count, float(callback.best_score)) == (wait, best)
    assert callback.stopping_reason is reason
    assert callback.stopped_epoch == (0 if reason is Reason.NOT_STOPPED else epochs - 1)
    assert (callback.stopping_reason_message is None) == (reason is Reason.NOT_STOPPED)
    assert trainer.should_stop == (reason is not Reason.NOT_STOPPED)


def test_it_goes_on_counting_within_min_epochs():
    callback, trainer = stopped([3] * 7, {"patience": 1}, min_epochs=5)
    assert (trainer.current_epoch, callback.wait_count) == (5, 4)


@pytest.mark.parametrize(
    ("run", "epochs"),
    [({"check_val_every_n_epoch": 2}, 4), ({"val_check_interval": 1}, 1), ({"val_check_interval": 0.5}, 1)],
)
def test_checks_are_where_validation_is(run, epochs):
    _, trainer = stopped([3] * 8, {"patience": 1}, **run)
    assert trainer.current_epoch == epochs


@pytest.mark.parametrize("at_epoch_end", [True, None])
def test_metrics_of_the_training_epoch(at_epoch_end):
    callback = EarlyStopping("end", patience=1, check_on_train_epoch_end=at_epoch_end)
    trainer = fit(callback, module=Scored(log_end=True), train=2, max_epochs=5)
    assert trainer.current_epoch == 2


def test_a_metric_that_nobody_logs_lists_the_nearest_first():
    module = Scored([1, 2], log_train=True)
    with pytest.raises(RuntimeError, match="'step_los'.*Logged are: 'step_loss', 'v'") as caught:
        fit(EarlyStopping("step_los"), module=module, train=2)
    assert isinstance(caught.value, MisconfigurationException)


def test_a_metric_that_comes_with_a_later_validation_is_waited_for():
    _, trainer = stopped([3, 2, 1, 1], {"check_on_train_epoch_end": True}, check_val_every_n_epoch=2)
    assert trainer.current_epoch == 4


def test_a_missing_metric_is_fine_where_it_is_not_strict():
    callback, trainer = stopped([3, 2], {"monitor": "nope", "strict": False})
    assert trainer.current_epoch == 2 and callback.stopping_reason is Reason.NOT_STOPPED
    with pytest.warns(UserWarning, match="'nope'"):
        stopped([3, 2], {"monitor": "nope", "strict": False, "verbose": True})


def test_the_sanity_check_is_not_a_check():
    class Always(Scored):
        def on_validation_epoch_end(self):
            self.log("v", 1.0 if self.trainer.sanity_checking else 2.0)

    callback = EarlyStopping("v")
    fit(callback, module=Always(), train=2, max_epochs=1, num_sanity_val_steps=1)
    assert float(callback.best_score) == 2.0


def test_a_resumed_run_stops_where_an_unbroken_one_does(tmp_path):
    values = [3, 3, 3, 3, 3, 3]
    first = EarlyStopping("v", patience=4)
    trainer = fit(first, values=values, train=2, max_epochs=3)
    trainer.save_checkpoint(tmp_path / "x.ckpt")
    second = EarlyStopping("v", patience=4)
    resumed = fit(second, values=values, train=2, max_epochs=20, fit={"ckpt_path": str(tmp_path / "x.ckpt")})
    assert first.wait_count == 2 and resumed.current_epoch == 5


def test_state_goes_round():
    callback = EarlyStopping("v")
    callback.wait_count, callback.stopping_reason = 2, Reason.PATIENCE_EXHAUSTED
    other = EarlyStopping("v")
    other.load_state_dict(callback.state_dict())
    assert other.state_dict() == callback.state_dict() and other.stopping_reason is Reason.PATIENCE_EXHAUSTED


def test_a_wrong_mode_is_refused():
    with pytest.raises(ConfigError, match="mode='auto'"):
        EarlyStopping("v", mode="auto")


def test_the_trainer_knows_it():
    callback = EarlyStopping("v")
    assert pl.Trainer(callbacks=[callback], logger=False).early_stopping_callback is callback


@pytest.mark.parametrize("arguments", [{}, {"mode": "max", "min_delta": 0.1}])
def test_state_key_and_state_are_lightnings(arguments):
    theirs = pytest.importorskip("lightning.pytorch.callbacks").EarlyStopping("v", **arguments)
    ours = EarlyStopping("v", **arguments)
    assert ours.state_key == theirs.state_key and list(ours.state_dict()) == list(theirs.state_dict())
    assert ours.min_delta == theirs.min_delta and ours.monitor_op is theirs.monitor_op
    assert [r.name for r in Reason] == [r.name for r in type(theirs.stopping_reason)]
    assert torch.equal(ours.best_score, theirs.best_score)

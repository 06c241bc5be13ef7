import inspect

import pytest

from bolide.callbacks import Callback, GradientAccumulationScheduler, LambdaCallback
from bolide.core.errors import ConfigError
from tests.callbacks.support import Scored, fit, rows


def test_lambdas_are_called_with_the_hooks_arguments():
    heard = []
    callback = LambdaCallback(
        setup=lambda trainer, module, stage: heard.append(f"setup {stage}"),
        on_train_batch_end=lambda trainer, module, outputs, batch, batch_idx: heard.append(batch_idx),
        on_train_epoch_end=lambda *_: heard.append("end"),
    )
    fit(callback, max_epochs=1, train=2)
    assert heard == ["setup fit", 0, 1, "end"]


def test_a_hook_that_was_not_given_is_not_there():
    assert set(vars(LambdaCallback(on_fit_start=print))) == {"on_fit_start"}


def test_a_hook_that_does_not_exist_is_refused():
    with pytest.raises(TypeError, match="on_train_epoch_ends"):
        LambdaCallback(on_train_epoch_ends=print)


def test_every_hook_can_be_given():
    hooks = {name for name, _ in inspect.getmembers(Callback, inspect.isfunction) if name.startswith("on_")}
    assert set(inspect.signature(LambdaCallback).parameters) == hooks | {"setup", "teardown"}


@pytest.mark.parametrize(
    ("schedule", "factors"),
    [({0: 2}, [2, 2, 2]), ({1: 2}, [1, 2, 2]), ({2: 4}, [1, 1, 4]), ({0: 3, 2: 1}, [3, 3, 1])],
)
def test_the_factor_of_each_epoch(schedule, factors):
    callback = GradientAccumulationScheduler(schedule)
    assert [callback.get_accumulate_grad_batches(epoch) for epoch in range(3)] == factors
    assert callback.going_to_accumulate_grad_batches()
    seen = []
    watch = LambdaCallback(on_train_batch_end=lambda trainer, *_: seen.append(trainer.accumulate_grad_batches))
    trainer = fit(callback, watch, train=4, val=0)
    assert seen[::4] == factors
    assert trainer.global_step == sum(-(-4 // factor) for factor in factors)


def test_no_accumulation_is_known_as_such():
    assert not GradientAccumulationScheduler({0: 1}).going_to_accumulate_grad_batches()


@pytest.mark.parametrize("schedule", [{}, [1], {-1: 2}, {1: 0}, {"1": 2}, {1: 2.5}, {1: True}])
def test_a_wrong_schedule_is_refused(schedule):
    with pytest.raises(ConfigError, match="GradientAccumulationScheduler"):
        GradientAccumulationScheduler(schedule)


def test_a_schedule_and_a_factor_contradict_each_other():
    with pytest.raises(ValueError, match="accumulate_grad_batches=2"):
        fit(GradientAccumulationScheduler({1: 2}), accumulate_grad_batches=2, val=0)


def test_a_second_fit_of_the_trainer_is_fine():
    callback = GradientAccumulationScheduler({0: 2})
    trainer = fit(callback, val=0, max_epochs=1)
    trainer.fit_loop.max_epochs = 2
    trainer.fit(Scored(), rows(4))


def test_manual_optimization_has_no_schedule():
    module = Scored()
    module.automatic_optimization = False
    with pytest.raises(RuntimeError, match="manual optimization"):
        fit(GradientAccumulationScheduler({1: 2}), module=module, val=0)

import pytest
import torch
from torch.optim import SGD, Adagrad, AdamW
from torch.optim.lr_scheduler import StepLR

from bolide.callbacks import LearningRateMonitor
from bolide.core.errors import ConfigError
from bolide.loggers.logger import DummyLogger
from tests.callbacks.support import Scored, fit


class Kept(DummyLogger):
    def __init__(self):
        self.rows = []

    def log_metrics(self, metrics, step=None):
        self.rows.append((step, dict(metrics)))


class Net(Scored):
    def __init__(self, configure, manual=False):
        super().__init__()
        self.a, self.b = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)
        self.configure, self.automatic_optimization = configure, not manual

    def training_step(self, batch, batch_idx):
        if self.automatic_optimization:
            return self.w.sum() + self.a.weight.sum() + self.b.weight.sum()
        for optimizer in self.optimizers():
            optimizer.step()
        return None

    def configure_optimizers(self):
        return self.configure(self)


def logged(configure, manual=False, run=None, **arguments):
    logger, callback = Kept(), LearningRateMonitor(**arguments)
    run = {"max_epochs": 2, "log_every_n_steps": 1, **(run or {})}
    fit(callback, module=Net(configure, manual), train=3, val=0, logger=logger, **run)
    return callback, [(step, row) for step, row in logger.rows if any(name.startswith(("lr-", "own")) for name in row)]


def one(module, **settings):
    return SGD(module.parameters(), 0.1, **settings)


def with_scheduler(interval="epoch", name=None):
    def configure(module):
        optimizer = one(module)
        return [optimizer], [{"scheduler": StepLR(optimizer, 1), "interval": interval, "name": name}]

    return configure


def test_by_step_and_epoch_where_there_is_no_scheduler():
    _, rows = logged(one)
    assert [step for step, _ in rows] == [0, 0, 1, 2, 3, 3, 4, 5]
    assert all(row == {"lr-SGD": 0.1} for _, row in rows)


@pytest.mark.parametrize(("interval", "steps"), [("epoch", [0, 3]), ("step", [0, 1, 2, 3, 4, 5])])
def test_by_step_or_by_epoch(interval, steps):
    callback, rows = logged(one, logging_interval=interval)
    assert [step for step, _ in rows] == steps
    assert callback.lrs == {"lr-SGD": [0.1] * len(steps)}


def test_by_step_follows_log_every_n_steps():
    _, rows = logged(one, logging_interval="step", run={"log_every_n_steps": 2})
    assert [step for step, _ in rows] == [1, 3, 5]


def test_by_the_schedulers_interval():
    _, rows = logged(with_scheduler("epoch"))
    assert [(step, round(row["lr-SGD"], 6)) for step, row in rows] == [(0, 0.1), (3, 0.01)]
    _, rows = logged(with_scheduler("step"), run={"max_epochs": 1})
    assert [(step, round(row["lr-SGD"], 6)) for step, row in rows] == [(0, 0.1), (1, 0.01), (2, 0.001)]


def test_a_scheduler_can_name_its_rate():
    callback, rows = logged(with_scheduler(name="own"), log_key_prefix=None)
    assert [set(row) for _, row in rows] == [{"own"}] * 2 and set(callback.lrs) == {"own"}


def test_momentum_and_weight_decay():
    def sgd(module):
        return one(module, momentum=0.9, weight_decay=0.01)

    _, rows = logged(sgd, log_momentum=True, log_weight_decay=True, logging_interval="epoch")
    assert rows[0][1] == {"lr-SGD": 0.1, "lr-SGD-momentum": 0.9, "lr-SGD-weight_decay": 0.01}
    _, rows = logged(lambda m: AdamW(m.parameters(), 0.1), log_momentum=True, logging_interval="epoch")
    assert rows[0][1] == {"lr-AdamW": 0.1, "lr-AdamW-momentum": 0.9}
    with pytest.warns(UserWarning, match="Adagrad has no momentum"):
        logged(lambda m: Adagrad(m.parameters(), 0.1), log_momentum=True, logging_interval="epoch")


def test_a_prefix_is_put_in_front():
    _, rows = logged(one, logging_interval="epoch", log_key_prefix="own/")
    assert rows[0][1] == {"own/lr-SGD": 0.1}


def groups(*settings):
    def configure(module):
        parts = [list(module.a.parameters()), list(module.b.parameters()), [module.w]]
        return SGD([{"params": p, **s} for p, s in zip(parts, settings, strict=False)], 0.1)

    return configure


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        (({}, {}, {}), {"lr-SGD/pg1", "lr-SGD/pg2", "lr-SGD/pg3"}),
        (({"name": "x"}, {"name": "y"}, {}), {"lr-SGD/x", "lr-SGD/y", "lr-SGD/pg3"}),
        (({"name": "x"},), {"lr-SGD/x"}),
    ],
)
def test_names_of_groups(settings, names):
    callback, _ = logged(groups(*settings), logging_interval="epoch")
    assert set(callback.lrs) == names


def test_groups_of_one_name_are_refused():
    with pytest.raises(ConfigError, match="several parameter groups named 'x'"):
        logged(groups({"name": "x"}, {"name": "x"}))


def test_names_of_several_optimizers():
    def configure(module):
        first, second = SGD(module.a.parameters(), 0.1), SGD(module.b.parameters(), 0.2)
        return [first, second], [{"scheduler": StepLR(second, 1), "name": "own"}]

    callback, _ = logged(configure, manual=True, logging_interval="epoch")
    assert callback.lrs == {"own": [0.2, 0.2], "lr-SGD": [0.1, 0.1]}

    def alike(module):
        return [SGD(module.a.parameters(), 0.1), SGD(module.b.parameters(), 0.2), AdamW([module.w], 0.3)]

    callback, _ = logged(alike, manual=True, logging_interval="epoch")
    assert list(callback.lrs) == ["lr-SGD", "lr-SGD-1", "lr-AdamW"]


def test_a_group_that_is_added_gets_a_name():
    class Grows(Net):
        def on_train_epoch_start(self):
            if self.current_epoch == 1:
                self.trainer.optimizers[0].add_param_group({"params": [self.extra], "lr": 0.5})

    module = Grows(lambda m: SGD(m.a.parameters(), 0.1))
    module.extra = torch.nn.Parameter(torch.zeros(1))
    callback = LearningRateMonitor(logging_interval="epoch")
    fit(callback, module=module, train=1, val=0, logger=Kept(), max_epochs=3)
    assert callback.lrs == {"lr-SGD/pg1": [0.1, 0.1, 0.1], "lr-SGD/pg2": [0.5]}


def test_without_a_logger_it_says_so():
    with pytest.raises(ConfigError, match="needs a logger"):
        fit(LearningRateMonitor(), val=0, max_epochs=1)
    with pytest.raises(ConfigError, match="logging_interval='batch'"):
        LearningRateMonitor(logging_interval="batch")


def test_without_an_optimizer_there_is_nothing_to_log():
    _, rows = logged(lambda module: None, run={"max_epochs": 1})
    assert rows == []

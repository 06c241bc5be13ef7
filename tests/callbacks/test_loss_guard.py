"""NonFinite and what it shares with SpikeDetection: batches that are left out, and states that are gone back to."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bolide as pl
from bolide.callbacks import Callback, ModelCheckpoint, NonFinite, NonFiniteError
from bolide.core.errors import ConfigError, UserCodeError
from tests.callbacks.support import NAN, saved, trainer

DATA = torch.randn(24, 3, generator=torch.Generator().manual_seed(0))


class Net(pl.LightningModule):
    """Batch norm and dropout; a batch whose first number is NaN has a loss that is none."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.3), nn.Linear(4, 1))
        self.batches = []

    def training_step(self, batch, batch_idx):
        self.batches.append(batch_idx)
        loss = self.net(batch[0]).pow(2).mean()
        self.log("loss", loss, on_step=False, on_epoch=True)
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), 0.05)
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)]


class Dropped(Net):
    """The same, to which the batches `never` do not exist: it does not even look at them."""

    def __init__(self, *never):
        super().__init__()
        self.never = never

    def training_step(self, batch, batch_idx):
        return None if batch_idx in self.never else super().training_step(batch, batch_idx)


def loader(*bad):
    data = DATA.clone()
    for batch_idx in bad:
        data[2 * batch_idx, 0] = NAN
    return DataLoader(TensorDataset(data), batch_size=2)


def run(module, data, *callbacks, ckpt_path=None, **arguments):
    pl.seed_everything(5, verbose=False)
    made = trainer(*callbacks, **{"max_epochs": 2, **arguments})
    with torch.random.fork_rng():
        torch.manual_seed(6)
        for parameter in module.parameters():
            parameter.data = torch.rand(parameter.shape) - 0.5
    made.fit(module, data, ckpt_path=ckpt_path)
    return made


def same(one, other):
    states = one.state_dict(), other.state_dict()
    return all(torch.equal(states[0][name], states[1][name]) for name in states[0])


@pytest.mark.parametrize("accumulate", [1, 3])
def test_a_batch_that_is_skipped_was_never_there(accumulate):
    guarded, reference = Net(), Dropped(3, 8)
    with pytest.warns(UserWarning, match="batch 3 of epoch 0 is left out"):
        made = run(guarded, loader(3, 8), NonFinite("skip"), accumulate_grad_batches=accumulate)
    expected = run(reference, loader(), accumulate_grad_batches=accumulate)
    assert same(guarded, reference)
    assert guarded.batches == [*range(12), *range(12)]
    assert torch.isfinite(made.callback_metrics["loss"])
    assert torch.equal(made.callback_metrics["loss"], expected.callback_metrics["loss"])
    skipped = made.callbacks[0].skipped
    assert [entry["last"] for entry in skipped] == [[0, 3], [0, 8], [1, 3], [1, 8]]
    assert made.global_step == expected.global_step


def test_the_account_is_saved_and_goes_on(tmp_path):
    whole = Net()
    run(whole, loader(3, 8), NonFinite("skip"))
    first = NonFinite("skip")
    run(Net(), loader(3, 8), first, ModelCheckpoint(tmp_path, every_n_train_steps=5, save_top_k=-1), max_steps=15)
    again, guard = Net(), NonFinite("skip")
    run(again, loader(3, 8), guard, ckpt_path=str(tmp_path / "epoch=0-step=10.ckpt"))
    assert same(again, whole)
    assert [entry["last"] for entry in guard.skipped] == [[0, 3], [0, 8], [1, 3], [1, 8]]


@pytest.mark.parametrize("policy", ["skip", "rewind"])
def test_one_too_many_ends_the_fit(policy):
    guard = NonFinite(policy, max=2)
    with pytest.raises(NonFiniteError, match=r"batch 7 of epoch 0 is nan, after 2 that were left out \(max=2\)"):
        run(Net(), loader(2, 5, 7), guard)
    assert len(guard.skipped) == 2


def test_raise_comes_before_the_update():
    module = Net()
    with pytest.raises(NonFiniteError, match="batch 3 of epoch 0 is nan; the update was not applied") as caught:
        run(module, loader(3), NonFinite())
    assert not caught.value.weights_are_spoiled
    assert all(torch.isfinite(parameter).all() for parameter in module.parameters())


def test_raise_without_waiting_for_the_device(tmp_path):
    module = Net()
    saver = ModelCheckpoint(tmp_path, every_n_train_steps=3, save_top_k=-1, save_on_exception=True)
    with pytest.raises(NonFiniteError, match="its update was applied") as caught:
        run(module, loader(4), NonFinite(check_every=100), saver)
    assert caught.value.weights_are_spoiled
    # found before the save at step 6, and no save holds what it did
    assert saved(tmp_path) == {"epoch=0-step=3.ckpt": 3}
    assert not all(torch.isfinite(parameter).all() for parameter in module.parameters())


def test_every_so_many_losses_are_read():
    module = Net()
    with pytest.raises(NonFiniteError, match=r"2 batch\(es\) before batch 5 of epoch 0"):
        run(module, loader(4), NonFinite(check_every=3))
    assert module.batches == [0, 1, 2, 3, 4, 5]


def test_what_is_gathered_is_read_at_the_epochs_end():
    module = Net()
    with pytest.raises(NonFiniteError):
        run(module, loader(11), NonFinite(check_every=100))
    assert len(module.batches) == 12


class Weights(Callback):
    """What the module, the optimizer and the scheduler hold as each batch begins."""

    def __init__(self):
        self.seen = []

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        moments = [s["exp_avg"].clone() for s in trainer.optimizers[0].state_dict()["state"].values()]
        values = [value.clone() for value in pl_module.state_dict().values()]
        self.seen.append((values, moments, trainer.lr_scheduler_configs[0].scheduler.last_epoch))


def test_rewind_goes_back_to_the_last_save(tmp_path):
    weights, guard = Weights(), NonFinite("rewind")
    saver = ModelCheckpoint(tmp_path, every_n_train_steps=4, save_top_k=-1)
    module = Net()
    with pytest.warns(UserWarning, match="all since batch 4 of epoch 0 is undone"):
        made = run(module, loader(6), guard, weights, saver, max_epochs=1)
    then, after = weights.seen[4], weights.seen[7]
    assert all(torch.equal(one, other) for one, other in zip(then[0], after[0], strict=True))
    assert all(torch.equal(one, other) for one, other in zip(then[1], after[1], strict=True))
    assert not all(torch.equal(one, other) for one, other in zip(then[0], weights.seen[6][0], strict=True))
    assert guard.skipped == [
        {"policy": "rewind", "loss": pytest.approx(NAN, nan_ok=True), "first": [0, 4], "last": [0, 6]}
    ]
    assert module.batches == list(range(12))  # the data go on
    assert made.global_step == 12  # and so do the counters


def test_a_state_can_be_gone_back_to_twice(tmp_path):
    weights = Weights()
    saver = ModelCheckpoint(tmp_path, every_n_train_steps=4)
    run(Net(), loader(5, 7), NonFinite("rewind"), weights, saver, max_epochs=1)
    for after in (6, 8):
        for part in (0, 1):
            pairs = zip(weights.seen[4][part], weights.seen[after][part], strict=True)
            assert all(torch.equal(one, other) for one, other in pairs)


def test_rewind_before_any_save_goes_back_to_the_start():
    module, weights = Net(), Weights()
    run(module, loader(5), NonFinite("rewind"), weights, max_epochs=1)
    pairs = zip(weights.seen[0][0], weights.seen[6][0], strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


@pytest.mark.parametrize("accumulate", [1, 4])
def test_rewind_every_so_many_steps(accumulate):
    module, weights, guard = Net(), Weights(), NonFinite("rewind", every_n_steps=1 if accumulate > 1 else 3)
    run(module, loader(10), guard, weights, max_epochs=1, accumulate_grad_batches=accumulate)
    back = 9 if accumulate == 1 else 8
    assert guard.skipped[0]["first"] == [0, back]
    pairs = zip(weights.seen[back][0], weights.seen[11][0], strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


def test_a_killed_run_rewinds_to_the_same_state(tmp_path):
    def saver(folder):
        return ModelCheckpoint(folder, every_n_train_steps=4, save_top_k=-1)

    whole = Net()
    run(whole, loader(6), NonFinite("rewind"), saver(tmp_path / "whole"))
    again, guard = Net(), NonFinite("rewind")
    path = str(tmp_path / "whole/epoch=0-step=4.ckpt")
    run(again, loader(6), guard, saver(tmp_path / "again"), ckpt_path=path)
    assert same(again, whole) and len(guard.skipped) == 2


def test_spoiled_weights_are_nothing_to_go_back_to(tmp_path):
    class Spoils(Callback):
        def on_before_optimizer_step(self, trainer, pl_module, optimizer):
            if trainer.progress.batch == 3:
                pl_module.net[0].weight.grad[0, 0] = NAN

    module, guard = Net(), NonFinite("rewind")
    run(module, loader(), guard, Spoils(), ModelCheckpoint(tmp_path, every_n_train_steps=2), max_epochs=1)
    assert guard.skipped[0]["first"] == [0, 2] and guard.skipped[0]["last"] == [0, 4]
    assert all(torch.isfinite(parameter).all() for parameter in module.parameters())


class Manual(Net):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch, batch_idx):
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(self.net(batch[0]).pow(2).mean())
        optimizer.step()


def test_manual_optimization_can_raise_only():
    module = Manual()
    with pytest.raises(NonFiniteError):
        run(module, loader(3), NonFinite())
    assert all(torch.isfinite(parameter).all() for parameter in module.parameters())
    with pytest.raises(UserCodeError, match="policy='raise'"):
        run(Manual(), loader(), NonFinite("skip"))


def test_an_optimizer_step_of_ones_own_is_guarded_too():
    class Own(Net):
        def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure):
            optimizer.step(closure=optimizer_closure)

    class OwnDropped(Dropped):
        optimizer_step = Own.optimizer_step

    guarded, reference = Own(), OwnDropped(3)
    made = run(guarded, loader(3), NonFinite("skip"))
    expected = run(reference, loader())
    assert same(guarded, reference)
    assert torch.equal(made.callback_metrics["loss"], expected.callback_metrics["loss"])


@pytest.mark.parametrize(
    "arguments",
    [
        {"policy": "stop"}, {"max": -1}, {"max": 1.5}, {"check_every": 0}, {"policy": "skip", "check_every": 2},
        {"every_n_steps": 3}, {"policy": "rewind", "every_n_steps": 0},
    ],
)  # fmt: skip
def test_settings_that_are_refused(arguments):
    with pytest.raises(ConfigError, match="NonFinite"):
        NonFinite(**arguments)

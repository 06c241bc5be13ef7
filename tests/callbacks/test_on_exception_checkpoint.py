from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bolide as pl
from bolide.callbacks import OnExceptionCheckpoint
from bolide.checkpoint import io
from bolide.core.errors import ConfigError
from tests.callbacks.support import Scored, fit, rows, saved, trainer


class Failing(pl.LightningModule):
    """Dropout and batch norm, whose random state and buffers a broken step moves; fails once, at (place, batch)."""

    def __init__(self, place=None, at=None):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 1))
        self.place, self.at = place, at

    def fail(self, place, batch_idx):
        if place == self.place and batch_idx == self.at:
            raise RuntimeError(place)

    def training_step(self, batch, batch_idx):
        self.fail("before", batch_idx)
        loss = self.net(batch[0]).pow(2).mean()
        self.fail("after forward", batch_idx)
        return loss

    def on_after_backward(self):
        self.fail("after backward", self.trainer.progress.batch)

    def on_before_optimizer_step(self, optimizer):
        self.fail("at the step", self.trainer.progress.batch)

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.fail("after the step", batch_idx)

    def on_train_epoch_start(self):
        if self.current_epoch:
            self.fail("epoch", 0)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), 0.1)


def loader():
    return DataLoader(TensorDataset(torch.arange(60.0).reshape(20, 3) / 60), batch_size=2, shuffle=True)


def run(module, *callbacks, ckpt_path=None, **arguments):
    made = trainer(*callbacks, **{"max_epochs": 2, "enable_checkpointing": bool(callbacks), **arguments})
    made.fit(module, loader(), ckpt_path=ckpt_path)
    return made


@pytest.mark.parametrize(
    ("place", "at", "accumulate"),
    [
        ("before", 4, 1), ("after forward", 4, 1), ("after backward", 4, 1), ("after forward", 5, 3), ("epoch", 0, 1),
        ("after backward", 6, 3),
    ],
)  # fmt: skip
def test_the_run_goes_on_from_the_last_boundary_with_the_same_bits(tmp_path, place, at, accumulate):
    pl.seed_everything(3, verbose=False)
    whole = Failing()
    run(whole, accumulate_grad_batches=accumulate)
    pl.seed_everything(3, verbose=False)
    callback = OnExceptionCheckpoint(tmp_path)
    with pytest.raises(RuntimeError, match=place):
        run(Failing(place, at), callback, accumulate_grad_batches=accumulate)
    assert callback.ckpt_path == str(tmp_path / "on_exception.ckpt")
    torch.manual_seed(77)
    again = Failing()
    run(again, OnExceptionCheckpoint(tmp_path), ckpt_path=callback.ckpt_path, accumulate_grad_batches=accumulate)
    for name, value in whole.state_dict().items():
        assert torch.equal(value, again.state_dict()[name]), name


def test_a_state_within_a_step_is_called_that(tmp_path):
    with pytest.warns(UserWarning, match="came while the weights changed"), pytest.raises(RuntimeError):
        run(Failing("at the step", 4), OnExceptionCheckpoint(tmp_path))
    assert saved(tmp_path) == {"on_exception.ckpt": 4}


def test_a_hook_that_fails_after_the_step_loses_nothing(tmp_path, recwarn):
    callback = OnExceptionCheckpoint(tmp_path)
    with pytest.raises(RuntimeError):
        run(Failing("after the step", 4), callback)
    assert saved(tmp_path) == {"on_exception.ckpt": 5}
    assert not [w for w in recwarn if "came while" in str(w.message)]
    again = run(Failing(), OnExceptionCheckpoint(tmp_path), ckpt_path=callback.ckpt_path)
    assert again.global_step == 20


def test_a_normal_end_removes_the_file(tmp_path):
    path = tmp_path / "on_exception.ckpt"
    path.write_bytes(b"from an earlier run")
    fit(OnExceptionCheckpoint(tmp_path), max_epochs=1)
    assert not path.exists()


@pytest.mark.parametrize("fast", [False, True])
def test_what_fails_before_training_leaves_the_earlier_file(tmp_path, fast):
    class Broken(Scored):
        def training_step(self, batch, batch_idx):
            raise RuntimeError("at once")

    path = tmp_path / "on_exception.ckpt"
    path.write_bytes(b"from an earlier run")
    with pytest.raises(RuntimeError):
        fit(OnExceptionCheckpoint(tmp_path), module=Broken(), fast_dev_run=fast)
    assert path.read_bytes() == b"from an earlier run"


def test_evaluation_saves_nothing(tmp_path):
    class Broken(Scored):
        def validation_step(self, batch, batch_idx):
            raise RuntimeError

    with pytest.raises(RuntimeError):
        trainer(OnExceptionCheckpoint(tmp_path)).validate(Broken(), rows(1))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("mark", ["checkpoint_settled", "weights_are_spoiled"])
def test_an_exception_that_says_so_saves_nothing(tmp_path, mark):
    class Ends(pl.callbacks.Callback):
        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
            if batch_idx == 2:
                error = ValueError("enough")
                setattr(error, mark, True)
                raise error

    with pytest.raises(ValueError, match="enough"):
        fit(OnExceptionCheckpoint(tmp_path), Ends())
    assert list(tmp_path.iterdir()) == []


def test_a_save_that_fails_half_way_leaves_the_earlier_file(tmp_path, monkeypatch):
    path = tmp_path / "on_exception.ckpt"
    with pytest.raises(RuntimeError):
        run(Failing("before", 2), OnExceptionCheckpoint(tmp_path))
    before = path.read_bytes()

    def full(event, number, kind, at):
        if (event, kind) == ("before", "fsync"):
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(io.operations, "listeners", [full])
    with pytest.warns(UserWarning, match="No space left"), pytest.raises(RuntimeError, match="before"):
        run(Failing("before", 4), OnExceptionCheckpoint(tmp_path))
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


def test_it_is_the_last_checkpoint(tmp_path):
    with pytest.raises(RuntimeError):
        run(Failing("before", 4), OnExceptionCheckpoint(tmp_path))
    again = run(Failing(), OnExceptionCheckpoint(tmp_path), ckpt_path="last")
    assert Path(str(again.ckpt_path)).name == "on_exception.ckpt" and again.global_step == 20


@pytest.mark.parametrize(
    "arguments",
    [("",), (None,), ("x", "../a"), ("x", "a/b"), ("x", ""), ("x", ".."), ("x", "a\0b")],
)
def test_names_that_are_refused(arguments):
    with pytest.raises(ConfigError, match="OnExceptionCheckpoint"):
        OnExceptionCheckpoint(*arguments)

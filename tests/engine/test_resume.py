"""Going on from a checkpoint in one process: the same samples, weights and random states as undisturbed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
)

import bolide as pl
from bolide.callbacks import EarlyStopping, GradientAccumulationScheduler, ModelCheckpoint
from bolide.core.errors import CheckpointError
from bolide.utilities.combined_loader import CombinedLoader
from tests.fixtures import Generated, Idx, OneWeight, loader, trainer


class Net(pl.LightningModule):
    """Linear with dropout; writes down the first column of what it is given."""

    def __init__(self, plateau: str = "") -> None:
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(1, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))
        self.seen: list[Any] = []
        self.plateau = plateau

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        parts = batch.values() if isinstance(batch, dict) else [batch]
        parts = [p[0] if isinstance(p, list) else p for p in parts if p is not None]
        self.seen.append((self.current_epoch, batch_idx, [p.flatten().tolist() for p in parts]))
        loss = sum(self.net(p / 10).pow(2).mean() for p in parts)
        self.log("loss", loss, on_step=True, on_epoch=True, batch_size=1)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val", self.net(batch / 10).pow(2).mean(), batch_size=1)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), lr=1e-2)
        if not self.plateau:
            return optimizer
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=10.0)
        return {"optimizer": optimizer, "lr_scheduler": scheduler, "monitor": self.plateau}


class Stop(Exception):
    """The run is cut off here."""


class CutOff(pl.Callback):
    def __init__(self, at: int) -> None:
        self.at = at

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if trainer.progress.total_batches == self.at:
            raise Stop


class Position:
    """A loader that keeps its own position."""

    def __init__(self) -> None:
        self.i = 0

    def __len__(self) -> int:
        return 10

    def __iter__(self) -> Any:
        self.i %= 10
        while self.i < 10:
            self.i += 1
            yield torch.tensor([[float(self.i - 1)]])

    def state_dict(self) -> dict[str, Any]:
        return {"i": self.i}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.i = state["i"]


def tensors(n: int = 10) -> TensorDataset:
    return TensorDataset(torch.arange(float(n)).reshape(n, 1))


LOADERS: dict[str, Callable[[], Any]] = {
    "in order": lambda: loader(10),
    "shuffled": lambda: loader(10, shuffle=True),
    "shuffled with workers": lambda: loader(10, shuffle=True, num_workers=2),
    "persistent workers": lambda: loader(10, shuffle=True, num_workers=2, persistent_workers=True),
    "tensors": lambda: DataLoader(tensors(), 1, shuffle=True),
    "own generator": lambda: loader(10, shuffle=True, generator=torch.Generator().manual_seed(4)),
    "own generator and workers": lambda: loader(
        10, shuffle=True, num_workers=1, generator=torch.Generator().manual_seed(4)
    ),
    "sampler with a generator": lambda: loader(
        10, sampler=RandomSampler(Idx(10), generator=torch.Generator().manual_seed(9))
    ),
    "subset": lambda: DataLoader(Subset(Idx(20), list(range(3, 13))), 1, shuffle=True),
    "weighted": lambda: loader(10, sampler=WeightedRandomSampler([1.0, 2.0] * 5, 10)),
    "with replacement": lambda: loader(10, sampler=RandomSampler(Idx(10), replacement=True, num_samples=10)),
    "batch sampler": lambda: DataLoader(Idx(20), batch_sampler=BatchSampler(RandomSampler(Idx(20)), 2, False)),
    "without batches": lambda: DataLoader(Idx(10), batch_size=None, sampler=SequentialSampler(Idx(10))),
    "two side by side": lambda: {"a": loader(10, shuffle=True), "b": loader(4, shuffle=True)},
    "two, the shorter ends it": lambda: CombinedLoader(
        [loader(12, shuffle=True), loader(10, shuffle=True)], "min_size"
    ),
    "two, padded": lambda: CombinedLoader({"a": loader(10, shuffle=True), "b": loader(3)}, "max_size"),
    "own position": Position,
    "without a length": lambda: Generated(10),
}


def fit(out: Path, make: Callable[[], Any], cut: int | None, path: str | None, **options: Any) -> Any:
    """One attempt: 3 epochs of 10 batches, saved every 4 steps."""
    torch.manual_seed(3)
    module = Net(plateau=options.pop("plateau", ""))
    callbacks = [
        ModelCheckpoint(dirpath=out, every_n_train_steps=options.pop("every", 4), save_top_k=-1, save_last=True),
        *options.pop("callbacks", []),
        *([CutOff(cut)] if cut is not None else []),
    ]
    one = trainer(max_epochs=3, callbacks=callbacks, enable_checkpointing=True, **options)
    torch.manual_seed(11)
    try:
        one.fit(module, make(), loader(2), ckpt_path=path)
    except Stop:
        assert cut is not None
    return one, module


@pytest.mark.parametrize("cut", [6, 15, 23])
@pytest.mark.parametrize("kind", list(LOADERS))
def test_the_rest_is_the_same(tmp_path: Path, kind: str, cut: int) -> None:
    _, whole = fit(tmp_path / "whole", LOADERS[kind], None, None)
    after = torch.get_rng_state()
    fit(tmp_path / "cut", LOADERS[kind], cut, None)
    one, rest = fit(tmp_path / "cut", LOADERS[kind], None, str(tmp_path / "cut" / "last.ckpt"))
    assert rest.seen == whole.seen[-len(rest.seen) :] and len(rest.seen) >= 30 - cut
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), rest.parameters(), strict=True))
    assert torch.equal(torch.get_rng_state(), after)
    assert one.global_step == 30


@pytest.mark.parametrize(
    "options",
    [
        {"accumulate_grad_batches": 3, "every": 1},
        {"precision": "bf16-mixed"},
        {"gradient_clip_val": 0.1},
        {"val_check_interval": 3},
        {"plateau": "loss"},
        {"plateau": "val", "every": 3, "val_check_interval": 7},
        {"callbacks": [GradientAccumulationScheduler({0: 1, 1: 3})], "every": 2},
        {"reload_dataloaders_every_n_epochs": 1},
        {"check_val_every_n_epoch": None, "val_check_interval": 7},
        {"num_sanity_val_steps": 2},
    ],
    ids=lambda o: ", ".join(o),
)
@pytest.mark.parametrize("cut", [6, 19, 24])
def test_the_rest_is_the_same_under(tmp_path: Path, options: dict[str, Any], cut: int) -> None:
    make = LOADERS["shuffled"]
    _, whole = fit(tmp_path / "whole", make, None, None, **options)
    fit(tmp_path / "cut", make, cut, None, **options)
    last = tmp_path / "cut" / "last.ckpt"
    one, rest = fit(tmp_path / "cut", make, None, str(last) if last.exists() else None, **options)
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), rest.parameters(), strict=True))
    assert rest.seen == whole.seen[-len(rest.seen) :]
    assert one.callback_metrics["loss_epoch"] == pytest.approx(one.callback_metrics["loss"])


class Ema(pl.Callback):
    """A moving average of the weights, as torch keeps it; saved with the callback."""

    averaged: Any = None

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self.averaged = torch.optim.swa_utils.AveragedModel(
            pl_module.net, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
        )

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.averaged.update_parameters(pl_module.net)

    def state_dict(self) -> dict[str, Any]:
        return {"averaged": self.averaged.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.averaged.load_state_dict(state["averaged"])


@pytest.mark.parametrize("cut", [6, 19, 24])
def test_a_moving_average_of_the_weights_is_the_same(tmp_path: Path, cut: int) -> None:
    emas = [Ema(), Ema(), Ema()]
    fit(tmp_path / "whole", LOADERS["shuffled"], None, None, callbacks=[emas[0]])
    fit(tmp_path / "cut", LOADERS["shuffled"], cut, None, callbacks=[emas[1]])
    fit(tmp_path / "cut", LOADERS["shuffled"], None, "last", callbacks=[emas[2]])
    whole, rest = emas[0].averaged.state_dict(), emas[2].averaged.state_dict()
    assert all(torch.equal(whole[name], rest[name]) for name in whole) and int(whole["n_averaged"]) == 30


def test_an_open_window_is_gone_on_with(tmp_path: Path) -> None:
    """A checkpoint of a time interval may fall within an accumulation window: its gradients are kept."""

    class Saving(pl.Callback):
        saves_at_boundaries = True

        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            if trainer.progress.total_batches == 6:
                trainer.save_checkpoint(tmp_path / "window.ckpt")

    whole = OneWeight()
    trainer(max_epochs=1, accumulate_grad_batches=4, callbacks=[Saving()]).fit(whole, loader(10))
    rest = OneWeight()
    one = trainer(max_epochs=1, accumulate_grad_batches=4)
    one.fit(rest, loader(10), ckpt_path=tmp_path / "window.ckpt")
    assert rest.w.item() == whole.w.item() == -3.0
    assert [v for _, _, v in rest.seen] == [6.0, 7.0, 8.0, 9.0] and one.global_step == 3


def test_c9_unshuffled_goes_on_with_the_next_sample(tmp_path: Path) -> None:
    saver = ModelCheckpoint(dirpath=tmp_path, every_n_train_steps=4, save_top_k=-1, filename="{step}")
    trainer(max_epochs=2, callbacks=saver, enable_checkpointing=True).fit(OneWeight(), loader(10))
    rest = OneWeight()
    one = trainer(max_epochs=2)
    one.fit(rest, loader(10), ckpt_path=tmp_path / "step=4.ckpt")
    assert [int(v) for _, _, v in rest.seen] == [*range(4, 10), *range(10)]
    assert [i for _, i, _ in rest.seen] == [*range(4, 10), *range(10)]
    assert one.global_step == 20  # C13: 4 before and 16 after


def test_c11_the_next_epoch_has_its_own_order(tmp_path: Path) -> None:
    def run(epochs: int, path: Path | None) -> OneWeight:
        pl.seed_everything(7, verbose=False)
        module, one = OneWeight(), trainer(max_epochs=epochs)
        one.fit(module, loader(10, shuffle=True), ckpt_path=path)
        one.save_checkpoint(tmp_path / f"{epochs}.ckpt")
        return module

    whole = run(2, None)
    run(1, None)
    resumed = run(2, tmp_path / "1.ckpt")
    assert resumed.seen == whole.seen[10:]
    assert [v for _, _, v in whole.seen[:10]] != [v for _, _, v in whole.seen[10:]]


def test_c12_a_loader_with_a_position_is_believed(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    fit(tmp_path, Position, 6, None)
    _, rest = fit(tmp_path, Position, None, str(tmp_path / "last.ckpt"))
    assert [row[2][0][0] for row in rest.seen[:6]] == [4.0, 5.0, 6.0, 7.0, 8.0, 9.0]
    assert not [w for w in recwarn if "position" in str(w.message)]


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return (torch.tensor([float(i)]) for i in range(10))


def test_a_stream_without_a_position_is_read_again_and_says_so(tmp_path: Path) -> None:
    def make() -> Any:
        return DataLoader(Stream(), batch_size=1)

    fit(tmp_path, make, 6, None)
    with pytest.warns(UserWarning, match="Stream has no position to go on from: its first 4 batches are read again"):
        _, rest = fit(tmp_path, make, None, str(tmp_path / "last.ckpt"))
    assert rest.seen[0][2] == [[4.0]]


def test_nothing_is_fetched_to_be_skipped(tmp_path: Path) -> None:
    fetched: list[int] = []

    class Counting(Idx):
        def __getitem__(self, i: int) -> Any:
            fetched.append(i)
            return super().__getitem__(i)

    def make() -> Any:
        return DataLoader(Counting(10), batch_size=1)

    fit(tmp_path, make, 6, None)
    fetched.clear()
    fit(tmp_path, make, None, str(tmp_path / "last.ckpt"))
    assert fetched == [*range(4, 10), *range(10), *range(10)]


def test_early_stopping_stops_a_resumed_run_where_the_whole_one_stopped(tmp_path: Path) -> None:
    class Constant(OneWeight):
        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.log("v", 1.0)

    def run(out: Path, epochs: int, path: Path | None) -> pl.Trainer:
        saver = ModelCheckpoint(dirpath=out, save_last=True)
        one = trainer(max_epochs=epochs, callbacks=[EarlyStopping("v", patience=4), saver], enable_checkpointing=True)
        one.fit(Constant(), loader(2), loader(1), ckpt_path=path)
        return one

    assert run(tmp_path / "whole", 20, None).current_epoch == 5
    run(tmp_path / "cut", 3, None)
    assert run(tmp_path / "cut", 20, tmp_path / "cut" / "last.ckpt").current_epoch == 5


def test_another_number_of_loaders_is_refused(tmp_path: Path) -> None:
    fit(tmp_path, LOADERS["two side by side"], 6, None)
    with pytest.raises((CheckpointError, RuntimeError), match="saved with 2 training loader"):
        fit(tmp_path, LOADERS["in order"], None, str(tmp_path / "last.ckpt"))


def test_another_environment_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fit(tmp_path, LOADERS["in order"], 6, None)
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "medium")
    with pytest.warns(UserWarning, match="another environment.*matmul was 'highest' and is 'medium'"):
        fit(tmp_path, LOADERS["in order"], None, str(tmp_path / "last.ckpt"))

"""What a step costs, counted: frames, host syncs, fetches. Times are for the benchmarks."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import bolide as pl
from tests.fixtures import OneWeight, loader, trainer


def frames() -> list[str]:
    """Bolide's own frames above the caller, up to and with Trainer.fit, innermost first; torch's are not counted."""
    found = []
    frame: Any = sys._getframe(2)
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if name.startswith("bolide."):
            found.append(f"{name}.{frame.f_code.co_name}")
            if frame.f_code.co_name == "fit" and name.endswith("trainer.trainer"):
                return found
        frame = frame.f_back
    raise AssertionError("not called by Trainer.fit")


class Looking(OneWeight):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.found = frames()
        return self.w.sum()


class OwnStep(Looking):
    def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None) -> None:
        optimizer.step(closure=optimizer_closure)


class SuperStep(Looking):
    def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None) -> None:
        super().optimizer_step(epoch, batch_idx, optimizer, optimizer_closure)


class Lbfgs(Looking):
    def configure_optimizers(self) -> Any:
        return torch.optim.LBFGS(self.parameters(), max_iter=2)


class Manual(Looking):
    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False


@pytest.mark.parametrize(
    ("module", "most"), [(Looking, 5), (Manual, 5), (OwnStep, 7), (SuperStep, 7), (Lbfgs, 7)], ids=lambda x: str(x)
)
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_frames_between_fit_and_training_step(module: type[Looking], most: int, precision: str) -> None:
    looking = module()
    trainer(max_epochs=1, precision=precision).fit(looking, loader(2))
    assert 0 < len(looking.found) <= most, looking.found


SYNCS = ("item", "__bool__", "__float__", "__int__", "tolist", "numpy", "cpu")


class Counter:
    """Counts host syncs whose nearest caller outside torch is Bolide."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.found: list[str] = []
        self.on = False
        for name in SYNCS:
            monkeypatch.setattr(torch.Tensor, name, self._watched(name, getattr(torch.Tensor, name)))

    def _watched(self, name: str, original: Any) -> Any:
        def sync(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            if self.on:
                frame: Any = sys._getframe(1)
                module = ""
                while frame is not None and (module := frame.f_globals.get("__name__", "")).split(".")[0] == "torch":
                    if module.startswith(("torch.optim", "torch.amp")):
                        return original(tensor, *args, **kwargs)  # the optimizer's and the scaler's own
                    frame = frame.f_back
                if module.startswith("bolide."):
                    self.found.append(f"{name} by {module}.{frame.f_code.co_name}")
            return original(tensor, *args, **kwargs)

        return sync


class Switch(pl.Callback):
    """Counts from the start of the second batch to its end: a step, its hooks, its logs."""

    def __init__(self, counter: Counter) -> None:
        self.counter = counter

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self.counter.on = True

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.counter.on = False


class Network(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Linear(4, 1)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self.net(batch[0]).pow(2).mean()
        self.log("a", loss, prog_bar=True)
        self.log("b", loss, on_step=True, on_epoch=True)
        self.log("c", loss.detach(), on_epoch=True, reduce_fx="max")
        self.log_dict({"d": loss, "e": 3.0})
        return {"loss": loss, "more": loss.detach()}

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


@pytest.mark.parametrize(
    "options",
    [{}, {"accumulate_grad_batches": 3}, {"gradient_clip_val": 0.5}, {"precision": "bf16-mixed"}],
    ids=["plain", "accumulation", "clipping", "bf16"],
)
def test_a_step_never_waits_for_the_device(monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]) -> None:
    counter = Counter(monkeypatch)
    batches = DataLoader(TensorDataset(torch.randn(280, 4)), batch_size=2)
    trainer(max_epochs=1, callbacks=[Switch(counter)], **options).fit(Network(), batches)
    assert counter.found == []


def test_the_counter_of_syncs_sees_one(monkeypatch: pytest.MonkeyPatch) -> None:
    from bolide.log import to_numbers

    counter = Counter(monkeypatch)
    counter.on = True
    to_numbers({"x": torch.tensor(1.0)})
    torch.tensor(1.0).item()  # ours, not Bolide's
    assert counter.found == ["item by bolide.log.to_numbers"]


def test_a_sized_loader_is_never_read_ahead() -> None:
    fetched: list[int] = []

    class Counting(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return 4

        def __getitem__(self, i: int) -> Any:
            fetched.append(i)
            return torch.tensor([float(i)])

    class Watching(OneWeight):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            assert fetched == list(range(batch_idx + 1))
            return super().training_step(batch, batch_idx)

    trainer(max_epochs=1).fit(Watching(), DataLoader(Counting()))
    assert fetched == [0, 1, 2, 3]


def test_a_limit_fetches_no_batch_beyond_it() -> None:
    fetched: list[int] = []

    def endless() -> Any:
        i = 0
        while True:
            fetched.append(i)
            yield torch.tensor([float(i)])
            i += 1

    class Endless:
        def __iter__(self) -> Any:
            return endless()

    trainer(max_epochs=1, limit_train_batches=3).fit(OneWeight(), Endless())
    assert fetched == [0, 1, 2]

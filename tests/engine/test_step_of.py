"""The optimizer's step without the profiler's range: whatever else was put around a step is called all the same."""

from __future__ import annotations

import functools
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import ConstantLR, StepLR
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from bolide.engine.optimizers import step_of
from tests.fixtures import OneWeight, loader, trainer


class Module(OneWeight):
    """Trains one weight; `around` may put something around the optimizer's step."""

    def __init__(self, around: Callable[[Any], Any] | None = None, schedulers: int = 0, manual: bool = False) -> None:
        super().__init__()
        self.around, self.schedulers, self.automatic_optimization = around, schedulers, not manual

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if self.automatic_optimization:
            return self.w.sum()
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(self.w.sum())
        optimizer.step()
        return None

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=1.0)
        schedulers = [StepLR(optimizer, 10**6) for _ in range(self.schedulers)]
        if self.around is not None:
            self.around(optimizer)
        return [optimizer], [{"scheduler": s, "interval": "step"} for s in schedulers]


KINDS = pytest.mark.parametrize("manual", [False, True], ids=["automatic", "manual"])


@pytest.fixture
def ranges(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the profiler ranges that Python code opens."""
    opened: list[str] = []
    real = torch.autograd.profiler.record_function

    def counted(name: str, *args: Any) -> Any:
        opened.append(name)
        return real(name, *args)

    monkeypatch.setattr(torch.autograd.profiler, "record_function", counted)
    return opened


@KINDS
@pytest.mark.parametrize("schedulers", [0, 1, 2])
def test_no_range_is_opened_where_nobody_records(ranges: list[str], schedulers: int, manual: bool) -> None:
    module = Module(schedulers=schedulers, manual=manual)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*lr_scheduler.step.*")  # a scheduler that thinks it stepped first
        trainer(max_epochs=1).fit(module, loader(3))
    assert module.w.item() == -3.0
    assert [name for name in ranges if "Optimizer.step" in name] == []


@KINDS
def test_a_profiler_finds_the_range_of_each_step(manual: bool) -> None:
    module = Module(manual=manual)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        trainer(max_epochs=1).fit(module, loader(3))
    counts = {event.key: event.count for event in profile.key_averages()}
    assert counts["Optimizer.step#SGD.step"] == 3
    assert module.w.item() == -3.0


def test_a_profiler_of_all_threads_finds_the_steps_of_another_thread() -> None:
    weight = torch.nn.Parameter(torch.zeros(1))
    weight.grad = torch.ones(1)
    optimizer = torch.optim.SGD([weight], lr=1.0)
    all_threads = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
    kinds = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=kinds, experimental_config=all_threads) as profile:
        thread = threading.Thread(target=lambda: step_of(optimizer)())
        thread.start()
        thread.join()
    assert {event.key: event.count for event in profile.key_averages()}["Optimizer.step#SGD.step"] == 1
    assert weight.item() == -1.0


@KINDS
@pytest.mark.parametrize("kind", ["pre", "post"])
def test_hooks_of_the_step_are_called(kind: str, manual: bool) -> None:
    heard: list[Any] = []

    def around(optimizer: Any) -> None:
        register = optimizer.register_step_pre_hook if kind == "pre" else optimizer.register_step_post_hook
        register(lambda optimizer, args, kwargs: heard.append(optimizer))

    module = Module(around, manual=manual)
    trainer(max_epochs=1).fit(module, loader(3))
    assert len(heard) == 3 and module.w.item() == -3.0


@pytest.fixture(params=["pre", "post"])
def global_hook(request: pytest.FixtureRequest) -> Iterator[list[Any]]:
    heard: list[Any] = []
    register = register_optimizer_step_pre_hook if request.param == "pre" else register_optimizer_step_post_hook
    handle = register(lambda optimizer, args, kwargs: heard.append(optimizer))
    yield heard
    handle.remove()


@KINDS
def test_hooks_of_all_optimizers_are_called(global_hook: list[Any], manual: bool) -> None:
    trainer(max_epochs=1).fit(Module(manual=manual), loader(3))
    assert len(global_hook) == 3


@KINDS
@pytest.mark.parametrize("schedulers", [0, 1])
@pytest.mark.parametrize("when", ["before the scheduler", "after it"])
def test_a_step_put_on_the_optimizer_itself_is_called(when: str, schedulers: int, manual: bool) -> None:
    calls: list[Any] = []

    class Patched(Module):
        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.parameters(), lr=1.0)
            if when == "after it":
                made = [ConstantLR(optimizer, 1.0) for _ in range(schedulers)]
            real = optimizer.step

            @functools.wraps(real)  # takes over all marks of torch's own wrappers
            def step(self: Any, *args: Any, **kwargs: Any) -> Any:
                calls.append(1)
                return real(*args, **kwargs)

            optimizer.step = step.__get__(optimizer)  # type: ignore[method-assign]
            if when == "before the scheduler":
                made = [ConstantLR(optimizer, 1.0) for _ in range(schedulers)]
            return [optimizer], made

    module = Patched(manual=manual)
    trainer(max_epochs=1).fit(module, loader(3))
    assert len(calls) == 3 and module.w.item() == -3.0


@KINDS
@pytest.mark.parametrize("schedulers", [0, 1])
def test_a_step_put_on_the_optimizers_class_is_called(
    monkeypatch: pytest.MonkeyPatch, schedulers: int, manual: bool
) -> None:
    calls: list[int] = []
    torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))])  # its class has torch's wrapper from here on
    real = torch.optim.SGD.step

    @functools.wraps(real)
    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        return real(self, *args, **kwargs)

    monkeypatch.setattr(torch.optim.SGD, "step", step)
    module = Module(schedulers=schedulers, manual=manual)
    trainer(max_epochs=1).fit(module, loader(3))
    assert len(calls) == 3 and module.w.item() == -3.0


def test_other_optimizers_step_as_they_do() -> None:
    class Own(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:  # type: ignore[override]
            return "own", super().step(closure)

    class Slotted:
        __slots__ = ("calls",)

        def step(self, closure: Any = None) -> Any:
            return closure

    class Wrapper:
        """Has its step by delegation."""

        def __init__(self, inner: Any) -> None:
            self.inner = inner

        def __getattr__(self, name: str) -> Any:
            return getattr(self.inner, name)

    weight = torch.nn.Parameter(torch.zeros(1))
    weight.grad = torch.ones(1)
    own = Own([weight], lr=1.0)
    assert step_of(own)() == ("own", None)
    assert step_of(own)(lambda: 2.0) == ("own", 2.0)
    assert step_of(Wrapper(own))(closure=lambda: 3.0) == ("own", 3.0)
    assert step_of(Slotted())(4) == 4
    assert weight.item() == -3.0

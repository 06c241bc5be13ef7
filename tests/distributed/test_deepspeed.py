"""DeepSpeed: the weights of one process at each stage, files that everything reads, and what is refused."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
import time
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import bolide as pl
from bolide.checkpoint.file import read_checkpoint
from bolide.core.errors import ConfigError, MissingPackageError
from bolide.data import split
from bolide.launch.processes import RankError
from bolide.strategies import DEEPSPEED_PRESETS, DeepSpeedStrategy, ParallelStrategy
from bolide.strategies import deepspeed_config as settings
from bolide.strategies import deepspeed_setup as setup
from bolide.strategies.deepspeed_parts import EnginePrecision, engine_of
from tests.distributed.support import Net, batches, data, in_ranks, trainer
from tests.distributed.test_sharded import Direct, Manual, Wide


def whole(one: pl.Trainer) -> torch.Tensor:
    """All weights in one vector, on the first rank."""
    return torch.cat([value.float().reshape(-1) for value in one.strategy.state().values()])


def furthest(found: torch.Tensor, right: torch.Tensor) -> float:
    return (found - right).abs().max().item()


# ---------------------------------------------------------------------- training


class Short:
    """A loader that has fewer batches than it says."""

    def __init__(self, batch_size: int, rank: int, ranks: int) -> None:
        x, y = (part[rank::ranks] for part in data(60).tensors)
        starts = range(0, 4 * batch_size, batch_size)
        self.pieces = [(x[i : i + batch_size], y[i : i + batch_size]) for i in starts]

    def __len__(self) -> int:
        return 5

    def __iter__(self) -> Any:
        return iter(self.pieces)


class Stream(torch.utils.data.IterableDataset[Any]):
    def __iter__(self) -> Any:
        samples = data(52)
        return (samples[i] for i in range(52))


class Own(Wide):
    """Parameters of the module itself, one of them frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((3,), 1.3))
        self.frozen = nn.Parameter(torch.full((2,), 0.9), requires_grad=False)

    def loss(self, batch: Any) -> Any:
        output = self.net(batch[0]) * self.scale.sum() * self.frozen.mean()
        return nn.functional.mse_loss(output, batch[1])


class Late(Wide):
    """Its network is made in configure_model: at stage 3 split as it is made."""

    def __init__(self) -> None:
        super().__init__()
        self.net: Any = None

    def configure_model(self) -> None:
        if self.net is None:
            self.net = Wide().net


class TwoBackward(Wide):
    """Manual optimization that steps at every second batch."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:
        optimizer = self.optimizers()
        if batch_idx % 2 == 0:
            optimizer.zero_grad()
        self.manual_backward(self.loss(batch) / 2)
        if batch_idx % 2:
            optimizer.step()


class Scheduled(Wide):
    def configure_optimizers(self) -> Any:
        rest = [p for part in self.net[1:] for p in part.parameters()]
        groups = [{"params": self.net[0].parameters(), "lr": 0.02, "weight_decay": 0.0}, {"params": rest}]
        optimizer = torch.optim.AdamW(groups, lr=0.01)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class Skipping(Wide):
    """Leaves an accumulation window open at the end of each epoch."""

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> Any:
        return -1 if batch_idx == 4 else None


class OwnBackward(Wide):
    def backward(self, loss: Any) -> None:
        loss.backward()


CASES: dict[str, tuple[type[Wide], dict[str, Any]]] = {
    "plain": (Wide, {}),
    "clipped": (Direct, {"gradient_clip_val": 0.1}),
    "accumulated": (Wide, {"accumulate_grad_batches": 3}),
    "accumulated and clipped": (Wide, {"accumulate_grad_batches": 2, "gradient_clip_val": 0.05}),
    "manual": (Manual, {}),
    "manual, several backward": (TwoBackward, {}),
    "parameters of its own": (Own, {}),
    "made late": (Late, {}),
    "groups and a schedule": (Scheduled, {}),
    "an open window": (Skipping, {"accumulate_grad_batches": 3}),
    "a backward of its own": (OwnBackward, {}),
    "a stream": (Wide, {"accumulate_grad_batches": 3}),
    "a short loader": (Wide, {"accumulate_grad_batches": 3, "use_distributed_sampler": False}),
}
NOT_AT_STAGE_0 = ("manual", "a backward of its own")


def loader_of(case: str, batch_size: int, rank: int, ranks: int) -> Any:
    if case == "a stream":
        return torch.utils.data.DataLoader(split(Stream()), batch_size=batch_size)
    return Short(batch_size, rank, ranks) if case == "a short loader" else batches(50, batch_size, shuffle=True)


def trained(case: str, strategy: Any, ranks: int, validates: bool = True) -> tuple[torch.Tensor, float]:
    kind, options = CASES[case]
    pl.seed_everything(3, verbose=False)
    module = kind()
    one = trainer(ranks, strategy=strategy, **options)
    rank = one.global_rank if ranks > 1 else 0
    if not validates:
        one.fit(module, loader_of(case, 12 // ranks, rank, ranks))
        return whole(one), 0.0
    val = batches(11, 2, seed=2)
    if case == "a short loader":  # its loaders are not split
        val = batches(12, 4, seed=2)
    one.fit(module, loader_of(case, 12 // ranks, rank, ranks), val)
    found = one.callback_metrics.get("val")  # an epoch that is left early does not validate
    again = one.validate(module, val, verbose=False)[0]["val"]
    assert found is None or again == pytest.approx(float(found), abs=1e-6)
    return whole(one), again


def strategy_of(stage: str) -> Any:
    return DeepSpeedStrategy(stage=0) if stage == "0" else f"deepspeed_stage_{stage}"


def compare(stages: list[str], cases: list[str]) -> None:
    right = {case: trained(case, "auto", 1) for case in cases}

    def work() -> Any:
        return {
            (stage, case): trained(case, strategy_of(stage), 2)
            for stage in stages
            for case in cases
            if stage != "0" or case not in NOT_AT_STAGE_0
        }

    for (stage, case), (weights, val) in in_ranks(2, work)[0].items():
        off = furthest(weights, right[case][0])
        assert off < 1e-5, (stage, case, off)
        assert val == pytest.approx(right[case][1], abs=1e-5), (stage, case)


def test_the_stages_have_the_weights_of_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain steps at stages 2 and 3; nothing is compiled for it, and the weights come back to the caller."""
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    right = trained("plain", "auto", 1, validates=False)[0]
    for stage in ("2", "3"):
        pl.seed_everything(3, verbose=False)
        module = Wide()
        trainer(2, strategy=f"deepspeed_stage_{stage}").fit(module, batches(50, 6, shuffle=True))
        found = torch.cat([p.detach().reshape(-1) for p in module.parameters()])
        assert furthest(found, right) < 1e-5, stage
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("stages", [["0", "1"], ["2"], ["3"], ["2_offload", "3_offload"]], ids="-".join)
def test_each_way_to_train_has_the_weights_of_one_process(stages: list[str]) -> None:
    compare(stages, list(CASES))


WARMUP = {"warmup_min_lr": 0.001, "warmup_max_lr": 0.01, "warmup_num_steps": 6, "warmup_type": "linear"}
BY_CONFIG = {
    "zero_optimization": {"stage": 2, "reduce_bucket_size": "auto"}, "gradient_clipping": 0.2,
    "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "weight_decay": 0.05, "betas": [0.9, 0.98]}},
    "scheduler": {"type": "WarmupLR", "params": WARMUP},
}  # fmt: skip


class Bare(Wide):
    """Its optimizer and schedule are those of DeepSpeed's configuration."""

    configure_optimizers = pl.LightningModule.configure_optimizers


class Spelled(Wide):
    """The same optimizer and schedule in code."""

    def configure_optimizers(self) -> Any:
        from deepspeed.runtime.lr_schedules import WarmupLR

        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01, weight_decay=0.05, betas=(0.9, 0.98))
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": WarmupLR(optimizer, **WARMUP), "interval": "step"},
        }

    def lr_scheduler_step(self, scheduler: Any, metric: Any) -> None:
        scheduler.step()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_optimizer_and_the_schedule_of_a_configuration(tmp_path: Path) -> None:
    """They train as the same ones in code do, and go on from a file."""

    def fitted(kind: type[Wide], ranks: int, **options: Any) -> pl.Trainer:
        pl.seed_everything(3, verbose=False)
        path = options.pop("ckpt_path", None)
        one = trainer(ranks, max_epochs=3, **options)
        one.fit(kind(), batches(48, 12 // ranks, shuffle=True), ckpt_path=path)
        return one

    right = fitted(Spelled, 1, gradient_clip_val=0.2)

    def work() -> Any:
        keep = pl.callbacks.ModelCheckpoint(tmp_path, every_n_train_steps=5, save_top_k=-1, filename="{step}")
        one = fitted(Bare, 2, strategy=DeepSpeedStrategy(config=BY_CONFIG), enable_checkpointing=True, callbacks=[keep])
        two = fitted(Bare, 2, strategy=DeepSpeedStrategy(config=BY_CONFIG), ckpt_path=tmp_path / "step=5.ckpt")
        return whole(one), whole(two), one.optimizers[0].param_groups[0]["lr"]

    first, second, lr = in_ranks(2, work)[0]
    assert furthest(first, whole(right)) < 1e-5 and lr == right.optimizers[0].param_groups[0]["lr"]
    assert torch.equal(first, second)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_bf16_keeps_weights_of_full_precision(tmp_path: Path) -> None:
    """The first weights are not rounded, and a run that goes on has the same bits."""

    def work(stage: int) -> Any:
        start = Wide()
        first = {name: p.detach().clone() for name, p in start.named_parameters()}
        options: dict[str, Any] = {"strategy": f"deepspeed_stage_{stage}", "precision": "bf16-mixed"}
        still = trainer(2, max_steps=0, max_epochs=1, **options)
        still.fit(start, batches(48, 4))
        kept = still.strategy.state()
        folder = tmp_path / str(stage)
        keep = pl.callbacks.ModelCheckpoint(folder, every_n_train_steps=5, save_top_k=-1, filename="{step}")
        pl.seed_everything(5, verbose=False)
        one = trainer(2, enable_checkpointing=True, callbacks=[keep], max_epochs=3, **options)
        one.fit(Wide(), batches(48, 4, shuffle=True))
        pl.seed_everything(6, verbose=False)
        two = trainer(2, max_epochs=3, **options)
        two.fit(Wide(), batches(48, 4, shuffle=True), ckpt_path=folder / "step=10.ckpt")
        return first, kept, whole(one), whole(two)

    for stage in (1, 2, 3):
        first, kept, one, two = in_ranks(2, lambda stage=stage: work(stage))[0]
        assert all(torch.equal(first[name], kept[name]) for name in first), stage
        assert torch.equal(one, two), stage


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_module_is_fitted_and_evaluated_again_by_other_trainers() -> None:
    def work(strategy: str, ranks: int, **options: Any) -> Any:
        pl.seed_everything(3, verbose=False)
        module = Wide()
        for _ in range(3):
            one = trainer(ranks, strategy=strategy, max_epochs=1, **options)
            one.fit(module, batches(48, 12 // ranks))
        val = batches(11, 2, seed=2)
        last = trainer(ranks, strategy=strategy, **options)
        assert engine_of(copy.deepcopy(module)) is None
        return whole(one), last.validate(module, val, verbose=False)[0]["val"]

    def kept(strategy: str) -> Any:
        """The weights of full precision after a fit, and after another one that takes no step."""
        module, options = Wide(), {"strategy": strategy, "precision": "bf16-mixed", "max_epochs": 1}
        first, second = trainer(2, **options), trainer(2, max_steps=0, **options)
        first.fit(module, batches(48, 6))
        before = whole(first)
        second.fit(module, batches(48, 6))
        return before, whole(second)

    right = work("auto", 1)
    for stage in (1, 2, 3):
        name = f"deepspeed_stage_{stage}"
        weights, val = in_ranks(2, lambda name=name: work(name, 2))[0]
        assert furthest(weights, right[0]) < 1e-5 and val == pytest.approx(right[1], abs=1e-5), stage
        before, after = in_ranks(2, lambda name=name: kept(name))[0]
        assert torch.equal(before, after), stage


# ---------------------------------------------------------------------- files


def saved(strategy: str, path: Path, ranks: int, source: Path | None, kind: type[Wide] = Wide) -> Any:
    module = kind()
    one = trainer(ranks, strategy=strategy if ranks > 1 else "auto", max_epochs=2)
    # with a source nothing is left to train: what was read is written again as it is
    one.fit(module, batches(48, 8 // ranks), ckpt_path=source)
    one.save_checkpoint(path)
    return one.global_step


def assert_same(left: dict[str, Any], right: dict[str, Any], what: Any) -> None:
    assert left["global_step"] == right["global_step"] == 12, what
    assert list(left["state_dict"]) == list(right["state_dict"]), what
    for name, value in left["state_dict"].items():
        assert torch.equal(value, right["state_dict"][name]), (what, name)
    ours, theirs = left["optimizer_states"][0], right["optimizer_states"][0]
    assert ours["param_groups"] == theirs["param_groups"] and ours["state"].keys() == theirs["state"].keys(), what
    for number, entry in ours["state"].items():
        for key, value in entry.items():
            assert torch.equal(value, theirs["state"][number][key]), (what, number, key)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_a_file_goes_from_each_to_each(stage: int, tmp_path: Path) -> None:
    """Saved at a stage, read by one process, DDP, FSDP and the other stages, and by it from DDP: the same bits."""
    name = f"deepspeed_stage_{stage}"
    first = tmp_path / "first.ckpt"
    in_ranks(2, lambda: saved(name, first, 2, None))
    right = read_checkpoint(str(first))
    plain = Wide()
    plain.load_state_dict(torch.load(first, weights_only=True)["state_dict"])
    ways = [("auto", 1), ("ddp", 2), ("fsdp", 2), ("deepspeed_stage_1", 2), ("deepspeed_stage_2", 4)]
    for other, ranks in [*ways, ("deepspeed_stage_3", 4 if stage == 3 else 2)]:
        path = tmp_path / f"{other}_{ranks}.ckpt"
        if ranks == 1:
            saved(other, path, 1, first)
        else:
            in_ranks(ranks, lambda other=other, path=path, ranks=ranks: saved(other, path, ranks, first))
        assert_same(right, read_checkpoint(str(path)), (other, ranks))
    by_ddp, back = tmp_path / "ddp.ckpt", tmp_path / "back.ckpt"
    in_ranks(2, lambda: saved("ddp", by_ddp, 2, None))
    in_ranks(2, lambda: saved(name, back, 2, by_ddp))
    assert_same(read_checkpoint(str(by_ddp)), read_checkpoint(str(back)), "from DDP")


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_going_on_has_the_same_bits(stage: int, tmp_path: Path) -> None:
    def work() -> Any:
        keep = pl.callbacks.ModelCheckpoint(tmp_path, every_n_train_steps=5, save_top_k=-1, filename="{step}")
        kind = Late if stage == 3 else Scheduled
        pl.seed_everything(5, verbose=False)
        name = f"deepspeed_stage_{stage}"
        one = trainer(2, strategy=name, enable_checkpointing=True, callbacks=[keep], max_epochs=3)
        one.fit(kind(), batches(48, 4, shuffle=True))
        first = whole(one)
        pl.seed_everything(6, verbose=False)
        two = trainer(2, strategy=name, max_epochs=3)
        two.fit(kind(), batches(48, 4, shuffle=True), ckpt_path=tmp_path / "step=10.ckpt")
        third = kind()
        evaluated = trainer(2, strategy=name).validate(
            third, batches(11, 2, seed=2), ckpt_path=tmp_path / "step=15.ckpt", verbose=False
        )
        return first, whole(two), evaluated[0]["val"]

    (first, second, val), _ = in_ranks(2, work)
    assert torch.equal(first, second)
    module = Wide()
    module.load_state_dict(read_checkpoint(str(tmp_path / "step=15.ckpt"))["state_dict"])
    right = trainer(1).validate(module, batches(11, 2, seed=2), verbose=False)[0]["val"]
    assert val == pytest.approx(right, abs=1e-6)


class Stepped(Net):
    """With a schedule, whose rates must stay its own."""

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_rates_are_scaled_with_the_global_batch(tmp_path: Path) -> None:
    """8 samples of a step become 12: the weights are those of DDP, whose rates are multiplied by 1.5."""

    def fit(name: str, ranks: int, path: Path | None, steps: int = -1) -> Any:
        scaling = {"elastic_batch": "scale"}
        one = trainer(ranks, strategy=name, max_epochs=2, max_steps=steps, resilience=scaling)
        one.fit(Stepped(), batches(48, 4), ckpt_path=path)
        if path is None:
            one.save_checkpoint(tmp_path / "first.ckpt")
        weights = one.strategy.state()  # all ranks have a part in it
        flat = torch.cat([value.reshape(-1) for value in weights.values()]) if weights else None
        return flat, one.optimizers[0].param_groups[0]["lr"]

    in_ranks(2, lambda: fit("ddp", 2, None, 4))
    found = {
        name: in_ranks(3, lambda name=name: fit(name, 3, tmp_path / "first.ckpt"))[0]
        for name in ("ddp", "deepspeed_stage_2", "deepspeed_stage_3")
    }
    right, rate = found.pop("ddp")
    for name, (weights, own_rate) in found.items():
        assert furthest(weights, right) < 1e-5 and own_rate == rate, name


class SavedOpen(Wide):
    """Saves behind the first batch of an accumulation window."""

    path: Path

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == 2:
            self.trainer.save_checkpoint(self.path)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_open_window_of_another_strategy_does_not_count(tmp_path: Path) -> None:
    """Its gradients lie on parameters, which at stage 3 are split, and are of another dtype in bf16."""

    def save() -> None:
        module = SavedOpen()
        module.path = tmp_path / "open.ckpt"
        fsdp = pl.strategies.FSDPStrategy(state_dict_type="sharded")
        trainer(2, strategy=fsdp, max_epochs=1, accumulate_grad_batches=2).fit(module, batches(48, 4))

    in_ranks(2, save)

    def go_on(stage: int, **options: Any) -> Any:
        one = trainer(2, strategy=f"deepspeed_stage_{stage}", max_epochs=1, accumulate_grad_batches=2, **options)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            one.fit(Wide(), batches(48, 4), ckpt_path=tmp_path / "open.ckpt")
        return one.global_step, sum("do not count" in str(one_said.message) for one_said in said)

    assert in_ranks(2, lambda: go_on(3)) == [(3, 1), (3, 0)]  # the first rank says it
    assert in_ranks(2, lambda: go_on(2, precision="bf16-mixed")) == [(3, 1), (3, 0)]


ALL_SPLIT = {"stage": 3, "stage3_param_persistence_threshold": 0}


class Weighing(pl.Callback):
    def on_train_batch_end(self, trainer: Any, module: Any, *rest: Any) -> None:
        held = [value for entry in trainer.optimizers[0].state.values() for value in entry.values()]
        self.optimizer = sum(value.nbytes for value in held if isinstance(value, torch.Tensor))
        self.parameters = sum(p.nbytes for p in module.parameters())


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_bytes_of_each_rank() -> None:
    def work() -> Any:
        found = {}
        for name in ("ddp", "deepspeed_stage_1", "deepspeed_stage_2", "deepspeed_stage_3"):
            weighing = Weighing()
            own = name
            if name == "deepspeed_stage_3":  # small parameters stay on all ranks otherwise
                own = DeepSpeedStrategy(
                    config={"zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0}}
                )
            trainer(4, strategy=own, max_epochs=1, callbacks=[weighing]).fit(Wide(), batches(32, 2))
            found[name] = (weighing.optimizer, weighing.parameters)
        return found

    for found in in_ranks(4, work):
        for name in found:
            if name != "ddp":
                assert found[name][0] <= 0.3 * found["ddp"][0], (name, found)
        assert found["deepspeed_stage_3"][1] == 0, found


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_frozen_parameters_can_be_left_out_of_the_files(tmp_path: Path) -> None:
    def work() -> Any:
        strategy = DeepSpeedStrategy(stage=3, exclude_frozen_parameters=True)
        one = trainer(2, strategy=strategy, max_epochs=1)
        one.fit(Own(), batches(16, 4))
        one.save_checkpoint(tmp_path / "x.ckpt")

    in_ranks(2, work)
    found = read_checkpoint(str(tmp_path / "x.ckpt"))["state_dict"]
    assert "frozen" not in found and found["scale"].shape == (3,)


# ---------------------------------------------------------------------- what is refused


class NoLoss(Wide):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return None if self.global_rank == 1 else self.loss(batch)


class TwoOptimizers(Manual):
    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD(self.net[0].parameters(), lr=0.1), torch.optim.SGD(self.net[2].parameters(), lr=0.1)]


class Closure(Wide):
    def configure_optimizers(self) -> Any:
        return torch.optim.LBFGS(self.parameters())


class Replaced(Wide):
    def configure_optimizers(self) -> Any:
        return torch.optim.Adagrad(self.parameters())


def fits(kind: type[Wide], **options: Any) -> Any:
    """A fit of `kind` by DeepSpeed, with a `config` of its own or by name."""
    config = options.pop("config", None)

    def fit() -> None:
        strategy = "deepspeed" if config is None else DeepSpeedStrategy(config=config)
        trainer(2, strategy=strategy, **options).fit(kind(), batches(16, 4))

    return fit


REFUSED = {
    "no loss": (fits(NoLoss), "strategy='deepspeed' cannot leave out"),
    "two optimizers": (fits(TwoOptimizers), "DeepSpeed steps one"),
    "a closure": (fits(Closure), "evaluates the loss several times"),
    "an optimizer that is replaced": (fits(Replaced), "Adagrad"),
    "clipping by value": (
        fits(Wide, gradient_clip_val=0.1, gradient_clip_algorithm="value"), "gradient_clip_algorithm='value'"
    ),
    "two makers of the optimizer": (
        fits(Wide, config=BY_CONFIG), "leave one of them out"
    ),
    "a schedule that is not there": (
        fits(Wide, config={"scheduler": {"type": "WarmUpLR"}}), "(?i)did you mean 'WarmupLR'"
    ),
    "two limits": (
        fits(Wide, gradient_clip_val=0.1, config={"gradient_clipping": 0.5}),
        "gradient_clipping=0.5",
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.timeout(90)
def test_what_deepspeed_cannot_do_is_said(case: str) -> None:
    fit, told = REFUSED[case]
    with pytest.raises(RankError, match=told):
        fit()


def test_the_package_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "deepspeed", None)
    for strategy in ("deepspeed_stage_3", "deepspeed"):
        with pytest.raises(MissingPackageError, match=r'pip install "bolide\[deepspeed\]"'):
            pl.Trainer(devices=2, accelerator="cpu", strategy=strategy)


def test_an_older_package_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup, "OLDEST", "1000.0")
    with pytest.raises(ConfigError, match="needs DeepSpeed 1000.0 or newer"):
        DeepSpeedStrategy()


def test_a_lock_that_a_dead_compiler_left_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = tmp_path / "cpu_adam" / "lock"
    lock.parent.mkdir()
    (tmp_path / "of_another_program").mkdir()
    (tmp_path / "of_another_program" / "lock").touch()
    setup.refuse_stale_locks([tmp_path], ["cpu_adam"])
    held = subprocess.Popen(
        [sys.executable, "-c", f"f = open({str(lock)!r}, 'x'); print(flush=True); input()"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert held.stdout is not None
    held.stdout.readline()
    setup.refuse_stale_locks([tmp_path], ["cpu_adam"])  # somebody compiles: that is waited for
    held.kill()
    held.communicate()
    with pytest.raises(ConfigError, match=f"rm {lock}"):
        setup.refuse_stale_locks([tmp_path], ["cpu_adam"])
    with pytest.warns(UserWarning, match="another machine may be compiling"):
        setup.refuse_stale_locks([tmp_path], ["cpu_adam"], machines=2)
    old_s = time.time() - 2 * setup.YOUNG_LOCK_S
    os.utime(lock, (old_s, old_s))
    with pytest.raises(ConfigError, match=f"rm {lock}"):
        setup.refuse_stale_locks([tmp_path], ["cpu_adam"], machines=2)
    # a run says so, on each rank, before any of them waits
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    with pytest.raises(RankError, match=f"rm {lock}"):
        trainer(2, strategy="deepspeed").fit(Net(), batches(16, 4))


# ---------------------------------------------------------------------- arguments

LIGHTNINGS = (
    "accelerator zero_optimization stage remote_device offload_optimizer offload_parameters offload_params_device "
    "nvme_path params_buffer_count params_buffer_size max_in_cpu offload_optimizer_device optimizer_buffer_count "
    "block_size queue_depth single_submit overlap_events thread_count pin_memory sub_group_size contiguous_gradients "
    "overlap_comm allgather_partitions reduce_scatter allgather_bucket_size reduce_bucket_size "
    "zero_allow_untested_optimizer logging_batch_size_per_gpu config logging_level parallel_devices "
    "cluster_environment loss_scale initial_scale_power loss_scale_window hysteresis min_loss_scale "
    "partition_activations cpu_checkpointing contiguous_memory_optimization synchronize_checkpoint_boundary "
    "load_full_weights precision_plugin process_group_backend timeout exclude_frozen_parameters"
).split()


def test_all_arguments_are_in_the_table() -> None:
    assert set(LIGHTNINGS) <= set(settings.BY_NAME)
    for argument in settings.ARGUMENTS:
        assert bool(argument.places) == (argument.kind in ("config", "offload")), argument.name


@pytest.mark.parametrize("name", [a.name for a in settings.ARGUMENTS if a.kind in ("config", "offload")])
def test_an_argument_reaches_its_place(name: str) -> None:
    argument = settings.BY_NAME[name]
    counts = isinstance(argument.default, int) and not isinstance(argument.default, bool)
    value: Any = 7 if counts else True
    value = {"stage": 1, "nvme_path": "/tmp"}.get(name, "cpu" if name.endswith("device") else value)
    options: dict[str, Any] = {"stage": 3, "offload_optimizer": True, "offload_parameters": True}
    options |= {"offload_optimizer_device": "nvme", "offload_params_device": "nvme"} if name == "nvme_path" else {}
    if name == "stage":
        options = {}
    made = settings.make_config({**options, name: value}, None)
    assert [settings.get(made, place) for place in argument.places] == [value] * len(argument.places)


def test_the_names_and_their_stages() -> None:
    assert len(DEEPSPEED_PRESETS) == 7
    for name, arguments in DEEPSPEED_PRESETS.items():
        strategy = pl.Trainer(devices=2, accelerator="cpu", strategy=name, logger=False).strategy
        assert isinstance(strategy, DeepSpeedStrategy) and isinstance(strategy, ParallelStrategy)
        assert strategy.strategy_name == name and strategy.stage == arguments.get("stage", 2)
        offloads = settings.get(strategy.config, "zero_optimization.offload_optimizer.device")
        assert offloads == (None if "offload" not in name else "nvme" if "nvme" in name else "cpu")
        assert strategy.sharded == ("stage_3" in name)

    class Mine(DeepSpeedStrategy):
        pass

    assert pl.Trainer(devices=2, accelerator="cpu", strategy=Mine(stage=3), logger=False).strategy.stage == 3


def test_a_configuration_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = {
        "zero_optimization": {"stage": 3, "reduce_bucket_size": "auto", "offload_optimizer": {"device": "cpu"}},
        "gradient_accumulation_steps": "auto", "train_micro_batch_size_per_gpu": "auto", "train_batch_size": "auto",
        "bf16": {"enabled": "auto"},
    }  # fmt: skip
    path = tmp_path / "ds.json"
    path.write_text(json.dumps(own))
    for given in (own, str(path), path):
        strategy = DeepSpeedStrategy(config=given, sub_group_size=10)
        assert strategy.stage == 3 and strategy.config["zero_force_ds_cpu_optimizer"] is False
        assert strategy.config["zero_optimization"]["sub_group_size"] == 10
        assert "contiguous_gradients" not in strategy.config["zero_optimization"]  # DeepSpeed's own default
        assert "train_batch_size" not in strategy.config and strategy.config["gradient_accumulation_steps"] == 1
    assert own["gradient_accumulation_steps"] == "auto"  # the user's dictionary is not changed
    monkeypatch.setenv("PL_DEEPSPEED_CONFIG_PATH", str(path))
    assert DeepSpeedStrategy().stage == 3
    made = settings.without_auto(settings.with_precision(strategy.config, "bf16-true"))
    assert made["bf16"] == {"enabled": True} and "reduce_bucket_size" not in made["zero_optimization"]


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"stages": 3}, "did you mean"),
    ({"stage": 4}, "stage=4"),
    ({"stage": 3, "config": {"zero_optimization": {"stage": 2}}}, "contradicts zero_optimization.stage=2"),
    ({"config": {"gradient_accumulation_steps": 4}}, "accumulate_grad_batches"),
    ({"config": {"train_batch_size": 64}}, "batch size of the loader"),
    ({"config": "no/such/file.json"}, "no file"),
    ({"config": 3}, "a dictionary or the path"),
    ({"stage": 2, "offload_parameters": True}, "at stage 3 only"),
    ({"stage": 3, "offload_optimizer": True, "offload_optimizer_device": "tape"}, "must be 'cpu' or 'nvme'"),
    ({"precision_plugin": "16-mixed"}, r"precision_plugin.*Trainer\(precision"),
    ({"accelerator": "cpu"}, r"accelerator.*Trainer\(accelerator"),
    ({"parallel_devices": [0, 1]}, r"parallel_devices.*Trainer\(devices"),
    ({"uneven": "wait"}, "uneven='wait'"),
]  # fmt: skip


@pytest.mark.parametrize(("options", "told"), WRONG, ids=[str(options) for options, _ in WRONG])
def test_wrong_arguments(options: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=f"(?i){told}"):
        DeepSpeedStrategy(**options)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"precision": "64-true"}, "precision='64-true'"),
        ({"config": {"bf16": {"enabled": True}}, "precision": "32-true"}, "contradicts bf16.enabled"),
        ({"stage": 0, "precision": "bf16-mixed"}, "stage 0"),
    ],
)
def test_a_precision_that_deepspeed_does_not_have(options: dict[str, Any], told: str) -> None:
    precision = options.pop("precision")
    with pytest.raises(ConfigError, match=told):
        trainer(2, strategy=DeepSpeedStrategy(**options), precision=precision)


def test_the_scale_of_losses_goes_on_and_is_that_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    from deepspeed.runtime.fp16 import loss_scaler

    monkeypatch.setattr(loss_scaler, "dist", SimpleNamespace(get_rank=lambda: 1))  # asked who is to say so

    def scaler() -> Any:
        return loss_scaler.DynamicLossScaler(2.0**16, 4, 1, 1, False)

    def moved(one: Any, overflows: list[bool]) -> list[float]:
        found = []
        for overflow in overflows:
            one.update_scale(overflow)
            found.append(one.cur_scale)
        return found

    history = [False, True, False, False, False, True, False, False, False, False, False, False, False, False]
    with pytest.warns(UserWarning, match="16-mixed"):
        precision = EnginePrecision("16-mixed", torch.device("cpu"))
    assert precision.scaler is None and precision.state_dict() == {}
    for done in range(len(history)):
        first, second = scaler(), scaler()
        moved(first, history[:done])
        precision.loss_scaler = first
        state = precision.state_dict()
        precision.loss_scaler = second
        precision.load_state_dict(state)
        assert moved(first, history[done:]) == moved(second, history[done:]), done
    own = torch.amp.GradScaler("cpu")
    own.load_state_dict(state)
    assert own.get_scale() == state["scale"]
    precision.load_state_dict(own.state_dict())
    assert second.cur_scale == own.get_scale()


def test_an_old_plugin_is_the_strategy() -> None:
    from bolide.plugins import DeepSpeedPlugin

    with pytest.warns(FutureWarning, match="strategy="):
        one = pl.Trainer(devices=2, accelerator="cpu", plugins=DeepSpeedPlugin(stage=3), logger=False)
    assert isinstance(one.strategy, DeepSpeedStrategy) and one.strategy.stage == 3

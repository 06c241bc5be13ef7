"""FSDP2 and tensor parallelism: the weights of one process, a part of the bytes, files that everything reads."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.tensor import DTensor

import bolide as pl
from bolide.checkpoint.read import read_checkpoint
from bolide.core.errors import ConfigError
from bolide.launch.processes import RankError
from bolide.strategies import FSDPStrategy, ModelParallelStrategy
from tests.distributed.support import Net, batches, bytes_held, data, in_ranks, trainer


class Wide(Net):
    """A network whose parts divide by 4, with AdamW."""

    def __init__(self) -> None:
        super().__init__()
        state = torch.get_rng_state()
        torch.manual_seed(7)
        self.net = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))
        torch.set_rng_state(state)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val", self.loss(batch), sync_dist=True)
        self.log("count", float(len(batch[0])), reduce_fx="sum", sync_dist=True)

    def predict_step(self, batch: Any, batch_idx: int) -> Any:
        return batch[1]

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=0.01)


class Numbered(Wide):
    """Its steps call the number of the batch by another name."""

    numbers: list[int]

    def training_step(self, batch: Any, number: int) -> Any:
        self.numbers.append(number)
        return self.loss(batch)

    def validation_step(self, batch: Any, number: int) -> None:
        self.numbers.append(-number)


def test_a_step_may_name_the_number_of_its_batch_as_it_likes() -> None:
    def work() -> list[int]:
        module = Numbered()
        module.numbers = []
        trainer(2, strategy="fsdp", max_epochs=1).fit(module, batches(24, 4), batches(24, 4))
        return module.numbers

    assert in_ranks(2, work) == [[0, 1, 2, 0, -1, -2]] * 2


class Direct(Wide):
    """The step calls the module's own forward, as many do."""

    def forward(self, x: Any) -> Any:
        return self.net(x)

    def loss(self, batch: Any) -> Any:
        return nn.functional.mse_loss(self(batch[0]), batch[1])


class Manual(Wide):
    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:
        optimizer = self.optimizers()
        self.manual_backward(self.loss(batch))
        self.clip_gradients(optimizer, 0.5, "norm")
        optimizer.step()
        optimizer.zero_grad()


class Tensorwise(Wide):
    def configure_model(self) -> None:
        from torch.distributed.fsdp import fully_shard
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

        mesh = self.device_mesh
        if mesh is None or any(isinstance(p, DTensor) for p in self.parameters()):
            return
        plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
        parallelize_module(self.net, mesh["tensor_parallel"], plan)
        if mesh["data_parallel"].size() > 1:
            fully_shard(self.net, mesh=mesh["data_parallel"])


def strategy_of(name: str) -> Any:
    return {
        "fsdp": lambda: "fsdp",
        "cpu offload": lambda: "fsdp_cpu_offload",
        "wrapped": lambda: FSDPStrategy(auto_wrap_policy={nn.Linear}, activation_checkpointing_policy={nn.Tanh}),
        "grad op": lambda: FSDPStrategy(sharding_strategy="SHARD_GRAD_OP", auto_wrap_policy=nn.Linear),
        "no shard": lambda: FSDPStrategy(sharding_strategy="NO_SHARD"),
        "hybrid": lambda: FSDPStrategy(sharding_strategy="HYBRID_SHARD", device_mesh=(2, 2)),
        "tensor": lambda: ModelParallelStrategy(tensor_parallel_size="auto"),
        "tensor and data": lambda: ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=2),
        "ddp": lambda: "ddp",
    }[name]()


CASES: dict[str, tuple[type[Wide], dict[str, Any]]] = {
    "plain": (Wide, {}),
    "clipped": (Direct, {"gradient_clip_val": 0.1}),
    "clipped by value": (Wide, {"gradient_clip_val": 0.01, "gradient_clip_algorithm": "value"}),
    "accumulated": (Wide, {"accumulate_grad_batches": 3}),
    "manual": (Manual, {}),
}


def whole(module: nn.Module) -> torch.Tensor:
    values = [p.detach() for p in module.parameters()]
    values = [p.full_tensor() if isinstance(p, DTensor) else p for p in values]
    return torch.cat([p.reshape(-1) for p in values]).clone()


def trained(kind: type[Wide], strategy: Any, devices: int, share: int, options: dict[str, Any]) -> Any:
    pl.seed_everything(3, verbose=False)
    module = kind()
    one = trainer(devices, strategy=strategy, **options)
    one.fit(module, batches(50, 12 // share, shuffle=True), batches(11, 2, seed=2))
    val = float(one.callback_metrics["val"])
    assert one.callback_metrics["count"] == 11
    ordered = one.predict(module, batches(11, 2, seed=2), return_predictions="ordered")
    assert not ordered or torch.equal(torch.cat(ordered), data(11, 2).tensors[1])
    return whole(module), val


@pytest.mark.parametrize("ranks", [2, 4])
def test_the_weights_of_one_process(ranks: int) -> None:
    names = ["fsdp", "cpu offload", "wrapped", "grad op", "no shard", "tensor"]
    names += ["hybrid", "tensor and data"] if ranks == 4 else []
    right = {case: trained(*_args(case), "auto", 1, 1, CASES[case][1]) for case in CASES}

    def work() -> Any:
        found = {}
        for name in names:
            share = {"tensor": 1, "tensor and data": 2}.get(name, ranks)
            for case in CASES if name in ("fsdp", "tensor", "tensor and data") else ["plain", "accumulated"]:
                kind, options = CASES[case]
                if name.startswith("tensor"):
                    kind = type(f"Split{kind.__name__}", (kind,), {"configure_model": Tensorwise.configure_model})
                found[name, case] = trained(kind, strategy_of(name), ranks, share, options)
        return found

    for found in in_ranks(ranks, work):
        for (name, case), (weights, val) in found.items():
            off = (weights - right[case][0]).abs().max().item()
            assert off < 1e-5, (name, case, off)
            assert val == pytest.approx(right[case][1], abs=1e-5), (name, case)


def _args(case: str) -> tuple[type[Wide]]:
    return (CASES[case][0],)


class Weighing(pl.Callback):
    def on_before_optimizer_step(self, trainer: Any, module: Any, optimizer: Any) -> None:
        self.seen = bytes_held(module, trainer.optimizers)


def test_bytes_of_each_rank() -> None:
    def work() -> Any:
        found = {}
        for name in ("ddp", "fsdp"):
            weighing = Weighing()
            one = trainer(4, strategy=strategy_of(name), max_epochs=1, callbacks=[weighing])
            one.fit(Wide(), batches(32, 4))
            found[name] = weighing.seen
        return found

    for found in in_ranks(4, work):
        for kind in ("parameters", "gradients", "optimizer"):
            assert found["fsdp"][kind] <= 0.3 * found["ddp"][kind], (kind, found)


def test_a_file_goes_from_each_to_each(tmp_path: Path) -> None:
    """Saved by FSDP on 2, read on 1, on 4 and under DDP; saved again there: every entry has the same bits."""

    def saved(name: str, path: Path, ranks: int, source: Path | None) -> Any:
        module = Wide()
        one = trainer(ranks, strategy=strategy_of(name) if ranks > 1 else "auto", max_epochs=2)
        if source is None:
            one.fit(module, batches(48, 4))
        else:
            # nothing is left to train: what was read is written again as it is
            one.fit(module, batches(48, 8 // ranks), ckpt_path=source)
        one.save_checkpoint(path)
        return one.global_step

    first = tmp_path / "fsdp_2.ckpt"
    in_ranks(2, lambda: saved("fsdp", first, 2, None))
    right = read_checkpoint(str(first))
    assert all(type(value) is torch.Tensor for value in right["state_dict"].values())
    plain = Wide()
    plain.load_state_dict(torch.load(first, weights_only=True)["state_dict"])
    ways = [("auto", 1), ("fsdp", 4), ("ddp", 2), ("wrapped", 2)]
    for name, ranks in ways:
        path = tmp_path / f"{name}_{ranks}.ckpt"
        if ranks == 1:
            saved("ddp", path, 1, first)
        else:
            in_ranks(ranks, lambda name=name, path=path, ranks=ranks: saved(name, path, ranks, first))
        again = read_checkpoint(str(path))
        assert again["global_step"] == right["global_step"] == 12
        assert list(again["state_dict"]) == list(right["state_dict"])
        for key, value in right["state_dict"].items():
            assert torch.equal(value, again["state_dict"][key]), (name, key)
        theirs, ours = again["optimizer_states"][0], right["optimizer_states"][0]
        assert theirs["param_groups"] == ours["param_groups"] and theirs["state"].keys() == ours["state"].keys()
        for index, entry in ours["state"].items():
            for key, value in entry.items():
                assert torch.equal(value, theirs["state"][index][key]), (name, index, key)


def test_going_on_under_fsdp_has_the_same_bits(tmp_path: Path) -> None:
    def work() -> Any:
        keep = pl.callbacks.ModelCheckpoint(tmp_path, every_n_train_steps=5, save_top_k=-1, filename="{step}")
        first, second = Wide(), Wide()
        pl.seed_everything(5, verbose=False)
        one = trainer(2, strategy="fsdp", enable_checkpointing=True, callbacks=[keep], max_epochs=3)
        one.fit(first, batches(48, 4, shuffle=True))
        pl.seed_everything(6, verbose=False)
        trainer(2, strategy="fsdp", max_epochs=3).fit(
            second, batches(48, 4, shuffle=True), ckpt_path=tmp_path / "step=10.ckpt"
        )
        return whole(first), whole(second)

    for first, second in in_ranks(2, work):
        assert torch.equal(first, second)


class Saving(pl.Callback):
    """Saves once, after the third batch of a window of four."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if trainer.global_step == 2 and batch_idx % 4 == 2:
            trainer.save_checkpoint(self.path)


@pytest.mark.parametrize("kind", ["fsdp", "fsdp in parts", "tensors"])
def test_going_on_within_an_accumulation_window_has_the_same_bits(tmp_path: Path, kind: str) -> None:
    def strategy() -> Any:
        if kind == "tensors":
            return ModelParallelStrategy(data_parallel_size=1, tensor_parallel_size=2)
        return FSDPStrategy(auto_wrap_policy={nn.Linear} if "parts" in kind else None)

    def work() -> Any:
        path = tmp_path / "within.ckpt"
        own = Tensorwise if kind == "tensors" else Wide
        first, second = own(), own()
        options = {"max_epochs": 2, "accumulate_grad_batches": 4, "gradient_clip_val": 0.5}
        pl.seed_everything(5, verbose=False)
        trainer(2, strategy=strategy(), callbacks=[Saving(path)], **options).fit(first, batches(128, 4, shuffle=True))
        pl.seed_everything(6, verbose=False)
        one = trainer(2, strategy=strategy(), **options)
        one.fit(second, batches(128, 4, shuffle=True), ckpt_path=path)
        return whole(first), whole(second), read_checkpoint(path)["bolide"]["ranks"][one.global_rank]["gradients"]

    answers = in_ranks(2, work)
    for first, second, gradients in answers:
        assert torch.equal(first, second)
        assert gradients and all(bool(gradient.abs().sum() > 0) for gradient in gradients.values())
    # each rank has added up its own batches
    assert kind == "tensors" or not torch.equal(answers[0][2]["net.0.weight"], answers[1][2]["net.0.weight"])


def test_tensor_parallel_ranks_are_one_part_of_the_data(tmp_path: Path) -> None:
    def work() -> Any:
        keep = pl.callbacks.ModelCheckpoint(tmp_path, every_n_train_steps=5, save_top_k=-1, filename="{step}")
        module = Tensorwise()
        one = trainer(
            2, strategy=ModelParallelStrategy(data_parallel_size=1, tensor_parallel_size=2), callbacks=[keep],
            enable_checkpointing=True,
        )  # fmt: skip
        one.fit(module, batches(32, 4))
        return whole(module)

    right = in_ranks(2, work)[0]
    module = Wide()
    one = trainer(1)
    one.fit(module, batches(32, 4), ckpt_path=tmp_path / "step=5.ckpt")
    assert one.accumulate_grad_batches == 1 and one.global_step == 16
    assert torch.allclose(whole(module), right, atol=1e-5)


class NoLoss(Wide):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return None if self.global_rank == 1 else self.loss(batch)


class Early(Wide):
    def __init__(self) -> None:
        super().__init__()
        self.made = None

    def setup(self, stage: str) -> None:
        self.made = torch.optim.SGD([nn.Parameter(p.detach().clone()) for p in self.parameters()], lr=0.1)

    def configure_optimizers(self) -> Any:
        return self.made


REFUSED = {
    "no loss": (lambda: trainer(2, strategy="fsdp").fit(NoLoss(), batches(16, 4)), "strategy='fsdp' cannot leave out"),
    "an optimizer of before": (
        lambda: trainer(2, strategy="fsdp").fit(Early(), batches(16, 4)), "it was made before they were sharded"
    ),
    "a module that is not split": (
        lambda: trainer(2, strategy=ModelParallelStrategy()).fit(Wide(), batches(16, 4)), "define configure_model"
    ),
    "sizes that do not multiply": (
        lambda: trainer(2, strategy=ModelParallelStrategy(data_parallel_size=3)).fit(Wide(), batches(16, 4)),
        "there are 2",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.timeout(40)
def test_what_sharding_cannot_do_is_said(case: str) -> None:
    fit, told = REFUSED[case]
    with pytest.raises(RankError, match=told):
        fit()


def test_wrong_arguments() -> None:
    for options, told in [
        ({"sharding_strategy": "SOME"}, "sharding_strategy='SOME'"), ({"state_dict_type": "some"}, "or 'sharded'"),
        ({"use_orig_params": True}, "use_orig_params"), ({"device_mesh": (1, 2, 3)}, "device_mesh"),
    ]:  # fmt: skip
        with pytest.raises(ConfigError, match=told):
            FSDPStrategy(**options)
    with pytest.raises(ConfigError, match="tensor_parallel_size=0"):
        ModelParallelStrategy(tensor_parallel_size=0)
    assert copy.copy(FSDPStrategy()).sharding_strategy == "FULL_SHARD"

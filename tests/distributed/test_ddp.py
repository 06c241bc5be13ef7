"""DDP does what one process does with the global batch: weights, metrics, samples, decisions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bolide as pl
from bolide.strategies import DDPStrategy
from tests.distributed.support import Net, batches, in_ranks, trainer


class Manual(Net):
    """Steps by hand, accumulating two batches to a step."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:
        optimizer = self.optimizers()
        with optimizer.toggle_model(sync_grad=bool(batch_idx % 2)):
            self.manual_backward(self.loss(batch) / 2)
        if batch_idx % 2:
            self.clip_gradients(optimizer, 0.3, "norm")
            optimizer.step()
            optimizer.zero_grad()


class OwnBackward(Net):
    def backward(self, loss: Any, *args: Any, **kwargs: Any) -> None:
        (loss * 2).backward(*args, **kwargs)


class OwnStep(Net):
    def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None) -> None:
        optimizer.step(closure=optimizer_closure)


class Adversarial(Net):
    """Two optimizers, each of which has half of the weights."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:
        for optimizer in self.optimizers():
            with optimizer.toggle_model():
                self.manual_backward(self.loss(batch))
                optimizer.step()
                optimizer.zero_grad()

    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD(self.net[0].parameters(), lr=0.1), torch.optim.SGD(self.net[2].parameters(), lr=0.05)]


# the samples (50) divide neither by 4 x 2 nor by 2 x 4: the last global batch is ragged
WAYS: dict[str, tuple[type[Net], dict[str, Any]]] = {
    "plain": (Net, {}),
    "accumulated": (Net, {"accumulate_grad_batches": 3}),
    "clipped": (Net, {"gradient_clip_val": 0.2}),
    "clipped by value": (Net, {"gradient_clip_val": 0.01, "gradient_clip_algorithm": "value"}),
    "manual": (Manual, {}),
    "two optimizers": (Adversarial, {}),
    "own backward": (OwnBackward, {}),
    "own optimizer_step": (OwnStep, {"accumulate_grad_batches": 2}),
    "unused": (Net, {}),
}
STRATEGIES = {"two optimizers": "ddp_find_unused_parameters_true", "unused": "ddp_find_unused_parameters_true"}


def trained(way: str, ranks: int) -> tuple[torch.Tensor, int]:
    kind, options = WAYS[way]
    pl.seed_everything(3, verbose=False)
    module = kind()
    one = trainer(ranks, strategy=STRATEGIES.get(way, "ddp") if ranks > 1 else "auto", **options)
    one.fit(module, batches(50, 8 // ranks, shuffle=True))
    return module.weights, one.global_step


@pytest.mark.parametrize("ranks", [2, 4])
def test_the_weights_of_one_process_with_the_global_batch(ranks: int) -> None:
    alone = {way: trained(way, 1) for way in WAYS}
    every = in_ranks(ranks, lambda: {way: (trained(way, ranks), trained(way, ranks)) for way in WAYS})
    for way, (weights, steps) in alone.items():
        for found in every:
            (first, first_steps), (second, _) = found[way]
            assert first_steps == steps, way
            assert torch.equal(first, second), f"{way}: two runs of DDP differ"
            assert torch.equal(first, every[0][way][0][0]), f"{way}: ranks differ"
            assert torch.allclose(first, weights, atol=1e-6, rtol=0), (way, (first - weights).abs().max())


def test_the_trainer_starts_ranks_and_takes_over_what_they_ended_with(tmp_path: Any) -> None:
    alone, module = Net(), Net()
    trainer(1).fit(alone, batches(32, 8))
    best = pl.callbacks.ModelCheckpoint(dirpath=tmp_path / "saved", save_last=True)
    one = trainer(2, strategy="ddp", enable_checkpointing=True, callbacks=[best])
    one.fit(module, batches(32, 4))
    assert torch.allclose(module.weights, alone.weights, atol=1e-6)
    assert one.global_step == 8 and one.state.finished
    assert best.best_model_path.endswith("epoch=1-step=8.ckpt") and best.last_model_path.endswith("last.ckpt")
    from bolide.checkpoint.file import read_checkpoint

    saved = read_checkpoint(best.best_model_path)
    assert sorted(saved["state_dict"]) == sorted(module.state_dict())
    assert all(torch.equal(saved["state_dict"][name], value) for name, value in module.state_dict().items())


def test_a_loader_that_does_not_shuffle_keeps_the_users_order() -> None:  # case C31
    seen = in_ranks(2, lambda: _seen(batches_of_numbers(16, 4)))
    assert seen == [[[0, 2, 4, 6], [8, 10, 12, 14]], [[1, 3, 5, 7], [9, 11, 13, 15]]]


def batches_of_numbers(samples: int, batch_size: int, **options: Any) -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.arange(samples).float().unsqueeze(1)), batch_size=batch_size, **options)


class Seeing(Net):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[list[int]] = []
        self.evaluated: list[float] = []

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.seen.append([int(i) for i in batch[0].flatten()])
        return self.net(batch[0].expand(-1, 4)).mean() * 0

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.evaluated += batch[0].flatten().tolist()
        self.log("mean", batch[0].mean(), sync_dist=True)
        self.log("count", float(len(batch[0])), reduce_fx="sum", sync_dist=True)
        self.log("least", batch[0].min(), reduce_fx="min", sync_dist=True)
        self.log("most", batch[0].max(), reduce_fx="max", sync_dist=True)

    test_step = validation_step

    def predict_step(self, batch: Any, batch_idx: int) -> Any:
        return {"value": batch[0], "name": [str(int(i)) for i in batch[0].flatten()]}


def _seen(loader: Any, **options: Any) -> list[list[int]]:
    module = Seeing()
    trainer(2, strategy="ddp", max_epochs=1, **options).fit(module, loader)
    return module.seen


def test_the_users_sampler_drop_last_and_batch_sampler_are_kept() -> None:
    def work() -> Any:
        sampler = torch.utils.data.SubsetRandomSampler([1, 3, 5, 7, 9, 11, 13])
        own = batches_of_numbers(20, 2, sampler=sampler)
        dropped = batches_of_numbers(7, 2, drop_last=True)
        lists = [[0, 1, 2], [3], [4, 5], [6, 7]]
        by_lists = DataLoader(TensorDataset(torch.arange(8.0).unsqueeze(1)), batch_sampler=lists)
        single = DataLoader(TensorDataset(torch.arange(5.0).view(5, 1, 1)), batch_size=None)
        return _seen(own), _seen(dropped), _seen(by_lists), _seen(single)

    first, second = in_ranks(2, work)
    both = [i for rank in (first[0], second[0]) for batch in rank for i in batch]
    assert sorted(set(both)) == [1, 3, 5, 7, 9, 11, 13]
    assert first[1] == [[0, 2]] and second[1] == [[1, 3]]
    assert first[2] == [[0, 1, 2], [4, 5]] and second[2] == [[3], [6, 7]]
    assert first[3] == [[0], [2], [4]] and second[3] == [[1], [3], [4]]  # the last round is filled, with no weight


def test_each_sample_is_evaluated_and_predicted_once() -> None:  # cases C29 and C30 (a)
    def work() -> Any:
        module, found = Seeing(), []
        for samples in (5, 1, 8):
            loader = batches_of_numbers(samples, 1)
            module.evaluated = []
            results = trainer(2, strategy="ddp").validate(module, loader, verbose=False)
            found.append((results, list(module.evaluated)))
        tested = trainer(2, strategy="ddp").test(module, batches_of_numbers(5, 2), verbose=False)
        one = trainer(2, strategy="ddp")
        loader = batches_of_numbers(5, 1)
        return found, tested, one.predict(module, loader), one.predict(module, loader, return_predictions="ordered")

    every = in_ranks(2, work)
    for i, samples in enumerate((5, 1, 8)):
        right = {"mean": (samples - 1) / 2, "count": samples, "least": 0.0, "most": samples - 1.0}
        assert every[0][0][i][0] == every[1][0][i][0] == [right]
        assert sorted(every[0][0][i][1] + every[1][0][i][1]) == list(range(samples))
    assert every[0][1] == every[1][1] == [{"mean": 2.0, "count": 5.0, "least": 0.0, "most": 4.0}]
    assert [len(rank[2]) for rank in every] == [3, 2]
    ordered = every[0][3]
    assert torch.cat([batch["value"] for batch in ordered]).flatten().tolist() == [0, 1, 2, 3, 4]
    assert every[1][3] == []


class Logging(Net):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self.loss(batch)
        self.log("loss", loss, on_step=True, on_epoch=True, sync_dist=True)
        self.log("rank", float(self.global_rank), on_epoch=True, sync_dist=True)
        self.log("mine", float(self.global_rank), rank_zero_only=True)
        return loss

    def on_train_epoch_end(self) -> None:
        self.log("hook", float(self.global_rank), sync_dist=True, reduce_fx="max")


class Writing(pl.loggers.CSVLogger):
    def log_metrics(self, metrics: Any, step: Any = None) -> None:
        self.written = [*getattr(self, "written", []), (step, dict(metrics))]
        super().log_metrics(metrics, step)


def test_logged_values_are_those_of_all_ranks(tmp_path: Any) -> None:
    def work() -> Any:
        module, logger = Logging(), Writing(str(tmp_path))
        one = trainer(2, strategy="ddp", logger=logger, log_every_n_steps=2)
        one.fit(module, batches(51, 4))
        gathered = module.all_gather({"rank": torch.tensor(float(one.global_rank)), "n": one.global_rank})
        return (
            {name: float(value) for name, value in one.callback_metrics.items()}, logger.written, logger.version,
            gathered["rank"].tolist(), gathered["n"].tolist(), one.log_dir,
        )  # fmt: skip

    first, second = in_ranks(2, work)
    alone = Logging()
    single = trainer(1, logger=False)
    single.fit(alone, batches(51, 8))
    assert first[0]["rank"] == second[0]["rank"] == pytest.approx(25 / 51)  # weighted by samples: 26 and 25
    assert first[0]["hook"] == second[0]["hook"] == 1.0
    assert first[0]["loss"] == pytest.approx(float(single.callback_metrics["loss"]), abs=1e-6)
    assert "mine" in first[0] and "mine" not in second[0]
    steps = [step for step, metrics in first[1] if "loss_step" in metrics]
    assert steps == [1, 3, 5, 7, 9, 11, 13]
    assert first[2] == second[2] and first[5] == second[5] and first[3] == [0.0, 1.0] and first[4] == [0, 1]


class Metric(Net):
    def __init__(self) -> None:
        super().__init__()
        import torchmetrics

        self.error = torchmetrics.MeanSquaredError()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch
        self.error.update(self.net(x), y)
        self.log("error", self.error)


class Normed(Net):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(8)

    def loss(self, batch: Any) -> Any:
        x, y = batch
        return torch.nn.functional.mse_loss(self.net[2](self.norm(self.net[0](x))), y)


def test_torchmetrics_and_batch_norm_are_over_all_ranks() -> None:
    def work() -> Any:
        few = trainer(2, strategy="ddp").validate(Metric(), batches(1, 4, seed=2), verbose=False)
        many = trainer(2, strategy="ddp").validate(Metric(), batches(11, 2, seed=2), verbose=False)
        module = Normed()
        trainer(2, strategy="ddp", sync_batchnorm=True).fit(module, batches(48, 4))
        return few, many, module.weights, dict(module.norm.named_buffers())

    first, second = in_ranks(2, work)
    for i, samples in enumerate((1, 11)):
        right = trainer(1).validate(Metric(), batches(samples, 4, seed=2), verbose=False)[0]["error"]
        assert first[i] == second[i] and first[i][0]["error"] == pytest.approx(right, rel=1e-6)
    alone = Normed()
    trainer(1).fit(alone, batches(48, 8))
    assert torch.allclose(first[2], alone.weights, atol=1e-6)
    for name, value in alone.norm.named_buffers():
        assert torch.allclose(first[3][name], value, atol=1e-6), name


class Stagnating(Net):
    def validation_step(self, batch: Any, batch_idx: int) -> None:
        rank = self.global_rank
        self.log("own", 1.0 if rank == 1 else 1.0 / (1 + self.current_epoch))


class StopOnOne(pl.Callback):
    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if trainer.global_rank == 1 and trainer.global_step == 3:
            trainer.should_stop = True


def test_ranks_stop_together() -> None:  # case C30 (b)
    def work() -> Any:
        early = pl.callbacks.EarlyStopping("own", patience=2)
        one = trainer(2, strategy="ddp", max_epochs=9, callbacks=[early])
        one.fit(Stagnating(), batches(16, 4), batches(8, 4))
        two = trainer(2, strategy="ddp", max_epochs=9, callbacks=[StopOnOne()])
        two.fit(Net(), batches(64, 4))
        three = trainer(2, strategy="ddp", max_epochs=-1, max_time={"seconds": 1 if two.global_rank else 600})
        three.fit(Net(), batches(64, 4))
        return one.current_epoch, one.global_step, two.global_step, three.global_step

    first, second = in_ranks(2, work)
    assert first == second
    assert first[0] == 3 and first[2] == 4  # the stop of one rank reaches the others with the next step


def test_checkpoints_are_decided_and_named_alike(tmp_path: Any) -> None:
    def work() -> Any:
        kept = pl.callbacks.ModelCheckpoint(
            tmp_path, monitor="own", save_top_k=2, filename="{epoch}-{own:.2f}", save_last=True
        )
        one = trainer(2, strategy="ddp", max_epochs=3, enable_checkpointing=True, callbacks=[kept])
        one.fit(Stagnating(), batches(16, 4), batches(8, 4))
        return kept.best_model_path, sorted(kept.best_k_models), kept.last_model_path

    first, second = in_ranks(2, work)
    assert first == second and first[0].endswith("epoch=2-own=0.33.ckpt")
    assert sorted(p.name for p in tmp_path.glob("*.ckpt")) == [
        "epoch=1-own=0.50.ckpt",
        "epoch=2-own=0.33.ckpt",
        "last.ckpt",
    ]


class Decaying(Net):
    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=1.0)
        scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=10)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


class Rates(pl.Callback):
    def __init__(self) -> None:
        self.rates: list[float] = []

    def on_train_batch_end(self, trainer: Any, *args: Any) -> None:
        self.rates.append(trainer.optimizers[0].param_groups[0]["lr"])


def test_a_schedule_counts_steps_not_processes() -> None:  # case C8
    def work() -> Any:
        rates = Rates()
        trainer(2, strategy="ddp", max_epochs=-1, max_steps=10, callbacks=[rates]).fit(Decaying(), batches(40, 2))
        return rates.rates

    for rates in in_ranks(2, work):
        assert rates == pytest.approx([0.9 - i / 10 for i in range(10)], abs=1e-6)


def test_accumulation_exchanges_gradients_once_a_step(monkeypatch: Any) -> None:
    def work() -> Any:
        calls = []
        strategy = DDPStrategy(ddp_comm_hook=lambda state, bucket: counting(state, bucket), ddp_comm_state=calls)
        trainer(2, strategy=strategy, accumulate_grad_batches=4, max_epochs=1).fit(Net(), batches(64, 4))
        return len(calls)

    assert in_ranks(2, work) == [2, 2]  # 8 batches, one bucket


def counting(calls: list[int], bucket: Any) -> Any:
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

    calls.append(1)
    return allreduce_hook(None, bucket)


def test_what_users_ask_of_the_trainer_and_the_strategy() -> None:
    def work() -> Any:
        one = trainer(2, strategy=DDPStrategy(find_unused_parameters=True, static_graph=False))
        module = Net()
        one.fit(module, batches(8, 4))
        strategy = one.strategy
        made = pl.utilities.rank_zero.rank_zero_only(lambda: "first")()
        return (
            one.world_size, one.global_rank, one.local_rank, one.num_devices, one.is_global_zero,
            strategy.broadcast("hello" if one.global_rank == 0 else "no"),
            strategy.reduce(torch.tensor(float(one.global_rank))).item(),
            strategy.reduce(torch.tensor(one.global_rank), reduce_op="sum").item(),
            strategy.reduce_boolean_decision(one.global_rank == 0), one.distributed_sampler_kwargs, made,
            strategy.reduce_boolean_decision(one.global_rank == 0, all=False), strategy.barrier("here"),
            strategy.lightning_module is module, strategy.root_device.type,
        )  # fmt: skip

    first, second = in_ranks(2, work)
    assert first == (
        2, 0, 0, 2, True, "hello", 0.5, 1, False, {"num_replicas": 2, "rank": 0}, "first", True, None, True, "cpu"
    )  # fmt: skip
    assert second == (
        2, 1, 1, 2, False, "hello", 0.5, 1, False, {"num_replicas": 2, "rank": 1}, None, True, None, True, "cpu"
    )  # fmt: skip


def test_frames_under_ddp() -> None:
    import sys

    class Looking(Net):
        found = 0

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            frame: Any = sys._getframe(1)
            names = []
            while frame is not None:
                name = frame.f_globals.get("__name__", "")
                names += [frame.f_code.co_name] if name.startswith("bolide.") else []
                if name == "bolide.trainer.trainer" and frame.f_code.co_name == "fit":
                    break
                frame = frame.f_back
            self.found = len(names)
            return self.loss(batch)

    def work() -> int:
        module = Looking()
        trainer(2, strategy="ddp").fit(module, batches(8, 4))
        return module.found

    assert all(0 < found <= 7 for found in in_ranks(2, work))

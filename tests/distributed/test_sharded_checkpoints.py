"""Checkpoints to which each rank writes its part: no rank gathers, every number of ranks and strategy reads them."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.tensor import DTensor

import bolide as pl
from bolide import collectives
from bolide.checkpoint import io, store
from bolide.checkpoint.consolidate import consolidate
from bolide.checkpoint.read import about_at, read_checkpoint, verify_checkpoint
from bolide.checkpoint.sharded import contents_of, is_sharded
from bolide.checkpoint.shards import Shards
from bolide.checkpoint.writer import SaveError
from bolide.core.errors import CheckpointError
from bolide.engine.signals import SIGTERMException
from bolide.strategies import FSDPStrategy, ModelParallelStrategy
from tests.checkpoint.test_sharded import assert_same
from tests.distributed.support import batches, in_ranks, trainer
from tests.distributed.test_sharded import Tensorwise, Wide, strategy_of, whole


class Normed(Wide):
    """With buffers, which are not sharded, a size that 2 and 4 do not divide, and a frozen part."""

    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(*self.net[:4], torch.nn.BatchNorm1d(32), torch.nn.Linear(32, 1))
        self.net[0].requires_grad_(False)


def strategy(name: str) -> Any:
    return {
        "fsdp sharded": lambda: FSDPStrategy(state_dict_type="sharded"),
        "offload sharded": lambda: FSDPStrategy(state_dict_type="sharded", cpu_offload=True),
        "no shard sharded": lambda: FSDPStrategy(state_dict_type="sharded", sharding_strategy="NO_SHARD"),
        "hybrid sharded": lambda: FSDPStrategy(
            state_dict_type="sharded", sharding_strategy="HYBRID_SHARD", device_mesh=(2, 2)
        ),
        "tensor sharded": lambda: ModelParallelStrategy(save_distributed_checkpoint=True),
        "tensor and data sharded": lambda: ModelParallelStrategy(
            data_parallel_size=2, tensor_parallel_size=2, save_distributed_checkpoint=True
        ),
    }.get(name, lambda: strategy_of(name))()


def fitted(name: str, ranks: int, source: Path | None, kind: type[Wide] = Wide) -> pl.Trainer:
    """Trains 2 epochs of 6 global batches of 8, or reads a checkpoint of their end, so that nothing is left to do."""
    one = trainer(ranks, strategy=strategy(name) if ranks > 1 else "auto", max_epochs=2)
    if name.startswith("tensor"):
        kind = Tensorwise if kind is Wide else kind
    one.fit(kind(), batches(48, 8 // (1 if name.startswith("tensor sh") else ranks)), ckpt_path=source)
    return one


def saved(name: str, ranks: int, path: Path, source: Path | None = None, **options: Any) -> None:
    """Makes a checkpoint at `path`, by `ranks` ranks, of a training or of what `source` holds."""

    def work() -> None:
        fitted(name, ranks, source, options.pop("kind", Wide)).save_checkpoint(path, **options)

    if ranks == 1:
        work()
    else:
        in_ranks(ranks, work)


def training_state(path: Path) -> Any:
    """What must have the same bits wherever it was written."""
    found = read_checkpoint(path)
    return {key: found[key] for key in ("state_dict", "optimizer_states", "global_step", "epoch", "lr_schedulers")}


# ---------------------------------------------------------------------- from each to each


def test_a_folder_goes_from_each_to_each_and_back(tmp_path: Path) -> None:
    """Saved by FSDP on 2, read on 1, under DDP, as a file and in plain torch, and back: every bit the same."""
    first, plain = tmp_path / "first.ckpt", tmp_path / "gathered.ckpt"

    def work() -> None:
        one = fitted("fsdp sharded", 2, None, Normed)
        one.save_checkpoint(first)
        one.save_checkpoint(plain, sharded=False)

    in_ranks(2, work)
    assert is_sharded(first) and plain.is_file()
    right = training_state(first)
    assert_same(training_state(plain), right)

    file = consolidate(str(first), str(tmp_path / "whole.ckpt"))
    module = Normed()
    by_torch = torch.load(file, weights_only=True)
    module.load_state_dict(by_torch["state_dict"])
    optimizer = module.configure_optimizers()
    optimizer.load_state_dict(by_torch["optimizer_states"][0])
    assert_same(dict(module.state_dict()), right["state_dict"])
    assert_same(optimizer.state_dict()["state"], right["optimizer_states"][0]["state"])
    loaded = Normed.load_from_checkpoint(first)
    assert_same(dict(loaded.state_dict()), right["state_dict"])

    saved("one", 1, tmp_path / "one.ckpt", first, kind=Normed)
    assert (tmp_path / "one.ckpt").is_file()
    assert_same(training_state(tmp_path / "one.ckpt"), right)
    saved("one", 1, tmp_path / "one_folder.ckpt", first, kind=Normed, sharded=True)
    assert_same(training_state(tmp_path / "one_folder.ckpt"), right)

    def back() -> None:
        fitted("ddp", 2, first, Normed).save_checkpoint(tmp_path / "ddp.ckpt")
        fitted("ddp", 2, tmp_path / "one_folder.ckpt", Normed).save_checkpoint(tmp_path / "ddp_s.ckpt", sharded=True)
        fitted("fsdp sharded", 2, tmp_path / "ddp_s.ckpt", Normed).save_checkpoint(tmp_path / "back.ckpt")
        fitted("fsdp sharded", 2, Path(file), Normed).save_checkpoint(tmp_path / "back_2.ckpt")
        fitted("fsdp", 2, first, Normed).save_checkpoint(tmp_path / "full.ckpt")

    in_ranks(2, back)
    for name in ("ddp", "ddp_s", "back", "back_2", "full"):
        assert_same(training_state(tmp_path / f"{name}.ckpt"), right)
    assert (tmp_path / "ddp.ckpt").is_file() and (tmp_path / "full.ckpt").is_file()
    assert [is_sharded(tmp_path / f"{name}.ckpt") for name in ("ddp_s", "back", "back_2")] == [True] * 3
    # what all ranks of DDP have is written by one of them
    assert verify_checkpoint(tmp_path / "ddp_s.ckpt").shards == 1
    assert verify_checkpoint(tmp_path / "back.ckpt").shards == 2


@pytest.mark.slow
def test_four_ranks_read_what_two_wrote_and_two_what_four_did(tmp_path: Path) -> None:
    first = tmp_path / "first.ckpt"
    saved("fsdp sharded", 2, first)
    right = training_state(first)
    for name in ("fsdp sharded", "hybrid sharded", "tensor and data sharded", "no shard sharded", "ddp"):
        path = tmp_path / f"{name}.ckpt"
        saved(name, 4, path, first, sharded=True)
        assert_same(training_state(path), right)
        # replicas are written once
        size = sum(t.numel() * 4 for t in right["state_dict"].values()) * 3
        shards = {key: n for key, (n, _) in contents_of(str(path)).files.items() if key.startswith("rank_")}
        assert size <= sum(shards.values()) < size + 12000, (name, shards)
        expected = {"fsdp sharded": 4, "hybrid sharded": 2, "tensor and data sharded": 4}.get(name, 1)
        assert len(shards) == expected, name
    for name in ("fsdp sharded", "tensor and data sharded", "hybrid sharded"):
        for ranks, target in ((1, "auto"), (2, "fsdp sharded"), (2, "tensor sharded")):
            path = tmp_path / f"{name}_{target}_{ranks}.ckpt"
            saved(target, ranks, path, tmp_path / f"{name}.ckpt")
            assert_same(training_state(path), right)


def test_tensor_parallel_and_offload_save_parts_too(tmp_path: Path) -> None:
    def work() -> None:
        fitted("tensor sharded", 2, None).save_checkpoint(tmp_path / "tensor.ckpt")
        fitted("offload sharded", 2, tmp_path / "tensor.ckpt").save_checkpoint(tmp_path / "offload.ckpt")
        fitted("tensor sharded", 2, tmp_path / "offload.ckpt").save_checkpoint(tmp_path / "back.ckpt")

    in_ranks(2, work)
    right = training_state(tmp_path / "tensor.ckpt")
    boxes = {n: [p.box.shape for p in t.parts] for n, t in contents_of(str(tmp_path / "tensor.ckpt")).tensors.items()}
    assert boxes["state_dict/net.0.weight"] == [(16, 4), (16, 4)]
    assert boxes["state_dict/net.2.weight"] == [(32, 16), (32, 16)]
    assert boxes["optimizer_states/0/state/4/exp_avg"] == [(1, 32)]
    for name in ("offload", "back"):
        assert_same(training_state(tmp_path / f"{name}.ckpt"), right)


# ---------------------------------------------------------------------- each its part


@contextmanager
def counting() -> Iterator[dict[str, int]]:
    """Counts tensors that are gathered, and elements that are read from shards."""
    counts = {"gathered": 0, "read": 0}
    full, read = DTensor.full_tensor, Shards.read

    def counted_full(self: Any, **options: Any) -> Any:
        counts["gathered"] += 1
        return full(self, **options)

    def counted_read(self: Any, *args: Any) -> Any:
        found = read(self, *args)
        counts["read"] += found.numel()
        return found

    DTensor.full_tensor, Shards.read = counted_full, counted_read  # type: ignore[method-assign]
    try:
        yield counts
    finally:
        DTensor.full_tensor, Shards.read = full, read  # type: ignore[method-assign]


def test_nothing_is_gathered_and_each_rank_reads_its_part(tmp_path: Path) -> None:
    def work() -> Any:
        one = fitted("fsdp sharded", 2, None)
        with counting() as saving:
            one.save_checkpoint(tmp_path / "a.ckpt")
        with counting() as reading:
            fitted("fsdp sharded", 2, tmp_path / "a.ckpt")
        with counting() as gathering:
            one.save_checkpoint(tmp_path / "b.ckpt", sharded=False)
        return saving, reading, gathering

    elements = 3 * sum(p.numel() for p in Wide().parameters())
    for saving, reading, gathering in in_ranks(2, work):
        assert saving == {"gathered": 0, "read": 0}
        assert gathering["gathered"] == 18, "the counter counts"
        assert 0.4 * elements < reading["read"] <= 0.6 * elements and reading["gathered"] == 0


# ---------------------------------------------------------------------- a run that saves


class Halted(Exception):
    """The end of an attempt."""


class HaltAt(pl.Callback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_batch_end(self, trainer: Any, *args: Any) -> None:
        if trainer.global_step == self.step:
            raise Halted


def run(folder: Path, *more: Any, name: str = "fsdp sharded", ranks: int = 2, **options: Any) -> tuple[Any, Any]:
    keep = pl.callbacks.ModelCheckpoint(
        folder, monitor="seen", mode="max", save_top_k=2, save_last=True, every_n_train_steps=2, filename="{step}"
    )

    class Seen(Wide):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.log("seen", float(self.global_step), sync_dist=True)
            return self.loss(batch)

    pl.seed_everything(5, verbose=False)
    one = trainer(
        ranks, strategy=strategy(name) if ranks > 1 else "auto", enable_checkpointing=True, callbacks=[keep, *more],
        max_epochs=3, accumulate_grad_batches=options.pop("accumulate", 1),
    )  # fmt: skip
    module = Seen()
    one.fit(module, batches(48, 8 // ranks, shuffle=True), **options)
    return one, module


def test_a_run_saves_while_it_trains_and_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    def work() -> Any:
        _, right = run(tmp_path / "right")
        with pytest.raises(Halted):
            run(tmp_path / "cut", HaltAt(11))
        one, found = run(tmp_path / "cut", ckpt_path="auto")
        last, again = run(tmp_path / "cut", ckpt_path="last")
        last.validate(Wide(), batches(16, 4), ckpt_path="best", verbose=False)
        return whole(right), whole(found), one.ckpt_path, whole(again), last.ckpt_path

    for right, found, path, again, best in in_ranks(2, work):
        assert best.endswith("step=18.ckpt")
        assert torch.equal(right, found) and torch.equal(right, again)
        assert "step=10" in path or path.endswith("last.ckpt")
    names = ["last.ckpt", "step=16.ckpt", "step=18.ckpt"]
    assert [name for name in sorted(os.listdir(tmp_path / "right")) if name.endswith(".ckpt")] == names
    assert [name for name in sorted(os.listdir(tmp_path / "cut")) if name.endswith(".ckpt")] == names
    for name in names:
        report = verify_checkpoint(tmp_path / "cut" / name)
        assert report.whole and report.shards == 2
        assert len(os.listdir(tmp_path / "cut" / name)) == 4, "what was replaced is gone"
    assert about_at(tmp_path / "cut" / "last.ckpt").step == 18  # type: ignore[union-attr]


def test_one_process_saves_folders_too_and_moves_a_link_on(tmp_path: Path) -> None:
    def attempt(folder: Path, *more: Any, **options: Any) -> torch.Tensor:
        keep = pl.callbacks.ModelCheckpoint(folder, save_last="link", every_n_train_steps=2, filename="{step}")
        pl.seed_everything(5, verbose=False)
        one = trainer(
            1, strategy=strategy("fsdp sharded"), enable_checkpointing=True, callbacks=[keep, *more], max_epochs=3
        )
        module = Wide()
        one.fit(module, batches(48, 8, shuffle=True), **options)
        return whole(module)

    def work() -> Any:  # within a process of its own, as a group is opened
        right = attempt(tmp_path / "right")
        with pytest.raises(Halted):
            attempt(tmp_path / "cut", HaltAt(9))
        assert os.readlink(tmp_path / "cut" / "last.ckpt") == "step=8.ckpt"
        return right, attempt(tmp_path / "cut", ckpt_path="last")

    right, found = in_ranks(1, work)[0]
    assert torch.equal(right, found)
    assert sorted(name for name in os.listdir(tmp_path / "cut") if name.endswith("ckpt")) == [
        "last.ckpt",
        "step=18.ckpt",
    ]
    assert os.readlink(tmp_path / "cut" / "last.ckpt") == "step=18.ckpt"
    assert verify_checkpoint(tmp_path / "cut" / "last.ckpt").shards == 1


@pytest.mark.parametrize("ranks", [1, pytest.param(4, marks=pytest.mark.slow)])
def test_another_number_of_ranks_goes_on_with_the_same_samples(tmp_path: Path, ranks: int) -> None:
    def first() -> Any:
        right = whole(run(tmp_path / "right")[1])
        with pytest.raises(Halted):
            run(tmp_path / "cut", HaltAt(9))
        return right

    right = in_ranks(2, first)[0]
    assert is_sharded(tmp_path / "cut" / "last.ckpt")

    def second() -> Any:
        one, module = run(tmp_path / "cut", ranks=ranks, ckpt_path="auto")
        return whole(module), one.global_step, one.ckpt_path

    weights, step, path = second() if ranks == 1 else in_ranks(4, second)[0]
    assert step == 18 and path.endswith("last.ckpt")
    # one process saves files, and the last one takes the place of the folder
    assert is_sharded(path) == (ranks == 4) and about_at(path).step == 18  # type: ignore[union-attr]
    assert torch.allclose(weights, right, atol=1e-5)


def test_a_damaged_folder_is_set_aside_by_all(tmp_path: Path) -> None:
    def work() -> Any:
        with pytest.raises(Halted):
            run(tmp_path, HaltAt(9))
        collectives.barrier()
        if collectives.rank() == 0:
            for name in ("last.ckpt", "step=8.ckpt"):
                shard = next((tmp_path / name).glob("rank_00001*"))
                shard.write_bytes(shard.read_bytes()[:-1] + b"?")
        collectives.barrier()
        return run(tmp_path, ckpt_path="auto")[0].ckpt_path

    assert [os.path.basename(path) for path in in_ranks(2, work)] == ["step=6.ckpt"] * 2
    assert sorted(os.listdir(tmp_path / "quarantine")) == [
        "last.ckpt", "last.ckpt.reason.txt", "step=8.ckpt", "step=8.ckpt.reason.txt",
    ]  # fmt: skip


def test_a_named_folder_that_is_damaged_is_an_error_on_all(tmp_path: Path) -> None:
    def work() -> Any:
        fitted("fsdp sharded", 2, None).save_checkpoint(tmp_path / "a.ckpt")
        collectives.barrier()
        if collectives.rank() == 0:
            shard = next((tmp_path / "a.ckpt").glob("rank_00001*"))
            shard.write_bytes(shard.read_bytes()[:-1])
        collectives.barrier()
        with pytest.raises(CheckpointError, match="rank_00001.*bytes, not"):
            fitted("fsdp sharded", 2, tmp_path / "a.ckpt")
        return True

    assert in_ranks(2, work) == [True, True]
    assert not (tmp_path / "quarantine").exists()


# ---------------------------------------------------------------------- failures


@contextmanager
def failing_at(number: int, rank: int, kinds: Callable[[str], bool] = lambda path: True) -> Iterator[None]:
    """File operation `number` of a rank fails; of those whose path is one of `kinds`."""
    seen = 0

    def listen(at: str, count: int, kind: str, path: str) -> None:
        nonlocal seen
        if at == "before" and collectives.rank() == rank and kinds(path):
            seen += 1
            if seen == number:
                raise OSError(28, "No space left on device")

    io.operations.listeners.append(listen)
    try:
        yield
    finally:
        io.operations.listeners.remove(listen)


def test_a_failure_at_any_file_operation_of_any_rank_is_heard_by_all(tmp_path: Path) -> None:
    """And leaves the checkpoint before as it was, whether the new one is beside it or has its name."""

    def work() -> Any:
        one = fitted("fsdp sharded", 2, None)
        one.save_checkpoint(tmp_path / "old.ckpt")
        heard = []
        for rank in (0, 1):
            for target in ("new.ckpt", "old.ckpt"):
                for number in range(1, 60):
                    failed = ""
                    with failing_at(number, rank):
                        try:
                            one.save_checkpoint(tmp_path / target)
                        except (CheckpointError, OSError, RuntimeError) as error:
                            failed = str(error)
                    if not collectives.any_rank("a failure", bool(failed)):
                        break
                    assert "No space left" in failed and (rank == 0 or collectives.rank() or "rank 1 could" in failed)
                    found = collectives.broadcast(store.newest_valid(store.checkpoints_in(str(tmp_path))))
                    assert not found.rejected and found.path is not None
                    if found.path.endswith("old.ckpt"):
                        assert target == "old.ckpt" or os.listdir(tmp_path) == ["old.ckpt"]
                    heard.append((rank, target, number))
                    collectives.barrier()
                if collectives.rank() == 0 and target == "new.ckpt":
                    io.remove(str(tmp_path / "new.ckpt"))
                collectives.barrier()
        return heard

    first, second = in_ranks(2, work)
    assert first == second
    operations = {(r, t): max(n for rank, target, n in first if (rank, target) == (r, t)) for r, t, _ in first}
    assert operations[0, "new.ckpt"] >= 18 and operations[1, "new.ckpt"] >= 6, operations
    assert verify_checkpoint(tmp_path / "old.ckpt").whole


@pytest.mark.parametrize("rank", [0, 1])
def test_a_failed_write_ends_the_run_on_all_ranks_at_a_step_boundary(tmp_path: Path, rank: int) -> None:
    class Steps(pl.Callback):
        last = 0

        def on_train_batch_end(self, trainer: Any, *args: Any) -> None:
            self.last = trainer.global_step
            if trainer.global_step == 4:  # the save of step 4 begins behind this
                return
            writer = trainer._run.writer
            if trainer.global_step == 5:
                writer.join(30)

    def work() -> Any:
        steps = Steps()
        told = ""
        with failing_at(3, rank, lambda path: "step=4" in path):
            try:
                run(tmp_path, steps)
            except (SaveError, collectives.FailedOnRankZero) as error:
                told = str(error)
        return told, steps.last

    for told, step in in_ranks(2, work):
        assert "step=4" in told and "No space left on device" in told and "stays valid" in told
        assert step in (5, 6, 7), step
    found = store.newest_valid(store.checkpoints_in(str(tmp_path)))
    assert found.about is not None and found.about.step == 2 and not found.rejected


@pytest.mark.parametrize("rank", [0, 1])
def test_a_state_that_one_rank_cannot_copy_fails_on_all(tmp_path: Path, rank: int) -> None:
    def work() -> Any:
        from bolide.checkpoint.rank_writer import PartsWriter

        fitted("ddp", 2, None)  # opens the group
        writer = PartsWriter()
        good = {"rest": {"global_step": 1} if collectives.rank() == 0 else None, "parts": {}, "layout": {}}
        told = ""
        try:
            bad = {**good, "more": Uncopied()} if collectives.rank() == rank else good
            writer.save(bad, str(tmp_path / "a.ckpt"))
            writer.drain()
        except (SaveError, collectives.FailedOnRankZero) as error:
            told = str(error)
        writer.save(good, str(tmp_path / "b.ckpt"))
        writer.close()
        return told

    for told in in_ranks(2, work):
        assert "cannot be copied" in told and (rank == 0 or "rank 1 could not write" in told)
    assert os.listdir(tmp_path) == ["b.ckpt"] and verify_checkpoint(tmp_path / "b.ckpt").whole


class Uncopied:
    def __deepcopy__(self, memo: Any) -> Any:
        raise TypeError("cannot be copied")


def test_weights_for_an_evaluation_and_what_is_a_file_all_the_same(tmp_path: Path) -> None:
    def work() -> Any:
        one = fitted("fsdp sharded", 2, None)
        one.save_checkpoint(tmp_path / "a.ckpt", weights_only=True)
        fresh = trainer(2, strategy=strategy("fsdp sharded"), checkpointing={"format": "file"})
        with counting() as counts:
            found = fresh.validate(Wide(), batches(16, 4, seed=2), ckpt_path=tmp_path / "a.ckpt", verbose=False)
        fresh.save_checkpoint(tmp_path / "file.ckpt")
        return found, counts, one.validate(one.lightning_module, batches(16, 4, seed=2), verbose=False)

    for found, counts, right in in_ranks(2, work):
        assert found == right and 0 < counts["read"] < 0.6 * sum(p.numel() for p in Wide().parameters())
    assert about_at(tmp_path / "a.ckpt").weights_only and (tmp_path / "file.ckpt").is_file()  # type: ignore[union-attr]
    alone = trainer(1).validate(Wide(), batches(16, 4, seed=2), ckpt_path=tmp_path / "a.ckpt", verbose=False)
    assert alone[0]["val"] == pytest.approx(found[0]["val"], abs=1e-6)


class Hooked(Wide):
    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        value = checkpoint["state_dict"]["net.0.bias"]
        assert type(value) is torch.Tensor and value.shape == (32,)
        checkpoint["state_dict"]["net.0.bias"] = value * 0 + 3.0


def test_a_hook_that_looks_into_a_checkpoint_sees_whole_tensors(tmp_path: Path) -> None:
    def work() -> Any:
        fitted("fsdp sharded", 2, None).save_checkpoint(tmp_path / "a.ckpt")
        one = fitted("fsdp sharded", 2, tmp_path / "a.ckpt", Hooked)
        bias = one.lightning_module.net[0].bias
        return bias.full_tensor()

    for bias in in_ranks(2, work):
        assert torch.equal(bias.detach(), torch.full((32,), 3.0))


def test_sigterm_saves_a_folder(tmp_path: Path) -> None:
    def work() -> Any:
        class Signalled(pl.Callback):
            def on_train_batch_end(self, trainer: Any, *args: Any) -> None:
                if trainer.global_step == 5 and collectives.rank() == 1:
                    os.kill(os.getpid(), signal.SIGTERM)

        with pytest.raises(SIGTERMException):
            run(tmp_path, Signalled())
        return True

    assert in_ranks(2, work) == [True, True]
    found = store.newest_valid(store.checkpoints_in(str(tmp_path)))
    assert found.path is not None and is_sharded(found.path) and found.about.step in (5, 6)  # type: ignore[union-attr]


def test_what_sharding_cannot_do_is_said(tmp_path: Path) -> None:
    from bolide.core.errors import ConfigError, MissingPackageError
    from bolide.launch.processes import RankError
    from bolide.plugins.io import TorchCheckpointIO

    one = trainer(1)
    one.fit(Wide(), batches(16, 4))
    with pytest.raises(ConfigError, match="sharded=False"):
        one.save_checkpoint(tmp_path / "a.ckpt", storage_options={}, sharded=True)
    with pytest.raises(RankError, match="leave that, or the CheckpointIO, out"):
        trainer(2, strategy=strategy("fsdp sharded"), plugins=[TorchCheckpointIO()]).fit(Wide(), batches(16, 4))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "safetensors", None)
        with pytest.raises(MissingPackageError, match="pip install"):
            trainer(1, strategy=strategy("fsdp sharded")).fit(Wide(), batches(16, 4))

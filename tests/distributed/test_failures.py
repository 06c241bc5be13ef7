"""What happens when a rank raises, dies, hangs, or does what the others do not: an end within seconds, and a reason."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

import bolide as pl
from bolide.core.errors import ConfigError
from bolide.launch.processes import RankError
from bolide.strategies import DDPStrategy
from tests.distributed.support import Net, batches, gone, in_ranks, run_script, start_script, trainer

SCRIPT = """
what, folder = sys.argv[1], sys.argv[2]

class Failing(Net):
    def training_step(self, batch, batch_idx):
        rank = self.global_rank
        if self.global_step == 0:
            open(f"{folder}/pid_{rank}", "w").write(str(os.getpid()))
        if rank == 1 and self.global_step == 3:
            open(f"{folder}/when", "w").write(str(time.time()))
            if what == "raise":
                raise ValueError("the data of rank one are odd")
            if what == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if what == "exit":
                os._exit(7)
            if what == "hang":
                time.sleep(600)
        time.sleep(0.05)
        return self.loss(batch)

def main():
    one = trainer(2, strategy="ddp", max_epochs=50, resilience={"hang_timeout_s": 3.0} if what == "hang" else None)
    one.fit(Failing(), batches(64, 4))
    print("the end was reached")

main()
print("and what follows it")
"""


SLACK_S = 10
"""What a machine with other work may add to a promise of seconds."""


@pytest.mark.parametrize(
    ("what", "code", "told"),
    [
        ("raise", 1, r"Rank 1 of 2 \(process \d+\) ended with exit code 1: ValueError: the data of rank one are odd"),
        ("kill", 137, r"Rank 1 of 2 \(process \d+\) was ended by SIGKILL"),
        pytest.param("exit", 7, r"Rank 1 of 2 \(process \d+\) ended with exit code 7", marks=pytest.mark.slow),
    ],
)
def test_a_rank_that_fails_takes_the_group_along(tmp_path: Path, what: str, code: int, told: str) -> None:
    done = run_script(tmp_path, SCRIPT, what, str(tmp_path))
    ended_s = time.time()
    assert done.returncode == code, done.stderr[-2000:]
    assert ended_s - float((tmp_path / "when").read_text()) < 5 + SLACK_S
    assert gone([int((tmp_path / f"pid_{rank}").read_text()) for rank in range(2)], within_s=1)
    assert re.search(told, done.stderr), done.stderr[-2000:]
    assert "the end was reached" not in done.stdout and "what follows" not in done.stdout
    if what == "raise":
        # the one that failed is told of first, and the others' broken connections not at all
        tracebacks = re.findall(r"^(?:\[rank\d\]: )?\w*(?:Error|Exception)\b.*", done.stderr, re.MULTILINE)
        assert tracebacks == ["[rank1]: ValueError: the data of rank one are odd"]


def test_a_rank_that_hangs_is_found_and_all_stacks_are_printed(tmp_path: Path) -> None:
    done = run_script(tmp_path, SCRIPT, "hang", str(tmp_path))
    assert done.returncode == 1, done.stderr[-2000:]
    assert time.time() - float((tmp_path / "when").read_text()) < 3 + 5 + SLACK_S
    assert "No sign of life from rank" in done.stderr
    assert done.stderr.count("Stacks of rank") == 2
    assert re.search(r'train.py", line \d+ in training_step', done.stderr), done.stderr[-3000:]
    assert gone([int((tmp_path / f"pid_{rank}").read_text()) for rank in range(2)], within_s=1)


def test_the_death_of_the_agent_leaves_no_rank_behind(tmp_path: Path) -> None:
    process = start_script(tmp_path, SCRIPT, "nothing", str(tmp_path))
    paths = [tmp_path / f"pid_{rank}" for rank in range(2)]
    deadline_s = time.monotonic() + 40
    while not all(path.exists() and path.read_text() for path in paths) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    process.kill()
    process.communicate()
    assert gone([int(path.read_text()) for path in paths], within_s=5)


STOPPED = """
folder = sys.argv[1]

class Slow(Net):
    def training_step(self, batch, batch_idx):
        time.sleep(0.05)
        open(f"{folder}/pid_{self.global_rank}", "w").write(str(os.getpid()))
        return self.loss(batch)

saved = pl.callbacks.ModelCheckpoint(folder, save_last=True)
one = trainer(2, strategy="ddp", max_epochs=100, enable_checkpointing=True, callbacks=[saved])
one.fit(Slow(), batches(64, 4))
"""


@pytest.mark.parametrize("whom", ["the agent", pytest.param("one rank", marks=pytest.mark.slow)])
def test_a_stop_from_outside_saves_once_on_all_ranks(tmp_path: Path, whom: str) -> None:
    process = start_script(tmp_path, STOPPED, str(tmp_path))
    path = tmp_path / "pid_1"
    deadline_s = time.monotonic() + 40
    while not (path.exists() and path.read_text()) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    time.sleep(0.3)
    os.kill(process.pid if whom == "the agent" else int(path.read_text()), signal.SIGTERM)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 143, errors[-2000:]
    from bolide.checkpoint.file import read_checkpoint

    saved = read_checkpoint(str(tmp_path / "last.ckpt"))
    assert saved["global_step"] > 0 and len(saved["bolide"]["ranks"]) == 2
    assert "SIGTERM was received: the run ends at step" in errors


# ---------------------------------------------------------------------- ranks that do different things


class NoneOnOne(Net):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return None if self.global_rank == 1 and batch_idx == 2 else self.loss(batch)


class NoneOnAll(Net):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return None if batch_idx == 1 else self.loss(batch)


class LogOnOne(Net):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if self.global_rank == 0:
            self.log("only_here", 1.0, sync_dist=True, on_step=False, on_epoch=True)
        return self.loss(batch)


class StepLogOnOne(Net):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if self.global_rank == 0:
            self.log("only_now", 1.0, sync_dist=True)
        return self.loss(batch)


class OtherShape(Net):
    def __init__(self) -> None:
        super().__init__()
        if torch.distributed.is_initialized() and torch.distributed.get_rank() == 1:
            self.extra = torch.nn.Linear(2, 2)

    def configure_model(self) -> None:
        if self.global_rank == 1:
            self.extra = torch.nn.Linear(2, 2)


class Endless(IterableDataset[Any]):
    """Batches without a length, the same on all ranks unless `apart`; rank r has `lengths[r]` of them."""

    def __init__(self, lengths: tuple[int, ...], apart: bool = True) -> None:
        self.lengths, self.apart = lengths, apart

    def __iter__(self) -> Any:
        rank = torch.distributed.get_rank()
        for i in range(self.lengths[rank % len(self.lengths)]):
            x = torch.full((2, 4), float(i + (100 * rank if self.apart else 0)))
            yield x, x.sum(1, keepdim=True) * 0


class Raising(Net):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if self.global_rank == 1 and batch_idx == 1:
            raise ValueError("the second batch of rank one")
        return self.loss(batch)


REFUSED: dict[str, tuple[Any, str]] = {
    "a loss on some ranks only": (
        lambda: trainer(2, strategy="ddp").fit(NoneOnOne(), batches(32, 4)),
        r"`training_step` returned None on rank\(s\) \[1\]",
    ),
    "the same with accumulation": (
        lambda: trainer(2, strategy="ddp", accumulate_grad_batches=2).fit(NoneOnOne(), batches(32, 4)),
        r"`training_step` returned None on rank\(s\) \[1\]",
    ),
    "the same where parameters may be unused": (
        lambda: trainer(2, strategy="ddp_find_unused_parameters_true").fit(NoneOnOne(), batches(32, 4)),
        r"`training_step` returned None on rank\(s\) \[1\]",
    ),
    "a synced metric on one rank": (
        lambda: trainer(2, strategy="ddp").fit(LogOnOne(), batches(32, 4)),
        r"self.log\('only_here', sync_dist=True\) in `training_step` was called on rank\(s\) \[0\] and not",
    ),
    "a synced step metric on one rank": (
        lambda: trainer(2, strategy="ddp", logger=pl.loggers.CSVLogger("."), log_every_n_steps=1).fit(
            StepLogOnOne(), batches(32, 4)
        ),
        r"self.log\('only_now', sync_dist=True\) in `training_step` was called on rank\(s\) \[0\] only",
    ),
    "different modules": (
        lambda: trainer(2, strategy="ddp").fit(OtherShape(), batches(32, 4)),
        r"The module of rank 1 is not that of rank 0: they differ in 'extra.weight'",
    ),
    "the same data on all ranks": (
        lambda: trainer(2, strategy="ddp").fit(Net(), DataLoader(Endless((4,), apart=False), batch_size=None)),
        r"Ranks \[0, 1\] read the same first training batch from Endless",
    ),
    "the same batches on all ranks": (
        lambda: trainer(2, strategy="ddp").fit(Net(), Same()),
        r"Ranks \[0, 1\] read the same first training batch from Same",
    ),
    "no data on one rank": (
        lambda: trainer(2, strategy="ddp").fit(Net(), DataLoader(Endless((4, 0)), batch_size=None)),
        r"gave no batch on rank\(s\) \[1\]",
    ),
    "an error on one rank": (  # case C28 (b)
        lambda: trainer(2, strategy="ddp").fit(Raising(), batches(32, 4)),
        r"Rank 1 failed.[\s\S]*ValueError: the second batch of rank one",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.timeout(40)
def test_ranks_that_differ_get_an_error_not_a_wait(case: str) -> None:
    fit, told = REFUSED[case]
    with pytest.raises(RankError, match=told):
        fit()


def test_no_loss_on_any_rank_leaves_the_batch_out() -> None:  # case C28 (c)
    def work() -> Any:
        module = NoneOnAll()
        trainer(2, strategy="ddp", max_epochs=1).fit(module, batches(32, 4))
        return module.weights

    alone = NoneOnAll()
    trainer(1, max_epochs=1).fit(alone, batches(32, 8))
    for weights in in_ranks(2, work):
        assert torch.allclose(weights, alone.weights, atol=1e-6)


class Uneven(Net):
    """Loss with a known gradient: the mean of its batch's first feature."""

    def __init__(self) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(1))
        self.done = 0

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.done += 1
        self.log("seen", 1.0, reduce_fx="sum", on_step=False, on_epoch=True, sync_dist=True)
        return self.w.sum() * batch[0][0, 0]

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD([self.w], lr=1.0)


class Sized:
    """A loader of a rank's own that says how many batches it has: 3 on rank 0, 5 on rank 1."""

    def __len__(self) -> int:
        return (3, 5)[torch.distributed.get_rank()]

    def __iter__(self) -> Any:
        return iter(Endless((3, 5)))


class Same:
    """The same batches on every rank."""

    def __iter__(self) -> Any:
        return iter([(torch.ones(2, 4), torch.ones(2, 1))] * 4)


@pytest.mark.parametrize("sized", [False, True])
@pytest.mark.parametrize("uneven", ["stop", "join"])
@pytest.mark.timeout(40)
def test_loaders_of_unequal_length_end_together(uneven: str, sized: bool) -> None:  # case C28 (a)
    def work() -> Any:
        module = Uneven()
        loader: Any = Sized() if sized else DataLoader(Endless((3, 5)), batch_size=None)
        strategy = DDPStrategy(uneven=uneven, find_unused_parameters=True)
        one = trainer(2, strategy=strategy, max_epochs=2)
        strategy.start()  # so that the data know their rank
        one.fit(module, loader)
        return module.done, one.global_step, float(module.w), float(one.callback_metrics["seen"])

    every = in_ranks(2, work)
    means = [(i + 100 + i) / 2 for i in range(3)]
    if uneven == "stop":
        right = (6, 6, -2 * sum(means), 6.0)
    else:
        right = (10, 10, -2 * (sum(means) + 103 + 104), 8.0)
    assert every == [right, right]


# ---------------------------------------------------------------------- what is refused before a process is started


def test_bad_input_is_one_error_before_anything_is_started(monkeypatch: Any) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"strategy": "single_device"}, "strategy='single_device' runs one process, and devices=2"),
        ({"strategy": "ddpp"}, "Did you mean 'ddp'"),
        ({"strategy": "fsdpp"}, "strategy='fsdpp'"),
        ({"num_nodes": 2}, "num_nodes=2: a script of its own starts processes on one machine only"),
        ({"resilience": {"max_restarts": -1}}, "max_restarts"),
        ({"resilience": {"hang_timeout_s": 0}}, "hang_timeout_s"),
    ]
    for options, told in wrong:
        with pytest.raises(ConfigError, match=re.escape(told)):
            trainer(2, **{"strategy": "ddp", **options})
    with pytest.raises(ConfigError, match="find_unused_parameters"):
        DDPStrategy(find_unused_paramters=True)
    with pytest.raises(ConfigError, match="uneven='halt'"):
        DDPStrategy(uneven="halt")
    with pytest.raises(ConfigError, match="start_method='thread'"):
        DDPStrategy(start_method="thread")
    for name, instead in (("accelerator", "accelerator"), ("parallel_devices", "devices"), ("precision_plugin", "pr")):
        with pytest.raises(ConfigError, match=rf"DDPStrategy\({name}=\.\.\.\) has no effect.*Trainer\({instead}"):
            DDPStrategy(**{name: "16-mixed"})
    one = trainer(2, strategy="ddp")
    with pytest.raises(pl.core.errors.MisconfigurationException, match="give an object of it"):
        one.fit(Net, batches(8, 4))
    with pytest.raises(pl.core.errors.MisconfigurationException, match="has no validation_step"):
        one.validate(Net(), batches(8, 4))
    with pytest.raises(pl.core.errors.MisconfigurationException, match="torchrun --nproc-per-node=2"):
        one.steps(Net(), batches(8, 4))


def test_a_running_event_loop_is_refused() -> None:
    import asyncio

    async def main() -> None:
        trainer(2, strategy="ddp").fit(Net(), batches(8, 4))

    with pytest.raises(ConfigError, match="within a running event loop"):
        asyncio.run(main())


def test_a_launcher_that_started_other_numbers_is_told_of(monkeypatch: Any) -> None:
    for name, value in {"TORCHELASTIC_RUN_ID": "x", "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "4",
                        "LOCAL_WORLD_SIZE": "4"}.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match="devices=2, and torchrun has started 4 process"):
        trainer(2, strategy="ddp")
    assert trainer("auto").world_size == 4  # type: ignore[arg-type]
    assert trainer(1).world_size == 1  # one device asked for by name: a process for itself


def test_a_port_in_use(monkeypatch: Any) -> None:
    import socket

    from bolide.launch.environments import LightningEnvironment
    from bolide.launch.group import open_group
    from bolide.strategies.parallel import DEFAULT_TIMEOUT
    from bolide.world import World

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
        monkeypatch.setenv("MASTER_PORT", str(taken.getsockname()[1]))
        world = World(torch.device("cpu"), world_size=2, launched=True)
        with pytest.raises(ConfigError, match=f"MASTER_PORT={taken.getsockname()[1]}: the port is in use"):
            open_group(world, LightningEnvironment(), None, DEFAULT_TIMEOUT)


def test_json_is_what_the_agent_reads(tmp_path: Path, monkeypatch: Any) -> None:
    """A rank's error is left in the place and form that torch's agent looks for, under torchrun too."""
    path = tmp_path / "error.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(path))
    with pytest.raises(RankError):
        trainer(2, strategy="ddp").fit(Raising(), batches(32, 4))
    assert "the second batch of rank one" in json.loads(path.read_text())["message"]["message"]

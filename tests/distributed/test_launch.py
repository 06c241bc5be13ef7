"""Starting ranks: by a script of its own, by torchrun, by `bolide launch`, by clusters' variables."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

import bolide as pl
from bolide.cli.launch import node_counts, process_count
from bolide.core import env
from bolide.core.errors import ConfigError
from bolide.data import split
from bolide.launch.detect import detect
from bolide.launch.script import how_to_start
from bolide.launch.slurm import SLURMEnvironment, first_host
from tests.distributed.support import Net, batches, in_ranks, run_script, trainer

SCRIPT = """
from pathlib import Path

class Logged(Net):
    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.log("loss", loss, sync_dist=True)
        return loss

one = trainer("auto", strategy="ddp", logger=pl.loggers.CSVLogger("logs"), log_every_n_steps=2)
module = Logged()
one.fit(module, batches(32, 4))
print(f"rank {one.global_rank} of {one.world_size}: {module.weights.sum().item():.4f} in {one.log_dir}", flush=True)
"""


@pytest.mark.parametrize("launcher", [pytest.param("torchrun", marks=pytest.mark.slow), "bolide"])
def test_a_launched_script_finds_its_ranks(tmp_path: Path, launcher: str) -> None:
    command = {
        "torchrun": [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"],
        "bolide": [sys.executable, "-m", "bolide.cli.main", "launch", "--nproc", "2"],
    }[launcher]
    done = run_script(tmp_path, SCRIPT, launcher=command)
    assert done.returncode == 0, done.stderr[-2000:]
    alone = Net()
    trainer(1).fit(alone, batches(32, 8))
    lines = sorted(line for line in done.stdout.splitlines() if line.startswith("rank"))
    where = "logs/lightning_logs/version_0"
    assert lines == [f"rank {r} of 2: {alone.weights.sum().item():.4f} in {where}" for r in range(2)]
    assert [p.name for p in (tmp_path / "logs/lightning_logs").iterdir()] == ["version_0"]


CLUSTERS: dict[str, tuple[dict[str, str], tuple[str, int, int, int]]] = {
    "torchrun": (
        {"TORCHELASTIC_RUN_ID": "a", "RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2",
         "GROUP_RANK": "1", "SLURM_NTASKS": "9", "SLURM_PROCID": "8"},
        ("torchrun", 3, 1, 4),
    ),
    "SLURM": (
        {"SLURM_NTASKS": "4", "SLURM_PROCID": "2", "SLURM_LOCALID": "0", "SLURM_NODEID": "1", "SLURM_JOB_NAME": "train",
         "SLURM_NTASKS_PER_NODE": "2", "SLURM_JOB_NODELIST": "gpu[07-09],cpu1", "SLURM_JOB_ID": "123456",
         "LOCAL_RANK": "7"},
        ("SLURM", 2, 0, 4),
    ),
    "LSF": (
        {"LSB_JOBID": "11", "LSB_DJOB_RANKFILE": "hosts", "JSM_NAMESPACE_LOCAL_RANK": "1", "JSM_NAMESPACE_SIZE": "6",
         "JSM_NAMESPACE_RANK": "5"},
        ("LSF", 5, 1, 6),
    ),
    "by hand": (
        {"LOCAL_RANK": "1", "NODE_RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "head"},
        ("launcher", 3, 1, 4),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CLUSTERS)
def test_clusters_are_recognised_in_order(name: str, monkeypatch: Any, tmp_path: Path) -> None:
    variables, (kind, rank, local, size) = CLUSTERS[name]
    monkeypatch.setattr("bolide.trainer.build.die_with_agent", lambda: None)  # this process is nobody's rank
    for variable in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "SLURM_NTASKS", "SLURM_PROCID", "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(variable, raising=False)
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    (tmp_path / "hosts").write_text("launch\nn1\nn1\nn2\n")
    found = detect()
    assert found is not None and found.name == kind
    assert (found.global_rank(), found.local_rank(), found.world_size()) == (rank, local, size)
    made = trainer("auto")  # type: ignore[arg-type]
    assert (made.global_rank, made.local_rank, made.world_size) == (rank, local, size)
    assert type(made.strategy).__name__ == "DDPStrategy"
    if name == "SLURM":
        assert found.main_address == "gpu07" and found.main_port == 15000 + 3456 and found.node_rank() == 1
    if name == "LSF":
        assert found.main_address == "n1"


def test_nothing_is_recognised_where_nothing_was_started(monkeypatch: Any) -> None:
    for variable in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "SLURM_NTASKS", "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(variable, raising=False)
    assert detect() is None
    monkeypatch.setenv("SLURM_NTASKS", "4")
    monkeypatch.setenv("SLURM_JOB_NAME", "bash")
    assert not SLURMEnvironment.detect()
    assert first_host("a[3,5-7]x,b") == "a3x" and first_host("n1,n2") == "n1" and first_host("n[001-004]") == "n001"


def test_strategies_by_name() -> None:
    from bolide.strategies import PRESETS, DDPStrategy

    assert len(PRESETS) == 12
    for name, arguments in PRESETS.items():
        strategy = trainer(2, strategy=name).strategy
        assert type(strategy) is DDPStrategy and strategy.strategy_name == name
        assert strategy.start_method == arguments["start_method"]
        assert strategy._ddp_kwargs.get("find_unused_parameters") == arguments.get("find_unused_parameters")
    assert how_to_start("spawn", "ddp_spawn", 2) == ("spawn", [])
    assert how_to_start(None, "ddp", 2)[0] == "fork"  # a test is no script


def test_spawned_ranks() -> None:
    module = Net()
    one = trainer(2, strategy="ddp_spawn", max_epochs=1)
    one.fit(module, batches(16, 4))
    alone = Net()
    trainer(1, max_epochs=1).fit(alone, batches(16, 8))
    assert torch.allclose(module.weights, alone.weights, atol=1e-6)


class Numbers(IterableDataset[Any]):
    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Any:
        return iter(torch.arange(float(self.count)).unsqueeze(1).expand(-1, 4).unbind())


class Seen(Net):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[int] = []

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.seen += [int(v) for v in batch[:, 0]]
        return self.net(batch * 0).mean()


@pytest.mark.parametrize("workers", [0, 2])
def test_an_iterable_dataset_is_split_over_ranks_and_workers(workers: int) -> None:
    def work() -> Any:
        module = Seen()
        loader = DataLoader(split(Numbers(24)), batch_size=3, num_workers=workers)
        trainer(2, strategy="ddp", max_epochs=1).fit(module, loader)
        return module.seen

    first, second = in_ranks(2, work)
    assert sorted(first + second) == list(range(24)) and len(first) == len(second) == 12


def test_what_the_command_takes() -> None:
    assert node_counts("2") == (2, 2) and node_counts("1:4") == (1, 4) and process_count("3") == 3
    for wrong in ("0", "4:1", "a", "1:"):
        if wrong != "1:":
            with pytest.raises(ConfigError, match="--nnodes"):
                node_counts(wrong)
    with pytest.raises(ConfigError, match="--nproc"):
        process_count("0")


def test_the_command_refuses_what_it_cannot_start(capsys: Any) -> None:
    from bolide.cli.main import main

    assert main(["launch", "--nproc", "2", "nothing.py"]) == 1
    assert "there is no script 'nothing.py'" in capsys.readouterr().err
    assert main(["launch", "--nnodes", "2", __file__]) == 1
    assert "--nnodes above 1 needs --endpoint" in capsys.readouterr().err
    for endpoint in ("head:port", "tcp://head:1", "head:1:2", "head:99999"):
        assert main(["launch", "--nnodes", "2", "--endpoint", endpoint, __file__]) == 1
        assert f"--endpoint {endpoint}: expected HOST:PORT" in capsys.readouterr().err
    assert main(["launch", "--endpoint", "127.0.0.1:29400", "--local-addr", "eth0", __file__]) == 1
    assert "--local-addr eth0: expected an IP address" in capsys.readouterr().err


def test_an_agent_that_is_alone_says_why() -> None:
    from torch.distributed.elastic.rendezvous import (
        RendezvousClosedError,
        RendezvousConnectionError,
        RendezvousTimeoutError,
    )

    from bolide.launch.agent import Launch, why_alone

    launch = Launch(["python"], 1, nodes=(2, 4), endpoint="head:29400", run_id="mine")
    assert why_alone(launch, RendezvousClosedError()).startswith("The run at head:29400 ('mine') is over")
    assert (
        why_alone(launch, RendezvousTimeoutError()) == "Fewer than 2 machine(s) came together at head:29400 ('mine')."
    )
    assert "does not answer (any more): it is off" in why_alone(launch, RendezvousConnectionError("it is off"))


def test_by_which_address_machines_meet() -> None:
    import socket

    from bolide.launch import address
    from bolide.launch.agent import Launch, meeting_place

    assert address.towards("127.0.0.1", 29400) == "127.0.0.1" and address.towards("no.such.host.invalid", 1) is None
    assert address.interface_of("192.0.2.77") is None
    if sys.platform == "linux":
        assert address.interface_of("127.0.0.1") == "lo"
    assert address.hosts("127.0.0.1", 29400, "127.0.0.1") is None  # torch finds that out
    assert address.hosts("192.0.2.1", 29400, "192.0.2.2") is False  # another machine is meant
    place = meeting_place(Launch(["python"], 1, nodes=(1, 2), endpoint="127.0.0.1:29400"))
    assert place == ("127.0.0.1:29400", {"local_addr": "127.0.0.1"}) and env.get("GLOO_SOCKET_IFNAME") in ("lo", None)
    given = meeting_place(Launch(["python"], 1, endpoint="192.0.2.1:29400", local_address="192.0.2.2"))
    assert given[1] == {"local_addr": "192.0.2.2", "is_host": "0"}
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        address.give_up_after(*server.getsockname(), within_s=20)
        if sys.platform == "linux":
            assert client.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 20_000
            assert client.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1


def test_whether_the_group_was_started_before(monkeypatch: Any) -> None:
    from bolide.launch.environments import started_before

    monkeypatch.delenv("TORCHELASTIC_RESTART_COUNT", raising=False)
    monkeypatch.delenv("BOLIDE_STARTS", raising=False)
    assert not started_before()
    monkeypatch.setenv("BOLIDE_STARTS", "0")
    assert not started_before()
    monkeypatch.setenv("BOLIDE_STARTS", "1")  # a machine came or went: torch counts no restart
    assert started_before()


def test_a_rank_whose_agent_came_later_goes_on_with_the_others(tmp_path: Path) -> None:
    def fit(**options: Any) -> Any:
        one = trainer(2, enable_checkpointing=True, callbacks=[pl.callbacks.ModelCheckpoint(tmp_path)], **options)
        one.fit(Net(), batches(32, 4))
        return one.ckpt_path

    def work() -> Any:
        env.set("BOLIDE_STARTS", env.get("RANK") or "")  # the first rank's agent has started nothing before
        return fit(max_epochs=4)

    in_ranks(2, lambda: fit(max_steps=3))
    (tmp_path / "finished.json").unlink()  # as if it had been interrupted
    paths = in_ranks(2, work)
    assert paths[0] is not None and paths[0] == paths[1] and "step=3" in paths[0]


def test_the_drop_in_has_the_names() -> None:
    assert pl.strategies.DDPStrategy is pl.strategies.ddp.DDPStrategy
    from bolide.plugins.environments import LightningEnvironment, TorchElasticEnvironment

    assert issubclass(TorchElasticEnvironment, pl.plugins.environments.ClusterEnvironment)
    assert not LightningEnvironment().creates_processes_externally

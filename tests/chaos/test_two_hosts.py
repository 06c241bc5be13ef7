"""Two hosts that share a link and a file system, each in a network namespace: they train, and the link is cut.

Made with `ip netns`, so root is needed; what a test makes it removes.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.distributed.support import gone, run_script, start_script

TIMEOUT_S = 8
"""The process group's timeout: by it alone a cut link is noticed."""

WITHIN_S = 90.0
"""Nothing here takes so long but what hangs."""

SCRIPT = """
import json
from datetime import timedelta

folder, options = sys.argv[1], json.loads(sys.argv[2])

class Noting(Net):
    def __init__(self):
        super().__init__(lr=0.02)
        self.drop = torch.nn.Dropout(0.2)

    def training_step(self, batch, batch_idx):
        time.sleep(options["pause_s"])
        with open(f"{folder}/seen_{self.global_rank}", "a") as file:
            print(self.global_step, os.getpid(), file=file)
        x, y = batch
        return torch.nn.functional.mse_loss(self.net(self.drop(x)), y)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.02)

pl.seed_everything(5, verbose=False)
saved = pl.callbacks.ModelCheckpoint(f"{folder}/saved", every_n_train_steps=3, save_top_k=1, save_last=True)
strategy = pl.strategies.DDPStrategy(timeout=timedelta(seconds=options["timeout_s"]))
one = trainer(
    options["devices"], strategy=strategy, enable_checkpointing=True, callbacks=[saved], max_epochs=3,
    resilience={"exact_resume": True},
)
one.fit(Noting(), batches(96, 4, shuffle=True), ckpt_path="auto")
if one.global_rank == 0:
    text = "".join(f"{name} {value.flatten().tolist()}\\n" for name, value in one.strategy.state().items())
    with open(f"{folder}/weights", "w") as file:
        file.write(f"{one.global_step}\\n{text}")
"""


@dataclass(frozen=True)
class Host:
    """A network namespace with one end of the link."""

    name: str
    address: str
    interface: str

    def run(self, *command: str) -> None:
        subprocess.run(["ip", "-n", self.name, *command], check=True, capture_output=True, text=True)

    def cut(self) -> None:
        self.run("link", "set", self.interface, "down")

    def mend(self) -> None:
        self.run("link", "set", self.interface, "up")


@pytest.fixture
def hosts() -> Iterator[tuple[Host, Host]]:
    if sys.platform != "linux" or shutil.which("ip") is None:
        pytest.skip("there is no `ip` (iproute2) to make network namespaces with")
    number = os.getpid() % 10000
    made = tuple(
        Host(f"bolide{number}{side}", f"10.77.{number % 250}.{i + 1}", f"bo{number}{side}")
        for i, side in enumerate("ab")
    )
    first, second = made
    probe = subprocess.run(["ip", "netns", "add", first.name], capture_output=True, text=True, check=False)
    if probe.returncode:
        pytest.skip(f"network namespaces may not be made here: {probe.stderr.strip()}")
    try:
        subprocess.run(["ip", "netns", "add", second.name], check=True)
        first.run(
            "link", "add", first.interface, "type", "veth", "peer", "name", second.interface, "netns", second.name
        )
        for host in made:
            host.run("addr", "add", f"{host.address}/24", "dev", host.interface)
            host.run("link", "set", "lo", "up")
            host.mend()
        yield first, second
    finally:
        for host in made:  # with a namespace its end of the link goes
            subprocess.run(["ip", "netns", "del", host.name], check=False, capture_output=True)


def command(launcher: str, host: Host, first: Host) -> list[str]:
    """What is run on a host: `bolide launch` finds out by itself what torchrun has to be told."""
    there, endpoint = ["ip", "netns", "exec", host.name], f"{first.address}:29400"
    if launcher == "bolide":
        return [*there, sys.executable, "-m", "bolide.cli.main", "launch", "--nproc", "1", "--nnodes", "2",
                "--endpoint", endpoint]  # fmt: skip
    # torch's other meeting place, c10d, has no timeout for what it asks the first host
    return [*there, "env", f"GLOO_SOCKET_IFNAME={host.interface}", sys.executable, "-m", "torch.distributed.run",
            "--nproc-per-node=1", "--nnodes=2", f"--node-rank={int(host != first)}", "--master-port=29400",
            f"--master-addr={first.address}", f"--local-addr={host.address}"]  # fmt: skip


def start(launcher: str, hosts: tuple[Host, Host], folder: Path, pause_s: float) -> list[subprocess.Popen[str]]:
    options = json.dumps({"devices": "auto", "pause_s": pause_s, "timeout_s": TIMEOUT_S})
    return [start_script(folder, SCRIPT, str(folder), options, launcher=command(launcher, host, hosts[0]))
            for host in hosts]  # fmt: skip


def processes(folder: Path) -> list[int]:
    found = [path.read_text().splitlines() for path in folder.glob("seen_*")]
    return list({int(line.split()[1]) for lines in found for line in lines})


def steps_begun(folder: Path) -> int:
    path = folder / "seen_1"
    lines = path.read_text().splitlines() if path.exists() else []
    return int(lines[-1].split()[0]) if lines else -1


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("launcher", ["torchrun", "bolide"])
def test_a_link_that_is_cut(launcher: str, hosts: tuple[Host, Host], tmp_path: Path) -> None:
    right, cut = tmp_path / "right", tmp_path / "cut"
    for folder in (right, cut):
        folder.mkdir()
    options = json.dumps({"devices": 2, "pause_s": 0.0, "timeout_s": 60})
    done = run_script(right, SCRIPT, str(right), options, timeout_s=WITHIN_S)
    assert done.returncode == 0, done.stderr[-2000:]

    agents = start(launcher, hosts, cut, pause_s=0.2)
    try:
        deadline_s = time.monotonic() + WITHIN_S
        while steps_begun(cut) < 8 and time.monotonic() < deadline_s:
            assert all(agent.poll() is None for agent in agents), [agent.communicate()[1][-2000:] for agent in agents]
            time.sleep(0.1)
        hosts[1].cut()
        told = [agent.communicate(timeout=TIMEOUT_S + WITHIN_S)[1] for agent in agents]
        assert all(agent.returncode != 0 for agent in agents), told
        assert gone(processes(cut), within_s=5)
        assert not (cut / "weights").exists() and any("Timed out waiting" in text for text in told), told
        hosts[1].mend()
        agents += start(launcher, hosts, cut, pause_s=0.0)
        for agent in agents[2:]:
            _, errors = agent.communicate(timeout=WITHIN_S)
            assert agent.returncode == 0, errors[-3000:]
    finally:
        for agent in agents:
            if agent.poll() is None:
                agent.send_signal(signal.SIGKILL)
            agent.communicate()
    assert gone(processes(cut), within_s=5)
    assert (cut / "weights").read_text() == (right / "weights").read_text()

"""A training that is killed: what it trains, and a script of it for the agent. Used by test_resume and the kill tests.

Each attempt is killed at a planned moment: (attempt, rank, seconds after its first batch), or in the place of the
seconds ("before" or "after", number) of a file operation within the folder of a sharded checkpoint. The weights it ends
with are written as text, to be compared to the bit.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.distributed.support import run_script

SCRIPT = """
import hashlib, json, random, threading
from bolide.checkpoint import io

folder, options = sys.argv[1], json.loads(sys.argv[2])
attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0))

class Dropping(Net):
    def __init__(self):
        super().__init__(lr=0.02)
        self.drop = torch.nn.Dropout(0.2)

    def training_step(self, batch, batch_idx):
        if self.global_step == self.first and not self.armed:
            self.armed = True
            self.arm()
        time.sleep(options.get("pause_s", 0.0))
        x, y = batch
        loss = torch.nn.functional.mse_loss(self.net(self.drop(x)), y)
        self.log("loss", loss, on_epoch=True, sync_dist=True)
        return loss

    def on_train_start(self):
        self.first, self.armed = self.global_step, False
        with open(f"{folder}/attempts_{self.global_rank}", "a") as file:
            file.write(f"{attempt} {self.global_step} {time.time()} {os.getpid()}\\n")

    def arm(self):
        for when, rank, moment in options["kills"]:
            if when == attempt and rank in (-1, self.global_rank):
                if isinstance(moment, list):
                    self.die_at(*moment)
                else:
                    threading.Thread(target=self.die_in, args=(moment,), daemon=True).start()

    def die_in(self, delay_s):
        time.sleep(delay_s)
        self.die("-")

    def die_at(self, when, number):
        self.seen = 0

        def listen(at, count, kind, path):
            if at == when and ".ckpt/" in path:
                self.seen += 1
                if self.seen == number:
                    self.die(f"{kind}:{path}")

        io.operations.listeners.append(listen)

    def die(self, where):
        with open(f"{folder}/killed", "a") as file:
            file.write(f"{attempt} {self.global_rank} {time.time()} {where}\\n")
        os.kill(os.getpid(), signal.SIGKILL)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.02)

pl.seed_everything(5, workers=options.get("keyed", False), verbose=False)
module = Dropping()
saved = pl.callbacks.ModelCheckpoint(f"{folder}/saved", every_n_train_steps=2, save_top_k=1, save_last=True)
strategy = options.get("strategy", "ddp")
if strategy == "fsdp_sharded":
    strategy = pl.strategies.FSDPStrategy(state_dict_type="sharded")
one = trainer(
    options["ranks"], strategy=strategy, max_epochs=options.get("epochs", 3),
    enable_checkpointing=True, callbacks=[saved], accumulate_grad_batches=2, gradient_clip_val=1.0,
    resilience={"exact_resume": True, "max_restarts": options.get("restarts", 3)},
)
one.fit(module, batches(options.get("samples", 94), 4, shuffle=True))
state = one.strategy.state()
if one.global_rank == 0:
    text = "".join(f"{name} {value.flatten().tolist()}\\n" for name, value in state.items())
    with open(f"{folder}/weights", "w") as file:
        file.write(f"{one.global_step} {float(one.callback_metrics['loss_epoch'])!r}\\n{text}")
"""


def run(folder: Path, **options: Any) -> str:
    """What a run ends with: its step, its last metric and its weights, as text."""
    folder.mkdir(parents=True, exist_ok=True)
    options.setdefault("kills", [])
    done = run_script(folder, SCRIPT, str(folder), json.dumps(options), timeout_s=100 + 15 * len(options["kills"]))
    assert done.returncode == 0, done.stderr[-4000:]
    return (folder / "weights").read_text()


def attempts(folder: Path, rank: int = 0) -> list[tuple[int, int, float, int]]:
    """(attempt, step at its start, when, process) of each attempt of a rank."""
    lines = (folder / f"attempts_{rank}").read_text().splitlines()
    return [(int(a), int(b), float(c), int(d)) for a, b, c, d in (line.split() for line in lines)]

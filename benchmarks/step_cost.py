"""Cost of one training step: a hand-written loop, the peers and Bolide, side by side.

Every contestant trains the same model on the same batches with the same optimizer.
One fit of N steps costs fixed + N * step; two fits of different N give both by
difference, so start-up does not hide in the step and the step does not hide in it.
The contestants run in turn, round after round, and each round's ratio to the
hand-written loop is kept: the machine's speed may drift, the ratio does not. `best` is the fastest
round of one over the fastest round of the other: on a busy machine it is the steadier
figure, and the one to quote. `raw2` is the hand-written loop once more: how far it is
from 1 is what this machine's noise makes of nothing.

    python benchmarks/step_cost.py                 # all that can be imported
    python benchmarks/step_cost.py --only raw,lightning --work mlp --mode bare
    python benchmarks/step_cost.py --turns 200     # for a machine that other work shares, see below
    python benchmarks/step_cost.py --json out.json
    python benchmarks/step_cost.py --markdown      # ends with the table that stands in the README
    python benchmarks/step_cost.py --markdown --rows out.json     # that table, from an earlier run

With `--turns` all contestants train at the same time, each in a thread of its own, and only one of them runs: after
some ten milliseconds of steps its loader hands over to the next, in an order that is drawn anew each time. What the
machine does to one turn it does to the turns beside it, and the median of the ratios is steady to a percent or so
where whole fits differ by half. `best` is that median then.

Two modes:
  bare  nothing but the steps: no logger, no progress bar, no checkpoint
  real  what people run: the loss logged at each step to TensorBoard (written every
        50 steps), the progress bar on, one checkpoint at the end
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib
import io
import json
import logging
import os
import platform
import random
import statistics
import sys
import tempfile
import threading
import time
import warnings
from importlib import metadata

os.environ.setdefault("KERAS_BACKEND", "torch")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
warnings.filterwarnings("ignore")

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

torch.set_num_threads(1)


# ---------------------------------------------------------------- the work


class Mlp(nn.Sequential):
    """64 -> 128 -> 10: so small that the loop around it is most of the cost."""

    def __init__(self):
        super().__init__(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))


class Cnn(nn.Sequential):
    """Two convolutions on 3 x 32 x 32 images."""

    def __init__(self):
        first, second = nn.Conv2d(3, 16, 3, stride=2, padding=1), nn.Conv2d(16, 32, 3, stride=2, padding=1)
        super().__init__(first, nn.ReLU(), second, nn.ReLU(), nn.Flatten(), nn.Linear(32 * 8 * 8, 10))


class Gpt(nn.Module):
    """Two transformer layers, width 128, on 64 tokens of a 256-symbol alphabet."""

    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(256, 128)
        layer = nn.TransformerEncoderLayer(128, 4, 512, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(128, 256)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(64), persistent=False)

    def forward(self, x):
        return self.head(self.blocks(self.tokens(x), mask=self.mask, is_causal=True)).flatten(0, 1)


def batches(work: str, count: int):
    """`count` batches (x, y), made anew from one seed."""
    g = torch.Generator().manual_seed(1)
    if work == "mlp":
        return [(torch.randn(64, 64, generator=g), torch.randint(10, (64,), generator=g)) for _ in range(count)]
    if work == "cnn":
        return [(torch.randn(32, 3, 32, 32, generator=g), torch.randint(10, (32,), generator=g)) for _ in range(count)]
    shapes = (8, 64), (8 * 64,)
    return [tuple(torch.randint(256, shape, generator=g) for shape in shapes) for _ in range(count)]


MODELS = {"mlp": Mlp, "cnn": Cnn, "gpt": Gpt}
CHUNK = {"mlp": 25, "cnn": 6, "gpt": 2}
STEPS = {"mlp": (200, 1200), "cnn": (50, 250), "gpt": (20, 80)}


class Loader:
    """A loader that hands out ready batches, so that only the loop is timed."""

    def __init__(self, work: str, steps: int):
        self.pool, self.steps = batches(work, 16), steps

    def __len__(self):
        return self.steps

    def __iter__(self):
        pool, hand_over = self.pool, turns.of_this_thread()
        for i in range(self.steps):
            if hand_over is not None:
                hand_over()
            yield pool[i & 15]


class Turns:
    """Lets threads run one at a time, some steps each, and keeps how long each turn took."""

    def __init__(self):
        self.local = threading.local()

    def of_this_thread(self):
        """What a loader calls before each batch; None where nobody takes turns."""
        return getattr(self.local, "hand_over", None)

    def run(self, jobs, chunk, count):
        """Runs the `jobs` by name, `count` turns of `chunk` steps each; returns seconds a step by name and turn.

        A job's first turn, with all that comes before its second batch, is not counted, nor is what comes after.
        """
        back, times, order = threading.Semaphore(0), {name: [] for name in jobs}, random.Random(0)
        go = {name: threading.Semaphore(0) for name in jobs}
        failed = {}

        def work(name, job):
            steps, start = 0, 0.0

            def hand_over():
                nonlocal steps, start
                steps += 1
                if steps % chunk == 0 and steps // chunk <= count + 1:
                    if start:
                        times[name].append((time.perf_counter() - start) / chunk)
                    back.release()
                    go[name].acquire()
                    start = time.perf_counter()

            self.local.hand_over = hand_over
            go[name].acquire()
            try:
                job()
            except Exception as e:  # a contestant that is not there
                failed[name] = f"{type(e).__name__}: {e}"
            back.release()

        threads = {name: threading.Thread(target=work, args=(name, job), daemon=True) for name, job in jobs.items()}
        for thread in threads.values():
            thread.start()
        names = list(jobs)
        for _ in range(count + 2):
            order.shuffle(names)  # nobody always runs after the same other
            for name in names:
                if threads[name].is_alive() and name not in failed:
                    go[name].release()
                    back.acquire()
        for name, thread in threads.items():
            go[name].release()
            thread.join()
        return times, failed


turns = Turns()


def fresh(work: str):
    torch.manual_seed(0)
    return MODELS[work]()


# ---------------------------------------------------------------- the contestants: each returns the trained model


def raw(work, steps, real, out):
    """The loop a careful person writes by hand."""
    model, loader = fresh(work), Loader(work, steps)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
    if real:
        from torch.utils.tensorboard import SummaryWriter
        from tqdm import tqdm

        writer, bar = SummaryWriter(out), tqdm(total=steps, file=sys.stderr)
    model.train()
    for i, (x, y) in enumerate(loader):
        loss = F.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if real:
            bar.update()
            if (i + 1) % 50 == 0:
                writer.add_scalar("train_loss", loss.item(), i + 1)
    if real:
        writer.close()
        bar.close()
        torch.save({"model": model.state_dict(), "optimizer": opt.state_dict()}, f"{out}/last.pt")
    return model


def _lightning_like(pl, work, steps, real, out):
    net = fresh(work)

    class Task(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = net

        def training_step(self, batch, batch_idx):
            x, y = batch
            loss = F.cross_entropy(self.net(x), y)
            if real:
                self.log("train_loss", loss, prog_bar=True)
            return loss

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=1e-3, weight_decay=0.0)

    logger = callbacks = None
    if real:
        logger = importlib.import_module(pl.__name__ + ".loggers").TensorBoardLogger(out)
        callbacks = [importlib.import_module(pl.__name__ + ".callbacks").ModelCheckpoint(dirpath=out)]
    trainer = pl.Trainer(
        max_epochs=1,
        accelerator="cpu",
        devices=1,
        default_root_dir=out,
        logger=logger if real else False,
        callbacks=callbacks,
        enable_progress_bar=real,
        enable_checkpointing=real,
        enable_model_summary=False,
    )
    trainer.fit(Task(), Loader(work, steps))
    return net


def lightning(work, steps, real, out):
    return _lightning_like(importlib.import_module("lightning.pytorch"), work, steps, real, out)


def bolide(work, steps, real, out):
    return _lightning_like(importlib.import_module("bolide"), work, steps, real, out)


def _accelerate(work, steps, real, out):
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, log_with="tensorboard" if real else None, project_dir=out)
    model, loader = fresh(work), Loader(work, steps)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
    model, opt = accelerator.prepare(model, opt)
    if real:
        from tqdm import tqdm

        accelerator.init_trackers("run")
        bar = tqdm(total=steps, file=sys.stderr)
    model.train()
    for i, (x, y) in enumerate(loader):
        with accelerator.accumulate(model):
            loss = F.cross_entropy(model(x), y)
            accelerator.backward(loss)
            opt.step()
            opt.zero_grad()
        if real:
            bar.update()
            if (i + 1) % 50 == 0:
                accelerator.log({"train_loss": loss.item()}, step=i + 1)
    if real:
        bar.close()
        accelerator.end_training()
        accelerator.save_state(f"{out}/state")
    return model


def _hf_like(tr, work, steps, real, out):
    net = fresh(work)

    class Wrapped(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net

        def forward(self, x, labels):
            return {"loss": F.cross_entropy(self.net(x), labels)}

    class Data(torch.utils.data.Dataset):
        def __init__(self):
            self.pool = batches(work, 16)

        def __len__(self):
            return steps

        def __getitem__(self, i):
            if hand_over is not None:
                hand_over()
            return self.pool[i & 15]

    hand_over = turns.of_this_thread()

    def collate(items):
        ((x, y),) = items
        return {"x": x, "labels": y}

    args = tr.TrainingArguments(
        output_dir=out,
        per_device_train_batch_size=1,
        num_train_epochs=1,
        learning_rate=1e-3,
        optim="adamw_torch",
        lr_scheduler_type="constant",
        weight_decay=0.0,
        max_grad_norm=0.0,
        use_cpu=True,
        report_to=["tensorboard"] if real else [],
        logging_steps=50 if real else 10**9,
        disable_tqdm=not real,
        save_strategy="epoch" if real else "no",
        dataloader_num_workers=0,
        remove_unused_columns=False,
    )

    class InOrder(tr.Trainer):
        def _get_train_sampler(self, dataset=None):
            return torch.utils.data.SequentialSampler(self.train_dataset)

    InOrder(model=Wrapped(), args=args, train_dataset=Data(), data_collator=collate).train()
    return net


def hf(work, steps, real, out):
    return _hf_like(importlib.import_module("transformers"), work, steps, real, out)


def bolide_hf(work, steps, real, out):
    return _hf_like(importlib.import_module("bolide.transformers"), work, steps, real, out)


def ignite(work, steps, real, out):
    from ignite.engine import Engine, Events

    model = fresh(work)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)

    def step(engine, batch):
        x, y = batch
        model.train()
        opt.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
        return loss

    engine = Engine(step)
    if real:
        from ignite.handlers import ProgressBar
        from torch.utils.tensorboard import SummaryWriter

        writer = SummaryWriter(out)
        ProgressBar().attach(engine)
        engine.on(Events.ITERATION_COMPLETED(every=50))(
            lambda e: writer.add_scalar("train_loss", e.state.output.item(), e.state.iteration)
        )
    engine.run(Loader(work, steps), max_epochs=1, epoch_length=steps)
    if real:
        writer.close()
        torch.save({"model": model.state_dict(), "optimizer": opt.state_dict()}, f"{out}/last.pt")
    return model


def keras(work, steps, real, out):
    import keras as k

    net = fresh(work)

    class Task(k.Model):
        def __init__(self):
            super().__init__()
            self.net = net
            self.opt = torch.optim.AdamW(net.parameters(), lr=1e-3, weight_decay=0.0)
            self.dense = k.layers.Dense(1)

        def call(self, x):
            return self.net(x)

        def train_step(self, data):
            x, y = data
            loss = F.cross_entropy(self.net(x), y)
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            self._loss_tracker.update_state(loss.detach())
            return {"loss": self._loss_tracker.result()}

    class Again:
        def __iter__(self):
            return iter(Loader(work, steps))

    task = Task()
    task.compile(optimizer="adam", loss=k.losses.SparseCategoricalCrossentropy(from_logits=True))
    callbacks = None
    if real:  # Keras's own TensorBoard callback needs TensorFlow
        from torch.utils.tensorboard import SummaryWriter

        writer = SummaryWriter(out)

        class Scalars(k.callbacks.Callback):
            def on_train_batch_end(self, batch, logs=None):
                if (batch + 1) % 50 == 0:
                    writer.add_scalar("train_loss", float(logs["loss"]), batch + 1)

        callbacks = [Scalars()]
    task.fit(iter(Again()), epochs=1, steps_per_epoch=steps, verbose=1 if real else 0, callbacks=callbacks)
    if real:
        writer.close()
        torch.save({"model": net.state_dict(), "optimizer": task.opt.state_dict()}, f"{out}/last.pt")
    return net


CONTESTANTS = {
    "raw": raw,
    "raw2": raw,
    "bolide": bolide,
    "bolide-hf": bolide_hf,
    "lightning": lightning,
    "hf": hf,
    "accelerate": _accelerate,
    "ignite": ignite,
    "keras": keras,
}
TITLES = {
    "raw": "hand-written loop",
    "raw2": "hand-written loop, once more",
    "bolide": "**Bolide**",
    "bolide-hf": "**Bolide**, TrainingArguments",
    "lightning": "Lightning",
    "hf": "Hugging Face Trainer",
    "accelerate": "Accelerate",
    "ignite": "Ignite",
    "keras": "Keras",
}
PACKAGES = ("torch", "lightning", "transformers", "accelerate", "pytorch-ignite", "keras")


# ---------------------------------------------------------------- the measurement


@contextlib.contextmanager
def silenced():
    logging.disable(logging.CRITICAL)
    keep = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = io.StringIO(), io.StringIO()
    try:
        yield
    finally:
        sys.stdout, sys.stderr = keep
        logging.disable(logging.NOTSET)


def timed(run, work, steps, real):
    with tempfile.TemporaryDirectory() as out, silenced():
        start = time.perf_counter()
        model = run(work, steps, real, out)
        took = time.perf_counter() - start
    return took, sum(p.detach().double().sum().item() for p in model.parameters())


def measure(names, works, modes, rounds):
    """Runs every contestant on every work in every mode, prints a line for each, and returns them as rows."""
    rows = []
    where = f"{processor()}, one thread, Python {platform.python_version()}, {installed()}"
    for work in works:
        few, many = STEPS[work]
        for mode in modes:
            real = mode == "real"
            step = {n: [] for n in names}
            fixed = {n: [] for n in names}
            sums, failed = {}, {}
            for r in range(rounds + 1):  # the first round warms up
                for name in names:
                    if name in failed:
                        continue
                    try:
                        short, _ = timed(CONTESTANTS[name], work, few, real)
                        long, sums[name] = timed(CONTESTANTS[name], work, many, real)
                    except Exception as e:  # a contestant that is not there
                        failed[name] = f"{type(e).__name__}: {e}"
                        continue
                    if r:
                        step[name].append((long - short) / (many - few))
                        fixed[name].append(short - few * (long - short) / (many - few))
            for name in names:
                if name in failed:
                    print(f"{work:4} {mode:5} {name:11} not run: {failed[name][:100]}")
                    continue
                ratio = [a / b for a, b in zip(step[name], step["raw"])] if "raw" in step else [float("nan")]
                over = [1e6 * (a - b) for a, b in zip(step[name], step["raw"])] if "raw" in step else [float("nan")]
                best = min(step[name]) / min(step["raw"]) if "raw" in step else float("nan")
                same = abs(sums[name] - sums.get("raw", sums[name])) < 1e-3
                row = {
                    "work": work,
                    "mode": mode,
                    "name": name,
                    "step_us": 1e6 * statistics.median(step[name]),
                    "ratio": statistics.median(ratio),
                    "ratio_min": min(ratio),
                    "ratio_max": max(ratio),
                    "best": best,
                    "overhead_us": statistics.median(over),
                    "fixed_ms": 1e3 * statistics.median(fixed[name]),
                    "same": same,
                    "where": where,
                }
                rows.append(row)
                print(
                    f"{work:4} {mode:5} {name:11} step {row['step_us']:9.1f} us   best x{row['best']:.3f}"
                    f"   median x{row['ratio']:.3f} ({row['ratio_min']:.3f}-{row['ratio_max']:.3f})"
                    f"   over {row['overhead_us']:8.1f} us   fixed {row['fixed_ms']:8.1f} ms"
                    f"   {'same weights' if same else 'OTHER WEIGHTS'}",
                    flush=True,
                )
    return rows


def measure_in_turns(names, works, modes, count):
    """As `measure`, with all contestants at once, a few steps each in turn."""
    rows = []
    where = f"{processor()}, one thread, Python {platform.python_version()}, {installed()}"
    for work in works:
        for mode in modes:
            chunk, sums = CHUNK[work], {}

            def job(name, out, chunk=chunk, sums=sums, work=work, real=mode == "real"):
                model = CONTESTANTS[name](work, (count + 3) * chunk, real, out)
                sums[name] = sum(p.detach().double().sum().item() for p in model.parameters())

            with contextlib.ExitStack() as stack:
                folders = {n: stack.enter_context(tempfile.TemporaryDirectory()) for n in names}
                with silenced():
                    jobs = {n: functools.partial(job, n, folders[n]) for n in names}
                    times, failed = turns.run(jobs, chunk, count)
            base = times.get("raw", [])
            for name in names:
                if name in failed or not times[name]:
                    print(f"{work:4} {mode:5} {name:11} not run: {failed.get(name, 'it took no turn')[:100]}")
                    continue
                ratios = sorted(a / b for a, b in zip(times[name], base))
                middle = statistics.median(ratios)
                row = {
                    "work": work,
                    "mode": mode,
                    "name": name,
                    "step_us": 1e6 * statistics.median(times[name]),
                    "ratio": middle,
                    "ratio_min": ratios[len(ratios) // 4],
                    "ratio_max": ratios[3 * len(ratios) // 4],
                    "best": middle,
                    "same": abs(sums[name] - sums["raw"]) < 1e-3,
                    "where": where,
                }
                rows.append(row)
                print(
                    f"{work:4} {mode:5} {name:11} step {row['step_us']:9.1f} us   median x{middle:.3f}"
                    f"   quartiles {row['ratio_min']:.3f}-{row['ratio_max']:.3f}"
                    f"   {'same weights' if row['same'] else 'OTHER WEIGHTS'}",
                    flush=True,
                )
    return rows


def processor():
    """The processor's name, where the system tells it."""
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as f:
        for line in f:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def installed():
    """The versions of what was measured, as one line."""
    found = []
    for package in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found.append(f"{package} {metadata.version(package)}")
    return ", ".join(found)


def markdown(rows):
    """The table of the README: `best`, the fastest round of each over the hand-written loop's fastest."""
    columns = list(dict.fromkeys((row["mode"], row["work"]) for row in rows))
    best = {(row["name"], row["mode"], row["work"]): row for row in rows}
    lines = [
        "| | " + " | ".join(f"{work}, {mode}" for mode, work in columns) + " |",
        "|---|" + "---:|" * len(columns),
    ]
    for name in dict.fromkeys(row["name"] for row in rows):
        cells = []
        for mode, work in columns:
            row = best.get((name, mode, work))
            if row is None:
                cells.append("-")
            elif name == "raw":
                cells.append(f"{row['step_us']:,.0f} µs")
            else:
                cells.append(f"{row['best']:.3f}" + ("" if row["same"] else " (other weights)"))
        lines.append(f"| {TITLES[name]} | " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", f"Measured on {rows[0]['where']}."])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(CONTESTANTS))
    parser.add_argument("--work", default="mlp,cnn,gpt")
    parser.add_argument("--mode", default="bare,real")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--turns", type=int, default=0, help="all at once, so many turns of a few steps each")
    parser.add_argument("--json", help="write the figures here")
    parser.add_argument("--markdown", action="store_true", help="end with the table of the README")
    parser.add_argument("--rows", help="measure nothing: take the figures that --json wrote")
    args = parser.parse_args()
    if args.rows:
        with open(args.rows) as f:
            rows = json.load(f)
    else:
        names, works, modes = args.only.split(","), args.work.split(","), args.mode.split(",")
        rows = (
            measure_in_turns(names, works, modes, args.turns)
            if args.turns
            else measure(names, works, modes, args.rounds)
        )
    if args.json:
        with open(args.json, "w") as f:
            json.dump(rows, f, indent=1)
    if args.markdown:
        print(markdown(rows))


if __name__ == "__main__":
    main()

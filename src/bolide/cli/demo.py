"""`bolide demo`: runs examples/digits.py, tells what happens, and shows the code that did it.

Owns what is printed and how Ctrl-C is answered; the training itself is the example's. Called by cli/main.py.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any

from bolide.callbacks.callback import Callback
from bolide.core.errors import CheckpointNotFoundError, MissingPackageError

if TYPE_CHECKING:
    from bolide.module import LightningModule
    from bolide.trainer.trainer import Trainer

EXIT_INTERRUPTED = 130


class Narrator(Callback):
    """Prints each epoch's accuracy; once `stop_asked`, ends the run at the next batch, with a checkpoint.

    It is set by a signal handler, so that no step is cut in half: what is saved is the state after a whole batch.
    """

    def __init__(self, checkpoint_path: Path) -> None:
        self.checkpoint_path = checkpoint_path
        self.stop_asked = False
        self.saved = False
        self.trainer: Trainer | None = None

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Keeps the trainer, whose callbacks know the paths."""
        self.trainer = trainer

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Saves and stops where Ctrl-C was pressed."""
        if self.stop_asked:
            trainer.save_checkpoint(self.checkpoint_path)
            self.saved = True
            raise KeyboardInterrupt

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Prints the validation accuracy, by the number that the bar and the checkpoints' names give the epoch."""
        accuracy = float(trainer.callback_metrics["accuracy"])
        trainer.print(f"epoch {trainer.current_epoch:2}   validation accuracy {accuracy:.4f}")

    def on_test_batch_end(self, trainer: Trainer, *args: Any, **kwargs: Any) -> None:
        """Stops where Ctrl-C was pressed; what training gave is saved already."""
        if self.stop_asked:
            raise KeyboardInterrupt

    def answer_signal(self, signum: int, frame: FrameType | None) -> None:
        """The handler: the first Ctrl-C asks, a second one stops at once."""
        if self.stop_asked:
            raise KeyboardInterrupt
        self.stop_asked = True


@contextmanager
def interrupts_answered_by(narrator: Narrator) -> Iterator[None]:
    """Within this, Ctrl-C asks `narrator` to stop; the handler that was there before comes back afterwards."""
    before = signal.signal(signal.SIGINT, narrator.answer_signal)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def example_path(name: str) -> Path:
    """The file of an example: in the source checkout, or in the installed package."""
    package = Path(__file__).resolve().parents[1]
    checkout = package.parents[1] / "examples" / name
    return checkout if checkout.is_file() else package / "_examples" / name


def load_example(path: Path) -> ModuleType:
    """Runs an example's file as a module of its own."""
    loader = SourceFileLoader(f"bolide_example_{path.stem}", str(path))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def user_code(source: str) -> str:
    """The part of an example that a user writes: without the docstring, the imports and the last two lines."""
    body = source.split("\n\n\n", 1)[1]
    return body.split('\n\n\nif __name__ == "__main__":')[0]


def count_code_lines(source: str) -> int:
    """How many lines are not blank."""
    return sum(1 for line in source.splitlines() if line.strip())


def own_command() -> str:
    """What to type for this program: `bolide`, or the path it was started by where the shell finds no such command."""
    started = sys.argv[0]
    if os.path.basename(started) != "bolide":  # not by the console script
        return "bolide"
    found = shutil.which("bolide")
    return "bolide" if found is not None and os.path.realpath(found) == os.path.realpath(started) else started


def resume_command(epochs: int, out: str, path: Path) -> str:
    """What to type to go on."""
    return shlex.join([own_command(), "demo", "--resume", str(path), "--epochs", str(epochs), "--out", out])


def print_written(trainer: Trainer) -> None:
    """The paths of what the run wrote."""
    best = trainer.checkpoint_callback
    print(f"best checkpoint   {getattr(best, 'best_model_path', '')}")
    last = getattr(best, "last_model_path", "")
    if last:  # there is none where nothing was left to train
        print(f"last checkpoint   {last}")
    print(f"logs              {trainer.log_dir}")


def run_demo(epochs: int, out: str, resume: str | None = None) -> int:
    """Trains the digits example on CPU and prints what came of it; returns the exit code.

    `epochs` counts from the very start, also where `resume` goes on. Everything is written below the folder `out`.
    Raises: MissingPackageError without scikit-learn, CheckpointNotFoundError where `resume` does not exist.
    """
    if importlib.util.find_spec("sklearn") is None:
        raise MissingPackageError("bolide demo", "scikit-learn")
    if resume is not None and not Path(resume).exists():
        raise CheckpointNotFoundError(f"--resume {resume}: there is no such checkpoint.")
    path = example_path("digits.py")
    source = path.read_text(encoding="utf-8")
    example = load_example(path)
    narrator = Narrator(Path(out) / "interrupted.ckpt")
    print("1,797 scanned digits of 8 x 8 pixels: 64 % to train, 16 % to validate, 20 % to test. Ctrl-C stops.")
    start_s = time.perf_counter()
    try:
        with interrupts_answered_by(narrator):
            results = example.main(
                max_epochs=epochs, ckpt_path=resume, callbacks=[narrator], default_root_dir=out, accelerator="cpu"
            )
    except KeyboardInterrupt:
        if not narrator.saved:
            raise
        print(f"\nstopped; saved {narrator.checkpoint_path}")
        print(f"to go on: {resume_command(epochs, out, narrator.checkpoint_path)}")
        return EXIT_INTERRUPTED
    accuracy = results[0]["accuracy"]
    code = user_code(source)
    print(f"\nThe {count_code_lines(code)} lines of {path} that did this:\n\n{code}\n")
    print(f"test accuracy     {accuracy:.4f}   ({time.perf_counter() - start_s:.0f} s)")
    assert narrator.trainer is not None
    print_written(narrator.trainer)
    return 0

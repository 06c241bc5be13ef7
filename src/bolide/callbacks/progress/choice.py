"""Which bar a Trainer shows where the user names none."""

from __future__ import annotations

import sys
from importlib.util import find_spec

from bolide.callbacks.progress.progress_bar import ProgressBar


def default_progress_bar() -> ProgressBar:
    """rich's bar on a terminal where it is installed, else tqdm's; in a notebook tqdm's; lines everywhere else."""
    from bolide.callbacks.progress.plain_progress import PlainProgressBar
    from bolide.callbacks.progress.rich_progress import RichProgressBar
    from bolide.callbacks.progress.tqdm_progress import TQDMProgressBar

    if "ipykernel" in sys.modules:
        return TQDMProgressBar()
    if not (sys.stdout.isatty() or sys.stderr.isatty()):
        return PlainProgressBar()
    if find_spec("rich") is None:
        return TQDMProgressBar()
    return RichProgressBar(console_kwargs={"stderr": not sys.stdout.isatty()})

"""`report_to`: the callbacks that hand what is logged to trackers.

TensorBoard and CSV are Bolide's own loggers; every other tracker is transformers' own callback, where it is installed.
Who calls: the trainer.
"""

from __future__ import annotations

import importlib.util
import os
import socket
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from bolide.core import env
from bolide.core.errors import ConfigError, MissingPackageError
from bolide.transformers.callbacks import LoggerCallback
from bolide.transformers.state import has_transformers

RUNS = "runs"


def log_dir(args: Any, before: str | None = None) -> str:
    """Where TensorBoard writes: `logging_dir`, else the environment's, else a folder below the output.

    That is the one where the run that goes on has written so far, `before`, if it is there, else a new one.
    """
    given = args.logging_dir or env.get("TENSORBOARD_LOGGING_DIR")
    if given:
        return str(given)
    if (
        before
        and os.path.split(before)[0] == RUNS
        and os.path.basename(before) != ".."
        and os.path.isdir(os.path.join(args.output_dir, before))
    ):
        return os.path.join(args.output_dir, before)
    moment = datetime.now().strftime("%b%d_%H-%M-%S")
    return os.path.join(args.output_dir, RUNS, f"{moment}_{socket.gethostname()}")


def _tensorboard(args: Any, before: str | None) -> Any:
    from bolide.loggers import TensorBoardLogger

    return TensorBoardLogger(log_dir(args, before), name="", version="")


def _csv(args: Any, before: str | None) -> Any:
    from bolide.loggers import CSVLogger

    return CSVLogger(args.output_dir, name="", version="csv")


OWN = {"tensorboard": _tensorboard, "csv": _csv}


def callbacks_for(report_to: Sequence[str]) -> list[Any]:
    """The callbacks of these trackers, "all" being those that are installed.

    Raises:
        MissingPackageError: a tracker whose package is not installed.
        ConfigError: an unknown tracker.
    """
    has_board = importlib.util.find_spec("tensorboard") is not None
    names = list(report_to)
    if "all" in names:
        names = ["tensorboard"] if has_board else []
        if has_transformers():
            from transformers.integrations import get_available_reporting_integrations

            names += [name for name in get_available_reporting_integrations() if name not in names]
    found: list[Any] = []
    for name in names:
        if name == "tensorboard" and not has_board:
            raise MissingPackageError('report_to="tensorboard"', "tensorboard", "tensorboard")
        found.append(LoggerCallback(OWN[name]) if name in OWN else _from_transformers(name))
    return found


def _from_transformers(name: str) -> Any:
    if not has_transformers():
        raise MissingPackageError(f'report_to="{name}"', "transformers")
    from transformers.integrations import get_reporting_integration_callbacks

    try:
        return get_reporting_integration_callbacks([name])[0]
    except ValueError as error:
        raise ConfigError(f"report_to={name!r} is no tracker that is known: {error}") from error

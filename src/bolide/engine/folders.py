"""The folders that a fit alone may write: locked before anything is looked for or written there.

Owns which folders are locked and when; the lock itself is checkpoint/lock's. Who calls: the trainer before it looks for
a checkpoint to go on from, engine/session before the loggers are opened and when the run is over.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from bolide.checkpoint import io
from bolide.checkpoint.lock import FolderInUseError, RunLock
from bolide.checkpoint.sharded import remove_leftovers
from bolide.engine.signals import settled

if TYPE_CHECKING:
    from bolide.engine.run import Run


def lock_known(run: Run) -> None:
    """Locks the folders that are this run's by name: those of checkpoint callbacks, and of loggers whose run is given.

    Raises:
        FolderInUseError: a run that is alive writes there.
    """
    if not writes(run):
        return
    try:
        for logger in run.trainer.loggers:
            if getattr(logger, "is_placed", False) and logger.own_folder is not None:
                lock(run, logger.own_folder)
        lock_checkpoints(run)
    except FolderInUseError:
        unlock(run)
        raise


def lock_loggers(run: Run) -> None:
    """Locks the loggers' folders; a logger that numbers its runs takes the next number where another was quicker.

    Raises:
        FolderInUseError: a run that is alive has one of them, and its number or name was given.
    """
    for logger in run.trainer.loggers if writes(run) else ():
        while (folder := getattr(logger, "own_folder", None)) is not None:
            try:
                lock(run, folder)
                break
            except FolderInUseError:
                if not logger.renumber():
                    raise


def lock_checkpoints(run: Run) -> None:
    """Locks the folders of the checkpoint callbacks that have one by now.

    Raises:
        FolderInUseError: a run that is alive writes there.
    """
    for callback in run.trainer.checkpoint_callbacks if writes(run) else ():
        folder = getattr(callback, "dirpath", None)
        if folder:
            lock(run, str(folder), depth=str(getattr(callback, "filename", None) or "").count("/"))


def writes(run: Run) -> bool:
    """Whether this run writes files of which others must keep off."""
    trainer = run.trainer
    return bool(run.state.fn == "fit" and trainer.is_global_zero and not trainer.fast_dev_run)


def lock(run: Run, folder: str, depth: int = 0) -> None:
    """Locks a folder for the run, once; removes what a writer that was killed left there, and so far below it."""
    made = RunLock(folder)
    if any(made.folder == one.folder for one in run.locks):
        return
    try:
        made.acquire()
    except FolderInUseError as error:
        raise settled(error) from None  # nobody may save there because of it
    run.locks.append(made)
    if made.held:
        io.remove_parts(made.folder, depth)
        remove_leftovers(made.folder, depth)


def unlock(run: Run) -> None:
    """Frees all; those that were made for the run and are empty go, the inner ones first."""
    locks, run.locks = run.locks, []
    for one in sorted(locks, key=lambda one: one.folder.count(os.sep), reverse=True):
        one.release()

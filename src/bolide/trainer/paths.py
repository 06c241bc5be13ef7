"""Which checkpoint `ckpt_path=` means: "best", "last", "auto", a path or a URL.

Owns where is looked and what is said about it; which file is the newest valid one is decided by checkpoint/store.py.
Who calls: the Trainer, before a run is opened.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from bolide.checkpoint import io, store
from bolide.core import env
from bolide.core.errors import CheckpointNotFoundError, MisconfigurationException, NotBuiltError
from bolide.core.messages import info, warn

VERSION = "version_"
CHECKPOINTS = "checkpoints"


def resolve_ckpt_path(trainer: Any, fn: str, ckpt_path: Any, model_given: bool) -> str | None:
    """The path that is meant, or None to load nothing.

    Args:
        trainer: whose checkpoint callbacks are asked.
        fn: "fit", "validate", "test" or "predict".
        ckpt_path: what the user gave.
        model_given: whether a module was given; without one the best checkpoint is meant.

    Raises:
        MisconfigurationException: "best" without a checkpoint callback, or before anything was saved.
        CheckpointNotFoundError: a path at which there is nothing.
    """
    if ckpt_path is None and not model_given:
        if getattr(trainer.checkpoint_callback, "best_model_path", ""):
            warn(
                f"trainer.{fn}() without a module uses the last one, with the weights of the best checkpoint. Write "
                f"ckpt_path='best' to say so, or give the module to use its weights as they are."
            )
            ckpt_path = "best"
        else:
            return None
    if ckpt_path is None:
        return None
    text = os.fspath(ckpt_path)
    if text == "best":
        return _best(trainer, fn)
    if text == "last":
        return _last(trainer, fn)
    if text == "auto":
        return _auto(trainer, fn)
    if text in ("hpc", "registry") or text.startswith("registry:"):
        raise NotBuiltError(
            f"ckpt_path={text!r} is not built in this version of Bolide; write 'auto', 'last', 'best' or a path"
        )
    if not io.exists(text):
        from bolide.checkpoint.file import beside

        raise CheckpointNotFoundError(f"ckpt_path={text!r}: there is no such file.{beside(text)}")
    return text


def _best(trainer: Any, fn: str) -> str | None:
    callback = trainer.checkpoint_callback
    if callback is None:
        raise MisconfigurationException(
            f"trainer.{fn}(ckpt_path='best') needs a ModelCheckpoint in the trainer's callbacks; this trainer has none"
        )
    path = getattr(callback, "best_model_path", "")
    if not path:
        if trainer.fast_dev_run:
            raise MisconfigurationException(
                f"trainer.{fn}(ckpt_path='best'): fast_dev_run saves no checkpoint; leave ckpt_path out"
            )
        raise MisconfigurationException(
            f"trainer.{fn}(ckpt_path='best'): no checkpoint was saved yet; call trainer.fit first, or give a path"
        )
    return str(path)


# ---------------------------------------------------------------------- "last"


def _last(trainer: Any, fn: str) -> str | None:
    """The newest valid one of what callbacks call the last checkpoint; another of their folder where that is damaged.

    A folder in which nothing was ever saved as the last checkpoint is a first run.
    """
    paths: list[str] = []
    for callback in trainer.checkpoint_callbacks:
        candidates = getattr(callback, "last_candidates", None)
        if callable(candidates):
            paths += candidates(trainer)
    paths = [path for path in dict.fromkeys(map(str, paths)) if io.exists(path)]
    if not paths:
        warn("ckpt_path='last' found no last checkpoint; this starts from the beginning.")
        return None
    found = store.newest_valid(paths, to_train=fn == "fit")
    if found.path is None:
        rejected = found.rejected
        others = [one for folder in _folders_of(paths) for one in store.checkpoints_in(folder)]
        found = store.newest_valid([one for one in others if one not in paths], to_train=fn == "fit")
        found = store.Found(found.path, found.about, rejected + found.rejected)
    _tell_rejected("last", found)
    return found.path


def _folders_of(paths: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(io.parent(path) for path in paths))


# ---------------------------------------------------------------------- "auto"


def _auto(trainer: Any, fn: str) -> str | None:
    """The newest valid checkpoint of a run that did not come to its end; None on a first run."""
    if trainer.fast_dev_run:
        info("ckpt_path='auto': fast_dev_run starts from the beginning.")
        return None
    fixed = _fixed_folders(trainer)
    runs = _earlier_runs(trainer)
    found = store.Found(None, None, ())
    for run in runs or [""]:
        here = [*fixed, *(_checkpoint_folders(run) if run else [])]
        paths = [path for folder in here for path in store.checkpoints_in(folder)]
        now = store.newest_valid(paths, to_train=fn == "fit", skip_finished=fn == "fit")
        rejected = tuple(dict.fromkeys(found.rejected + now.rejected))
        found = store.Found(now.path, now.about, rejected, found.finished + now.finished)
        if found.path is not None:
            break
    _tell_rejected("auto", found)
    if found.path is None:
        roots = [str(logger.root_dir) for logger in trainer.loggers if logger.root_dir is not None]
        _tell_start([*fixed, *(roots if not env.get("BOLIDE_RUN_DIR") else [])], sorted(set(found.finished)))
        return None
    run_dir = _run_dir_of(found.path, runs, found.about.run_dir if found.about else None)
    if fn == "fit" and run_dir is not None:
        go_on_in(trainer, run_dir)
    place = ", ".join(f"{name} {value}" for name, value in store.summary(found.about).items())
    info(f"ckpt_path='auto' goes on from {found.path!r}{f' ({place})' if place else ''}.")
    return found.path


def follows_a_finished_run(trainer: Any) -> bool:
    """Whether a run has come to its end in this one's folders: what it logged there stays."""
    return any(store.read_mark(folder) is not None for folder in _fixed_folders(trainer))


def _fixed_folders(trainer: Any) -> list[str]:
    """Folders that are this run's by name: of the launch, of callbacks, of loggers whose version was given."""
    folders: list[str] = []
    run_dir = env.get("BOLIDE_RUN_DIR")
    if run_dir:
        folders += _checkpoint_folders(run_dir)
    folders += [str(folder) for one in trainer.checkpoint_callbacks if (folder := getattr(one, "dirpath", None))]
    for logger in trainer.loggers:
        if getattr(logger, "_version", None) is None:
            continue  # asking it for its folder would number it
        folder = getattr(logger, "run_dir", None) or logger.log_dir  # loggers of one's own may have no run_dir
        folders += _checkpoint_folders(str(folder)) if folder else []
    if not trainer.loggers:
        folders += _checkpoint_folders(str(trainer.default_root_dir))
    return list(dict.fromkeys(folders))


def _checkpoint_folders(run_dir: str) -> list[str]:
    return [io.join(run_dir, CHECKPOINTS), run_dir]


def _earlier_runs(trainer: Any) -> list[str]:
    """The run folders of the loggers that number theirs, newest first; those of a run that is alive are left out."""
    if env.get("BOLIDE_RUN_DIR"):
        return []
    runs: list[tuple[int, str]] = []
    for logger in trainer.loggers:
        root = logger.root_dir
        if root is None or getattr(logger, "_version", "given") is not None:
            continue
        for name in io.list_dir(str(root)):
            number = name.removeprefix(VERSION)
            if name.startswith(VERSION) and number.isdecimal():
                runs.append((int(number), io.join(str(root), name)))
    newest = [run for _, run in sorted(set(runs), reverse=True)]
    return [run for run in newest if not any(store.in_use(folder) for folder in _checkpoint_folders(run))]


def _run_dir_of(path: str, runs: list[str], told: str | None) -> str | None:
    """The run folder that `path` belongs to: the one it lies in, or the one it names, if that is one of `runs`."""
    for run in runs:
        if io.parent(path) in [_same(folder) for folder in _checkpoint_folders(run)]:
            return run
    return next((run for run in runs if told is not None and _same(run) == _same(told)), None)


def _same(folder: str) -> str:
    return folder if io.is_remote(folder) else os.path.abspath(io.local_path(folder))


def go_on_in(trainer: Any, run_dir: str) -> None:
    """Loggers that would have taken a new number take that of the run which goes on."""
    text = io.name_of(run_dir).removeprefix(VERSION)
    if not text.isdecimal():
        return  # a folder of another name: its loggers were given theirs
    number = int(text)
    for logger in trainer.loggers:
        own = getattr(logger, "_version", "given") is None and logger.root_dir is not None
        if own and _same(str(logger.root_dir)) == io.parent(run_dir):
            logger._version = number


# ---------------------------------------------------------------------- what is said


def _tell_rejected(asked: str, found: store.Found) -> None:
    if not found.rejected:
        return
    lines = "".join(f"\n  {one}" for one in found.rejected)
    instead = f"the newest valid one is used instead: {found.path!r}" if found.path else "there is no valid one"
    warn(f"ckpt_path={asked!r} passed over {len(found.rejected)} checkpoint(s); {instead}.{lines}")


def _tell_start(looked: list[str], finished: list[str]) -> None:
    where = ", ".join(map(repr, looked[:4])) + (f" and {len(looked) - 4} more" if len(looked) > 4 else "")
    text = f"ckpt_path='auto' found nothing to go on from and starts from the beginning. It looked in {where}."
    if finished:
        text += (
            f" The run in {finished[0]!r} has come to its end; to train it further write the path of its checkpoint, "
            "or ckpt_path='last'."
        )
    info(text)

"""Which checkpoint `ckpt_path=` means: "best", "last", a path or a URL."""

from __future__ import annotations

import os
from typing import Any

from bolide.checkpoint import io
from bolide.core.errors import CheckpointNotFoundError, MisconfigurationException, NotBuiltError
from bolide.core.messages import warn


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
        return _last(trainer)
    if text in ("hpc", "auto", "registry") or text.startswith("registry:"):
        raise NotBuiltError(
            f"ckpt_path={text!r} is not built in this version of Bolide; write 'last', 'best' or a path"
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


def _last(trainer: Any) -> str | None:
    found: list[str] = []
    for callback in trainer.checkpoint_callbacks:
        candidates = getattr(callback, "last_candidates", None)
        if callable(candidates):
            found += candidates(trainer)
    found = [path for path in dict.fromkeys(found) if io.exists(path)]
    if not found:
        warn("ckpt_path='last' found no last checkpoint; this starts from the beginning.")
        return None
    return max(found, key=io.modified_s)

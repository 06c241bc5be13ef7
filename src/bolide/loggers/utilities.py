"""What loggers of one's own can use: the version of several loggers, the checkpoints that are new."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from torch import Tensor

from bolide.checkpoint import io

if TYPE_CHECKING:
    from bolide.callbacks.checkpoint import Checkpoint
    from bolide.loggers.logger import Logger


def version_text(loggers: Iterable[Logger], separator: str = "_") -> int | str:
    """The version of one logger, or the different ones of several, joined."""
    versions = [logger.version for logger in loggers]
    if len(versions) == 1:
        return versions[0] if versions[0] is not None else ""
    return separator.join(dict.fromkeys(str(version) for version in versions))


def scan_checkpoints(
    checkpoint_callback: Checkpoint, logged_model_time: dict[str, float]
) -> list[tuple[float, str, float | Tensor | None, str]]:
    """The checkpoints of a callback that were written since they were last uploaded, oldest first.

    Args:
        checkpoint_callback: a ModelCheckpoint.
        logged_model_time: when each path was uploaded, in seconds since 1970.

    Returns:
        (when it was written in seconds since 1970, path, score or None, "best_k", "best" or "latest") of each.

    Example::

        def after_save_checkpoint(self, checkpoint_callback):
            for written_s, path, score, tag in scan_checkpoints(checkpoint_callback, self.uploaded):
                upload(path)
                self.uploaded[path] = written_s
    """
    found: dict[str, tuple[float | Tensor | None, str]] = {}
    callback: Any = checkpoint_callback
    if getattr(callback, "last_model_path", ""):
        found[callback.last_model_path] = (getattr(callback, "current_score", None), "latest")
    if getattr(callback, "best_model_path", ""):
        found[callback.best_model_path] = (getattr(callback, "best_model_score", None), "best")
    for path, score in getattr(callback, "best_k_models", {}).items():
        found[path] = (score, "best_k")
    written = [(io.modified_s(p), p, score, tag) for p, (score, tag) in found.items() if io.exists(p)]
    new = [item for item in written if logged_model_time.get(item[1], -1.0) < item[0]]
    return sorted(new, key=lambda item: item[0])


_version = version_text
_scan_checkpoints = scan_checkpoints
__all__ = ["scan_checkpoints", "version_text"]

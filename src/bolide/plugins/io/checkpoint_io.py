"""The base class of checkpoint formats, and the format of Bolide's own files; checkpoint/ owns how they are written."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from bolide.checkpoint import io
from bolide.checkpoint.file import read_checkpoint, write_checkpoint
from bolide.core.errors import ConfigError


class CheckpointIO(ABC):
    """Writes, reads and removes checkpoints: give one to `Trainer(plugins=...)` for a format of your own."""

    @abstractmethod
    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | os.PathLike[str], storage_options: Any | None = None
    ) -> None:
        """Writes `checkpoint` under `path`: wholly or not at all."""

    @abstractmethod
    def load_checkpoint(
        self, path: str | os.PathLike[str], map_location: Any | None = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Reads what `save_checkpoint` wrote."""

    @abstractmethod
    def remove_checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Removes what `save_checkpoint` wrote."""

    def teardown(self) -> None:
        """The run ends."""


class TorchCheckpointIO(CheckpointIO):
    """One file, as `torch.save` writes it: tensors and plain data."""

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | os.PathLike[str], storage_options: Any | None = None
    ) -> None:
        """Writes `checkpoint` under `path`: wholly or not at all."""
        if storage_options is not None:
            raise ConfigError(
                f"TorchCheckpointIO takes no storage_options, got {storage_options!r}. Write a CheckpointIO of yours."
            )
        write_checkpoint(checkpoint, path)

    def load_checkpoint(
        self,
        path: str | os.PathLike[str],
        map_location: Callable[..., Any] | Any | None = None,
        weights_only: bool | None = None,
    ) -> dict[str, Any]:
        """Reads a checkpoint; it is never unpickled as code, whatever `weights_only` says."""
        return read_checkpoint(path, map_location="cpu" if map_location is None else map_location)

    def remove_checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Removes a file or folder; one that is missing is fine."""
        io.remove(path)

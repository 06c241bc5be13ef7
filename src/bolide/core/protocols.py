"""What the parts of a run owe each other: the seams between layers, as protocols.

Users implement these too (a logger, a file format); nothing here has behaviour.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class Stateful(Protocol):
    """Anything that a checkpoint can carry."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> Any: ...


@runtime_checkable
class Optimizable(Protocol):
    """What counts as an optimizer: torch's own, or anything with its shape."""

    param_groups: list[dict[str, Any]]
    defaults: dict[str, Any]
    state: Any

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> None: ...

    def step(self, closure: Callable[[], Any] | None = None) -> Any: ...


class LoggerProtocol(Protocol):
    """Where metrics go."""

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None: ...

    def log_hyperparams(self, params: Mapping[str, Any]) -> None: ...

    def save(self) -> None: ...

    def finalize(self, status: str) -> None: ...


@runtime_checkable
class CheckpointFormat(Protocol):
    """Writes and reads one checkpoint; `path` may be a URL that fsspec knows."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str, storage_options: Any | None = None) -> None: ...

    def load_checkpoint(
        self, path: str, map_location: Any | None = None, weights_only: bool | None = None
    ) -> dict[str, Any]: ...

    def remove_checkpoint(self, path: str) -> None: ...

"""Progress bars. Names are loaded when they are asked for; rich and tqdm with them."""

from __future__ import annotations

from typing import Any

from bolide.core.lazy import submodule

_HOME = {
    "PlainProgressBar": "plain_progress",
    "ProgressBar": "progress_bar",
    "RichProgressBar": "rich_progress",
    "RichProgressBarTheme": "rich_progress",
    "TQDMProgressBar": "tqdm_progress",
    "default_progress_bar": "choice",
}

__all__ = [
    "PlainProgressBar",
    "ProgressBar",
    "RichProgressBar",
    "RichProgressBarTheme",
    "TQDMProgressBar",
    "default_progress_bar",
]


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name not in _HOME:
        found = submodule(__name__, name)
        if found is not None:
            return found
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)

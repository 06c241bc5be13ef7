"""What looks on while a run goes: where its time goes. Loaded when it is asked for."""

from __future__ import annotations

from typing import Any

__all__ = ["GoodputMonitor"]


def __getattr__(name: str) -> Any:
    if name == "GoodputMonitor":
        from bolide.monitor.goodput import GoodputMonitor

        return GoodputMonitor
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])

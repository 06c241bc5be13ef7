"""The category of warnings about what may be meant, and its switch."""

from __future__ import annotations

import warnings

from bolide.core.messages import PossibleUserWarning

__all__ = ["PossibleUserWarning", "disable_possible_user_warnings"]


def disable_possible_user_warnings(module: str = "") -> None:
    """Silences warnings about what may be a mistake and may be meant.

    Args:
        module: a regular expression of the module that warns; empty silences all.

    The environment variable POSSIBLE_USER_WARNINGS=off does the same.
    """
    warnings.filterwarnings("ignore", module=module, category=PossibleUserWarning)

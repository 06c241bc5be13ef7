"""Names and texts from outside, made safe to print: no character may steer a terminal or break a row."""

from __future__ import annotations

import unicodedata

_STEERING = ("Cc", "Cf", "Zl", "Zp", "Cs")
"""Unicode's categories of control and format characters, line and paragraph separators, lone surrogates."""


def printable(text: str) -> str:
    """`text` with control characters written as escapes, so that none reaches a terminal or splits a line.

    Example::

        printable("loss\\x1b[2J")  # 'loss\\\\x1b[2J'
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(_escaped(character) for character in text)


def _escaped(character: str) -> str:
    if unicodedata.category(character) in _STEERING:
        return character.encode("unicode_escape").decode("ascii")
    return character

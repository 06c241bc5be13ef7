"""Enumerations whose members equal their texts."""

from __future__ import annotations

from enum import Enum

from bolide.core.errors import ConfigError


class LightningEnum(str, Enum):
    """Members equal their text, whatever the case.

    Example::

        class Colour(LightningEnum):
            RED = "red"

        assert Colour.RED == "Red" and Colour.from_str("RED") is Colour.RED
    """

    @classmethod
    def try_from_str(cls, value: str) -> LightningEnum | None:
        """The member of that value or name, whatever the case and with - for _; None where there is none."""
        wanted = value.replace("-", "_").lower()
        for member in cls:
            if wanted in (str(member.value).replace("-", "_").lower(), member.name.lower()):
                return member
        return None

    @classmethod
    def from_str(cls, value: str) -> LightningEnum:
        """The member of that value or name.

        Raises:
            ConfigError: there is none.
        """
        member = cls.try_from_str(value)
        if member is None:
            names = ", ".join(repr(str(item)) for item in cls)
            raise ConfigError(f"{value!r} is no {cls.__name__}: expected one of {names}.")
        return member

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Enum):
            return self is other
        return str(self.value).lower() == str(other).lower()

    def __hash__(self) -> int:
        return hash(str(self.value).lower())

    def __str__(self) -> str:
        return str(self.value)


class GradClipAlgorithmType(LightningEnum):
    """How gradients are clipped."""

    VALUE = "value"
    NORM = "norm"

    @staticmethod
    def supported_type(val: str) -> bool:
        """Whether `val` is one of them."""
        return any(member.value == val for member in GradClipAlgorithmType)

    @staticmethod
    def supported_types() -> list[str]:
        """All of them as texts."""
        return [str(member.value) for member in GradClipAlgorithmType]

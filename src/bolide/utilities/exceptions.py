"""The public path of the exceptions; core/errors.py owns them."""

from bolide.core.errors import (
    CheckpointError,
    CheckpointNotFoundError,
    ConfigError,
    MisconfigurationException,
    MissingPackageError,
    NotBuiltError,
    SIGTERMException,
    UserCodeError,
)

__all__ = [
    "CheckpointError",
    "CheckpointNotFoundError",
    "ConfigError",
    "MisconfigurationException",
    "MissingPackageError",
    "NotBuiltError",
    "SIGTERMException",
    "UserCodeError",
]

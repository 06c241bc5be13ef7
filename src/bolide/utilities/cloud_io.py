"""File systems by path or URL; checkpoint/io.py owns how files are written."""

from __future__ import annotations

import os
from typing import Any


def get_filesystem(path: str | os.PathLike[str], **kwargs: Any) -> Any:
    """The fsspec file system of `path`: the local one, or that of its URL."""
    from fsspec.core import url_to_fs

    file_system, _ = url_to_fs(os.fspath(path), **kwargs)
    return file_system

"""The base class of loggers that write files: which folder a run has, and its number."""

from __future__ import annotations

import os
from pathlib import Path

from bolide.loggers import folders
from bolide.loggers.logger import Logger


class FileLogger(Logger):
    """A logger whose runs lie in save_dir/name/version_N.

    Args:
        save_dir: the folder of all experiments.
        name: the experiment's folder; "" or None: no such level.
        version: a number, or a name used as it is; None: one more than the greatest there is.
    """

    def __init__(self, save_dir: str | Path, name: str | None, version: int | str | None) -> None:
        super().__init__()
        self._save_dir = os.fspath(save_dir)
        self._name = name or ""
        self._version = version
        self._chose_number = False

    @property
    def name(self) -> str:
        """The experiment's folder."""
        return self._name

    @property
    def version(self) -> int | str:
        """The run's number or name; found the first time it is asked for."""
        if self._version is None:
            self._version = folders.next_version(self.root_dir)
            self._chose_number = True
        return self._version

    @property
    def save_dir(self) -> str:
        """The folder of all experiments, as it was given."""
        return self._save_dir

    @property
    def root_dir(self) -> str:
        """The folder of all versions."""
        return folders.root_folder(self._save_dir, self._name)

    @property
    def run_dir(self) -> str:
        """The folder of this run, in which its checkpoints have theirs."""
        return folders.run_folder(self._save_dir, self._name, self.version)

    @property
    def is_placed(self) -> bool:
        """Whether the run's folder is settled: its number or name was given."""
        return self._version is not None and not self._chose_number

    @property
    def own_folder(self) -> str | None:
        """The folder that this run alone may write: `run_dir`."""
        return self.run_dir

    def renumber(self) -> bool:
        """Another run was quicker and has this number: takes the next one, unless it was given or is in use here.

        Returns:
            Whether the run has another folder now.
        """
        if not self._chose_number or getattr(self, "_experiment", None) is not None:
            return False
        self._version = None
        return True

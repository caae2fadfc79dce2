"""One process at a time trains a run."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from rl_training.errors import UserError


class RunLock:
    """A lock on a run directory that the system lifts when the process dies, however it dies.

    It is a record lock (``lockf``), which children made by fork do not inherit: a worker that
    outlives a killed run does not keep the run from being resumed. Where the file system has no
    locks, or on Windows, there is none.
    """

    def __init__(self, directory: Path) -> None:
        """Lock ``directory`` later, through its file ``.lock``."""
        self._path = directory / ".lock"
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Take the lock.

        Raises:
            UserError: another process has it, or the directory cannot be written.
        """
        try:
            import fcntl
        except ImportError:
            return
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise UserError(f"{self._path.parent} cannot be written: {error.strerror}.") from error
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EAGAIN):
                os.close(descriptor)
                raise UserError(
                    f"another process is training {self._path.parent}: "
                    "wait for it, or stop it first."
                ) from error
        self._descriptor = descriptor

    def release(self) -> None:
        """Give the lock back; a second time does nothing."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

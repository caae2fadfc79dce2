"""One training at a time in a run directory."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path
from types import TracebackType

from rl_training.errors import UserError

_REFUSED = (errno.EACCES, errno.EAGAIN)
_held: dict[Path, int] = {}
"""The directories this process holds, with the descriptors of their locks."""


class RunLock:
    """A lock on a run directory that the system lifts when the process dies, however it dies.

    It belongs to the open file (``flock``), not to the process: whoever else in this process reads
    the file does not lift it, and the process itself cannot take it twice. Children made by fork
    give it up at once, so that a worker that outlives a killed run does not keep the run from being
    resumed. Where the file system has no locks, or on Windows, only this process is kept out.
    """

    def __init__(self, directory: Path) -> None:
        """Lock ``directory`` later, through its file ``.lock``."""
        self._directory = directory
        self._key: Path | None = None

    def acquire(self) -> None:
        """Take the lock; a second time does nothing.

        A directory that cannot be written is left to whoever writes first.

        Raises:
            UserError: another training has it.
        """
        if self._key is not None:
            return
        key = self._directory.resolve()
        if key in _held:
            raise UserError(f"this process is training {self._directory} already.")
        descriptor = _open(self._directory / ".lock")
        if descriptor is not None and not _lock(descriptor):
            os.close(descriptor)
            raise UserError(
                f"another process is training {self._directory}: wait for it, or stop it first."
            )
        _held[key] = -1 if descriptor is None else descriptor
        self._key = key

    def release(self) -> None:
        """Give the lock back; a second time does nothing."""
        if self._key is not None:
            _close(_held.pop(self._key, -1))
            self._key = None

    def __enter__(self) -> RunLock:
        """Take it."""
        self.acquire()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Give it back."""
        self.release()


def _open(path: Path) -> int | None:
    with contextlib.suppress(OSError):
        return os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    with contextlib.suppress(OSError):
        return os.open(path, os.O_RDONLY)
    return None


def _lock(descriptor: int) -> bool:
    """Return whether nobody else has the lock."""
    try:
        import fcntl
    except ImportError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in _REFUSED
    return True


def _close(descriptor: int) -> None:
    if descriptor >= 0:
        os.close(descriptor)


def _forget_in_child() -> None:
    # Closing the child's copies leaves the parent's lock as it is.
    for descriptor in _held.values():
        _close(descriptor)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)

"""Lines of JSON in a file that only grows, healed after a crash and cut back on resume."""

from __future__ import annotations

import errno
import json
import logging
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)


class JsonlLogger:
    """Appends one JSON object per line; a line is there whole or not at all.

    Numbers that JSON lacks (NaN, infinity) become null. Its state is the length of the file in
    bytes. Loading it cuts off what was written after the checkpoint, so that a resumed run writes
    no line twice.
    """

    def __init__(self, path: Path) -> None:
        """Open ``path`` for appending, creating it; a last line that a crash cut short is removed.

        Raises:
            OSError: the file cannot be opened.
        """
        self.path = path
        if path.exists() and not path.is_file():  # a pipe's opening would wait for ever
            raise OSError(errno.EINVAL, "it is no regular file", str(path))
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115 (held open until close)
        self._warned = False
        self._offset = 0
        self._heal()

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Append ``{"step": step, **metrics}``; a full disk costs the line and one warning."""
        line = (
            json.dumps({"step": step, **{key: _finite(value) for key, value in metrics.items()}})
            + "\n"
        ).encode()
        try:
            written = self._file.write(line)
            if written != len(line):
                raise OSError(28, "no space left on device")
        except OSError as error:
            self._discard_partial_line()
            self._warn(error)
        else:
            self._offset += len(line)
            self._warned = False

    def state_dict(self) -> dict[str, Any]:
        """Flush to the disk and return the length of the file."""
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            self._warn(error)
        return {"offset": self._offset}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Cut the file back to the length in ``state``; without one, to nothing.

        A shorter file stays, with a warning.
        """
        offset = int(state.get("offset", 0))
        if offset > self._offset:
            logger.warning(
                "%s is shorter than when the checkpoint was written: lines of it are lost.",
                self.path,
            )
        else:
            self._file.truncate(offset)
            self._offset = offset
        self._heal()

    def close(self) -> None:
        """Flush to the disk and close."""
        if not self._file.closed:
            self.state_dict()
            self._file.close()

    def _heal(self) -> None:
        size = os.fstat(self._file.fileno()).st_size
        end = _end_of_last_line(self.path, size)
        if end != size:
            self._file.truncate(end)
        self._offset = end

    def _discard_partial_line(self) -> None:
        try:
            self._file.truncate(self._offset)
        except OSError as error:
            self._warn(error)

    def _warn(self, error: OSError) -> None:
        if not self._warned:
            logger.warning(
                "cannot write %s (%s): the run goes on without these lines.",
                self.path,
                error.strerror or error,
            )
        self._warned = True


def _finite(value: Any) -> Any:
    if hasattr(value, "tolist"):
        # numpy scalars and arrays, torch tensors
        value = value.tolist()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    return value


def _end_of_last_line(path: Path, size: int) -> int:
    """Return the offset just behind the last newline before ``size``, reading backwards."""
    block = 1 << 16
    with path.open("rb") as file:
        end = size
        while end > 0:
            start = max(0, end - block)
            file.seek(start)
            found = file.read(end - start).rfind(b"\n")
            if found >= 0:
                return start + found + 1
            end = start
    return 0

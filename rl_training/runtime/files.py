"""Files that survive a crash: written beside, flushed to the disk, then renamed. Small ones read,
whatever became of them.

The directory's entry is flushed as well.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rl_training.errors import UserError


@contextlib.contextmanager
def writing_to(path: Path) -> Iterator[None]:
    """Turn a refusal of the disk, such as a full one's, into a `UserError` that names ``path``."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror or error}.") from error


def write_durable(path: Path, data: bytes) -> None:
    """Create ``path`` with ``data`` and return once the disk has it.

    Raises:
        FileExistsError: the file is already there; nothing is ever overwritten in place.
        OSError: the disk is full or refuses; a part of the file may be left.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def replace_durable(path: Path, data: bytes) -> None:
    """Give ``path`` the content ``data`` in one step.

    A reader sees the old content or the new, never a part.

    Raises:
        OSError: the disk is full or refuses; the old content is then still there.
    """
    beside = path.with_name(f".{path.name}.tmp-{secrets.token_hex(4)}")
    try:
        write_durable(beside, data)
        os.replace(beside, path)
    except BaseException:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    """Flush the entries of ``directory`` (names, not contents), where the system can."""
    if os.name == "nt":
        # Windows has no handle on a directory that could be flushed.
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def json_bytes(value: Any, *, indent: int | None = 2, sort_keys: bool = False) -> bytes:
    """Return ``value`` as JSON text in UTF-8 with a closing newline."""
    separators = (",", ":") if indent is None else None
    text = json.dumps(value, indent=indent, sort_keys=sort_keys, separators=separators)
    return (text + "\n").encode("utf-8")


def write_json(path: Path, value: Any) -> None:
    """Replace ``path`` by ``value`` as readable JSON, in one step."""
    replace_durable(path, json_bytes(value))


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the object in a file; None where there is none, or none that can be read."""
    if not path.is_file():  # of a pipe, reading would wait for ever
        return None
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None

"""Where large tensors of remembered steps lie: in memory, or in a file that is mapped into it."""

from __future__ import annotations

import math
import mmap
import os
import secrets
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from rl_training.errors import UserError
from rl_training.runtime.resources import available_disk, available_memory, size_text

Storage = Literal["ram", "disk"]
Allocate = Callable[[Sequence[int], torch.dtype], Tensor]
"""A shape and a dtype into a tensor of zeros."""


def tensor_bytes(shape: Sequence[int], dtype: torch.dtype) -> int:
    """Return the size of a tensor."""
    return math.prod(shape) * dtype.itemsize


def allocator(storage: Storage, directory: str | os.PathLike[str] | None) -> Allocate:
    """Return what allocates tensors in memory, or in files in ``directory``.

    Raises:
        UserError: an unknown storage, or no directory for the disk.
    """
    if storage == "ram":
        # Not touched, so that a buffer costs memory only as it fills.
        return lambda shape, dtype: torch.zeros(tuple(shape), dtype=dtype)
    if storage != "disk":
        raise UserError(f"replay storage is {storage!r}; allowed: 'ram', 'disk'.")
    if directory is None:
        raise UserError("replay storage 'disk' needs a directory.")
    place = Path(directory)
    return lambda shape, dtype: mapped_zeros(place, shape, dtype)


def scratch_directory(given: str | os.PathLike[str] | None) -> str | os.PathLike[str]:
    """Return where files without names are made: the directory given, or the system's temporary one
    itself, in which a directory of one's own would be left by a process that is killed.

    Raises:
        UserError: no temporary directory of the system can be written.
    """
    if given is not None:
        return given
    try:
        return tempfile.gettempdir()
    except OSError as error:
        raise UserError(
            f"there is no temporary directory ({error.strerror or error}); give another one."
        ) from error


def require_room(
    storage: Storage,
    directory: str | os.PathLike[str] | None,
    size_of: Callable[[int], int],
    capacity: int,
    *,
    what: str = "a replay buffer",
    unit: str = "transitions",
) -> None:
    """Refuse a buffer that the machine has no room for.

    Args:
        storage: where it is to lie.
        directory: for the disk.
        size_of: bytes of a buffer of so many transitions; grows with them.
        capacity: transitions wanted.
        what: the message calls it.
        unit: what capacity counts.

    Raises:
        UserError: it does not fit, with the capacity that would; or files cannot be made there.
    """
    if storage == "ram":
        room, place = available_memory(), "memory"
    else:
        where = Path("." if directory is None else directory)
        _require_writable(where, what)
        room = available_disk(where)
        place = f"disk in {directory}"
    needed = size_of(capacity)
    if room is None or needed <= room:
        return
    fits = _largest(size_of, room, capacity)
    raise UserError(
        f"{what} of {capacity:,} {unit} takes {size_text(needed)}, and "
        f"{size_text(room)} of {place} are free: {fits:,} would fit."
    )


def _require_writable(directory: Path, what: str) -> None:
    """Raise unless a file can be made in a directory, or in what will hold it: of a place that
    cannot be written, the free bytes mean nothing.
    """
    place = directory.absolute()
    while not place.exists():
        place = place.parent
    path = place / f".replay-{secrets.token_hex(8)}"
    try:
        path.touch(exist_ok=False)
        path.unlink()
    except OSError as error:
        raise UserError(
            f"{what} cannot lie in {str(directory)!r}: {place} cannot be written "
            f"({error.strerror or error}); give another directory."
        ) from error


def _largest(size_of: Callable[[int], int], room: int, refused: int) -> int:
    """Return the largest capacity below ``refused`` whose size is at most ``room``."""
    fits, refused = 0, refused
    while refused - fits > 1:
        middle = (fits + refused) // 2
        if size_of(middle) <= room:
            fits = middle
        else:
            refused = middle
    return fits


def mapped_zeros(directory: Path, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Return a tensor of zeros in a file of its own in ``directory``.

    The file has no name before it has a size: it is scratch space, not a checkpoint, and the system
    takes it back when the process ends, however and whenever it ends.

    Raises:
        UserError: the disk is full or refuses.
    """
    count = math.prod(shape)
    size = tensor_bytes(shape, dtype)
    if size == 0:
        return torch.zeros(tuple(shape), dtype=dtype)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        descriptor = _nameless_file(directory)
        try:
            _reserve(descriptor, size)
            mapped = mmap.mmap(descriptor, size)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise UserError(
            f"{size_text(size)} for what is remembered cannot be had in {directory} "
            f"({error.strerror or error})."
        ) from error
    return torch.frombuffer(mapped, dtype=dtype, count=count).view(tuple(shape))


def _nameless_file(directory: Path) -> int:
    """Return the descriptor of a new empty file, which is gone once nothing holds it."""
    path = directory / f".replay-{secrets.token_hex(8)}"
    # Windows keeps the name of an open file, and drops both when told so.
    gone_when_closed = getattr(os, "O_TEMPORARY", 0)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | gone_when_closed, 0o600)
    if not gone_when_closed:
        path.unlink()
    return descriptor


def _reserve(descriptor: int, size: int) -> None:
    """Give a file zeros whose blocks are the file's own.

    In a file with holes, a full disk would kill the process at a write instead.
    """
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size)
    else:
        os.truncate(descriptor, size)

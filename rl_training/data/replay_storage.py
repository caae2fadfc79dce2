"""Where large tensors of remembered steps lie: in memory, or in a file that is mapped into it."""

from __future__ import annotations

import contextlib
import math
import os
import secrets
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

    The file has no name once it is mapped: it is scratch space, not a checkpoint, and the system
    takes it back when the process ends, however it ends.

    Raises:
        UserError: the disk is full or refuses.
    """
    path = directory / f".replay-{secrets.token_hex(8)}"
    count = math.prod(shape)
    size = tensor_bytes(shape, dtype)
    if size == 0:
        return torch.zeros(tuple(shape), dtype=dtype)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        try:
            _reserve(path, size)
            flat = torch.from_file(str(path), shared=True, size=count, dtype=dtype)
        finally:
            with contextlib.suppress(OSError):  # Windows keeps the name of a mapped file
                path.unlink()
    except OSError as error:
        raise UserError(
            f"{size_text(size)} for what is remembered cannot be had in {directory} "
            f"({error.strerror or error})."
        ) from error
    return flat.view(tuple(shape))


def _reserve(path: Path, size: int) -> None:
    """Create a file of zeros whose blocks are the file's own.

    In a file with holes, a full disk would kill the process at a write instead.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(descriptor, 0, size)
        else:
            os.truncate(descriptor, size)
    finally:
        os.close(descriptor)

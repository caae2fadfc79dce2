"""A leaf of a state for tensors that are large and grow by appending: a replay buffer's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

_SHARD_BYTES = 8 * 2**20


@dataclass(frozen=True, kw_only=True)
class Sharded:
    """Rows ``start`` to ``stop``, counted from the first one ever appended.

    A checkpoint stores them as files of ``shard_rows`` rows each, cut at multiples of that number,
    so that rows once sealed stay in the same file and the next checkpoint need not write it again.
    A digest covers the rows, not how they are cut.

    Nothing is copied: `read` reads the ring they lie in, so the state is to be saved, digested or
    loaded before more is appended.
    """

    dtype: torch.dtype
    row_shape: tuple[int, ...]
    """Shape of one row."""
    start: int
    """First row that is held."""
    stop: int
    """One past the last row that is held."""
    sealed: int
    """Rows before this one never change again; at most ``stop``."""
    shard_rows: int
    """Rows per file."""
    read: Callable[[int, int], Tensor]
    """Returns rows ``[first, last)`` as ``[last - first, *row_shape]``."""
    known: dict[int, tuple[str, int]] = field(default_factory=dict)
    """Names and sizes of files that full, sealed shards were already written to, by first row.

    The owner of the rows keeps this dict and passes it each time; saving adds to it.
    """

    @classmethod
    def of_ring(
        cls,
        ring: Tensor,
        *,
        start: int,
        stop: int,
        sealed: int,
        shard_rows: int,
        known: dict[int, tuple[str, int]],
    ) -> Sharded:
        """Return a leaf over ``ring`` ``[size, *row_shape]``, where row r lies at ``r % size``."""
        return cls(
            dtype=ring.dtype,
            row_shape=tuple(ring.shape[1:]),
            start=start,
            stop=stop,
            sealed=sealed,
            shard_rows=shard_rows,
            read=lambda first, last: _read_ring(ring, first, last),
            known=known,
        )

    def shards(self) -> Iterator[tuple[int, int]]:
        """Yield the bounds ``(first, last)`` of every shard, the oldest first.

        The first one may begin before ``start``, the last one is cut at ``stop``.
        """
        rows = self.shard_rows
        if self.start == self.stop:
            return
        for first in range(self.start // rows * rows, self.stop, rows):
            yield first, min(first + rows, self.stop)

    def pieces(self) -> Iterator[Tensor]:
        """Yield all held rows in order, a shard at a time."""
        for first, last in self.shards():
            yield self.read(max(first, self.start), last)

    def copy_into(self, ring: Tensor) -> None:
        """Write the rows to where they belong in ``ring``, as `of_ring` reads them.

        Raises:
            ValueError: other dtype or shape of a row, or more rows than the ring has.
        """
        mine = (self.dtype, self.row_shape)
        if mine != (ring.dtype, tuple(ring.shape[1:])) or self.stop - self.start > len(ring):
            raise ValueError(
                f"{self.stop - self.start} rows {self.row_shape} of {self.dtype} do not fit a ring "
                f"{tuple(ring.shape)} of {ring.dtype}"
            )
        row = self.start
        for piece in self.pieces():
            for at, until in ring_spans(row, row + len(piece), len(ring)):
                count = until - at
                ring[at:until] = piece[:count]
                piece, row = piece[count:], row + count


def ring_spans(first: int, last: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield the contiguous position ranges of rows ``[first, last)``, at most ``size`` of them."""
    while first < last:
        at = first % size
        count = min(last - first, size - at)
        yield at, at + count
        first += count


def rows_per_shard(ring: Tensor, *, at_most: int) -> int:
    """Return how many rows make a file of at most 8 MiB: a power of two, at most ``at_most``.

    The last shard is written anew at every save, so shards are not to be large.
    """
    row_bytes = max(ring[0].numel() * ring.element_size(), 1)
    return 1 << (max(1, min(_SHARD_BYTES // row_bytes, at_most)).bit_length() - 1)


def _read_ring(ring: Tensor, first: int, last: int) -> Tensor:
    parts = [ring[at:until] for at, until in ring_spans(first, last, len(ring))]
    return parts[0] if len(parts) == 1 else torch.cat([ring[:0], *parts])

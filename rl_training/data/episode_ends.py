"""The terminal observations of a replay buffer: the only ones that no later step begins with."""

from __future__ import annotations

import torch
from torch import Tensor

from rl_training.data.replay_storage import Allocate
from rl_training.runtime.sharded import Sharded, rows_per_shard

FIRST_SIZE = 1024
"""Room before any episode has ended; it doubles when the held episodes need more."""
_SHARD_EPISODES = 2**10


class EpisodeEnds:
    """A queue of observations, numbered from the first one ever appended.

    Args:
        most: how many can be held at once at most.
        shape: of one observation.
        dtype: of observations.
        allocate: makes the tensor.
    """

    def __init__(
        self, most: int, shape: tuple[int, ...], dtype: torch.dtype, allocate: Allocate
    ) -> None:
        self.first, self.next = 0, 0
        """Number of the oldest one held, and of the one to come."""
        self._most, self._allocate = most, allocate
        self._ring = allocate((min(most, FIRST_SIZE), *shape), dtype)
        self._known: dict[int, tuple[str, int]] = {}

    @property
    def size_in_bytes(self) -> int:
        """What the queue takes today."""
        return self._ring.numel() * self._ring.element_size()

    def append(self, observations: Tensor) -> Tensor:
        """Append ``[M, *shape]`` and return their numbers, ``[M]``."""
        count = len(observations)
        self._make_room(count)
        numbers = torch.arange(self.next, self.next + count)
        self._ring[numbers % len(self._ring)] = observations
        self.next += count
        return numbers

    def get(self, numbers: Tensor) -> Tensor:
        """Return the observations of ``numbers`` ``[M]``, which are held."""
        return self._ring.index_select(0, numbers % len(self._ring))

    def forget(self, first: int) -> None:
        """Let go of those before number ``first``."""
        self.first = max(self.first, first)

    def state(self) -> Sharded:
        """Return what is held, as a leaf of a state."""
        return Sharded.of_ring(
            self._ring,
            start=self.first,
            stop=self.next,
            sealed=self.next,
            shard_rows=rows_per_shard(self._ring, at_most=_SHARD_EPISODES),
            known=self._known,
        )

    def load_state(self, state: Sharded) -> None:
        """Hold what `state` returned, and nothing else."""
        self.first = self.next = state.start
        self._make_room(state.stop - state.start)
        state.copy_into(self._ring)
        self.next = state.stop
        self._known = dict(state.known)

    def _make_room(self, count: int) -> None:
        needed = self.next - self.first + count
        if needed <= len(self._ring):
            return
        size = len(self._ring)
        while size < needed:
            size *= 2
        larger = self._allocate((min(size, self._most), *self._ring.shape[1:]), self._ring.dtype)
        held = torch.arange(self.first, self.next)
        larger[held % len(larger)] = self._ring[held % len(self._ring)]
        self._ring = larger

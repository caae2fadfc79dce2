"""A limit of an episode's steps on rows of any kind: processes, threads, agents of one game."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_training.envs.rows import Rows, RowStep

Array = NDArray[Any]


class LimitedRows:
    """`Rows` whose episodes are truncated after a number of steps, if they did not end before.

    On the rows and not in a wrapper: so it holds for vector environments that a user passes and for
    agents, whose steps are counted alike.

    Args:
        rows: what is stepped.
        limit: steps of an episode at most.
    """

    def __init__(self, rows: Rows, limit: int) -> None:
        self._rows = rows
        self._limit = limit
        self._lengths = np.zeros(rows.num_envs, np.int64)
        self.num_envs = rows.num_envs
        self.plays_games = rows.plays_games
        self.can_resume = rows.can_resume
        self.cut: NDArray[np.bool_] = np.zeros(rows.num_envs, np.bool_)
        """Rows whose episode the limit ended in the last step, bool ``[N]``."""

    def step(self, actions: Array) -> RowStep:
        """See `Rows`."""
        step = self._rows.step(actions)
        self._lengths += 1
        over = self._lengths >= self._limit
        if not over.any():
            self.cut = over
            return step
        ended = np.asarray(step.terminated, bool) | np.asarray(step.truncated, bool)
        self.cut = over & ~ended
        games = step.games
        if games is not None:
            games = games._replace(over=games.over | self.cut)
        truncated = (np.asarray(step.truncated, bool) | self.cut).tolist()
        return step._replace(truncated=truncated, games=games)

    def reset(self, rows: Sequence[int], seeds: Sequence[int]) -> Array:
        """See `Rows`."""
        self._lengths[list(rows)] = 0
        return self._rows.reset(rows, seeds)

    @property
    def can_snapshot(self) -> bool:
        """See `Rows`."""
        return self._rows.can_snapshot

    def snapshot(self) -> list[dict[str, Any]]:
        """See `Rows`."""
        return self._rows.snapshot()

    def restore(self, states: Sequence[dict[str, Any]]) -> None:
        """See `Rows`."""
        self._rows.restore(states)

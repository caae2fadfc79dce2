"""Procgen's games side by side on EnvPool's threads; equal in every bit to one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from rl_training.envs.gymnasium_ids import checked_arguments, spec_of
from rl_training.envs.infos import Asked
from rl_training.envs.procgen import ACTION_SPACE, OBSERVATION_SPACE, PREFIX, Levels, result_of
from rl_training.envs.rows import NOTHING, RowStep, WithoutSnapshots, joined_info

Array = NDArray[Any]


class NativeProcgen(WithoutSnapshots):
    """``num_envs`` rows of one game, as `Rows`, each episode as `ProcgenGame` would play it.

    Every row has an EnvPool with one thread; all get their actions before any is waited for.
    The whole state of a game is not to be had: rows resume by replaying.

    Args:
        env_id: of a Procgen game.
        env_kwargs: of `Levels`, and ``max_episode_steps``.
        num_envs: rows.

    Raises:
        UserError: as `Levels`.
    """

    plays_games = False
    can_snapshot = False
    can_resume = True

    def __init__(self, env_id: str, env_kwargs: dict[str, Any], num_envs: int) -> None:
        options = checked_arguments(env_kwargs)
        limit = options.pop("max_episode_steps", None)
        self.num_envs = num_envs
        self.single_observation_space = OBSERVATION_SPACE
        self.single_action_space = ACTION_SPACE
        self.closed = False
        self._levels = Levels(spec_of(env_id).id.removeprefix(PREFIX), **options)
        self._limit = limit if limit and limit > 0 else None
        self._pools: list[Any] = [None] * num_envs
        self._lengths = [0] * num_envs
        self._asked = NOTHING

    def ask(self, asked: Asked) -> None:
        """See `Rows`; the games take no options of resets, as one by one."""
        self._asked = asked

    def step(self, actions: Array) -> RowStep:
        """See :class:`~rl_training.envs.rows.Rows`."""
        for row, pool in enumerate(self._pools):
            pool.send(actions[row : row + 1])
        results = [result_of(pool.recv()) for pool in self._pools]
        self._lengths = [length + 1 for length in self._lengths]
        over = [self._limit is not None and length >= self._limit for length in self._lengths]
        terminated = [result.terminated for result in results]
        truncated = [result.truncated or cut for result, cut in zip(results, over, strict=True)]
        info = self._asked.info
        told = [] if info is None else [info.of(result.told()) for result in results]
        return RowStep(
            np.stack([result.observation for result in results]),
            np.array([result.reward for result in results], np.float64),
            terminated,
            truncated,
            info=joined_info(info, told, terminated, truncated),
        )

    def reset(self, rows: Sequence[int], seeds: Sequence[int]) -> Array:
        """See :class:`~rl_training.envs.rows.Rows`."""
        observations = []
        for row, seed in zip(rows, seeds, strict=True):
            generator, _ = gymnasium.utils.seeding.np_random(seed)
            self._pools[row], first = self._levels.begin(generator)
            self._lengths[row] = 0
            observations.append(first.observation)
        return np.stack(observations)

    def close(self) -> None:
        """End the threads."""
        self.closed = True
        self._pools = []

"""ale-py's own vector environment: the pipeline in C++, on threads. Faster, and not the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_training.config.groups import AtariConfig
from rl_training.envs.gymnasium_ids import spec_of
from rl_training.envs.infos import Asked
from rl_training.envs.rows import Games, RowStep, WithoutSnapshots
from rl_training.errors import UserError

Array = NDArray[Any]


class NativeAtari(WithoutSnapshots):
    """``num_envs`` rows of one game in ale-py's `AtariVectorEnv`, as `Rows`.

    What differs from `rl_training.envs.atari.AtariPipeline`:

    - a game begins with 0 to ``noop_max - 1`` frames without action, less one where FIRE is
      pressed; FIRE is held for a single frame, and no third action follows;
    - the first observation's older frames are zeros;
    - after a life the game simply goes on: no step without action, no FIRE, no new stack of frames;
    - where a game ends within a step, the frame before the last counts from the step before;
    - sticky actions are drawn by the emulator;
    - only the first game of a row has a seed: a new one would load the game anew;
    - nothing of it can be saved, so a run can only be resumed approximately.

    Args:
        env_id: an Atari id, which gives game and sticky actions.
        env_kwargs: ``full_action_space``, ``repeat_action_probability``,
            ``max_num_frames_per_episode``.
        settings: numbers and switches.
        num_envs: rows.

    Raises:
        UserError: an id that is no Atari game, another argument, or a missing package.
    """

    plays_games = True
    can_snapshot = False
    can_resume = False

    def __init__(
        self, env_id: str, env_kwargs: dict[str, Any], settings: AtariConfig, num_envs: int
    ) -> None:
        spec = spec_of(env_id)
        if "ale_py" not in str(spec.entry_point):
            raise UserError(f"env.atari is for Atari games, and {env_id} is none.")
        self.num_envs = num_envs
        self.settings = settings
        self._vector = _make(env_id, {**spec.kwargs, **env_kwargs}, settings, num_envs)
        self.single_observation_space = self._vector.single_observation_space
        self.single_action_space = self._vector.single_action_space
        self.closed = False
        self._scores = np.zeros(num_envs, np.float64)
        self._lengths = np.zeros(num_envs, np.int64)
        self._goes_on = np.zeros(num_envs, bool)
        """Rows that have just lost a life, whose next reset goes on with the game."""
        self._seeded = np.zeros(num_envs, bool)
        self._observation: Array = np.empty(0, np.uint8)

    def ask(self, asked: Asked) -> None:
        """See `Rows`."""
        asked.refuse("vectorization native")

    def step(self, actions: Array) -> RowStep:
        """See :class:`~rl_training.envs.rows.Rows`."""
        observation, reward, terminated, truncated, told = self._vector.step(actions)
        self._observation = np.array(observation)
        self._scores = self._scores + reward
        self._lengths = self._lengths + 1
        # A life lost is told as a termination; only without lives left the game is over.
        over = np.array((terminated & (told["lives"] == 0)) | truncated, bool)
        self._goes_on = np.array(terminated & ~over, bool)
        clipped = np.sign(reward) if self.settings.clip_reward else reward
        return RowStep(
            self._observation,
            np.array(clipped, np.float64),
            np.asarray(terminated, bool).tolist(),
            np.asarray(truncated, bool).tolist(),
            Games(self._scores, self._lengths, over),
        )

    def reset(self, rows: Sequence[int], seeds: Sequence[int]) -> Array:
        """Begin games in ``rows``, but go on with those that have just lost a life."""
        starting = [row for row in rows if not self._goes_on[row]]
        if starting:
            by_row = dict(zip(rows, seeds, strict=True))
            chosen = [-1 if self._seeded[row] else by_row[row] for row in sorted(starting)]
            mask = np.zeros(self.num_envs, bool)
            mask[starting] = True
            observation, _ = self._vector.reset(
                seed=np.array(chosen), options={"reset_mask": mask} if not mask.all() else None
            )
            self._observation = np.array(observation)
            self._scores, self._lengths = self._scores.copy(), self._lengths.copy()
            self._scores[starting], self._lengths[starting] = 0.0, 0
            self._seeded[starting] = True
        self._goes_on[list(rows)] = False
        return self._observation[list(rows)]

    def close(self) -> None:
        """End the threads."""
        self.closed = True
        self._vector.close()


def _make(env_id: str, kwargs: dict[str, Any], settings: AtariConfig, num_envs: int) -> Any:
    from ale_py import AtariVectorEnv
    from gymnasium.vector import AutoresetMode

    sticky = kwargs.get("repeat_action_probability", 0.0)
    if settings.sticky_actions is not None:
        sticky = settings.sticky_actions
    passed = {
        key: kwargs[key]
        for key in ("full_action_space", "max_num_frames_per_episode")
        if key in kwargs
    }
    known = {*passed, "game", "frameskip", "repeat_action_probability"}
    if unknown := sorted(set(kwargs) - known):
        raise UserError(f"{env_id}: vectorization native does not take env_kwargs {unknown}.")
    return AtariVectorEnv(
        kwargs["game"],
        num_envs,
        repeat_action_probability=sticky,
        # Rows whose game is over wait for their reset: the step after it is never taken.
        autoreset_mode=AutoresetMode.NEXT_STEP,
        img_height=settings.screen_size,
        img_width=settings.screen_size,
        grayscale=settings.grayscale,
        stack_num=settings.frame_stack,
        frameskip=settings.frame_skip,
        noop_max=settings.noop_max,
        life_loss_info=settings.episodic_life,
        reward_clipping=False,  # the score is counted; the sign is taken afterwards
        use_fire_reset=settings.fire_reset,
        **passed,
    )

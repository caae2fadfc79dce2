"""Atari games in EnvPool, in C++ on threads, by the rules of the library's own pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_training.config.groups import AtariConfig
from rl_training.envs.atari import make_atari
from rl_training.envs.gymnasium_ids import spec_of
from rl_training.envs.infos import Asked
from rl_training.envs.procgen import import_envpool
from rl_training.envs.rows import Games, RowStep, WithoutSnapshots
from rl_training.errors import UserError

Array = NDArray[Any]
_BACKEND = "vectorization envpool"
_PASSED = ("mode", "difficulty", "full_action_space")
"""Arguments of a game that EnvPool takes as they are."""
_KNOWN = {
    *("game", "max_episode_steps", "max_num_frames_per_episode", "repeat_action_probability"),
    *_PASSED,
    "frameskip",  # the pipeline says what stands for it
}
_SCREEN = (210, 160)
"""What EnvPool takes every screen to be."""
_NO_LIMIT = 2**31 - 2


class EnvpoolAtari(WithoutSnapshots):
    """``num_envs`` rows of one game in one EnvPool, as `Rows`.

    EnvPool runs the emulators, merges and resizes the frames; lives, FIRE, stacks and limits are
    kept here, as `rl_training.envs.atari.AtariPipeline` keeps them in training. EnvPool would begin
    the next game at the step after an end, and drop that step's action: rows are reset before, so
    that no such step exists. What differs from the pipeline:

    - only a row's first game has a seed: EnvPool takes seeds only when it is made, and loads every
      game anew then. Frames without action and sticky actions are drawn by EnvPool's generators;
    - where a game ends before the last two frames of a step, the last observation repeats the
      frame of the step before;
    - the emulator's limit of frames counts whole steps, and no frames without action before them:
      it cuts a game up to ``noop_max`` frames later;
    - nothing of it can be saved, so a run can only be resumed approximately.

    Args:
        env_id: an Atari id, which gives game, sticky actions and limits.
        env_kwargs: ``full_action_space``, ``mode``, ``difficulty``, ``max_episode_steps``,
            ``max_num_frames_per_episode``, ``repeat_action_probability``.
        settings: numbers and switches.
        num_envs: rows.
        num_threads: of EnvPool; 0: one per core, and no more than rows.

    Raises:
        UserError: as `make_atari`; what EnvPool cannot do, or the package is missing.
    """

    plays_games = True
    can_snapshot = False
    can_resume = False

    def __init__(
        self,
        env_id: str,
        env_kwargs: dict[str, Any],
        settings: AtariConfig,
        num_envs: int,
        *,
        num_threads: int = 0,
    ) -> None:
        _require_possible(env_id, env_kwargs, settings)
        self._envpool = import_envpool(_BACKEND, "atari")
        pipeline = make_atari(env_id, env_kwargs, settings, training=True)
        self.rules = pipeline.rules
        self.single_observation_space = pipeline.observation_space
        self.single_action_space = pipeline.action_space
        pipeline.close()
        _require_screen(env_id, self.rules.screen)
        self.num_envs = num_envs
        self.settings = settings
        self.closed = False
        self._task, self._options = _task_of(self._envpool, env_id, env_kwargs, settings)
        self._options |= {
            "num_envs": num_envs,
            "num_threads": num_threads,
            "repeat_action_probability": self.rules.sticky_actions,
        }
        self._pool: Any = None
        shape = pipeline.observation_space.shape or ()
        self._stack: Array = np.zeros((num_envs, *shape), np.uint8)
        self._channels = shape[0] // settings.frame_stack
        self._scores = np.zeros(num_envs, np.float64)
        self._lengths = np.zeros(num_envs, np.int64)
        self._lives = np.zeros(num_envs, np.int64)
        self._goes_on = np.zeros(num_envs, bool)
        """Rows that have just lost a life, whose next reset goes on with the game."""

    def ask(self, asked: Asked) -> None:
        """See `Rows`."""
        asked.refuse(_BACKEND)

    # ---- steps

    def step(self, actions: Array) -> RowStep:
        """See :class:`~rl_training.envs.rows.Rows`."""
        frame, reward, _, cut, told = self._pool.step(np.asarray(actions, np.int32))
        ended = told["terminated"] != 0
        lives = told["lives"]
        lost = ~ended & ~cut & (lives > 0) & (lives < self._lives)
        if not self.settings.episodic_life:
            lost[:] = False
        self._lives = np.array(lives, np.int64)
        self._scores = self._scores + reward
        self._lengths = self._lengths + 1
        self._push(frame)
        truncated = cut | (self._lengths >= self.rules.limit)
        terminated = (ended & ~cut) | lost
        self._goes_on = lost & ~truncated
        return RowStep(
            self._stack,
            np.array(np.sign(reward) if self.settings.clip_reward else reward, np.float64),
            terminated.tolist(),
            truncated.tolist(),
            Games(self._scores, self._lengths, (terminated | truncated) & ~self._goes_on),
        )

    def _push(self, frame: Array) -> None:
        """Put ``frame`` ``[N, channels, size, size]`` on fresh stacks."""
        stack = np.empty_like(self._stack)
        stack[:, : -self._channels] = self._stack[:, self._channels :]
        stack[:, -self._channels :] = frame
        self._stack = stack

    # ---- episodes

    def reset(self, rows: Sequence[int], seeds: Sequence[int]) -> Array:
        """Begin games in ``rows``, but go on with those that have just lost a life."""
        if self._pool is None:
            self._make_pool(rows, seeds)
        # Copies: those from the last step have been handed out.
        self._scores, self._lengths = self._scores.copy(), self._lengths.copy()
        self._stack = self._stack.copy()
        chosen = np.array(rows, np.int32)
        going_on = chosen[self._goes_on[chosen]]
        self._goes_on[chosen] = False
        gained = np.zeros(self.num_envs, np.float64)
        if going_on.size:
            over = self._hold(going_on, 0, gained)
            going_on = going_on[~over]
        starting = np.setdiff1d(chosen, going_on)
        if starting.size:
            self._start(starting)
        if self.rules.fires:
            for action in (1, 2):
                over = self._hold(chosen, action, gained)
                if over.any():
                    self._start(chosen[over])
        self._scores[going_on] += gained[going_on]
        return self._stack[chosen]

    def _make_pool(self, rows: Sequence[int], seeds: Sequence[int]) -> None:
        by_row = dict(zip(rows, seeds, strict=True))
        if len(by_row) < self.num_envs:
            raise RuntimeError("the first reset must be of all rows.")
        self._pool = self._envpool.make_gymnasium(
            self._task,
            env_seed=[by_row[row] for row in range(self.num_envs)],
            **self._options,
        )

    def _start(self, rows: Array) -> None:
        """Begin games in ``rows``, with their frames without action."""
        frame, told = self._pool.reset(rows)
        self._show(rows, frame, told)
        self._scores[rows], self._lengths[rows] = 0.0, 0

    def _hold(self, rows: Array, action: int, gained: Array) -> Array:
        """Take one step in ``rows`` alone, add up its rewards, and say where it ended a game."""
        actions = np.full(rows.size, action, np.int32)
        frame, reward, terminated, truncated, told = self._pool.step(actions, rows)
        self._show(rows, frame, told)
        gained[rows] += reward
        over: Array = terminated | truncated
        return over

    def _show(self, rows: Array, frame: Array, told: dict[str, Any]) -> None:
        """Fill the stacks of ``rows`` with one frame each."""
        self._lives[rows] = told["lives"]
        self._stack[rows] = np.tile(frame, (1, self.settings.frame_stack, 1, 1))

    def close(self) -> None:
        """End the threads."""
        self.closed = True
        self._pool = None


def _require_possible(env_id: str, env_kwargs: dict[str, Any], settings: AtariConfig) -> None:
    """Raise `UserError` for what EnvPool cannot do."""
    if unknown := sorted(set(env_kwargs) - _KNOWN):
        raise UserError(
            f"{env_id}: {_BACKEND} does not take env_kwargs {unknown}: leave them out, or use "
            "env.vectorization sync or async."
        )
    for name, least, why in (
        ("noop_max", 1, "begins a game with at least one frame without action"),
        ("frame_skip", 2, "merges the last two frames of every step"),
    ):
        value = getattr(settings, name)
        if value < least:
            raise UserError(
                f"env.atari.{name} is {value}, and EnvPool {why}: set it to {least} or more, or "
                "use env.vectorization sync, async or native."
            )


def _require_screen(env_id: str, screen: tuple[int, int]) -> None:
    if screen != _SCREEN:
        raise UserError(
            f"{env_id}: its screen has {screen[0]} lines, of which EnvPool shows only the upper "
            f"{_SCREEN[0]}: use env.vectorization sync, async or native."
        )


def _task_of(
    envpool: Any, env_id: str, env_kwargs: dict[str, Any], settings: AtariConfig
) -> tuple[str, dict[str, Any]]:
    """Return EnvPool's id of a game, and its options."""
    kwargs = {**spec_of(env_id).kwargs, **env_kwargs}
    task = "".join(word.capitalize() for word in kwargs["game"].split("_")) + "-v5"
    if task not in envpool.list_all_envs():
        raise UserError(
            f"{env_id}: EnvPool has no {task}: use env.vectorization sync, async or native."
        )
    frames = kwargs.get("max_num_frames_per_episode") or 0
    return task, {
        "max_episode_steps": -(-frames // settings.frame_skip) if frames > 0 else _NO_LIMIT,
        "noop_max": settings.noop_max,
        "frame_skip": settings.frame_skip,
        "img_height": settings.screen_size,
        "img_width": settings.screen_size,
        "gray_scale": settings.grayscale,
        "use_inter_area_resize": True,
        # Kept by the pipeline's rules instead, outside of EnvPool.
        "stack_num": 1,
        "episodic_life": False,
        "use_fire_reset": False,
        "reward_clip": False,
        **{name: kwargs[name] for name in _PASSED if kwargs.get(name) is not None},
    }

"""Steps and resets of :class:`Episodes` as tensors: the values of the batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from rl_training.envs.episodes import Episodes, Transition

Array = NDArray[Any]
Source = dict[str, Any]
DONE_KEYS = ("done", "terminated", "truncated")
ROOT_KEYS = ("observation", "is_init", *DONE_KEYS)
NEXT_KEYS = frozenset(
    (
        *("observation", "reward", *DONE_KEYS),
        *("episode_return", "episode_length", "game_over", "is_init", "info"),
    )
)


PREVIOUS_REWARD = "previous_reward"
"""What a policy carries under this key is the reward of the step, which it cannot know itself."""


class TensorSteps:
    """Builds the root and ``next`` values of each vector step.

    Every tensor is fresh at every step, except the constant False flags, which are shared by all
    steps. Where no episode ended, the root's observation is the very tensor of
    ``next``: consumers copy before they write.
    """

    def __init__(self, episodes: Episodes, dtype: np.dtype[Any]) -> None:
        """Wrap ``episodes``, whose observations go into the batch as ``dtype``."""
        self.episodes = episodes
        self.dtype = dtype
        self.root: Source = {}
        self.pending: list[int] = []
        """Rows whose episode ended in :meth:`step` and that wait for their reset."""
        self._shape = (episodes.num_envs, 1)
        self._false = torch.zeros(self._shape, dtype=torch.bool)
        self._flags_shape = (3, *self._shape)
        self._floats_shape = (2, *self._shape)

    def step_and_renew(
        self, action: Tensor, carried: TensorDictBase | None
    ) -> tuple[Source, Source]:
        """Step every row, begin new episodes where one ended, and return the values of ``next`` and
        of the new root.
        """
        self.require_running()
        episodes = self.episodes
        transition = episodes.step(action.numpy())
        ended = transition.ended
        raw = transition.step.observation
        renewed = episodes.renew(ended) if ended else raw
        # Once per vector step, on what the policy acts on next; the terminal observation is seen
        # with the same statistics.
        if episodes.normalizer is not None:
            episodes.normalizer.update_observation(renewed)
        values = self._next(transition, raw)
        false = self._false
        root: Source = {
            "observation": self._observation(renewed) if ended else values["observation"],
            "is_init": values["done"] if ended else false,
            "done": false,
            "terminated": false,
            "truncated": false,
        }
        if carried is not None:
            _carry(carried, values, root, ended)
        self.root = root
        return values, root

    def step(self, action: Tensor) -> Source:
        """Step every row, reset none, and return the values of ``next``."""
        self.require_running()
        transition = self.episodes.step(action.numpy())
        self.pending = transition.ended
        if self.episodes.normalizer is not None:
            self.episodes.normalizer.update_observation(transition.step.observation)
        values = self._next(transition, transition.step.observation)
        self.root = self._root(values["observation"], self._false)
        return values

    def restart(self) -> Source:
        """Begin a new episode in every row and return the root."""
        return self._begin(self.episodes.restart(), list(range(self.episodes.num_envs)))

    def renew(self, rows: list[int]) -> Source:
        """Begin new episodes in ``rows`` and return the root of all rows."""
        return self._begin(self.episodes.renew(rows), rows)

    def _begin(self, raw: Array, rows: list[int]) -> Source:
        if self.episodes.normalizer is not None:
            self.episodes.normalizer.update_observation(raw[rows])
        self.pending = [row for row in self.pending if row not in rows]
        is_init = torch.zeros(self._shape, dtype=torch.bool)
        is_init[rows] = True
        self.root = self._root(self._observation(raw), is_init)
        return self.root

    def adopt(self, saved: Source, *, approximate: bool) -> None:
        """Make ``saved`` the root again, or with ``approximate`` the root of the fresh episodes,
        its carried keys zeroed.
        """
        carried = {key: value for key, value in saved.items() if key not in ROOT_KEYS}
        if approximate:
            root = self._begin(self.episodes.observation, list(range(self.episodes.num_envs)))
            carried = {key: value.clone().zero_() for key, value in carried.items()}
        else:
            root = self._root(saved["observation"], saved["is_init"])
            _require_alike(
                root, self._root(self._observation(self.episodes.observation), self._false)
            )
        self.root = {**root, **carried}

    def require_running(self) -> None:
        """Raise ``RuntimeError`` unless every row is in the middle of an episode."""
        if self.pending or not self.root:
            rows = self.pending or "all"
            raise RuntimeError(f"{self.episodes.name}: environments {rows} need a reset() first.")

    def _root(self, observation: Tensor, is_init: Tensor) -> Source:
        return {
            "observation": observation,
            "is_init": is_init,
            **dict.fromkeys(DONE_KEYS, self._false),
        }

    def _next(self, transition: Transition, raw: Array) -> Source:
        terminated, truncated, done = self._flags(transition)
        # One block and one from_numpy per dtype: each call costs as much as the arithmetic of a
        # small environment.
        floats = np.array((transition.reward, transition.returns), np.float32).reshape(
            self._floats_shape
        )
        reward, episode_return = torch.from_numpy(floats).unbind(0)
        games = transition.step.games
        told: Source = (
            {}
            if games is None
            else {"game_over": torch.from_numpy(games.over.reshape(self._shape))}
        )
        if transition.step.info is not None:
            told["info"] = _info(transition.step.info, self._shape[0])
        return {
            **told,
            "observation": self._observation(raw),
            "reward": reward,
            "terminated": terminated,
            "truncated": truncated,
            "done": done,
            "episode_return": episode_return,
            "episode_length": torch.from_numpy(transition.lengths.reshape(self._shape)),
        }

    def _flags(self, transition: Transition) -> tuple[Tensor, ...]:
        if not transition.ended:
            return self._false, self._false, self._false
        terminated, truncated = transition.step.terminated, transition.step.truncated
        done = [a or b for a, b in zip(terminated, truncated, strict=True)]
        flags = np.array((terminated, truncated, done), np.bool_).reshape(self._flags_shape)
        return torch.from_numpy(flags).unbind(0)

    def _observation(self, raw: Array) -> Tensor:
        normalizer = self.episodes.normalizer
        if normalizer is not None:
            raw = normalizer.normalize_observation(raw)
        return torch.from_numpy(raw if raw.dtype == self.dtype else raw.astype(self.dtype))


def _require_alike(saved: Source, current: Source) -> None:
    """Raise ``ValueError`` where a saved root has a tensor of another shape or dtype."""
    for key, value in current.items():
        if (saved[key].shape, saved[key].dtype) != (value.shape, value.dtype):
            raise ValueError(
                f"{key} of the environments' root has shape {tuple(saved[key].shape)} of "
                f"{saved[key].dtype}, not {tuple(value.shape)} of {value.dtype}"
            )


def _info(told: dict[str, Array], num_envs: int) -> TensorDictBase:
    source = {key: torch.from_numpy(value) for key, value in told.items()}
    return TensorDict._new_unsafe(source=source, batch_size=torch.Size([num_envs]), nested=False)


def _carry(carried: TensorDictBase, values: Source, root: Source, ended: list[int]) -> None:
    """Put what a policy wrote into ``next`` (its recurrent state) into ``values`` and ``root``,
    zeroed where ``ended``. The place it holds for the reward is filled.
    """
    for key, value in carried.items():
        if key in NEXT_KEYS:
            continue
        if key == PREVIOUS_REWARD:
            value = values["reward"]
        values[key] = value
        root[key] = _zeroed(value, ended) if ended else value


def _zeroed(value: Any, rows: list[int]) -> Any:
    if isinstance(value, TensorDictBase):
        return value.apply(lambda leaf: _zeroed(leaf, rows))
    value = value.clone()
    value[rows] = 0
    return value

"""Tiny environments in which the right answer is known."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

Step = tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]


class _Bandit(gymnasium.Env[Any, Any]):
    """Episodes of 16 steps, each with a new random context that tells the right action."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        super().reset(seed=seed)
        self._steps = 0
        return self._observe(), {}

    def _finish(self, reward: float) -> Step:
        self._steps += 1
        return self._observe(), reward, False, self._steps == 16, {}

    def _observe(self) -> NDArray[np.float32]:
        raise NotImplementedError


class Identity(_Bandit):
    """One of four contexts, one-hot; the action of its number earns 1: at best 16 an episode."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(0.0, 1.0, (4,), np.float32)
        self.action_space = spaces.Discrete(4)

    def _observe(self) -> NDArray[np.float32]:
        self._context = int(self.np_random.integers(4))
        return np.eye(4, dtype=np.float32)[self._context]

    def step(self, action: Any) -> Step:
        return self._finish(float(action == self._context))


class Tracking(_Bandit):
    """Two numbers in [-1, 1]; the action earns 1 less its squared distance: at best 16."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)

    def _observe(self) -> NDArray[np.float32]:
        self._target = self.np_random.uniform(-1.0, 1.0, 2).astype(np.float32)
        return self._target

    def step(self, action: Any) -> Step:
        assert self.action_space.contains(action), "only actions within the bounds may arrive"
        return self._finish(float(1.0 - np.square(action - self._target).sum()))


class FiveSteps(gymnasium.Env[Any, Any]):
    """Reward 1 at every step, cut (or, if told so, ended) after five; nothing to see of it."""

    def __init__(self, *, terminates: bool = False) -> None:
        self.observation_space = spaces.Box(0.0, 1.0, (1,), np.float32)
        self.action_space = spaces.Discrete(2)
        self._terminates = terminates

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        super().reset(seed=seed)
        self._steps = 0
        return np.ones(1, np.float32), {}

    def step(self, action: Any) -> Step:
        self._steps += 1
        over = self._steps == 5
        observation = np.ones(1, np.float32)
        return observation, 1.0, over and self._terminates, over and not self._terminates, {}


class RandomEnds(gymnasium.Env[Any, Any]):
    """Random observations and rewards; at random an episode ends, is cut, or both."""

    def __init__(self, *, discrete: bool = True) -> None:
        self.observation_space = spaces.Box(-9.0, 9.0, (3,), np.float32)
        self.action_space: spaces.Space[Any] = (
            spaces.Discrete(3) if discrete else spaces.Box(-1.0, 1.0, (2,), np.float32)
        )

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        super().reset(seed=seed)
        return self._observe(), {}

    def _observe(self) -> NDArray[np.float32]:
        return self.np_random.normal(size=3).astype(np.float32)

    def step(self, action: Any) -> Step:
        ended, cut = (self.np_random.random(2) < 0.15).tolist()
        return self._observe(), float(self.np_random.normal()), ended, cut, {}

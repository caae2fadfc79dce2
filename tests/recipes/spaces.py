"""An environment of any spaces, and one space of every kind."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

ACTIONS: dict[str, Any] = {
    "Box": spaces.Box(np.array([-1.0, 0.5]), np.array([2.0, 4.0]), dtype=np.float64),
    "integer Box": spaces.Box(np.array([-3, 250]), np.array([5, 255]), dtype=np.int16),
    "unbounded Box": spaces.Box(
        np.array([-np.inf, 0.0]), np.array([1.0, np.inf]), dtype=np.float64
    ),
    "Discrete": spaces.Discrete(3, start=-1),
    "MultiDiscrete": spaces.MultiDiscrete(np.array([[2, 3, 1]]), start=np.array([[5, -1, 0]])),
    "MultiBinary": spaces.MultiBinary(3),
    "Dict": spaces.Dict(
        {
            "throttle": spaces.Box(np.array([-1.0, 0.5]), np.array([2.0, 4.0]), dtype=np.float64),
            "gear": spaces.Discrete(4, start=2),
            "inside": spaces.Dict(
                {
                    "steps": spaces.Box(0, 9, (1, 2), np.uint8),
                    "lights": spaces.Tuple(
                        [spaces.MultiBinary(2), spaces.MultiDiscrete([2, 3], start=[0, 7])]
                    ),
                }
            ),
        }
    ),
    "Tuple": spaces.Tuple([spaces.Discrete(3, start=-1), spaces.MultiBinary([1, 2])]),
}
OBSERVATIONS: dict[str, Any] = {
    "Box": spaces.Box(-9.0, 9.0, (3,), np.float64),
    "Discrete": spaces.Discrete(5, start=-2),
    "MultiDiscrete": spaces.MultiDiscrete(np.array([[2, 3]]), start=np.array([[4, -1]])),
    "MultiBinary": spaces.MultiBinary(4),
    "Dict": spaces.Dict(
        {
            "place": spaces.Box(-1.0, 1.0, (2, 2), np.float64),
            "inside": spaces.Dict(
                {
                    "count": spaces.Box(0, 200, (1,), np.uint8),
                    "pair": spaces.Tuple([spaces.MultiBinary(2), spaces.Discrete(3, start=1)]),
                }
            ),
        }
    ),
    "image": spaces.Box(0, 255, (6, 7, 3), np.uint8),
    "image among parts": spaces.Dict(
        {
            "camera": spaces.Box(0, 255, (5, 4, 1), np.uint8),
            "inside": spaces.Tuple(
                [spaces.Box(-1.0, 1.0, (1, 3, 3), np.float64), spaces.Discrete(3, start=1)]
            ),
            "speed": spaces.Box(-9.0, 9.0, (2,), np.float64),
        }
    ),
    "Tuple": spaces.Tuple([spaces.Discrete(3), spaces.Dict({"a": spaces.Box(-1.0, 1.0, (2,))})]),
}


class Anything(gymnasium.Env[Any, Any]):
    """Observations at random; insists on actions of its space, and pays their sum. Episodes end,
    or are cut, at random.
    """

    def __init__(self, observation_space: Any, action_space: Any) -> None:
        self.observation_space, self.action_space = observation_space, action_space

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.observation_space.seed(int(self.np_random.integers(2**31)))
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), f"{action!r} is not of {self.action_space}"
        ended, cut = (self.np_random.random(2) < 0.1).tolist()
        return self.observation_space.sample(), total(action), ended, cut, {}


def total(action: Any) -> float:
    """Return the sum of an action's numbers."""
    parts = action.values() if isinstance(action, dict) else action
    if isinstance(action, dict | tuple):
        return sum(map(total, parts))
    return float(np.sum(action))

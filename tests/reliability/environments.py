"""Environments that misbehave on request, registered when this module is imported."""

from __future__ import annotations

import itertools
import math
import time
from typing import Any

import gymnasium
import numpy as np

_constructed = itertools.count()


def restart_counting() -> None:
    """Let the next environment made in this process be number 0."""
    global _constructed
    _constructed = itertools.count()


class Plain(gymnasium.Env[Any, Any]):
    """Ten steps of reward 1 with random observations."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (3,), np.float32)
    action_space: Any = gymnasium.spaces.Discrete(2)

    def __init__(self) -> None:
        self.number = next(_constructed)
        self.steps = 0  # over all episodes
        self._left = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._left = 10
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        self._left -= 1
        return self._observe(), 1.0, self._left == 0, False, {}

    def _observe(self) -> Any:
        return self.np_random.normal(size=3).astype(np.float32)


class Poisoned(Plain):
    """Gives a NaN observation or an infinite reward at one step of environment number ``row``."""

    def __init__(self, row: int = 2, at: int = 100, what: str = "observation") -> None:
        super().__init__()
        self._row, self._at, self._what = row, at, what

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = super().step(action)
        if (self.number, self.steps) == (self._row, self._at):
            if self._what == "observation":
                observation[1] = math.nan
            else:
                reward = math.inf
        return observation, reward, terminated, truncated, info


class PoisonedContinuous(Poisoned):
    """The same with continuous actions."""

    action_space: Any = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)


class Stuck(Plain):
    """Takes a minute for one of its steps."""

    def __init__(self, at: int = 200) -> None:
        super().__init__()
        self._at = at

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.steps == self._at:
            time.sleep(60)
        return super().step(action)


class UnusualAction(Plain):
    action_space: Any = gymnasium.spaces.Tuple([gymnasium.spaces.Text(3)])


class UnusualObservation(Plain):
    observation_space: Any = gymnasium.spaces.Dict({"word": gymnasium.spaces.Text(3)})


for _class in (Plain, Poisoned, PoisonedContinuous, Stuck, UnusualAction, UnusualObservation):
    gymnasium.register(f"{_class.__name__}-v0", entry_point=f"{__name__}:{_class.__name__}")


def environment_id(name: str) -> str:
    return f"{__name__}:{name}-v0"

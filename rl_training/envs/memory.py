"""Small environments that need memory, registered with gymnasium when `rl_training.envs` is
imported.

| id | optimum | without memory at most |
|---|---|---|
| `RepeatPrevious-v0` | 1 | -0.49 |
| `TMaze-v0` | 1 | 0.5 |
| `CartPoleNoVel-v1` | 500 | about 45 |
| `PendulumNoVel-v1` | about -150 | about -1000 |
| `MountainCarContinuousNoVel-v0` | about 94 | 0 |
| `LunarLanderNoVel-v3` | about 280 | unknown |

The last four hide what the environment of that name says of velocities.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

Array = NDArray[np.float32]
Step = tuple[Array, float, bool, bool, dict[str, Any]]


class RepeatPrevious(gymnasium.Env[Array, Any]):
    """Cards of a shuffled deck, one a step; the action names the suit seen ``k`` steps ago.

    The observation is the card's suit, one-hot. Each right answer earns 1 / (cards - k), each wrong
    one costs as much; the first ``k`` answers do not count. An episode ends with the deck. Without
    memory the best guess is a suit other than the one in sight: 13 right of 51, a return of -0.49
    with one deck. After POPGym (Morad et al. 2023).

    Args:
        k: how many steps ago.
        decks: of 52 cards each.
    """

    def __init__(self, k: int = 4, decks: int = 1) -> None:
        self._suits = np.repeat(np.arange(4), 13 * decks)
        if not 1 <= k < len(self._suits):
            raise TypeError(f"invalid keyword argument: k must lie in [1, {len(self._suits) - 1}]")
        self._k = k
        self._worth = 1.0 / (len(self._suits) - k)
        self.observation_space = spaces.Box(0.0, 1.0, (4,), np.float32)
        self.action_space = spaces.Discrete(4)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        """Shuffle, and show the first card."""
        super().reset(seed=seed)
        self._cards = self.np_random.permutation(self._suits)
        self._seen = 0
        return self._observe(), {}

    def step(self, action: Any) -> Step:
        """Judge the answer, and show the next card."""
        asked = self._seen - self._k
        reward = 0.0
        if asked >= 0:
            reward = self._worth if int(action) == self._cards[asked] else -self._worth
        self._seen += 1
        return self._observe(), reward, self._seen == len(self._cards), False, {}

    def _observe(self) -> Array:
        shown = np.zeros(4, np.float32)
        if self._seen < len(self._cards):
            shown[self._cards[self._seen]] = 1.0
        return shown


class TMaze(gymnasium.Env[Array, Any]):
    """A corridor that leads to a junction; at its beginning a sign says which way to turn there.

    The observation is the sign (-1 or 1 at the first step, then 0) and whether this is the
    junction. Every step leads on, whatever the action; at the junction action 0 turns left (right
    for sign -1) and action 1 right (for sign 1). The right turn earns 1, the wrong one nothing: the
    return is the success, and 0.5 on average without memory. After Bakker (2002), without the way
    back.

    Args:
        length: steps between sign and junction.
    """

    def __init__(self, length: int = 10) -> None:
        if length < 1:
            raise TypeError("invalid keyword argument: length must be at least 1")
        self._length = length
        self.observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = spaces.Discrete(2)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        """Draw the sign and show it."""
        super().reset(seed=seed)
        self._sign = int(self.np_random.integers(2))
        self._position = 0
        return np.array([2.0 * self._sign - 1.0, 0.0], np.float32), {}

    def step(self, action: Any) -> Step:
        """Go on, or turn."""
        if self._position == self._length:
            return np.zeros(2, np.float32), float(int(action) == self._sign), True, False, {}
        self._position += 1
        junction = float(self._position == self._length)
        return np.array([0.0, junction], np.float32), 0.0, False, False, {}


class HiddenVelocity(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Shows zeros in place of some numbers of an observation.

    Args:
        env: with a Box of one dimension.
        hidden: their indices.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], hidden: Sequence[int]) -> None:
        super().__init__(env)
        self._hidden = list(hidden)

    def observation(self, observation: Any) -> Any:
        """Return a copy with the hidden numbers zero."""
        shown = np.array(observation)
        shown[self._hidden] = 0.0
        return shown


_HIDDEN = {
    "CartPole-v1": ("CartPoleNoVel-v1", (1, 3)),
    "Pendulum-v1": ("PendulumNoVel-v1", (2,)),
    "MountainCarContinuous-v0": ("MountainCarContinuousNoVel-v0", (1,)),
    "LunarLander-v3": ("LunarLanderNoVel-v3", (2, 3, 5)),
}


def _without_velocity(
    whole: str, hidden: Sequence[int], **arguments: Any
) -> gymnasium.Env[Any, Any]:
    env = gymnasium.make(whole, disable_env_checker=True, max_episode_steps=-1, **arguments)
    return HiddenVelocity(env.unwrapped, hidden)


def register() -> None:
    """Register all of them with gymnasium."""
    gymnasium.register("RepeatPrevious-v0", f"{__name__}:RepeatPrevious")
    gymnasium.register("TMaze-v0", f"{__name__}:TMaze")
    for whole, (name, hidden) in _HIDDEN.items():
        gymnasium.register(
            name,
            functools.partial(_without_velocity, whole, hidden),
            max_episode_steps=gymnasium.spec(whole).max_episode_steps,
        )


register()

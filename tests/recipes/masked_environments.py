"""An environment in which only some actions are legal, and which insists on them."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

SOURCES = ("info", "method", "observation")
IMAGE_SHAPE = (36, 36, 1)
"""Large enough for the nature encoder, which takes a quarter of the time of impala's."""
MASKED_ACTIONS: dict[str, Any] = {
    "Discrete": spaces.Discrete(5, start=-1),
    "MultiDiscrete": spaces.MultiDiscrete([3, 1, 4], start=[2, 0, -1]),
    "MultiBinary": spaces.MultiBinary(3),
}


def counts_of(kind: str) -> list[int]:
    """Return how many choices each action of ``MASKED_ACTIONS[kind]`` has."""
    return {"Discrete": [5], "MultiDiscrete": [3, 1, 4], "MultiBinary": [2, 2, 2]}[kind]


def start_of(kind: str) -> Any:
    return getattr(MASKED_ACTIONS[kind], "start", 0)


def legal(mask: Any, action: Any, kind: str = "Discrete") -> bool:
    """Return whether a mask ``[n]`` has all of an ``action`` of the environment."""
    chosen = np.atleast_1d(np.asarray(action, np.int64) - start_of(kind))
    parts = np.split(np.asarray(mask), np.cumsum(counts_of(kind))[:-1])
    return all(part[choice] for part, choice in zip(parts, chosen, strict=True))


def all_legal(masks: Any, actions: Any, kind: str) -> bool:
    """Return whether masks ``[N, n]`` have all of their actions."""
    return all(legal(*pair, kind) for pair in zip(masks, actions, strict=True))


def draw_mask(draws: Any, kind: str = "Discrete") -> np.ndarray[Any, Any]:
    """Return a random mask ``[n]`` with at least one legal choice of every action."""
    parts = []
    for count in counts_of(kind):
        part = draws.random(count) < 0.4
        part[draws.integers(count)] = True
        parts.append(part)
    return np.concatenate(parts)


class Masked(gymnasium.Env[Any, Any]):
    """Random legal actions at every step; insists on them, and pays the sum of their numbers.
    Episodes are of 3 to 12 steps and end or are cut, with no action legal then.

    Args:
        source: of the masks.
        kind: of the actions.
        dead_end: a step at which the last action has no legal choice, in the episode of seed
            ``only`` (None: in every one).
        key: in the info.
        image: whether an image of bytes is seen instead of two numbers.
    """

    def __init__(
        self,
        source: str,
        kind: str = "Discrete",
        *,
        dead_end: int | None = None,
        only: int | None = None,
        key: str = "action_mask",
        image: bool = False,
    ) -> None:
        self.source, self.kind, self.key = source, kind, key
        self.dead_end, self.only = dead_end, only
        vector: Any = spaces.Box(-1.0, 1.0, (2,), np.float64)
        self.image = image
        if image:
            vector = spaces.Box(0, 255, IMAGE_SHAPE, np.uint8)
        self.action_space = MASKED_ACTIONS[kind]
        masks = spaces.MultiBinary(sum(counts_of(kind)))
        self.observation_space = (
            spaces.Dict({"place": vector, "action_mask": masks})
            if source == "observation"
            else vector
        )

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.is_dead_end = self.only in (None, seed)
        self.steps, self.length = 0, int(self.np_random.integers(3, 13))
        return self._observe()

    def _observe(self) -> tuple[Any, dict[str, Any]]:
        self.mask = draw_mask(self.np_random, self.kind).astype(np.int8)
        if self.steps >= self.length:
            self.mask[:] = 0
        if self.is_dead_end and self.steps == self.dead_end:
            self.mask[-counts_of(self.kind)[-1] :] = 0
        place: Any = self.np_random.uniform(-1, 1, 2)
        if self.image:
            place = self.np_random.integers(256, size=IMAGE_SHAPE, dtype=np.uint8)
        if self.source == "observation":
            return {"place": place, "action_mask": self.mask}, {}
        return place, {self.key: self.mask} if self.source == "info" else {}

    def action_masks(self) -> Any:
        return self.mask.astype(bool)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert legal(self.mask, action, self.kind), f"{action} is illegal, {self.mask}"
        self.steps += 1
        over = self.steps >= self.length
        cut = bool(self.np_random.random() < 0.5)
        observation, information = self._observe()
        return observation, float(np.sum(action)), over and not cut, over and cut, information

"""A small game on images in which the best return is known."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

CELLS = 12
Image = NDArray[np.uint8]


class Catch(gymnasium.Env[Any, Any]):
    """A ball falls from a random column; 1 for catching it with the paddle below, else -1.

    Observations are uint8 ``[1, size, size]``; an episode takes 11 steps of left, stay or right.
    """

    def __init__(self, size: int = CELLS) -> None:
        self._zoom = size // CELLS
        self.observation_space = spaces.Box(0, 255, (1, size, size), np.uint8)
        self.action_space = spaces.Discrete(3)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Image, dict[str, Any]]:
        super().reset(seed=seed)
        self._row, self._ball = 0, int(self.np_random.integers(CELLS))
        self._paddle = int(self.np_random.integers(CELLS))
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Image, float, bool, bool, dict[str, Any]]:
        self._paddle = min(max(self._paddle + int(action) - 1, 0), CELLS - 1)
        self._row += 1
        over = self._row == CELLS - 1
        reward = (1.0 if self._paddle == self._ball else -1.0) if over else 0.0
        return self._observe(), reward, over, False, {}

    def _observe(self) -> Image:
        image = np.zeros((1, CELLS, CELLS), np.uint8)
        image[0, self._row, self._ball] = 255
        image[0, CELLS - 1, self._paddle] = 255
        return image.repeat(self._zoom, 1).repeat(self._zoom, 2)

"""Recurrent PPO on images and continuous actions, through an encoder of a user's own."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn

from tests.recipes.runs import iterate, make


class Convolution(nn.Module):
    """An encoder of images ``[*batch, 1, 6, 6]``."""

    def __init__(self, *, observation_shape: Any, hidden_sizes: Any, activation: str) -> None:
        super().__init__()
        self.layer = nn.Conv2d(observation_shape[0], 2, 3)
        self.output_size = 2 * 4 * 4

    def forward(self, observation: Tensor) -> Tensor:
        batch = observation.shape[:-3]
        images = observation.reshape(-1, *observation.shape[-3:]).float() / 255
        return self.layer(images).relu().reshape(*batch, self.output_size)


class Flashes(gymnasium.Env[Any, Any]):
    """Random images of 6 x 6 pixels; episodes of 5 steps; a Box of two numbers to do."""

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Box(0, 255, (1, 6, 6), np.uint8)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._steps = 0
        return self._image(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        return self._image(), float(action.sum()), False, self._steps == 5, {}

    def _image(self) -> Any:
        return self.np_random.integers(0, 256, (1, 6, 6), np.uint8)


def test_images_go_through_an_encoder_of_one_s_own() -> None:
    encoder = f"{__name__}:Convolution"
    algorithm = make("recurrent_ppo", Flashes, encoder=encoder, previous_action=True)
    batch = iterate(algorithm, 2)[0][1]
    assert batch["observation"].dtype == torch.uint8
    assert any("layer" in name for name, _ in algorithm.model.value_encoder.named_parameters())
    policy = algorithm.stateful_policy()
    for _ in range(3):
        assert policy.predict(np.zeros((2, 1, 6, 6), np.uint8)).shape == (2, 2)

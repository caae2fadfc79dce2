"""Continuous actions of any shape: the policy's arithmetic is flat, what it says has the shape."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn
from torch.distributions import Normal

from rl_training import PPO
from tests.api.runs import SMALL, make

SHAPES = [(), (3, 2), (2, 1, 2)]


class Shaped(gymnasium.Env[Any, Any]):
    """Four steps; insists on actions of its shape within its bounds."""

    def __init__(self, *, shape: tuple[int, ...]) -> None:
        self.observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = spaces.Box(-1.0, 1.0, shape, np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.time = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert np.shape(action) == self.action_space.shape
        assert np.abs(action).max() <= 1
        self.time += 1
        reward = -float(np.square(action).sum())
        return np.full(2, self.time / 4, np.float32), reward, False, self.time == 4, {}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("how", [{}, {"gsde": True}, {"squash": True}, {"vectorization": "async"}])
@pytest.mark.parametrize("name", ["ppo", "ppg"])
def test_actions_keep_the_shape_of_the_environment(
    name: str, how: dict[str, Any], shape: tuple[int, ...], tmp_path: Path
) -> None:
    algorithm = make(name, env=lambda: Shaped(shape=shape), **how)
    algorithm.learn(128)
    batch = next(iter(algorithm.collector()))
    assert batch["action"].shape == (2, 32, *shape)
    assert algorithm.predict(np.zeros(2, np.float32))[0].shape == shape
    sampled, _ = algorithm.predict(np.zeros((5, 2), np.float32), deterministic=False)
    assert sampled.shape == (5, *shape)
    written = algorithm.policy(TensorDict({"observation": torch.zeros(5, 2)}, [5]))
    assert written["action"].shape == (5, *shape)
    head = algorithm.model.action_head
    log_probability, _ = head.evaluate(
        algorithm.model.distribution(torch.zeros(5, 2)), written["action"]
    )
    torch.testing.assert_close(written["action_log_prob"], log_probability)
    algorithm.close()


@pytest.mark.parametrize("shape", SHAPES)
def test_the_log_probability_is_the_sum_over_all_numbers_of_an_action(
    shape: tuple[int, ...],
) -> None:
    algorithm = make(env=lambda: Shaped(shape=shape))
    head, features = algorithm.model.action_head, torch.randn(6, 16)
    action = torch.randn(6, *shape)
    mean, log_std = head(features)
    assert mean.shape == (6, math.prod(shape))
    normal: Any = Normal(mean.reshape(action.shape), log_std.exp().reshape(action.shape))
    expected = normal.log_prob(action).reshape(6, -1).sum(-1)
    torch.testing.assert_close(head.evaluate((mean, log_std), action)[0], expected)


@pytest.mark.parametrize("shaped", [False, True])
def test_networks_of_ones_own_may_write_either_shape(shaped: bool) -> None:
    class Policy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 6)

        def forward(self, observation: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            mean = self.layer(observation)
            if shaped:
                mean = mean.unflatten(-1, (3, 2))
            return mean, torch.ones_like(mean)

    policy = TensorDictModule(Policy(), in_keys=["observation"], out_keys=["loc", "scale"])
    value = TensorDictModule(nn.Linear(2, 1), in_keys=["observation"], out_keys=["state_value"])
    algorithm = PPO(lambda: Shaped(shape=(3, 2)), networks=(policy, value), **SMALL).learn(64)
    assert algorithm.predict(np.zeros(2, np.float32))[0].shape == (3, 2)


def test_a_ragged_observation_is_refused_in_one_line() -> None:
    algorithm = make(env=lambda: Shaped(shape=(2,)))
    with pytest.raises(ValueError, match="different lengths"):
        algorithm.predict([[0.0, 0.0], [1.0]])
    with pytest.raises(ValueError, match="holds no numbers"):
        algorithm.predict("text")

"""Tiny environments whose every value follows from the reset seed by hand, and configs for them."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from tensordict import TensorDict, TensorDictBase

from rl_training.config import EnvConfig, TrainConfig
from rl_training.envs import VectorEnv, episode_seed, make_batched_env


class Counter(gymnasium.Env[Any, Any]):
    """Counts steps from a random start, which also decides the episode's length and kind of end.

    Observation: [start + t, sum of actions], one buffer that every step and reset overwrites.
    Reward: t + action / 8. The episode ends after 2 + start % 4 steps: terminated for an even
    start, truncated for an odd one.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012

    def __init__(self, *, start: int = 0, dtype: Any = np.float32) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), dtype)
        self.action_space: Any = spaces.Discrete(3, start=start)
        self.buffer = np.zeros(2, dtype)
        self.received: list[Any] = []

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.first = int(self.np_random.integers(0, 1000))
        self.time = 0
        self.buffer[:] = (self.first, 0)
        return self.buffer, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.time < 2 + self.first % 4, "stepped after the end of its episode"
        self.received.append(action)
        self.time += 1
        self.buffer += (1, action)
        ended = self.time == 2 + self.first % 4
        terminal = ended and self.first % 2 == 0
        reward = self.time + float(action) / 8
        return self.buffer, reward, terminal, ended and not terminal, {}


class Unrepeatable(Counter):
    """Every second one made shows something that its reset seed does not decide."""

    made = 0

    def __init__(self) -> None:
        super().__init__()
        self.extra = float(Unrepeatable.made % 2) * float(Unrepeatable.made)
        Unrepeatable.made += 1

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        observation, info = super().reset(seed=seed)
        observation[1] = self.extra
        return observation, info


class Continuous(gymnasium.Env[Any, Any]):
    """Shows the action it received; asymmetric float64 bounds."""

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012

    def __init__(
        self, low: Any = (-1.0, 0.5), high: Any = (2.0, 4.0), dtype: Any = np.float64
    ) -> None:
        self.action_space = spaces.Box(np.array(low, dtype), np.array(high, dtype), dtype=dtype)
        self.observation_space = spaces.Box(-np.inf, np.inf, (len(low),), np.float64)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self.np_random.normal(size=self.observation_space.shape), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert action.dtype == self.action_space.dtype
        observation = action.astype(np.float64) + 1e-12
        # Spoils the array it was given, as some environments do.
        action *= 0
        return observation, float(observation.sum()), False, False, {}


class Samples(Counter):
    """Draws from its action space, as environments with random no-ops do."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, reward, terminal, limit, info = super().step(action)
        observation[1] = self.action_space.sample()
        return observation, reward, terminal, limit, info


class Fails(Counter):
    """Row failures: breaks at the second step of an episode whose first count is odd."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.time == 1 and self.first % 2:
            raise ZeroDivisionError("spoon")
        return super().step(action)


def make_config(
    env_id: str = "CartPole-v1", *, num_envs: int = 3, seed: int = 1, **env: Any
) -> TrainConfig:
    return TrainConfig(
        algo="ppo", env_id=env_id, num_envs=num_envs, seed=seed, env=EnvConfig(**env)
    )


def make_vector(
    env: Any = None, *, config: TrainConfig | None = None, **settings: Any
) -> VectorEnv:
    config = config or make_config(**settings)
    return make_batched_env(config, env, gamma=0.9)


def random_actions(environment: VectorEnv, generator: torch.Generator) -> torch.Tensor:
    space = environment.single_action_space
    if isinstance(space, spaces.Discrete):
        return torch.randint(int(space.n), (environment.num_envs,), generator=generator)
    return torch.randn((environment.num_envs, *environment.action_map.shape), generator=generator)


def collect(
    environment: VectorEnv,
    steps: int,
    generator: torch.Generator,
    root: TensorDictBase | None = None,
) -> TensorDictBase:
    """Return ``[N, steps]`` transitions under random actions, from ``root`` or a reset."""
    root = environment.reset() if root is None else root
    transitions = []
    for _ in range(steps):
        root["action"] = random_actions(environment, generator)
        transition, root = environment.step_and_maybe_reset(root)
        transitions.append(transition)
    return TensorDict.maybe_dense_stack(transitions, dim=1)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def script(seed: int, row: int, actions: Any) -> dict[str, list[Any]]:
    """What one row must give, from the rules in the Counter's docstring and nothing else."""
    columns: dict[str, list[Any]] = {
        key: []
        for key in (
            "observation",
            "is_init",
            "next",
            "reward",
            "terminated",
            "truncated",
            "return",
            "length",
        )
    }
    episode = -1
    length = time = 0
    for action in actions:
        if time == length:
            episode += 1
            start = int(np.random.default_rng(episode_seed(seed, row, episode)).integers(0, 1000))
            time, length, total, summed = 0, 2 + start % 4, 0.0, 0
        columns["observation"].append([start + time, summed])
        columns["is_init"].append(time == 0)
        time, summed = time + 1, summed + action
        reward = time + action / 8
        total += reward
        columns["next"].append([start + time, summed])
        columns["reward"].append(reward)
        columns["terminated"].append(time == length and start % 2 == 0)
        columns["truncated"].append(time == length and start % 2 == 1)
        columns["return"].append(total)
        columns["length"].append(time)
    return columns

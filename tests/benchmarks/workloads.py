"""The fixed workloads that both libraries are timed on, with the same settings for each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Workload:
    """One environment with one algorithm's settings; ``steps`` environment steps are timed."""

    algorithm: str
    """Name of its class, in both libraries."""
    env_id: str
    steps: int
    warm_up_steps: int
    """Environment steps before the timed ones: compilation lies there, and random actions."""
    num_envs: int = 1
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Hyperparameters, under this library's names."""
    linear_schedules: bool = False
    normalize: bool = False
    atari: bool = False
    """In the standard pipeline, with the nature network."""

    @property
    def on_policy(self) -> bool:
        """Whether it learns from rollouts, not from replay."""
        return "num_steps" in self.settings


_PPO = {
    "clip_epsilon": 0.2,
    "value_coefficient": 0.5,
    "entropy_coefficient": 0.0,
    "max_gradient_norm": 0.5,
}

_CARTPOLE: dict[str, Any] = {
    "steps": 51_200,
    "warm_up_steps": 512,
    "num_envs": 8,
    "linear_schedules": True,
    "settings": {
        **_PPO,
        "num_steps": 32,
        "minibatch_size": 256,
        "num_epochs": 20,
        "learning_rate": 1e-3,
        "discount": 0.98,
        "gae_lambda": 0.8,
    },
}

WORKLOADS = {
    "ppo_cartpole": Workload(algorithm="PPO", env_id="CartPole-v1", **_CARTPOLE),
    "recurrent_ppo_cartpole": Workload(
        algorithm="RecurrentPPO",
        env_id="CartPoleNoVel-v1",
        steps=20_480,
        warm_up_steps=512,
        num_envs=8,
        linear_schedules=True,
        settings={
            **_PPO,
            "num_steps": 32,
            "minibatch_size": 256,
            "num_epochs": 20,
            "learning_rate": 1e-3,
            "discount": 0.98,
            "gae_lambda": 0.8,
            # An LSTM each for policy and value function, on the observations themselves.
            "memory_size": 64,
            "hidden_sizes": [],
            "output_sizes": [64],
        },
    ),
    "ppo_cartpole_vector": Workload(
        algorithm="PPO",
        env_id="tests.benchmarks.parts:CartPoleVector-v1",
        **_CARTPOLE,
    ),
    "ppo_cartpole_dict": Workload(
        algorithm="PPO",
        env_id="tests.benchmarks.parts:CartPoleDict-v1",
        **_CARTPOLE,
    ),
    "ppo_pendulum": Workload(
        algorithm="PPO",
        env_id="Pendulum-v1",
        steps=16_384,
        warm_up_steps=8_192,
        num_envs=4,
        settings={
            **_PPO,
            "num_steps": 1024,
            "minibatch_size": 64,
            "num_epochs": 10,
            "learning_rate": 1e-3,
            "discount": 0.9,
            "gae_lambda": 0.95,
        },
    ),
    "ppo_halfcheetah": Workload(
        algorithm="PPO",
        env_id="HalfCheetah-v5",
        steps=10_240,
        warm_up_steps=4_096,
        normalize=True,
        settings={
            **_PPO,
            "num_steps": 2048,
            "minibatch_size": 64,
            "num_epochs": 10,
            "learning_rate": 3e-4,
            "discount": 0.99,
            "gae_lambda": 0.95,
        },
    ),
    "dqn_cartpole": Workload(
        algorithm="DQN",
        env_id="CartPole-v1",
        steps=20_480,
        warm_up_steps=1_536,
        settings={
            "learning_rate": 2.3e-3,
            "minibatch_size": 64,
            "replay_capacity": 100_000,
            "warm_up": 1_000,
            "target_update_interval": 10,
            "train_every": 256,
            "gradient_steps_per_step": 0.5,
            "exploration_fraction": 0.16,
            "exploration_final": 0.04,
            "hidden_sizes": [256, 256],
        },
    ),
    "sac_pendulum": Workload(
        algorithm="SAC",
        env_id="Pendulum-v1",
        steps=1_500,
        warm_up_steps=200,
        settings={"learning_rate": 1e-3, "warm_up": 100, "hidden_sizes": [256, 256]},
    ),
    "td3_pendulum": Workload(
        algorithm="TD3",
        env_id="Pendulum-v1",
        steps=1_500,
        warm_up_steps=200,
        settings={"learning_rate": 1e-3, "warm_up": 100, "hidden_sizes": [256, 256]},
    ),
    "ppo_breakout": Workload(
        algorithm="PPO",
        env_id="BreakoutNoFrameskip-v4",
        steps=4_096,
        warm_up_steps=1_024,
        num_envs=8,
        atari=True,
        settings={
            **_PPO,
            "num_steps": 128,
            "minibatch_size": 256,
            "num_epochs": 4,
            "learning_rate": 2.5e-4,
            "clip_epsilon": 0.1,
            "entropy_coefficient": 0.01,
            "discount": 0.99,
            "gae_lambda": 0.95,
        },
    ),
    "dqn_breakout": Workload(
        algorithm="DQN",
        env_id="BreakoutNoFrameskip-v4",
        steps=2_000,
        warm_up_steps=400,
        atari=True,
        settings={
            "learning_rate": 1e-4,
            "minibatch_size": 32,
            "replay_capacity": 5_000,
            "warm_up": 200,
            "target_update_interval": 1_000,
            "train_every": 4,
            "gradient_steps_per_step": 0.25,
        },
    ),
}

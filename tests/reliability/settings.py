"""Tiny trainings that between them reach every part of the state a run has to carry on exactly."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

NUM_ENVS = 4
NUM_STEPS = 32
FRAMES = NUM_ENVS * NUM_STEPS
ITERATIONS = 16

_ON_POLICY = ("ppo", "ppg", "recurrent_ppo", "recurrent_ppg")

_BASE: dict[str, Any] = {
    "env_id": "CartPole-v1",
    "seed": 3,
    "num_envs": NUM_ENVS,
    "total_timesteps": ITERATIONS * FRAMES,
    "algorithm": {"minibatch_size": 32, "learning_rate": 1e-3},
    "model": {"hidden_sizes": [16, 16]},
    # No interval is a multiple of an iteration's steps, nor of another one.
    "evaluation": {"interval": 900, "episodes": 2, "num_envs": 2},
    "checkpoint": {"interval": 3 * FRAMES - 50},
    "tracking": {"tensorboard": False},
}
_ROLLOUT = {"num_steps": NUM_STEPS}
# The buffer overflows in the middle, and no interval is a multiple of another.
_REPLAY = {
    "train_every": FRAMES,
    "warm_up": 200,
    "gradient_steps_per_step": 0.07,
    "replay_capacity": 1100,
}
_NORMALIZED = {"normalize_observation": True, "normalize_reward": True}
_CYCLE = {
    "policy_iterations": 5,  # longer than the interval of checkpoints
    "policy_epochs": 2,
    "value_epochs": 1,
    "auxiliary_epochs": 2,
    "auxiliary_minibatches": 4,
}
_GSDE = {"gsde": True, "gsde_resample_interval": 5, "log_std_init": -1.0}

SETTINGS: dict[str, dict[str, Any]] = {
    "ppo_cartpole": {
        "algo": "ppo",
        "algorithm": {
            "num_epochs": 2,
            "learning_rate_schedule": "linear",
            "clip_schedule": "linear",
            "target_kl": 0.05,
        },
        # Lines are not logged at every iteration, and not at those that write checkpoints.
        "tracking": {"tensorboard": True, "log_interval": 2 * FRAMES - 10},
    },
    "ppo_pendulum_gsde_normalized": {
        "algo": "ppo",
        "env_id": "Pendulum-v1",
        "algorithm": {"num_epochs": 2, "value_clip_epsilon": 0.2, **_GSDE},
        "env": _NORMALIZED,
    },
    "ppg_cartpole_normalized": {"algo": "ppg", "algorithm": _CYCLE, "env": _NORMALIZED},
    "ppg_pendulum_shared": {
        "algo": "ppg",
        "env_id": "Pendulum-v1",
        "algorithm": {
            **_CYCLE,
            "value_epochs": 2,
            "architecture": "shared",
            "squash": True,
            "auxiliary_iterations": 7,
            "auxiliary_storage": "disk",
        },
    },
    "ppo_lunarlander": {
        "algo": "ppo",
        "env_id": "LunarLander-v3",
        "algorithm": {"num_epochs": 1},
        "env": {"normalize_reward": True},
    },
    # A step of workers takes milliseconds: iterations are half as long.
    "ppg_cartpole_async": {
        "algo": "ppg",
        "total_timesteps": ITERATIONS * FRAMES // 2,
        "algorithm": {**_CYCLE, "num_steps": NUM_STEPS // 2},
        "env": {"vectorization": "async", "normalize_observation": True},
        "evaluation": {"interval": 450, "episodes": 1, "num_envs": 1},
        "checkpoint": {"interval": 3 * FRAMES // 2 - 25},
    },
    "recurrent_ppo_cartpole": {
        "algo": "recurrent_ppo",
        "env_id": "CartPoleNoVel-v1",
        "algorithm": {"num_epochs": 2, "memory_size": 16, "sequence_length": 16, "burn_in": 4},
    },
    "recurrent_ppg_cartpole": {
        "algo": "recurrent_ppg",
        "env_id": "CartPoleNoVel-v1",
        "algorithm": {
            **_CYCLE,
            "memory_size": 16,
            "sequence_length": 16,
            "auxiliary_iterations": 3,
        },
    },
    "recurrent_ppo_pendulum": {
        "algo": "recurrent_ppo",
        "env_id": "PendulumNoVel-v1",
        "algorithm": {
            "num_epochs": 2,
            "memory": "gru",
            "memory_size": 16,
            "memory_layers": 2,
            "critic_memory": "shared",
            "previous_action": True,
            "previous_reward": True,
        },
        "env": {"normalize_observation": True},
    },
    "dqn_cartpole_prioritized": {
        "algo": "dqn",
        "algorithm": {
            "prioritized": True,
            "double": True,
            "n_steps": 3,
            "target_update_interval": 300,
            "exploration_fraction": 0.5,
        },
    },
    "dqn_cartpole_rainbow": {
        "algo": "dqn",
        "algorithm": {"rainbow": True, "num_atoms": 11, "tau": 0.1, "target_update_interval": 50},
    },
    "sac_pendulum": {
        "algo": "sac",
        "env_id": "Pendulum-v1",
        "algorithm": {"learning_rate_schedule": "linear"},
    },
    "sac_pendulum_gsde": {
        "algo": "sac",
        "env_id": "Pendulum-v1",
        "algorithm": {"gsde": True, "gsde_resample_interval": 5, "precision": "bfloat16"},
    },
    "sac_cartpole": {"algo": "sac"},
    "td3_pendulum": {
        "algo": "td3",
        "env_id": "Pendulum-v1",
        "algorithm": {"exploration_noise": "ornstein_uhlenbeck", "policy_delay": 3, "n_steps": 2},
    },
    "ppg_pendulum_compiled": {
        "algo": "ppg",
        "env_id": "Pendulum-v1",
        "compile": True,
        "algorithm": {**_CYCLE, "value_epochs": 2},
    },
}


def setting(name: str, **changes: Any) -> dict[str, Any]:
    """Return a setting as the content of a config file; a group in ``changes`` is merged."""
    content = merged(_BASE, SETTINGS[name])
    common = _ROLLOUT if content["algo"] in _ON_POLICY else _REPLAY
    content["algorithm"] = {**common, **content["algorithm"]}
    return merged(content, changes)


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    result = copy.deepcopy(dict(base))
    for key, value in changes.items():
        nested = isinstance(value, Mapping) and isinstance(result.get(key), Mapping)
        result[key] = merged(result[key], value) if nested else copy.deepcopy(value)
    return result


def write_setting(path: Path, content: Mapping[str, Any]) -> Path:
    """Write a config file; JSON is YAML."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content), encoding="utf-8")
    return path

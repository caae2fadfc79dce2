"""A game on images is learned to its ceiling: minutes each (`make test-slow`)."""

from __future__ import annotations

from typing import Any

import pytest

from rl_training.registry import algorithm_class
from tests.recipes.image_environments import CELLS, Catch

COMMON: dict[str, Any] = {
    "num_envs": 8,
    "num_steps": 64,
    "minibatch_size": 128,
    "learning_rate": 1e-3,
    "learning_rate_schedule": "linear",
    "entropy_coefficient": 0.01,
    "discount": 0.99,
    "max_gradient_norm": 0.5,
}
SETTINGS: dict[str, tuple[int, dict[str, Any]]] = {
    "ppo": (100_000, {"num_epochs": 4, "shared_trunk": True, "feature_size": 128}),
    "ppg": (
        100_000,
        {
            "encoder": "impala",
            "feature_size": 64,
            "architecture": "detach",
            "policy_iterations": 4,
            "policy_epochs": 4,
            "value_epochs": 4,
            "auxiliary_epochs": 3,
            "auxiliary_minibatches": 16,
            "auxiliary_learning_rate": 1e-3,
            "clone_coefficient": 3.0,
        },
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SETTINGS)
def test_catch_is_learned(name: str) -> None:
    steps, changes = SETTINGS[name]
    size = 3 * CELLS if name == "ppo" else CELLS
    agent = algorithm_class(name)(lambda: Catch(size), seed=1, **{**COMMON, **changes})
    assert agent.evaluate(episodes=100)["return_mean"] < 0.2
    agent.learn(steps)
    assert agent.evaluate(episodes=200)["return_mean"] >= 0.95

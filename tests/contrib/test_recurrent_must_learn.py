"""What memory is for is learnt with it, and not without."""

from __future__ import annotations

from typing import Any

import pytest

from rl_training.envs import TMaze
from tests.recipes.runs import make

SETTINGS: dict[str, Any] = {
    "num_steps": 32,
    "minibatch_size": 64,
    "num_envs": 8,
    "learning_rate": 5e-3,
    "discount": 0.95,
    "entropy_coefficient": 0.01,
    "max_gradient_norm": 0.5,
    "hidden_sizes": [],
}
MEMORIES: dict[str, dict[str, Any]] = {
    "lstm": {"sequence_length": 32},
    "gru": {"sequence_length": 8, "memory": "gru", "critic_memory": "shared"},
    "burn_in": {"sequence_length": 8, "burn_in": 4, "memory": "gru"},
}


@pytest.mark.parametrize("name", ["recurrent_ppo", "recurrent_ppg"])
@pytest.mark.parametrize("memory", MEMORIES)
def test_the_turn_that_a_sign_showed_is_learnt(name: str, memory: str) -> None:
    settings = {**SETTINGS, **MEMORIES[memory]}
    if name == "recurrent_ppg" and settings.get("critic_memory") == "shared":
        settings["architecture"] = "shared"
    algorithm = make(name, lambda: TMaze(length=4), **settings).learn(3_072)
    assert algorithm.evaluate(episodes=64)["return_mean"] > 0.95


def test_without_memory_it_stays_a_coin() -> None:
    """In twice as many steps."""
    settings = {**SETTINGS, "hidden_sizes": [16]}
    algorithm = make("ppo", lambda: TMaze(length=4), **settings).learn(6_144)
    assert algorithm.evaluate(episodes=128)["return_mean"] < 0.7

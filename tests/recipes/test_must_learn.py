"""Each algorithm learns tiny environments whose best return is known."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rl_training.registry import ALGORITHMS
from tests.recipes.environments import FiveSteps
from tests.recipes.runs import ENVIRONMENTS, make, make_ppo

EASY: dict[str, Any] = {"num_steps": 64, "minibatch_size": 64, "max_gradient_norm": 0.5}


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize(
    ("kind", "steps", "goal"), [("discrete", 5_000, 15.9), ("box", 16_000, 15)]
)
def test_learns_the_action_that_each_context_tells(
    name: str, kind: str, steps: int, goal: float
) -> None:
    algorithm = make(name, ENVIRONMENTS[kind], **EASY)
    assert algorithm.evaluate(episodes=16)["return_mean"] < 13
    algorithm.learn(steps)
    assert algorithm.evaluate(episodes=16)["return_mean"] >= goal


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize(
    "noise",
    [
        {"squash": True},
        {"gsde": True, "log_std_init": -2.0},
        {"gsde": True, "log_std_init": -2.0, "gsde_resample_interval": 4},
    ],
)
def test_learns_with_squashed_actions_and_with_state_dependent_noise(
    name: str, noise: dict[str, Any]
) -> None:
    algorithm = make(name, ENVIRONMENTS["box"], **EASY, **noise)
    algorithm.learn(16_000)
    assert algorithm.evaluate(episodes=16)["return_mean"] >= 15


def test_the_value_of_endless_reward_one_cut_after_five_steps_goes_to_ten() -> None:
    algorithm = make_ppo(FiveSteps, **EASY, num_epochs=10).learn(8192)
    # 1 / (1 - 0.9)
    assert algorithm.model.value(torch.ones(1)).item() == pytest.approx(10.0, abs=0.3)


def test_the_value_of_reward_one_that_ends_after_five_steps_is_their_sum() -> None:
    algorithm = make_ppo(lambda: FiveSteps(terminates=True), **EASY, num_epochs=10).learn(8192)
    returns = [sum(0.9**step for step in range(length)) for length in range(1, 6)]
    # All five steps look alike: the mean of their values.
    expected = sum(returns) / 5
    assert algorithm.model.value(torch.ones(1)).item() == pytest.approx(expected, abs=0.3)

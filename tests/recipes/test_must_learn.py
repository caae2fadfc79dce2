"""Each algorithm learns tiny environments whose best return is known."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rl_training.registry import ALGORITHMS
from tests.recipes.environments import FiveSteps
from tests.recipes.runs import ENVIRONMENTS, ON_POLICY, make, make_ppo

_ON_POLICY: dict[str, Any] = {
    "num_envs": 16,
    "num_steps": 16,
    "minibatch_size": 64,
    "max_gradient_norm": 0.5,
}
_FAST: dict[str, Any] = {"learning_rate": 0.01}
_REPLAY: dict[str, Any] = {
    **_FAST,
    "minibatch_size": 64,
    "gradient_steps_per_step": 0.5,
    "train_every": 16,
}
EASY: dict[str, dict[str, Any]] = {
    "ppo": _ON_POLICY,
    "ppg": _ON_POLICY,
    "recurrent_ppo": _ON_POLICY,
    "recurrent_ppg": _ON_POLICY,
    "dqn": {**_REPLAY, "exploration_final": 0.3},
    "sac": {**_REPLAY, "target_entropy": 0.2},
    "td3": {**_REPLAY, "exploration_deviation": 0.3},
}
# Seeds 1 to 4 reach the goals at these steps, with a margin of at least 0.3 where one can be.
TASKS = [
    *((name, "discrete", 1_536, 15.9, _FAST) for name in ON_POLICY),
    ("ppo", "box", 6_400, 15.0, _FAST),
    ("ppg", "box", 12_000, 15.0, {}),
    ("dqn", "discrete", 800, 15.9, {}),
    ("dqn", "discrete", 800, 15.9, {"rainbow": True, "value_min": 0.0}),
    ("sac", "discrete", 800, 15.9, {}),
    ("sac", "box", 800, 15.0, {"target_entropy": None}),
    ("sac", "box", 800, 15.0, {"target_entropy": None, "gsde": True, "log_std_init": -1.0}),
    ("td3", "box", 800, 15.0, {}),
]


def test_every_algorithm_has_to_learn() -> None:
    assert {name for name, *_ in TASKS} == set(ALGORITHMS)


@pytest.mark.parametrize(("name", "kind", "steps", "goal", "options"), TASKS)
def test_learns_the_action_that_each_context_tells(
    name: str, kind: str, steps: int, goal: float, options: dict[str, Any]
) -> None:
    algorithm = make(name, ENVIRONMENTS[kind], **{**EASY[name], **options})
    assert algorithm.evaluate(episodes=16)["return_mean"] < 13
    algorithm.learn(steps)
    assert algorithm.evaluate(episodes=16)["return_mean"] >= goal


@pytest.mark.parametrize("name", ["ppo", "ppg"])
@pytest.mark.parametrize(
    "noise",
    [
        {"squash": True, **_FAST},
        {"gsde": True, "log_std_init": -2.0},
        {"gsde": True, "log_std_init": -2.0, "gsde_resample_interval": 4},
    ],
)
def test_learns_with_squashed_actions_and_with_state_dependent_noise(
    name: str, noise: dict[str, Any]
) -> None:
    algorithm = make(name, ENVIRONMENTS["box"], **_ON_POLICY, **noise)
    algorithm.learn(4_000 if "gsde" in noise else 6_400)
    assert algorithm.evaluate(episodes=16)["return_mean"] >= 15


# Every rollout is of whole episodes, and so of every step alike.
FIVE_STEPS: dict[str, Any] = {**_ON_POLICY, **_FAST, "num_steps": 20, "num_epochs": 10}
FIVE_STEPS["minibatch_size"] = 160


def test_the_value_of_endless_reward_one_cut_after_five_steps_goes_to_ten() -> None:
    algorithm = make_ppo(FiveSteps, **FIVE_STEPS).learn(5_000)
    # 1 / (1 - 0.9)
    assert algorithm.model.value(torch.ones(1)).item() == pytest.approx(10.0, abs=0.3)


def test_the_value_of_reward_one_that_ends_after_five_steps_is_their_sum() -> None:
    algorithm = make_ppo(lambda: FiveSteps(terminates=True), **FIVE_STEPS).learn(5_000)
    returns = [sum(0.9**step for step in range(length)) for length in range(1, 6)]
    # All five steps look alike: the mean of their values.
    expected = sum(returns) / 5
    assert algorithm.model.value(torch.ones(1)).item() == pytest.approx(expected, abs=0.3)

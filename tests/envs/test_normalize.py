from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rl_training.envs.normalize import (
    Normalizer,
    ObservationNormalizer,
    RewardNormalizer,
    RunningMeanStd,
)
from rl_training.errors import UserError


def both(*, frozen: bool = False) -> Normalizer:
    return Normalizer(
        observation=ObservationNormalizer((2,)),
        reward=RewardNormalizer(3, gamma=0.9),
        frozen=frozen,
    )


def test_running_statistics_equal_those_of_all_the_data() -> None:
    data = np.random.default_rng(0).normal(3.0, 2.0, (1000, 4)) * [1, 10, 1e3, 0.5]
    running = RunningMeanStd((4,))
    for batch in np.split(data, [1, 8, 16, 200, 950]):
        running.update(batch)
    # The first 1e-4 samples, mean 0 and variance 1, weigh in a millionth.
    np.testing.assert_allclose(running.mean, data.mean(axis=0), rtol=1e-6)
    np.testing.assert_allclose(running.var, data.var(axis=0), rtol=1e-5)
    assert running.count == pytest.approx(1000.0001)


def test_float32_batches_are_added_up_in_float64() -> None:
    running = RunningMeanStd((1,))
    running.update(np.full((1000, 1), 16777217.0, np.float64).astype(np.float32) + np.float32(1))
    assert running.mean.dtype == np.float64
    assert running.mean[0] == pytest.approx(16777217.0, rel=1e-6)


def test_observations_are_standardised_and_clipped() -> None:
    normalizer = ObservationNormalizer((1,), clip=1.5)
    normalizer.statistics.mean, normalizer.statistics.var = np.array([2.0]), np.array([4.0])
    normalized = normalizer(np.array([[2.0], [4.0], [100.0], [-100.0]]))
    assert normalized.dtype == np.float32
    np.testing.assert_allclose(normalized[:, 0], [0.0, 1.0, 1.5, -1.5], rtol=1e-6)


def test_rewards_follow_the_loop_of_baselines() -> None:
    rng = np.random.default_rng(1)
    rewards, done = rng.normal(1.0, 3.0, (200, 3)), rng.random((200, 3)) < 0.1
    normalizer = RewardNormalizer(3, gamma=0.9, clip=2.0)
    returns, seen = np.zeros(3), []
    for reward, ended in zip(rewards, done, strict=True):
        normalizer.update(reward)
        given = normalizer(reward)
        returns = returns * 0.9 + reward
        seen.append(returns.copy())
        everything = np.concatenate(seen)
        # Everything seen, and the prior of weight 1e-4, mean 0 and variance 1.
        weight = len(everything) + 1e-4
        mean = everything.sum() / weight
        variance = (1e-4 + (everything**2).sum()) / weight - mean**2
        np.testing.assert_allclose(
            given, np.clip(reward / np.sqrt(variance + 1e-8), -2, 2), rtol=1e-6
        )
        returns[ended] = 0.0
        normalizer.forget(np.flatnonzero(ended).tolist())


def test_a_frozen_normaliser_changes_nothing() -> None:
    normalizer = both()
    normalizer.update_observation(np.ones((3, 2)))
    normalizer.normalize_reward(np.ones(3))
    normalizer.frozen = True
    before = str(normalizer.state_dict())
    normalizer.update_observation(np.full((3, 2), 9.0))
    normalizer.normalize_reward(np.full(3, 9.0))
    normalizer.forget([0, 1, 2])
    assert str(normalizer.state_dict()) == before


def test_an_evaluation_view_follows_the_training_statistics_and_leaves_rewards_raw() -> None:
    training = both()
    view = training.evaluation_view()
    training.update_observation(np.random.default_rng(0).normal(5.0, 2.0, (50, 2)))
    observation = np.ones((1, 2))
    np.testing.assert_array_equal(
        view.normalize_observation(observation), training.normalize_observation(observation)
    )
    count = training.state_dict()["observation"]["count"]
    view.update_observation(observation)
    assert training.state_dict()["observation"]["count"] == count
    assert view.normalize_reward(np.array([7.0])).tolist() == [7.0]


def test_the_state_restores_the_future_and_is_not_changed_by_it() -> None:
    rng = np.random.default_rng(2)
    first, second = both(), both()
    first.update_observation(rng.normal(size=(3, 2)))
    first.normalize_reward(rng.normal(size=3))
    state = first.state_dict()
    before = str(state)
    second.load_state_dict(state)
    assert kinds(second.state_dict()) == kinds(state)
    for _ in range(3):
        observation, reward = rng.normal(size=(3, 2)), rng.normal(size=3)
        for normalizer in (first, second):
            normalizer.update_observation(observation)
        assert first.normalize_reward(reward).tobytes() == second.normalize_reward(reward).tobytes()
        assert (
            first.normalize_observation(observation).tobytes()
            == second.normalize_observation(observation).tobytes()
        )
        first.forget([1])
        second.forget([1])
    assert str(state) == before


def kinds(state: Any) -> Any:
    """The type of every leaf: a digest may tell a scalar from a 0-dimensional array."""
    return (
        {key: kinds(value) for key, value in state.items()}
        if isinstance(state, dict)
        else type(state)
    )


def test_running_returns_of_another_number_of_environments_are_left_out() -> None:
    saved = both()
    saved.normalize_reward(np.arange(3.0))
    other = Normalizer(
        observation=ObservationNormalizer((2,)), reward=RewardNormalizer(5, gamma=0.9)
    )
    other.load_state_dict(saved.state_dict())
    assert other.reward is not None
    assert other.reward.returns.tolist() == [0.0] * 5
    assert other.reward.statistics.count == pytest.approx(3.0001)


def test_a_state_of_something_else_is_refused() -> None:
    with pytest.raises(UserError, match="reward normalisation was on"):
        Normalizer(observation=ObservationNormalizer((2,))).load_state_dict(both().state_dict())
    with pytest.raises(UserError, match="shape"):
        Normalizer(
            observation=ObservationNormalizer((4,)), reward=RewardNormalizer(3, gamma=0.9)
        ).load_state_dict(both().state_dict())
    Normalizer(observation=ObservationNormalizer((2,)), frozen=True).load_state_dict(
        both().state_dict()
    )

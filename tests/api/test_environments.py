"""Environments of one's own, and actions on their way to them."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from numpy.typing import NDArray

from rl_training import (
    PPO,
)
from rl_training.errors import UserError
from tests.api.runs import make, observations
from tests.recipes.environments import Identity


def test_callables_instances_and_vectors_are_environments() -> None:
    vector = SyncVectorEnv([Identity] * 3, autoreset_mode=AutoresetMode.DISABLED)
    for env, count in ((Identity, 2), (lambda: Identity(), 2), (Identity(), 1), (vector, 3)):
        changes: dict[str, Any] = {} if count == 2 else {"num_envs": count}
        algorithm = make(env=env, **changes).learn(32 * count)
        assert algorithm.environment.num_envs == count
        assert algorithm.predict(np.eye(4, dtype=np.float32))[0].shape == (4,)
        if not isinstance(env, Identity):
            assert algorithm.evaluate(episodes=3)["lengths"] == [16, 16, 16]
        algorithm.close()


def test_an_instance_says_how_many_it_is_and_needs_another_to_be_evaluated_in() -> None:
    algorithm = PPO(Identity(), num_steps=32, minibatch_size=32)
    assert algorithm.config.num_envs == 1
    with pytest.raises(UserError, match=r"evaluate\(env=\.\.\.\)"):
        algorithm.evaluate(episodes=2)
    assert algorithm.evaluate(episodes=2, env=Identity)["lengths"] == [16, 16]
    with pytest.raises(UserError, match="num_envs is 2"):
        PPO(Identity(), num_envs=2, num_steps=32, minibatch_size=32)
    made = PPO(gymnasium.make("CartPole-v1"), num_steps=32, minibatch_size=32)
    assert made.evaluate(episodes=2)["episodes"] == 2


class OwnVector(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """A vector that says nothing of its environments."""

    def __init__(self, count: int = 2) -> None:
        inside = SyncVectorEnv([Identity] * count, autoreset_mode=AutoresetMode.DISABLED)
        self.num_envs, self.metadata = count, inside.metadata
        self.single_observation_space = inside.single_observation_space
        self.single_action_space = inside.single_action_space
        self.observation_space = inside.observation_space
        self.action_space = inside.action_space
        self.reset, self.step = inside.reset, inside.step  # type: ignore[method-assign]


def test_a_vector_that_cannot_be_made_anew_is_refused_with_what_can() -> None:
    algorithm = make(env=OwnVector()).learn(64)
    vectors = (OwnVector(), algorithm.environment, gymnasium.make_vec("CartPole-v1", num_envs=2))
    for env in (None, *vectors):
        with pytest.raises(UserError, match="an id or a callable that makes one environment, no v"):
            algorithm.evaluate(episodes=2, env=env)
    for maker in (OwnVector, lambda: SyncVectorEnv([Identity] * 2)):
        with pytest.raises(UserError, match=r"Vector.* is a vector of environments"):
            algorithm.evaluate(episodes=2, env=maker)
        with pytest.raises(UserError, match="must make a single one"):
            PPO(maker)
    with pytest.raises(UserError, match="is not an environment; allowed"):
        PPO(algorithm.environment)
    assert algorithm.evaluate(episodes=2, env=Identity)["lengths"] == [16, 16]


def test_a_class_makes_as_many_as_the_config_says() -> None:
    algorithm = PPO(Identity, num_steps=16, minibatch_size=16)
    assert algorithm.environment.num_envs == algorithm.config.num_envs == 8


def test_no_environment_is_a_mistake() -> None:
    with pytest.raises(UserError, match="an environment is missing"):
        PPO()
    with pytest.raises(UserError, match="is not an environment"):
        PPO(3)


class Counted(gymnasium.Env[Any, Any]):
    """Discrete actions from 5 to 7; notes every action that arrives. Seven earns 1."""

    received: list[int] = []  # noqa: RUF012

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(3, start=5)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.time = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action)
        self.received.append(int(action))
        self.time += 1
        return np.zeros(2, np.float32), float(action == 7), self.time == 8, False, {}


def test_discrete_actions_that_start_at_five_arrive_as_such() -> None:
    Counted.received.clear()
    algorithm = make(env=Counted, num_epochs=10, learning_rate=1e-2)
    batch = next(iter(algorithm.collector()))
    assert set(batch["action"].unique().tolist()) == {0, 1, 2}, "policies count from 0"
    assert Counted.received == (5 + batch["action"]).T.flatten().tolist()
    algorithm.update(batch)
    algorithm.learn(1500)
    Counted.received.clear()
    record = algorithm.evaluate(episodes=4)
    assert record["returns"] == [8.0] * 4
    assert set(Counted.received) == {7}
    assert int(algorithm.predict(np.zeros(2, np.float32))[0]) == 7
    several, _ = algorithm.predict(np.zeros((50, 2), np.float32), deterministic=False)
    assert set(several.tolist()) <= {5, 6, 7}


class Lopsided(gymnasium.Env[Any, Any]):
    """Two float64 actions, in [-1, 3] and [10, 10.5]; notes what arrives."""

    low, high = np.array([-1.0, 10.0]), np.array([3.0, 10.5])
    received: list[NDArray[np.float64]] = []  # noqa: RUF012

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (3,), np.float64)
        self.action_space = gymnasium.spaces.Box(self.low, self.high, dtype=np.float64)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.time = 0
        return self.np_random.normal(size=3), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert action.dtype == np.float64
        assert self.action_space.contains(action)
        self.received.append(action.copy())
        self.time += 1
        return self.np_random.normal(size=3), float(action[0]), False, self.time == 8, {}


@pytest.mark.parametrize("squash", [False, True])
def test_continuous_actions_reach_lopsided_float64_bounds(squash: bool) -> None:
    Lopsided.received.clear()
    algorithm = make(env=Lopsided, squash=squash, log_std_init=1.0)
    batch = next(iter(algorithm.collector()))
    assert batch["observation"].dtype == torch.float32
    sampled = batch["action"].transpose(0, 1).reshape(-1, 2).double().numpy()
    assert np.abs(sampled).max() > 3, "actions are stored as sampled"
    span = Lopsided.high - Lopsided.low
    expected = (
        Lopsided.low + (np.tanh(sampled) + 1) / 2 * span
        if squash
        else sampled.clip(Lopsided.low, Lopsided.high)
    )
    np.testing.assert_allclose(np.stack(Lopsided.received), expected, rtol=1e-12)
    algorithm.update(batch)
    Lopsided.received.clear()
    record = algorithm.evaluate(episodes=2, seed=0)
    total = sum(float(action[0]) for action in Lopsided.received[:16])
    assert sum(record["returns"]) == pytest.approx(total, rel=1e-6)
    for deterministic in (True, False):
        action, _ = algorithm.predict(observations(7, 3), deterministic=deterministic)
        assert (action.shape, action.dtype) == ((7, 2), np.float64)
        assert ((Lopsided.low <= action) & (action <= Lopsided.high)).all()

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from rl_training.envs import make_vector_env
from tests.envs.scripted import (
    Counter,
    collect,
    generator,
    make_config,
    make_vector,
    random_actions,
)


def test_observations_are_normalised_with_what_the_policy_acts_on() -> None:
    environment = make_vector(Counter, num_envs=2, seed=3, normalize_observation=True)
    plain = make_vector(Counter, num_envs=2, seed=3)
    batch, raw = collect(environment, 40, generator()), collect(plain, 40, generator())
    seen = [raw["observation"][:, 0].double().numpy()]
    for step in range(40):
        mean, deviation = statistics(seen)
        expected = (raw["observation"][:, step].double().numpy() - mean) / deviation
        np.testing.assert_allclose(batch["observation"][:, step], expected, rtol=2e-5, atol=1e-5)
        # The next root first: terminal observations are not learnt from, only seen with it.
        if step < 39:
            seen.append(raw["observation"][:, step + 1].double().numpy())
            mean, deviation = statistics(seen)
            expected = (raw["next", "observation"][:, step].double().numpy() - mean) / deviation
            np.testing.assert_allclose(
                batch["next", "observation"][:, step], expected, rtol=2e-5, atol=1e-5
            )


def statistics(seen: list[Any]) -> tuple[Any, Any]:
    data = np.concatenate(seen)
    weight = len(data) + 1e-4
    mean = data.sum(axis=0) / weight
    return mean, np.sqrt((1e-4 + (data**2).sum(axis=0)) / weight - mean**2 + 1e-8)


def test_normalised_rewards_leave_the_reported_return_raw() -> None:
    batch = collect(make_vector(Counter, normalize_reward=True), 40, generator())["next"]
    raw = collect(make_vector(Counter), 40, generator())["next"]
    assert torch.equal(batch["episode_return"], raw["episode_return"])
    assert not torch.equal(batch["reward"], raw["reward"])
    assert bool((batch["reward"] > 0).all())


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_normalisation_is_that_of_stable_baselines3(env_id: str) -> None:
    vec_env = pytest.importorskip("stable_baselines3.common.vec_env")
    config = make_config(env_id, num_envs=2, normalize_observation=True, normalize_reward=True)
    environment = make_vector(config=config)
    peer = vec_env.VecNormalize(FixedSeeds(vec_env, config), gamma=0.9, clip_reward=10.0)
    root, observation = environment.reset(), peer.reset()
    drawn = generator()
    for _ in range(450):
        np.testing.assert_allclose(root["observation"], observation, rtol=1e-5, atol=1e-6)
        action = random_actions(environment, drawn)
        transition, root = environment.step_and_maybe_reset(root.set("action", action))
        observation, reward, done, infos = peer.step(action.numpy())
        np.testing.assert_allclose(transition["next", "reward"][:, 0], reward, rtol=1e-5)
        for row in np.flatnonzero(done):
            terminal = infos[row]["terminal_observation"]
            np.testing.assert_allclose(
                transition["next", "observation"][row], terminal, rtol=1e-5, atol=1e-6
            )
    assert done is not None


def FixedSeeds(vec_env: Any, config: Any) -> Any:  # noqa: N802
    """SB3's vector environment over the library's environments, which seed their episodes."""
    vector: Any = make_vector_env(config, record_episode_statistics=False)
    return vec_env.DummyVecEnv([*vector.env_fns])

"""Any spaces, any pattern of ends: the batch says what the environments did, actions stay within
their space, and a saved policy is the same.
"""

from __future__ import annotations

import copy
import tempfile
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.utils.env_checker import data_equivalence
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from rl_training import PPO
from rl_training.envs.flatten import batched_array, with_row_axis
from rl_training.envs.spaces import observation_dtype
from rl_training.runtime.state import digest
from tests.envs.test_flatten import some_spaces
from tests.envs.test_hybrid import action_spaces
from tests.envs.test_layout import with_images

NUM_ENVS, NUM_STEPS = 2, 6


class Recorded(gymnasium.Env[Any, Any]):
    """Observations of a space at random; ends and cuts by a pattern; keeps what happened."""

    def __init__(self, observation_space: Any, action_space: Any, pattern: list[str]) -> None:
        self.observation_space, self.action_space = observation_space, action_space
        self._pattern = pattern
        self.log: list[tuple[Any, ...]] = []
        self._time = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.observation_space.seed(int(self.np_random.integers(2**31)))
        self._time = 0
        self._observation, self._first = self.observation_space.sample(), True
        return self._observation, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), f"{action!r} is not of {self.action_space}"
        happened = self._pattern[self._time % len(self._pattern)]
        self._time += 1
        following, reward = self.observation_space.sample(), float(self.np_random.normal())
        ended, cut = happened in ("end", "both"), happened in ("cut", "both")
        self.log.append((self._observation, self._first, following, reward, ended, cut))
        self._observation, self._first = following, False
        return following, reward, ended, cut, {}


def stored(algorithm: Any, observation: Any) -> torch.Tensor:
    space = algorithm.raw_observation_space
    array = batched_array(with_row_axis(observation, space), space)
    return torch.from_numpy(array.astype(observation_dtype(algorithm.observation_space)))[0]


def check_batch_contract(algorithm: Any, batch: Any, envs: list[Recorded]) -> None:
    assert batch.shape == (NUM_ENVS, NUM_STEPS)
    size = algorithm.observation_space.shape
    assert batch["observation"].shape == (NUM_ENVS, NUM_STEPS, *size)
    for row, env in enumerate(envs):
        for step, (before, first, after, reward, ended, cut) in enumerate(env.log):
            one = batch[row, step]
            assert torch.equal(one["observation"], stored(algorithm, before))
            assert torch.equal(one["next", "observation"], stored(algorithm, after))
            assert bool(one["is_init"]) == first
            assert float(one["next", "reward"]) == np.float32(reward)
            assert bool(one["next", "terminated"]) == ended
            assert bool(one["next", "truncated"]) == cut
            assert bool(one["next", "done"]) == (ended or cut)
            assert not one["done"]


def check_log_probability(algorithm: Any, batch: Any) -> None:
    with torch.no_grad():
        head = algorithm.model.action_head
        parameters = algorithm.model.distribution(batch["observation"])
        cls, keywords = head.torch_distribution()
        named = zip(head.parameter_keys, head.torch_parameters(parameters), strict=True)
        distribution = cls(**dict(named), **keywords)
        expected = distribution.log_prob(batch["action"])
    torch.testing.assert_close(batch["action_log_prob"], expected, rtol=1e-4, atol=1e-4)


def check_predictions(algorithm: Any, loaded: Any, space: Any, action_space: Any) -> None:
    for deterministic in (True, False):
        for _ in range(3):
            observation = space.sample()
            ours, theirs = (
                each.predict(observation, deterministic=deterministic)[0]
                for each in (algorithm, loaded)
            )
            assert action_space.contains(ours), f"{ours!r} is not of {action_space}"
            assert data_equivalence(ours, theirs)


# Without shrinking: an example takes a third of a second.
@settings(max_examples=15, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(
    st.one_of(some_spaces(), some_spaces(), with_images()),
    action_spaces(),
    st.lists(st.sampled_from(["on", "on", "end", "cut", "both"]), min_size=1, max_size=5),
    st.integers(0, 2**31 - 1),
)
def test_any_spaces_and_any_ends(
    observation_space: Any, action_space: Any, pattern: list[str], seed: int
) -> None:
    envs: list[Recorded] = []

    def make() -> Recorded:
        envs.append(
            Recorded(copy.deepcopy(observation_space), copy.deepcopy(action_space), pattern)
        )
        return envs[-1]

    options: dict[str, Any] = {"num_envs": NUM_ENVS, "num_steps": NUM_STEPS, "minibatch_size": 12}
    options |= {"hidden_sizes": [4], "feature_size": 4, "num_epochs": 1, "seed": seed}
    algorithm = PPO(make, **options)
    batch = next(iter(algorithm.collector()))
    check_batch_contract(algorithm, batch, envs)
    check_log_probability(algorithm, batch)
    algorithm.update(batch)
    with tempfile.TemporaryDirectory() as directory:
        algorithm.save(Path(directory) / "saved")
        loaded = PPO.load(Path(directory) / "saved")
    loaded._source = make  # what a run's id says, said by hand
    own_space = copy.deepcopy(observation_space)
    own_space.seed(seed)
    check_predictions(algorithm, loaded, own_space, action_space)
    state = [each.learn(12).state_dict() for each in (algorithm, loaded)]
    assert digest(state[0]) == digest(state[1])
    assert_array_equal(loaded.global_step, 24)
    algorithm.close()
    loaded.close()

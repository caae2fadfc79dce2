"""predict, its states, and the policy that keeps them itself; what is refused, and how."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from torchrl.envs.utils import ExplorationType, set_exploration_type

from rl_training import PPO, UserError, load_config
from rl_training.contrib.recurrent_ppo import RecurrentPPO
from rl_training.models.recurrent_policy import RecurrentPolicy
from tests.recipes.environments import RandomEnds
from tests.recipes.runs import iterate, make, make_ppo


def build(**changes: Any) -> RecurrentPPO:
    algorithm = make("recurrent_ppo", RandomEnds, **changes)
    with torch.no_grad():
        algorithm.model.action_head.layer.weight.mul_(100)
    assert isinstance(algorithm, RecurrentPPO)
    return algorithm


def observations(steps: int = 8, count: int = 5) -> Any:
    return np.random.default_rng(0).normal(size=(steps, count, 3)).astype(np.float32)


def test_a_policy_that_keeps_its_state_acts_as_one_that_is_given_it() -> None:
    algorithm = build()
    policy = algorithm.stateful_policy()
    state: Any = None
    alone = []
    for step, observation in enumerate(observations(30)):
        starts = np.full(5, step == 0)
        if step == 4:
            starts[[1, 3]] = True
            policy.reset([1, 3])
        expected, state = algorithm.predict(observation, state, episode_start=starts)
        np.testing.assert_array_equal(policy.predict(observation), expected)
        alone.append((algorithm.predict(observation, episode_start=True)[0] != expected).any())
    assert any(alone)
    with pytest.raises(UserError, match=r"remembers 5 environments and was given 2"):
        policy.predict(observations()[0, :2])
    policy.reset()
    assert policy.predict(observations()[0, :2]).shape == (2,)
    policy.reset()
    single = policy.predict(observations()[0, 0])
    assert single.shape == ()


def test_a_policy_without_memory_can_be_asked_for_one_that_keeps_its_state() -> None:
    algorithm = make_ppo(RandomEnds)
    policy = algorithm.stateful_policy()
    for observation in observations():
        np.testing.assert_array_equal(
            policy.predict(observation), algorithm.predict(observation)[0]
        )


def test_an_episode_s_start_forgets_whatever_the_state_was() -> None:
    algorithm = build()
    first = observations()[0]
    _, state = algorithm.predict(first)
    fresh = algorithm.predict(first, episode_start=True)
    forgotten = algorithm.predict(first, state, episode_start=np.ones(5, bool))
    np.testing.assert_array_equal(fresh[0], forgotten[0])
    np.testing.assert_array_equal(fresh[1]["memory"], forgotten[1]["memory"])
    kept = algorithm.predict(first, state)[1]["memory"]
    assert not np.array_equal(kept, fresh[1]["memory"])


def test_predicting_without_the_state_is_never_silent(caplog: pytest.LogCaptureFixture) -> None:
    algorithm = build()
    first = observations()[0]
    with caplog.at_level(logging.WARNING):
        algorithm.predict(first)
        algorithm.predict(first, episode_start=True)
        assert not caplog.records
        algorithm.predict(first)
    assert "stateful_policy()" in caplog.text
    with pytest.raises(UserError, match=r"needs the state .* where no episode begins"):
        algorithm.predict(first, episode_start=np.arange(5) > 0)


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (np.zeros((5, 4, 16), np.float32), "dict of"),
        ({"hidden": 0}, "dict of"),
        ({"memory": np.zeros((4, 4, 16), np.float32)}, r"\(4, 4, 16\).*is \(5, 4, 16\)"),
        ({"memory": np.zeros((5, 4, 8), np.float32)}, r"\(5, 4, 8\).*is \(5, 4, 16\)"),
    ],
)
def test_a_state_of_another_form_is_refused(state: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        build().predict(observations()[0], state)


def test_starts_of_another_number_are_refused() -> None:
    with pytest.raises(UserError, match=r"shape \(3,\), but there are 5"):
        build().predict(observations()[0], episode_start=np.ones(3, bool))


def test_the_reward_before_is_the_caller_s_to_give() -> None:
    algorithm = build(previous_reward=True, previous_action=True)
    first, second = observations()[:2]
    action, state = algorithm.predict(first)
    np.testing.assert_array_equal(state["previous_action"].argmax(-1), action)
    policy = algorithm.stateful_policy()
    policy.predict(first)
    state["previous_reward"][:] = 3.0
    _, expected = algorithm.predict(second, state)
    policy.predict(second, reward=np.full(5, 3.0))
    np.testing.assert_array_equal(policy._state["memory"], expected["memory"])


def test_the_environment_fills_in_the_reward_that_a_policy_carries() -> None:
    algorithm = build(previous_reward=True, previous_action=True)
    first, second = iterate(algorithm, 2, update=False)[0]
    batch: Any = torch.cat([first, second], 1)
    goes_on = torch.logical_not(batch["is_init"][:, 1:])
    reward = batch["next", "reward"][:, :-1]
    assert torch.equal(batch["previous_reward"][:, 1:], reward * goes_on)
    assert torch.equal(batch["next", "previous_reward"], batch["next", "reward"])
    taken = torch.nn.functional.one_hot(batch["action"][:, :-1], 3) * goes_on
    assert torch.equal(batch["previous_action"][:, 1:], taken.float())


def test_the_policy_module_serves_a_loop_of_one_s_own() -> None:
    algorithm = build()
    policy = algorithm.policy
    assert isinstance(policy, RecurrentPolicy)
    reference = algorithm.stateful_policy()
    carried: dict[str, Any] = {}
    for step, observation in enumerate(observations()):
        starts = torch.zeros(5, 1, dtype=torch.bool)
        if step == 3:
            starts[2] = True
            reference.reset([2])
        root = TensorDict(
            {"observation": torch.from_numpy(observation), "is_init": starts, **carried}, [5]
        )
        with set_exploration_type(ExplorationType.DETERMINISTIC), torch.no_grad():
            policy(root)
        assert torch.isfinite(root["action_log_prob"]).all()
        np.testing.assert_array_equal(root["action"].numpy(), reference.predict(observation))
        carried = {"memory": root["next", "memory"]}


# ---- what is refused before training


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"memory_size": 0}, r"memory_size must lie in \[1, 65536\], not 0"),
        ({"memory_layers": 0}, r"memory_layers must lie in \[1, 64\], not 0"),
        ({"output_sizes": [8, 0]}, "output_sizes must be positive"),
        ({"sequence_length": 5}, "sequence_length must divide num_steps, 32, not 5"),
        ({"sequence_length": 0}, "sequence_length must divide num_steps"),
        ({"sequence_length": 64}, "sequence_length must divide num_steps"),
        ({"minibatch_size": 40}, "minibatch_size must be a multiple of the sequence length, 16"),
        ({"burn_in": 17}, r"burn_in must lie in \[0, 16\]"),
        ({"burn_in": -1}, r"burn_in must lie in \[0, 16\]"),
        ({"burn_in": 1, "sequence_length": None}, r"burn_in must lie in \[0, 0\]"),
        ({"burn_in": 4, "refresh_state": True}, "burn_in must be 0 with refresh_state"),
        ({"memory": "rnn"}, "memory"),
        ({"previous_reward": True, "normalize_reward": True}, "previous_reward must be false"),
        ({"shared_trunk": True}, "critic_memory"),
    ],
)
def test_impossible_memories_and_sequences_are_refused(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        build(**changes)


def test_ppo_never_turns_recurrent_by_itself() -> None:
    for change in ("memory", "memory_size", "sequence_length"):
        changes: dict[str, Any] = {change: 1}
        with pytest.raises(UserError, match=change):
            PPO("CartPole-v1", **changes)
    name = "rl_training.models.lstm:LSTMActorCritic"
    with pytest.raises(UserError, match="must be a subclass of MLPActorCritic"):
        PPO("CartPole-v1", network=name)
    assert load_config("recurrent_ppo_cartpole_novel").algo == "recurrent_ppo"


def test_networks_without_a_state_do_not_fit() -> None:
    module: Any = torch.nn.Identity()
    with pytest.raises(UserError, match="networks do not fit LSTMActorCritic"):
        make("recurrent_ppo", RandomEnds, networks=(module, module))

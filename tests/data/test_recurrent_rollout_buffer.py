from __future__ import annotations

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from rl_training import LSTMActorCritic, RecurrentRolloutBuffer, UserError

STATE = (4, 8)


def filled(steps: int = 6, envs: int = 3) -> RecurrentRolloutBuffer:
    """Return a buffer whose every number tells its place: 100 x environment + step."""
    buffer = RecurrentRolloutBuffer(steps, envs, (2,), (), STATE)
    place = torch.arange(steps)[:, None] + 100.0 * torch.arange(envs)
    buffer.obs[:] = place[..., None]
    buffer.actions[:] = place.long()
    buffer.rewards[:] = place
    buffer.states[:] = place[..., None, None]
    buffer.episode_starts[4, 1] = True
    return buffer


def test_sequences_are_rows_cut_with_the_state_before_their_first_step() -> None:
    cut = filled().sequences(2)
    expected = [[0, 1], [2, 3], [4, 5], [100, 101], [102, 103], [104, 105]]
    expected += [[200, 201], [202, 203], [204, 205]]
    assert cut["observation"][..., 0].tolist() == expected
    assert cut["action"].tolist() == expected
    assert cut["memory"].shape == (9, *STATE)
    assert cut["memory"][:, 0, 0].tolist() == [first for first, _ in expected]
    assert cut["is_init"].nonzero().tolist() == [[5, 0]]
    assert cut["value_target"].shape == (9, 2)


def test_burn_in_states_are_those_so_many_steps_before_each_end() -> None:
    cut = filled().sequences(3, burn_in=2)
    assert cut["burn_in_memory"][:, 0, 0].tolist() == [1, 4, 101, 104, 201, 204]


@pytest.mark.parametrize("length", [0, 4, 7, 12])
def test_a_length_that_does_not_divide_the_rollout_is_refused(length: int) -> None:
    with pytest.raises(UserError, match=f"length of {length} does not divide the 6 steps"):
        filled().sequences(length)


def test_a_pass_has_every_sequence_once_and_masks_what_fills_it_up() -> None:
    generator = torch.Generator().manual_seed(0)
    minibatches = list(filled().iter_sequences(2, 4, generator=generator))
    assert [len(each["memory"]) for each in minibatches] == [4, 4, 4]
    mask = torch.cat([each["mask"] for each in minibatches])
    first = torch.cat([each["action"] for each in minibatches])[mask[:, 0]][:, 0]
    assert sorted(first.tolist()) == [0, 2, 4, 100, 102, 104, 200, 202, 204]
    assert mask.sum() == 18
    even = list(filled().iter_sequences(2, 3, generator=generator))
    assert [len(each["memory"]) for each in even] == [3, 3, 3]
    assert "mask" not in even[0]


def test_advantages_are_those_of_its_parent() -> None:
    buffer = filled()
    buffer.compute_returns_and_advantages(torch.zeros(3), gamma=0.5, gae_lambda=1.0)
    assert buffer.returns[-1].tolist() == [5, 105, 205]
    assert buffer.returns[-2].tolist() == [4 + 2.5, 104 + 52.5, 204 + 102.5]


def test_a_model_and_a_buffer_serve_a_loop_of_one_s_own() -> None:
    env = gymnasium.make("CartPole-v1")
    model = LSTMActorCritic.for_spaces(
        env.observation_space,
        env.action_space,
        hidden_sizes=[8],
        model_options={"memory": "gru", "memory_size": 5},
    )
    state = model.initial_state(1)
    buffer = RecurrentRolloutBuffer(16, 1, (4,), (), state.shape[1:])
    observation, start = env.reset(seed=0)[0], True
    for step in range(16):
        if start:
            state = torch.zeros_like(state)
        given = torch.from_numpy(np.asarray(observation))[None]
        buffer.obs[step], buffer.states[step], buffer.episode_starts[step] = given, state, start
        with torch.no_grad():
            action, log_probability, value, state = model.act(given, state)
        buffer.actions[step], buffer.logprobs[step] = action, log_probability
        buffer.values[step] = value
        observation, reward, terminated, truncated, _ = env.step(int(action))
        start = terminated or truncated
        buffer.rewards[step], buffer.dones[step] = float(reward), start
        if start:
            observation = env.reset()[0]
    for minibatch in buffer.iter_sequences(8, 2):
        log_probability, _, value = model.evaluate_actions(
            minibatch["observation"],
            minibatch["action"],
            minibatch["memory"],
            minibatch["is_init"],
        )
        torch.testing.assert_close(log_probability, minibatch["action_log_prob"])
        torch.testing.assert_close(value, minibatch["state_value"])


def test_a_state_of_another_shape_is_refused() -> None:
    model = LSTMActorCritic.for_spaces(spaces.Box(-1, 1, (3,)), spaces.Discrete(2))
    observation = torch.zeros(2, 3)
    for wrong in (torch.zeros(2, 64, 4), torch.zeros(2, 2, 64)):
        with pytest.raises(UserError, match=r"a state is \[N, 4, 64\] here, not"):
            model.act(observation, wrong)
        with pytest.raises(UserError, match="a state is"):
            model.evaluate_actions(observation[:, None], torch.zeros(2, 1).long(), wrong)

"""The rollout buffer: views of the batch, advantages by hand, minibatches."""

from __future__ import annotations

import pytest
import torch

from rl_training import PPO, RolloutBuffer
from tests.recipes.environments import Identity


def filled_buffer() -> RolloutBuffer:
    """Two environments, three steps; the first ends an episode with its second step."""
    buffer = RolloutBuffer(3, 2, obs_shape=(2,), action_shape=())
    for step in range(3):
        buffer.obs[step] = torch.tensor([[step, 0.0], [step, 1.0]])
        buffer.actions[step] = torch.tensor([step, 10 + step])
        buffer.logprobs[step] = torch.tensor([-0.1, -0.2]) * (step + 1)
    buffer.rewards.copy_(torch.tensor([[1.0, 4.0], [2.0, 5.0], [3.0, 6.0]]))
    buffer.values.copy_(torch.tensor([[0.5, 1.0], [0.25, 2.0], [0.75, 3.0]]))
    buffer.dones[1, 0] = True
    return buffer


def test_the_buffer_s_views_share_the_batch() -> None:
    buffer = filled_buffer()
    for name in ("obs", "actions", "logprobs", "rewards", "dones", "values"):
        assert getattr(buffer, name).shape[:2] == (3, 2), name
    assert buffer.advantages.shape == buffer.returns.shape == (3, 2)
    assert buffer.batch.shape == (2, 3)
    assert buffer.batch["observation"][1, 2].tolist() == [2.0, 1.0]
    assert buffer.batch["action"].tolist() == [[0, 1, 2], [10, 11, 12]]
    assert buffer.batch["next", "reward"][1].flatten().tolist() == [4.0, 5.0, 6.0]
    assert buffer.batch["next", "done"][0].flatten().tolist() == [False, True, False]
    assert RolloutBuffer.of(buffer.batch).obs.data_ptr() == buffer.obs.data_ptr()


# gamma = lambda = 1/2, so the decay is 1/4. delta = r + gamma V' - V, where V' follows the step.
def by_hand(after_end: float) -> tuple[list[list[float]], list[list[float]]]:
    """Advantages and returns ``[T, N]``; ``after_end`` is the value behind the first one's end."""
    delta = [
        [1.0 + 0.5 * 0.25 - 0.5, 4.0 + 0.5 * 2.0 - 1.0],
        [2.0 + 0.5 * after_end - 0.25, 5.0 + 0.5 * 3.0 - 2.0],
        [3.0 + 0.5 * 8.0 - 0.75, 6.0 + 0.5 * 9.0 - 3.0],
    ]
    last = delta[2]
    middle = [delta[1][0], delta[1][1] + 0.25 * last[1]]  # no sum beyond the end
    first = [delta[0][0] + 0.25 * middle[0], delta[0][1] + 0.25 * middle[1]]
    advantages = [first, middle, last]
    values = [[0.5, 1.0], [0.25, 2.0], [0.75, 3.0]]
    returns = [
        [a + v for a, v in zip(*rows, strict=True)] for rows in zip(advantages, values, strict=True)
    ]
    return advantages, returns


def assert_filled(buffer: RolloutBuffer, after_end: float) -> None:
    advantages, returns = by_hand(after_end)
    torch.testing.assert_close(buffer.advantages, torch.tensor(advantages))
    torch.testing.assert_close(buffer.returns, torch.tensor(returns))


def test_without_more_every_done_is_a_termination() -> None:
    buffer = filled_buffer()
    buffer.compute_returns_and_advantages(torch.tensor([8.0, 9.0]), gamma=0.5, gae_lambda=0.5)
    assert_filled(buffer, after_end=0.0)


@pytest.mark.parametrize(("terminated", "after_end"), [(False, 7.0), (True, 0.0)])
def test_with_terminated_and_next_values_truncation_bootstraps(
    terminated: bool, after_end: float
) -> None:
    buffer = filled_buffer()
    buffer.terminated = torch.zeros(3, 2, dtype=torch.bool)
    buffer.terminated[1, 0] = terminated
    buffer.next_values = torch.tensor([[0.25, 2.0], [7.0, 3.0], [8.0, 9.0]])
    buffer.compute_returns_and_advantages(None, gamma=0.5, gae_lambda=0.5)
    assert_filled(buffer, after_end=after_end)


def test_a_truncation_without_its_successor_s_value_is_refused() -> None:
    buffer = filled_buffer()
    with pytest.raises(ValueError, match="last_value is needed"):
        buffer.compute_returns_and_advantages(None, 0.5, 0.5)
    buffer.terminated = torch.zeros(3, 2, dtype=torch.bool)
    with pytest.raises(ValueError, match="terminated needs next_values"):
        buffer.compute_returns_and_advantages(torch.tensor([8.0, 9.0]), 0.5, 0.5)


def test_every_pass_of_minibatches_has_each_sample_once_in_another_order() -> None:
    buffer = filled_buffer()
    buffer.compute_returns_and_advantages(torch.tensor([8.0, 9.0]), 0.5, 0.5)
    generator = torch.Generator().manual_seed(0)
    passes = []
    for _ in range(4):
        pieces = list(buffer.iter_minibatches(4, generator=generator))
        assert [len(piece["action"]) for piece in pieces] == [4, 2]
        for piece in pieces:
            # Every column of a row belongs to one sample: environment and time tell which.
            row, time = piece["observation"][:, 1].long(), piece["observation"][:, 0].long()
            assert torch.equal(piece["action"], 10 * row + time)
            assert torch.equal(piece["action_log_prob"], buffer.logprobs[time, row])
            assert torch.equal(piece["advantage"], buffer.advantages[time, row])
            assert torch.equal(piece["value_target"], buffer.returns[time, row])
            assert torch.equal(piece["state_value"], buffer.values[time, row])
        passes.append(torch.cat([piece["action"] for piece in pieces]).tolist())
    assert all(sorted(each) == [0, 1, 2, 10, 11, 12] for each in passes)
    assert len({tuple(each) for each in passes}) > 1


def test_a_reset_buffer_is_as_new() -> None:
    buffer = filled_buffer()
    buffer.terminated = torch.zeros(3, 2, dtype=torch.bool)
    buffer.next_values = torch.zeros(3, 2)
    buffer.compute_returns_and_advantages(None, 0.5, 0.5)
    buffer.reset()
    views = ("obs", "actions", "logprobs", "rewards", "dones", "values", "advantages", "returns")
    assert all(not getattr(buffer, name).any() for name in views)
    assert buffer.terminated is None
    assert buffer.next_values is None


def test_a_buffer_of_pixels_and_of_continuous_actions() -> None:
    buffer = RolloutBuffer(4, 2, (3, 8, 8), (2,), obs_dtype=torch.uint8)
    assert (buffer.obs.shape, buffer.obs.dtype) == ((4, 2, 3, 8, 8), torch.uint8)
    assert (buffer.actions.shape, buffer.actions.dtype) == ((4, 2, 2), torch.float32)


def test_the_recipes_fill_this_very_buffer() -> None:
    algorithm = PPO(Identity, num_envs=2, num_steps=16, minibatch_size=8)
    batch = next(iter(algorithm.collector()))
    algorithm.advantages(batch)
    buffer = RolloutBuffer.of(batch)
    assert buffer.obs.shape == (16, 2, 4)
    assert buffer.advantages.abs().max() > 0
    torch.testing.assert_close(buffer.returns, buffer.advantages + buffer.values)

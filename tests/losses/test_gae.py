"""Generalised advantage estimation against a hand loop, TorchRL and Stable-Baselines3."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor
from torchrl.objectives.value.functional import generalized_advantage_estimate as torchrl_gae

from rl_training.losses.returns import explained_variance, generalized_advantage_estimate

DISCOUNT, GAE_LAMBDA = 0.93, 0.87
FEW_AND_MANY_ROWS = (3, 40)
"""Few rows take the loop over floats, many the loop over columns."""


def random_rollout(num_envs: int, num_steps: int = 50) -> dict[str, Tensor]:
    """Return a rollout in which terminations and truncations, also both at once, are frequent."""
    generator = torch.Generator().manual_seed(num_envs)
    shape = (num_envs, num_steps)
    terminated = torch.rand(shape, generator=generator) < 0.15
    truncated = torch.rand(shape, generator=generator) < 0.15
    value = torch.randn(shape, generator=generator)
    terminal_value = torch.randn(shape, generator=generator)
    done = terminated | truncated
    # The successor's value is the next step's own, except where another episode begins there.
    next_value = torch.where(done, terminal_value, value.roll(-1, 1))
    next_value[:, -1] = terminal_value[:, -1]
    return {
        "reward": torch.randn(shape, generator=generator),
        "value": value,
        "next_value": next_value,
        "terminated": terminated,
        "done": done,
    }


def ours(rollout: dict[str, Tensor], gae_lambda: float = GAE_LAMBDA) -> tuple[Tensor, Tensor]:
    return generalized_advantage_estimate(**rollout, discount=DISCOUNT, gae_lambda=gae_lambda)


def hand_loop(rollout: dict[str, Tensor]) -> Tensor:
    """Return the advantages by their definition, a sum over the rest of the episode."""
    columns = {key: tensor.tolist() for key, tensor in rollout.items()}
    rows, steps = rollout["reward"].shape
    result = torch.empty(rows, steps, dtype=torch.float64)
    for row in range(rows):
        for start in range(steps):
            total, weight = 0.0, 1.0
            for step in range(start, steps):
                bootstrap = (
                    0.0 if columns["terminated"][row][step] else columns["next_value"][row][step]
                )
                delta = columns["reward"][row][step] + DISCOUNT * bootstrap
                total += weight * (delta - columns["value"][row][step])
                if columns["done"][row][step]:
                    break
                weight *= DISCOUNT * GAE_LAMBDA
            result[row, start] = total
    return result


def test_three_steps_with_a_truncation_in_the_middle_worked_by_hand() -> None:
    advantage, target = generalized_advantage_estimate(
        reward=torch.tensor([[1.0, 2.0, 3.0]]),
        value=torch.tensor([[0.5, 1.0, 2.0]]),
        next_value=torch.tensor([[1.0, 10.0, 4.0]]),
        terminated=torch.tensor([[False, False, False]]),
        done=torch.tensor([[False, True, False]]),
        discount=0.5,
        gae_lambda=0.5,
    )
    # Deltas: 1 + 0.5 * 1 - 0.5 = 1;  2 + 0.5 * 10 - 1 = 6;  3 + 0.5 * 4 - 2 = 3.
    # The last step begins another episode, so nothing of it reaches the second: 1 + 0.25 * 6, 6, 3.
    assert advantage.tolist() == [[2.5, 6.0, 3.0]]
    assert target.tolist() == [[3.0, 7.0, 5.0]]


def test_a_termination_forgets_the_successor_worked_by_hand() -> None:
    advantage, target = generalized_advantage_estimate(
        reward=torch.tensor([[1.0, 2.0]]),
        value=torch.tensor([[0.5, 1.0]]),
        next_value=torch.tensor([[1.0, 10.0]]),
        terminated=torch.tensor([[False, True]]),
        done=torch.tensor([[False, True]]),
        discount=0.5,
        gae_lambda=0.5,
    )
    # Deltas: 1 and 2 - 1 = 1.
    assert advantage.tolist() == [[1.25, 1.0]]
    assert target.tolist() == [[1.75, 2.0]]


@pytest.mark.parametrize("num_envs", FEW_AND_MANY_ROWS)
def test_random_episode_ends_equal_the_definition(num_envs: int) -> None:
    rollout = random_rollout(num_envs)
    advantage, target = ours(rollout)
    expected = hand_loop(rollout)
    assert advantage.dtype == target.dtype == torch.float32
    torch.testing.assert_close(advantage.double(), expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(target.double(), expected + rollout["value"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("num_envs", FEW_AND_MANY_ROWS)
def test_random_episode_ends_equal_torchrl(num_envs: int) -> None:
    rollout = random_rollout(num_envs)
    columns = {key: tensor.unsqueeze(-1) for key, tensor in rollout.items()}
    advantage, target = torchrl_gae(
        DISCOUNT,
        GAE_LAMBDA,
        columns["value"],
        columns["next_value"],
        columns["reward"],
        columns["done"],
        columns["terminated"],
    )
    own_advantage, own_target = ours(rollout)
    torch.testing.assert_close(own_advantage, advantage.squeeze(-1), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(own_target, target.squeeze(-1), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("num_envs", FEW_AND_MANY_ROWS)
def test_random_episode_ends_equal_stable_baselines(num_envs: int) -> None:
    buffers = pytest.importorskip(
        "stable_baselines3.common.buffers", reason="needs the extra 'peers'"
    )
    rollout = random_rollout(num_envs)
    advantage, target = ours(rollout)
    buffer = stable_baselines_buffer(buffers, rollout)
    np.testing.assert_allclose(advantage.numpy().T, buffer.advantages, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(target.numpy().T, buffer.returns, rtol=1e-4, atol=1e-5)


def stable_baselines_buffer(buffers: Any, rollout: dict[str, Tensor]) -> Any:
    """Return its rollout buffer with returns, truncations handled as its collection does."""
    num_envs, num_steps = rollout["reward"].shape
    box = spaces.Box(-1.0, 1.0, (1,))
    buffer = buffers.RolloutBuffer(
        num_steps, box, box, gamma=DISCOUNT, gae_lambda=GAE_LAMBDA, n_envs=num_envs
    )
    columns = {key: tensor.numpy().T for key, tensor in rollout.items()}
    truncated = columns["done"] & ~columns["terminated"]
    # Its collection adds the truncated episode's bootstrap to the reward.
    buffer.rewards[:] = columns["reward"] + DISCOUNT * truncated * columns["next_value"]
    buffer.values[:] = columns["value"]
    buffer.episode_starts[0] = 1.0
    buffer.episode_starts[1:] = columns["done"][:-1]
    buffer.compute_returns_and_advantage(
        torch.from_numpy(columns["next_value"][-1]), columns["done"][-1]
    )
    return buffer


def test_lambda_one_gives_discounted_returns_and_lambda_zero_one_step_errors() -> None:
    rollout = random_rollout(2, 12)
    rollout["terminated"], rollout["done"] = torch.zeros(2, 2, 12, dtype=torch.bool)
    rollout["next_value"][:, :-1] = rollout["value"][:, 1:]
    returns = rollout["next_value"][:, -1]
    for step in reversed(range(12)):
        returns = rollout["reward"][:, step] + DISCOUNT * returns
    torch.testing.assert_close(ours(rollout, gae_lambda=1.0)[1][:, 0], returns)
    advantage, _ = ours(rollout, gae_lambda=0.0)
    expected = rollout["reward"] + DISCOUNT * rollout["next_value"] - rollout["value"]
    torch.testing.assert_close(advantage, expected)


def test_the_loops_over_few_and_over_many_rows_agree_bit_for_bit() -> None:
    rollout = random_rollout(40)
    whole, _ = ours(rollout)
    parts = [
        ours({key: tensor[row : row + 5] for key, tensor in rollout.items()})[0]
        for row in range(0, 40, 5)
    ]
    assert torch.equal(whole, torch.cat(parts))


def test_explained_variance_worked_by_hand() -> None:
    target = torch.tensor([1.0, 2.0, 3.0, 4.0])
    assert explained_variance(target + 5.0, target).item() == pytest.approx(1.0)
    assert explained_variance(torch.full((4,), 9.0), target).item() == pytest.approx(0.0)
    # Errors -1, 1, -1, 1 have variance 1; the target has 1.25.
    prediction = torch.tensor([2.0, 1.0, 4.0, 3.0])
    assert explained_variance(prediction, target).item() == pytest.approx(1 - 1 / 1.25)
    assert explained_variance(torch.tensor([1.0, -2.0, 3.0, 8.0]), target).item() < 0


def test_explained_variance_of_a_constant_target_is_not_a_number() -> None:
    assert explained_variance(torch.tensor([1.0, 2.0]), torch.tensor([3.0, 3.0])).isnan()


def test_explained_variance_equals_stable_baselines() -> None:
    utils = pytest.importorskip("stable_baselines3.common.utils", reason="needs the extra 'peers'")
    torch.manual_seed(0)
    prediction, target = torch.randn(2, 32)
    expected = utils.explained_variance(prediction.numpy(), target.numpy())
    assert explained_variance(prediction, target).item() == pytest.approx(expected, rel=1e-5)

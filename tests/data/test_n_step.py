"""Returns over several steps, worked by hand."""

from __future__ import annotations

import pytest
import torch

from rl_training.data.n_step import n_step_return

REWARD = torch.tensor([[1.0, 2.0, 4.0]]).repeat(4, 1)


def test_an_end_of_either_kind_stops_the_sum_after_its_own_reward() -> None:
    ended = torch.tensor([[0, 0, 0], [0, 0, 1], [0, 1, 0], [1, 1, 1]], dtype=torch.bool)
    total, steps = n_step_return(REWARD, ended, 0.5)
    assert steps.tolist() == [3, 3, 2, 1]
    assert total.tolist() == [3.0, 3.0, 2.0, 1.0]


def test_steps_not_yet_recorded_are_left_out_whatever_stands_there() -> None:
    reward = REWARD.clone()
    reward[0, 1:] = torch.nan
    ended = torch.zeros(4, 3, dtype=torch.bool)
    ended[0, 1] = True
    total, steps = n_step_return(reward, ended, 0.5, available=torch.tensor([1, 2, 3, 9]))
    assert steps.tolist() == [1, 2, 3, 3]
    assert total.tolist() == [1.0, 2.0, 3.0, 3.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_step_is_the_reward(dtype: torch.dtype) -> None:
    reward = torch.tensor([[3.0], [-1.0]], dtype=dtype)
    total, steps = n_step_return(reward, torch.tensor([[True], [False]]), 0.9)
    assert torch.equal(total, reward[:, 0])
    assert steps.tolist() == [1, 1]

"""Targets and losses of DQN, SAC and TD3 against numbers worked out by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor

from rl_training.losses import dqn, sac, td3


def tensor(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


REWARD, DISCOUNT = tensor(1, 2), tensor(0.9, 0.81)
TERMINATED = torch.tensor([False, True])


def test_the_greedy_target_takes_the_largest_value_and_none_after_the_end() -> None:
    next_q = torch.stack([tensor(3, 5), tensor(7, 9)])
    found = dqn.greedy_target(REWARD, DISCOUNT, TERMINATED, next_q)
    torch.testing.assert_close(found, tensor(1 + 0.9 * 5, 2))


def test_the_double_target_takes_the_value_of_the_action_another_network_chose() -> None:
    next_q = torch.stack([tensor(3, 5), tensor(7, 9)])
    selecting = torch.stack([tensor(1, 0), tensor(1, 0)])
    found = dqn.greedy_target(REWARD, DISCOUNT, TERMINATED, next_q, selecting)
    torch.testing.assert_close(found, tensor(1 + 0.9 * 3, 2))


def test_a_target_after_the_end_ignores_even_an_infinite_value() -> None:
    infinite = tensor(math.inf, math.inf).unsqueeze(-1)
    assert dqn.greedy_target(REWARD, DISCOUNT, TERMINATED, infinite)[1] == 2


@pytest.mark.parametrize(
    ("huber", "expected"), [(False, (0.25 + 9) / 2), (True, (0.125 + 2.5) / 2)]
)
def test_squared_and_huber_losses(huber: bool, expected: float) -> None:
    q, target = tensor(1.5, -1), tensor(1, 2)
    assert dqn.td_loss(q, target, huber=huber).item() == pytest.approx(expected)


@pytest.mark.parametrize(("huber", "expected"), [(False, 1 + 0.25 * 4), (True, 0.5 + 0.25 * 1.5)])
def test_weights_multiply_the_losses_of_their_samples(huber: bool, expected: float) -> None:
    found = dqn.td_loss(tensor(4, 5), tensor(3, 3), huber=huber, weights=tensor(1, 0.25))
    assert found.item() == pytest.approx(expected / 2)


SUPPORT = tensor(-1, 0, 1)


@pytest.mark.parametrize(
    ("probabilities", "reward", "discount", "terminated", "expected"),
    [
        # Atoms -1, 0, 1 go to -0.25, 0.25, 0.75: each between two neighbours.
        ((0.2, 0.3, 0.5), 0.25, 0.5, False, (0.05, 0.15 + 0.225 + 0.125, 0.075 + 0.375)),
        # Onto atoms exactly: no mass is lost.
        ((0.2, 0.3, 0.5), 0.0, 1.0, False, (0.2, 0.3, 0.5)),
        # Beyond the last atom: all of it stays there.
        ((0.2, 0.3, 0.5), 5.0, 0.9, False, (0.0, 0.0, 1.0)),
        ((0.2, 0.3, 0.5), -5.0, 0.9, False, (1.0, 0.0, 0.0)),
        # After the end the return is the reward alone.
        ((0.2, 0.3, 0.5), 0.4, 0.9, True, (0.0, 0.6, 0.4)),
    ],
)
def test_the_projection_onto_atoms(
    probabilities: tuple[float, ...],
    reward: float,
    discount: float,
    terminated: bool,
    expected: tuple[float, ...],
) -> None:
    found = dqn.project_distribution(
        tensor(*probabilities).unsqueeze(0),
        tensor(reward),
        tensor(discount),
        torch.tensor([terminated]),
        SUPPORT,
    )
    torch.testing.assert_close(found, tensor(*expected).unsqueeze(0))


def test_the_projection_equals_the_paper_s_loop() -> None:
    draws = torch.Generator().manual_seed(0)
    support = torch.linspace(-3, 7, 11, dtype=torch.float64)
    probabilities = torch.rand(20, 11, generator=draws, dtype=torch.float64).softmax(-1)
    reward = 4 * torch.randn(20, generator=draws, dtype=torch.float64)
    terminated = torch.rand(20, generator=draws) < 0.3
    discount = torch.full((20,), 0.97, dtype=torch.float64)
    expected = torch.zeros(20, 11, dtype=torch.float64)
    for row in range(20):
        for atom in range(11):
            factor = 0.0 if terminated[row] else 0.97
            moved = min(max(reward[row].item() + factor * support[atom].item(), -3.0), 7.0)
            position = moved + 3.0
            lower, upper = math.floor(position), math.ceil(position)
            mass = probabilities[row, atom]
            if lower == upper:
                expected[row, lower] += mass
            else:
                expected[row, lower] += mass * (upper - position)
                expected[row, upper] += mass * (position - lower)
    found = dqn.project_distribution(probabilities, reward, discount, terminated, support)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(found.sum(-1), torch.ones(20, dtype=torch.float64))


def test_the_categorical_loss_is_the_cross_entropy() -> None:
    logits, target = tensor(0, math.log(3)).unsqueeze(0), tensor(0.5, 0.5).unsqueeze(0)
    expected = -(0.5 * math.log(0.25) + 0.5 * math.log(0.75))
    assert dqn.categorical_loss(logits, target).item() == pytest.approx(expected)


def test_the_soft_target_is_the_smaller_critic_s_less_the_weighted_log_probability() -> None:
    next_q = torch.stack([tensor(3, 5), tensor(4, 1)])
    found = sac.soft_target(REWARD, DISCOUNT, TERMINATED, next_q, tensor(-1, -2), torch.tensor(0.5))
    torch.testing.assert_close(found, tensor(1 + 0.9 * (3 + 0.5), 2))


def test_the_discrete_soft_target_is_the_expectation_over_actions() -> None:
    next_q = torch.stack([tensor(3, 5), tensor(4, 1)]).unsqueeze(1)
    logits = tensor(math.log(0.25), math.log(0.75)).unsqueeze(0)
    found = sac.discrete_soft_target(
        tensor(1), tensor(0.9), torch.tensor([False]), next_q, logits, torch.tensor(0.5)
    )
    first, second = 3 - 0.5 * math.log(0.25), 1 - 0.5 * math.log(0.75)
    assert found.item() == pytest.approx(1 + 0.9 * (0.25 * first + 0.75 * second))


def test_the_discrete_policy_loss_is_least_at_the_softmax_of_the_smaller_critic() -> None:
    q = torch.stack([tensor(1.0, 2.0, 0.5), tensor(1.5, 0.7, 0.9)]).unsqueeze(1)
    alpha = torch.tensor(0.3)
    logits = (q.min(0).values / alpha).requires_grad_()
    loss = sac.discrete_actor_loss(q, logits, alpha)
    (gradient,) = torch.autograd.grad(loss, logits)
    torch.testing.assert_close(gradient, torch.zeros_like(gradient), atol=1e-12, rtol=0)


def test_alpha_falls_while_there_is_more_entropy_than_asked_for() -> None:
    log_alpha = torch.tensor(0.0, requires_grad=True)
    loss = sac.temperature_loss(log_alpha, torch.tensor([1.0, 3.0]), target_entropy=0.5)
    (gradient,) = torch.autograd.grad(loss, log_alpha)
    assert gradient.item() == pytest.approx(1.5)


def test_target_noise_is_clipped_and_so_is_the_action() -> None:
    found = td3.smoothed_action(tensor(0.9, 0.0, -0.9), tensor(5, 1, -5), 0.2, 0.5)
    torch.testing.assert_close(found, tensor(1.0, 0.2, -1.0))


def test_the_policy_climbs_the_first_critic_alone() -> None:
    assert td3.actor_loss(torch.stack([tensor(1, 3), tensor(9, 9)])).item() == -2


# ---- the documented functions


def facts(critics: int | None = None, *, discounts: bool = True) -> dict[str, Tensor]:
    minibatch: dict[str, Tensor] = {"rewards": REWARD, "terminated": TERMINATED}
    if discounts:
        minibatch["discounts"] = DISCOUNT
    if critics:
        minibatch["q_values"] = torch.stack([tensor(1, 2), tensor(0, 2)])
        minibatch["next_q_values"] = torch.stack([tensor(3, 5), tensor(4, 1)])
    return minibatch


def as_mapping_and_tensordict(minibatch: dict[str, Tensor]) -> list[Any]:
    return [minibatch, TensorDict(dict(minibatch), [])]


def test_dqn_loss_by_hand() -> None:
    minibatch = {
        **facts(),
        "q_values": torch.stack([tensor(1, 5), tensor(0, 4)]).requires_grad_(),
        "actions": torch.tensor([1, 1]),
        "next_q_values": torch.stack([tensor(3, 5), tensor(7, 9)]),
    }
    # Targets 1 + 0.9 * 5 = 5.5 and 2; errors -0.5 and 2.
    for each in as_mapping_and_tensordict(minibatch):
        found = dqn.dqn_loss(each, huber=False)
        assert found["loss"].item() == pytest.approx((0.25 + 4) / 2)
        torch.testing.assert_close(found["td_errors"], tensor(-0.5, 2))
        assert dqn.dqn_loss(each)["loss"].item() == pytest.approx((0.125 + 1.5) / 2)
    minibatch["next_selecting_q_values"] = torch.stack([tensor(1, 0), tensor(1, 0)])
    minibatch["weights"] = tensor(1, 0.5)
    found = dqn.dqn_loss(minibatch, huber=False)  # targets 1 + 0.9 * 3 = 3.7 and 2
    assert found["loss"].item() == pytest.approx((1.3**2 + 0.5 * 4) / 2)
    del minibatch["discounts"]
    found = dqn.dqn_loss(minibatch, gamma=0.5)
    torch.testing.assert_close(found["td_errors"], tensor(5 - 2.5, 2))


def test_sac_loss_by_hand_and_what_its_gradients_reach() -> None:
    minibatch = {
        **facts(2),
        "next_logprobs": tensor(-1, -2),
        "new_q_values": torch.stack([tensor(2, 4), tensor(3, 1)]).requires_grad_(),
        "logprobs": tensor(-3, -1).requires_grad_(),
    }
    minibatch["q_values"].requires_grad_()
    minibatch["next_q_values"].requires_grad_()
    alpha = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    for each in as_mapping_and_tensordict(minibatch):
        found = sac.sac_loss(each, alpha, target_entropy=-1.0)
        # Targets 1 + 0.9 * (3 + 0.5) = 4.15 and 2.
        assert found["value_loss"].item() == pytest.approx(0.5 * (3.15**2 + 4.15**2) / 2)
        assert found["policy_loss"].item() == pytest.approx((-1.5 - 2 - 0.5 - 1) / 2)
        assert found["entropy_loss"].item() == pytest.approx(math.log(0.5) * (2 + 1))
        names = ("value_loss", "policy_loss", "entropy_loss")
        assert found["loss"].item() == pytest.approx(sum(found[name].item() for name in names))
    keys = ("q_values", "next_q_values", "new_q_values", "logprobs")
    inputs = [minibatch[key] for key in keys]
    loss = sac.sac_loss(minibatch, alpha, target_entropy=-1.0)["loss"]
    found_ = torch.autograd.grad(loss, [*inputs, alpha], allow_unused=True)
    assert [each is not None for each in found_] == [True, False, True, True, True]
    torch.testing.assert_close(found_[3], tensor(0.25, 0.25))  # alpha / B, not of the temperature
    assert found_[4] is not None
    assert found_[4].item() == pytest.approx(3 / 0.5)


def test_td3_loss_by_hand() -> None:
    minibatch = facts(2)
    for each in as_mapping_and_tensordict(minibatch):
        found = td3.td3_loss(each)  # targets 1 + 0.9 * 3 = 3.7 and 2
        assert set(found) == {"loss", "value_loss"}
        assert found["loss"].item() == pytest.approx((2.7**2 + 3.7**2) / 2)
    minibatch["new_q_values"] = torch.stack([tensor(1, 3), tensor(9, 9)])
    found = td3.td3_loss(minibatch)
    assert found["policy_loss"].item() == -2
    assert found["loss"].item() == pytest.approx((2.7**2 + 3.7**2) / 2 - 2)

"""PPO's loss from numbers: every part worked by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from rl_training.losses.ppo import (
    approximate_kl,
    clip_fraction,
    clipped_policy_loss,
    normalize,
    ppo_loss,
    value_loss,
)


def test_every_part_worked_by_hand() -> None:
    ratios = torch.tensor([1.5, 0.5, 1.1, 0.5], dtype=torch.float64)
    parts = ppo_loss(
        {
            "logprobs": ratios.log() - 1.0,
            "old_logprobs": torch.full((4,), -1.0, dtype=torch.float64),
            "advantages": torch.tensor([2.0, 2.0, -1.0, -1.0], dtype=torch.float64),
            "returns": torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64),
            "new_values": torch.tensor([1.0, 2.0, 3.0, 0.0], dtype=torch.float64),
            "entropy": torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64),
        },
        clip_coef=0.2,
        ent_coef=0.1,
        vf_coef=0.5,
    )
    # min(r A, clip(r) A): 1.2 * 2, 0.5 * 2, 1.1 * -1 and, clipped being the smaller, 0.8 * -1.
    policy = -(2.4 + 1.0 - 1.1 - 0.8) / 4
    expected = {
        "policy_loss": policy,
        "value_loss": 16.0 / 4,
        "entropy_loss": -0.25,
        "loss": policy + 0.5 * 4.0 - 0.1 * 0.25,
        "approx_kl": sum(r - 1 - math.log(r) for r in (1.5, 0.5, 1.1, 0.5)) / 4,
        "clip_fraction": 3 / 4,
    }
    assert {key: part.item() for key, part in parts.items()} == pytest.approx(expected)


def test_the_gradient_stops_where_clipping_is_the_pessimistic_side() -> None:
    log_ratio = torch.tensor([1.5, 0.5, 1.5, 0.5], dtype=torch.float64).log().requires_grad_()
    advantage = torch.tensor([1.0, 1.0, -1.0, -1.0], dtype=torch.float64)
    (gradient,) = torch.autograd.grad(clipped_policy_loss(log_ratio, advantage, 0.2), [log_ratio])
    # d(-r A)/d(log r) = -r A where the ratio itself counts: for a gain below 1 and a loss above 1.
    assert gradient.tolist() == pytest.approx([0.0, -0.5 / 4, 1.5 / 4, 0.0])


def test_value_clipping_takes_the_larger_error_of_each_element() -> None:
    value = torch.tensor([2.0, 2.0, 0.6], dtype=torch.float64)
    old = torch.tensor([1.0, 1.0, 0.5], dtype=torch.float64)
    target = torch.tensor([2.0, 0.0, 0.0], dtype=torch.float64)
    # Clipped to 1.2, 1.2, 0.6. Errors (0 or 0.64), (4 or 1.44), (0.36 twice).
    loss = value_loss(value, target, old_value=old, clip_epsilon=0.2)
    assert loss.item() == pytest.approx((0.64 + 4.0 + 0.36) / 3)
    assert value_loss(value, target).item() == pytest.approx((0.0 + 4.0 + 0.36) / 3)


def test_k3_is_never_negative_and_estimates_the_divergence() -> None:
    torch.manual_seed(0)
    old: Any = torch.distributions.Normal(0.0, 1.0)
    new: Any = torch.distributions.Normal(0.3, 1.2)
    actions = old.sample((200_000,))
    log_ratio = new.log_prob(actions) - old.log_prob(actions)
    # k1, the plain mean of -log r, estimates the same but turns negative on a small sample.
    small = log_ratio[log_ratio > 0][:100]
    assert (-small).mean() < 0 < approximate_kl(small)
    truth = torch.distributions.kl_divergence(old, new).item()
    assert approximate_kl(log_ratio).item() == pytest.approx(truth, rel=0.02)
    reversed_truth = torch.distributions.kl_divergence(new, old).item()
    assert abs(truth - reversed_truth) > 0.1 * truth


def test_clip_fraction_counts_both_sides_and_not_the_inside() -> None:
    ratios = torch.tensor([0.79, 0.81, 1.0, 1.19, 1.21], dtype=torch.float64)
    assert clip_fraction(ratios.log(), 0.2).item() == pytest.approx(2 / 5)


def test_normalisation_is_by_the_unbiased_deviation() -> None:
    # Mean 2, squares 1 + 0 + 1: unbiased variance 1, biased 2/3.
    assert normalize(torch.tensor([1.0, 2.0, 3.0])).tolist() == pytest.approx([-1.0, 0.0, 1.0])
    assert normalize(torch.tensor([5.0])).tolist() == [5.0]
    assert normalize(torch.full((4,), 3.0)).tolist() == [0.0] * 4

"""The independent auxiliary loss agrees with torch's distributions and numbers worked by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch.distributions import Categorical, Independent, Normal, kl_divergence

from tests.reference_ppg import auxiliary_loss, categorical_kl, normal_kl


def test_categorical_kl_equals_torch_distributions() -> None:
    generator = torch.Generator().manual_seed(0)
    old, new = 3.0 * torch.randn(2, 64, 5, generator=generator, dtype=torch.float64)
    expected = kl_divergence(Categorical(logits=old), Categorical(logits=new))
    torch.testing.assert_close(categorical_kl(old, new), expected)


def test_categorical_kl_equals_the_sum_worked_by_hand() -> None:
    old = torch.tensor([[0.5, 0.5]], dtype=torch.float64).log()
    new = torch.tensor([[0.9, 0.1]], dtype=torch.float64).log()
    expected = 0.5 * math.log(0.5 / 0.9) + 0.5 * math.log(0.5 / 0.1)
    assert categorical_kl(old, new).item() == pytest.approx(expected)


def test_normal_kl_is_summed_over_action_dimensions_as_in_torch_distributions() -> None:
    generator = torch.Generator().manual_seed(0)
    old_mean, new_mean = torch.randn(2, 64, 3, generator=generator, dtype=torch.float64)
    old_std, new_std = torch.randn(2, 64, 3, generator=generator, dtype=torch.float64).exp()
    expected = kl_divergence(
        Independent(Normal(old_mean, old_std), 1), Independent(Normal(new_mean, new_std), 1)
    )
    assert expected.shape == (64,)
    torch.testing.assert_close(normal_kl(old_mean, old_std, new_mean, new_std), expected)


def test_kl_of_a_policy_with_itself_and_its_gradient_are_zero() -> None:
    old = torch.randn(16, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    new = old.clone().requires_grad_()
    kl = categorical_kl(old, new)
    (gradient,) = torch.autograd.grad(kl.sum(), [new])
    assert kl.abs().max().item() == 0.0
    assert gradient.abs().max().item() < 1e-15


def test_auxiliary_loss_weighs_its_three_parts() -> None:
    target = torch.tensor([1.0, 3.0])
    loss = auxiliary_loss(
        kl=torch.tensor([0.1, 0.3]),
        auxiliary_value=torch.tensor([0.0, 3.0]),  # squared errors 1 and 0: 0.5 * 0.5 = 0.25
        value=torch.tensor([3.0, 5.0]),  # squared errors 4 and 4: 0.5 * 4 = 2
        value_target=target,
        beta_clone=10.0,  # 10 * 0.2 = 2
    )
    assert loss.item() == pytest.approx(0.25 + 2.0 + 2.0)

"""Discrete and continuous actions at once, against torch.distributions."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributions import Categorical, Normal, kl_divergence

from rl_training.models.hybrid import HybridHead

FEATURES = 4


def make_head(sizes: Any, continuous: int, seed: int) -> HybridHead:
    torch.manual_seed(seed)
    head = HybridHead(num_features=FEATURES, sizes=sizes, continuous=continuous).double()
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.normal_()
    return head


def apart(head: HybridHead, parameters: Any) -> list[Any]:
    """Return the distributions of the numbers of an action, in their order."""
    logits, mean, log_std = parameters
    rows = logits.split(list(head.discrete.sizes), -1)
    numbers = zip(mean.unbind(-1), log_std.exp().unbind(-1), strict=True)
    return [*(Categorical(logits=each) for each in rows), *(Normal(*each) for each in numbers)]


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(1, 5), min_size=1, max_size=4), st.integers(1, 3), st.integers(0, 2**31)
)
def test_everything_is_the_sum_over_separate_distributions(
    sizes: list[int], continuous: int, seed: int
) -> None:
    one, other = (make_head(sizes, continuous, seed + each) for each in (0, 1))
    features = torch.randn(6, FEATURES, dtype=torch.float64)
    old, new = one(features), other(features)
    olds, news = apart(one, old), apart(other, new)
    action = one.draw(old, torch.Generator().manual_seed(seed % 1000))
    assert action.shape == (6, len(sizes) + continuous)
    numbers = action.unbind(-1)
    for number, size in zip(numbers, sizes, strict=False):
        assert set(number.tolist()) <= set(range(size))
    log_probability, entropy = one.evaluate(old, action)
    expected = sum(each.log_prob(number) for each, number in zip(olds, numbers, strict=True))
    torch.testing.assert_close(log_probability, expected)
    torch.testing.assert_close(entropy, sum(each.entropy() for each in olds))
    divergence = sum(kl_divergence(*pair) for pair in zip(olds, news, strict=True))
    torch.testing.assert_close(one.kl_divergence(old, new), divergence)
    assert not one.kl_divergence(old, old).any()
    cls, keywords = one.torch_distribution()
    distribution = cls(*one.torch_parameters(old), **keywords)
    torch.testing.assert_close(distribution.log_prob(action), log_probability)
    torch.testing.assert_close(distribution.entropy(), entropy)
    torch.testing.assert_close(distribution.mode, one.mode(old))
    assert distribution.sample((3,)).shape == (3, *action.shape)


def test_a_rollouts_samples_have_the_distribution_of_the_parameters() -> None:
    head = make_head([3, 2], 1, 0)
    features = torch.randn(1, FEATURES, dtype=torch.float64).expand(20_000, -1)
    [noise] = head.draw_noise(1, 20_000, torch.Generator().manual_seed(0))
    action = head.sample(features, noise.double())
    first, second, number = apart(head, tuple(each[0] for each in head(features)))
    frequencies = torch.bincount(action[:, 0].long(), minlength=3) / 20_000
    torch.testing.assert_close(frequencies.double(), first.probs, atol=0.02, rtol=0)
    torch.testing.assert_close(action[:, 1].mean(), second.probs[1], atol=0.02, rtol=0)
    torch.testing.assert_close(action[:, 2].mean(), number.mean, atol=0.05, rtol=0)
    torch.testing.assert_close(action[:, 2].std(), number.stddev, rtol=0.03, atol=0)
    encoded = head.encode(action[:5])
    assert encoded.shape == (5, head.num_actions)
    torch.testing.assert_close(encoded[:, 5], action[:5, 2])
    assert torch.equal(encoded[:, :3].argmax(-1).double(), action[:5, 0])

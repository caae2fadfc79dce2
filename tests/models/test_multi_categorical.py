"""Several discrete actions at once, against torch.distributions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.distributions import Bernoulli, Categorical, kl_divergence

from rl_training.models.multi_categorical import IndependentCategoricals, MultiCategoricalHead

FEATURES = 5
SIZES = [(2, 3), (4,), (1, 5, 2), (2, 2, 2, 2)]


def make_head(sizes: Sequence[int], *, shape: Any = None, seed: int = 0) -> MultiCategoricalHead:
    torch.manual_seed(seed)
    head = MultiCategoricalHead(num_features=FEATURES, sizes=sizes, action_shape=shape).double()
    with torch.no_grad():
        head.layer.weight.normal_()
        head.layer.bias.normal_()
    return head


def features(count: int) -> Tensor:
    return torch.randn(count, FEATURES, dtype=torch.float64)


def apart(logits: Tensor, sizes: Sequence[int]) -> list[Any]:
    return [Categorical(logits=each) for each in torch.functional.split(logits, list(sizes), -1)]


def some_actions(sizes: Sequence[int], count: int) -> Tensor:
    return torch.stack([torch.randint(size, (count,)) for size in sizes], -1)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 6), min_size=1, max_size=6), st.integers(0, 2**31))
def test_everything_is_the_sum_over_separate_categoricals(sizes: list[int], seed: int) -> None:
    old_head, new_head = make_head(sizes, seed=seed), make_head(sizes, seed=seed + 1)
    inputs, action = features(9), some_actions(sizes, 9)
    (old,), (new,) = old_head(inputs), new_head(inputs)
    olds, news = apart(old, sizes), apart(new, sizes)
    log_probability, entropy = old_head.evaluate((old,), action)
    expected = sum(each.log_prob(a) for each, a in zip(olds, action.unbind(-1), strict=True))
    torch.testing.assert_close(log_probability, expected)
    torch.testing.assert_close(entropy, sum(each.entropy() for each in olds))
    divergence = old_head.kl_divergence((old,), (new,))
    pairs = zip(olds, news, strict=True)
    torch.testing.assert_close(divergence, sum(kl_divergence(one, two) for one, two in pairs))
    assert not old_head.kl_divergence((old,), (old,)).any()
    best = torch.stack([each.probs.argmax(-1) for each in olds], -1)
    assert torch.equal(old_head.mode((old,)), best)
    assert (old_head.draw((old,), None) < torch.tensor(sizes)).all()


@pytest.mark.parametrize("sizes", SIZES)
def test_the_distribution_of_the_torchrl_actor_says_the_same(sizes: tuple[int, ...]) -> None:
    head = make_head(sizes, shape=(1, len(sizes)))
    parameters, action = head(features(9)), some_actions(sizes, 9).unsqueeze(1)
    cls, keywords = head.torch_distribution()
    assert cls is IndependentCategoricals
    distribution = cls(*head.torch_parameters(parameters), **keywords)
    log_probability, entropy = head.evaluate(parameters, action)
    torch.testing.assert_close(distribution.log_prob(action), log_probability)
    torch.testing.assert_close(distribution.entropy(), entropy)
    assert torch.equal(distribution.mode, head.mode(parameters))
    assert distribution.sample().shape == (9, 1, len(sizes))


def test_two_choices_each_are_bernoullis() -> None:
    head = make_head([2, 2, 2])
    (logits,) = head(features(7))
    action = some_actions([2, 2, 2], 7)
    no, yes = logits.reshape(7, 3, 2).unbind(-1)
    bernoulli: Any = Bernoulli(logits=yes - no)
    log_probability, entropy = head.evaluate((logits,), action)
    torch.testing.assert_close(log_probability, bernoulli.log_prob(action.double()).sum(-1))
    torch.testing.assert_close(entropy, bernoulli.entropy().sum(-1))


@pytest.mark.parametrize("way", ["rollout", "draw"])
def test_samples_have_the_frequencies_of_their_probabilities_and_are_independent(way: str) -> None:
    sizes, count = (2, 3), 60_000
    head = make_head(sizes).float()
    inputs = features(1).float().expand(count, -1)
    draws = torch.Generator().manual_seed(5)
    with torch.no_grad():
        (noise,) = head.draw_noise(1, count, draws)
        parameters = head(inputs)
        action = head.sample(inputs, noise) if way == "rollout" else head.draw(parameters, draws)
    first, second = (each.probs[0] for each in apart(parameters[0], sizes))
    expected = count * (first.unsqueeze(-1) * second).flatten()
    counts = torch.bincount(action[:, 0] * 3 + action[:, 1], minlength=6)
    # 20.5 is the 0.999 quantile with 5 degrees of freedom; the seed is fixed.
    assert ((counts - expected) ** 2 / expected).sum().item() < 20.5


def test_gradients_are_finite_with_choices_that_are_not_there() -> None:
    head = make_head([1, 7, 2])
    parameters = head(features(6) * 50)
    log_probability, entropy = head.evaluate(parameters, some_actions([1, 7, 2], 6))
    other = make_head([1, 7, 2], seed=3)(features(6))
    loss: Any = log_probability.sum() + entropy.sum() + head.kl_divergence(other, parameters).sum()
    loss.backward()
    assert math.isfinite(loss.item())
    assert all(each.grad is not None and each.grad.isfinite().all() for each in head.parameters())


def test_actions_are_read_one_hot_one_after_the_other() -> None:
    head = make_head([2, 3])
    assert head.encode(torch.tensor([[1, 2], [0, 0]])).tolist() == [
        [0, 1, 0, 0, 1],
        [1, 0, 1, 0, 0],
    ]


def test_a_rollout_of_rows_and_steps_is_evaluated_like_its_samples() -> None:
    head = make_head([2, 3, 2, 1], shape=(2, 2))
    inputs, action = features(12), some_actions([2, 3, 2, 1], 12)
    flat = head.evaluate(head(inputs), action.reshape(12, 2, 2))
    rows = head.evaluate(head(inputs.reshape(3, 4, -1)), action.reshape(3, 4, 2, 2))
    for one, other in zip(flat, rows, strict=True):
        torch.testing.assert_close(one.reshape(3, 4), other)

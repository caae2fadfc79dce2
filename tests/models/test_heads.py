"""Action heads against torch.distributions: log-probability, entropy, divergence, samples."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributions import Categorical, Independent, Normal, kl_divergence

from rl_training.models.heads import ActionHead, Parameters
from tests.losses.batches import HEADS, NUM_ACTIONS, NUM_FEATURES, make_actions


def make_head(kind: str, *, seed: int = 0, **keywords: Any) -> Any:
    torch.manual_seed(seed)
    head = HEADS[kind](num_features=NUM_FEATURES, num_actions=NUM_ACTIONS, **keywords).double()
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.add_(0.5 * torch.randn_like(parameter))
    return head


def features(size: int = 40) -> Tensor:
    return torch.randn(size, NUM_FEATURES, dtype=torch.float64)


def distribution(parameters: Parameters) -> Any:
    if len(parameters) == 1:
        return Categorical(logits=parameters[0])
    return Independent(Normal(parameters[0], parameters[1].exp()), 1)


@pytest.mark.parametrize("kind", HEADS)
def test_log_probability_and_entropy_equal_torch(kind: str) -> None:
    head = make_head(kind)
    parameters, action = head(features()), make_actions(kind, 40)
    log_probability, entropy = head.evaluate(parameters, action)
    expected = distribution(parameters)
    assert log_probability.shape == entropy.shape == (40,)
    torch.testing.assert_close(log_probability, expected.log_prob(action))
    torch.testing.assert_close(entropy, expected.entropy())


@pytest.mark.parametrize("kind", HEADS)
def test_divergence_equals_torch_and_is_exactly_zero_of_itself(kind: str) -> None:
    inputs = features()
    old, new = make_head(kind)(inputs), make_head(kind, seed=1)(inputs)
    divergence = make_head(kind).kl_divergence(old, new)
    assert divergence.shape == (40,)
    torch.testing.assert_close(divergence, kl_divergence(distribution(old), distribution(new)))
    assert (divergence > 0).all()
    assert not make_head(kind).kl_divergence(old, old).any()


@pytest.mark.parametrize("kind", HEADS)
def test_a_rollout_of_shape_rows_by_steps_is_evaluated_like_its_rows(kind: str) -> None:
    head = make_head(kind)
    inputs, action = features(12), make_actions(kind, 12)
    flat = head.evaluate(head(inputs), action)
    shaped_action = action.reshape(3, 4, *action.shape[1:])
    shaped = head.evaluate(head(inputs.reshape(3, 4, -1)), shaped_action)
    for one, other in zip(flat, shaped, strict=True):
        torch.testing.assert_close(one.reshape(3, 4), other)


@pytest.mark.parametrize("way", ["rollout", "draw"])
def test_discrete_samples_have_the_frequencies_of_their_probabilities(way: str) -> None:
    head = make_head("categorical").float()
    count = 60_000
    inputs = features(1).float().expand(count, -1)
    actions = sample(head, inputs, way=way, seed=3)
    probabilities = head(inputs[:1])[0].softmax(-1)[0]
    counts = torch.bincount(actions, minlength=NUM_ACTIONS)
    assert actions.dtype == torch.int64
    chi_square = ((counts - count * probabilities) ** 2 / (count * probabilities)).sum().item()
    # 13.8 is the 0.999 quantile with 2 degrees of freedom; the seed is fixed.
    assert chi_square < 13.8
    assert probabilities.max() - probabilities.min() > 0.1


def sample(head: ActionHead, inputs: Tensor, *, way: str, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        if way == "draw":
            return head.draw(head(inputs), generator)
        (noise,) = head.draw_noise(1, len(inputs), generator)
        return head.sample(inputs, noise)


@pytest.mark.parametrize("way", ["rollout", "draw"])
@pytest.mark.parametrize("kind", ["gaussian", "gsde"])
def test_continuous_samples_have_the_mean_and_deviation_of_their_distribution(
    kind: str, way: str
) -> None:
    head = make_head(kind, log_std_init=-0.5).float()
    count = 40_000
    inputs = features(1).float().expand(count, -1)
    actions = sample(head, inputs, way=way, seed=4)
    mean, log_std = (parameter[0] for parameter in head(inputs))
    std = log_std.exp()
    # Four standard errors of the mean, and of the deviation.
    assert ((actions.mean(0) - mean).abs() < 4 * std / math.sqrt(count)).all()
    assert ((actions.std(0) / std - 1).abs() < 4 / math.sqrt(2 * count)).all()
    correlation = torch.corrcoef(actions.T) - torch.eye(NUM_ACTIONS)
    assert (correlation.abs() < 4 / math.sqrt(count)).all()
    # Normal in shape too: kurtosis 3.
    kurtosis = ((actions - mean) / std).pow(4).mean(0)
    assert ((kurtosis - 3).abs() < 4 * math.sqrt(96 / count)).all()


@pytest.mark.parametrize("kind", HEADS)
def test_steps_of_a_rollout_and_environments_draw_apart(kind: str) -> None:
    head = make_head(kind, **({"resample_interval": 1} if kind == "gsde" else {})).float()
    noise = head.draw_noise(5, 4, torch.Generator().manual_seed(0))
    assert len(noise) == 5
    draws = torch.stack(noise).reshape(20, -1)
    assert len(torch.unique(draws, dim=0)) == 20
    again = head.draw_noise(5, 4, torch.Generator().manual_seed(0))
    assert all(torch.equal(one, other) for one, other in zip(noise, again, strict=True))


@pytest.mark.parametrize("kind", HEADS)
def test_the_mode_has_the_highest_probability(kind: str) -> None:
    head = make_head(kind)
    parameters = head(features())
    best, _ = head.evaluate(parameters, head.mode(parameters))
    for seed in range(10):
        drawn = head.draw(parameters, torch.Generator().manual_seed(seed))
        assert (head.evaluate(parameters, drawn)[0] <= best + 1e-12).all()
        assert drawn.shape == head.mode(parameters).shape


def test_log_standard_deviation_begins_as_configured_and_is_the_same_in_every_state() -> None:
    head: Any = HEADS["gaussian"](num_features=4, num_actions=2, log_std_init=-1.5)
    _, log_std = head(torch.randn(6, 4))
    assert log_std.shape == (6, 2)
    assert (log_std == -1.5).all()

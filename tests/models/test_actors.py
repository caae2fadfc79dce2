from __future__ import annotations

import pytest
import torch

from rl_training.models.action_noise import OrnsteinUhlenbeckNoise
from rl_training.models.actors import (
    DeterministicActor,
    SquashedGaussianActor,
    StateDependentNoiseActor,
    squash_correction,
)
from rl_training.models.mlp import MLP


def encoder(size: int = 8) -> MLP:
    return MLP(input_shape=(3,), hidden_sizes=[size], activation="tanh")


def test_the_correction_is_the_logarithm_of_the_slope_and_finite_where_that_is_zero() -> None:
    values = torch.linspace(-5, 5, 41, dtype=torch.float64)
    torch.testing.assert_close(squash_correction(values), (1 - values.tanh() ** 2).log())
    extreme = torch.tensor([-100.0, 100.0])
    torch.testing.assert_close(squash_correction(extreme), torch.full((2,), 1.38629 - 200.0))


def test_log_probability_equals_the_transformed_distribution_s() -> None:
    torch.manual_seed(0)
    actor = SquashedGaussianActor(encoder=encoder(), num_actions=2)
    observation, noise = torch.randn(16, 3), torch.randn(16, 2)
    action, found = actor.sample(observation, noise)
    mean, log_std = actor.parameters_of(observation)
    distribution = torch.distributions.TransformedDistribution(
        torch.distributions.Normal(mean, log_std.exp()), [torch.distributions.TanhTransform()]
    )
    expected = distribution.log_prob(action).sum(-1)  # type: ignore[no-untyped-call]
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(actor.explore(observation, noise), action)


def test_the_log_deviation_stays_in_its_range() -> None:
    actor = SquashedGaussianActor(encoder=encoder(), num_actions=1)
    with torch.no_grad():
        actor.head.weight.mul_(1000)
    _, log_std = actor.parameters_of(torch.randn(64, 3))
    assert (log_std.min().item(), log_std.max().item()) == (-20.0, 2.0)


def test_state_dependent_noise_has_the_deviation_its_density_says() -> None:
    torch.manual_seed(0)
    actor = StateDependentNoiseActor(encoder=encoder(), num_actions=2, log_std_init=-1.0)
    observation = torch.randn(1, 3).expand(20_000, 3)
    matrices = torch.randn(20_000, 8, 2)
    with torch.no_grad():
        gaussian = actor.explore(observation, matrices).atanh()
        mean, log_std = actor.parameters_of(observation[:1])
    torch.testing.assert_close(gaussian.mean(0), mean[0], atol=0.02, rtol=0)
    torch.testing.assert_close(gaussian.std(0), log_std[0].exp(), atol=0.02, rtol=0)


def test_one_matrix_is_the_same_noise_in_collection_and_in_learning() -> None:
    torch.manual_seed(0)
    actor = StateDependentNoiseActor(encoder=encoder(), num_actions=2)
    observation, matrix = torch.randn(5, 3), torch.randn(8, 2)
    learned, _ = actor.sample(observation, matrix)
    collected = actor.explore(observation, matrix.expand(5, 8, 2))
    torch.testing.assert_close(learned, collected)


def test_an_exploring_deterministic_actor_stays_within_bounds() -> None:
    actor = DeterministicActor(encoder=encoder(), num_actions=2)
    action = actor.explore(torch.randn(9, 3), torch.full((9, 2), 5.0))
    assert torch.equal(action, torch.ones(9, 2))


def test_the_ornstein_uhlenbeck_process_step_by_step() -> None:
    process = OrnsteinUhlenbeckNoise(deviation=0.5)
    found = process.draw(3, 2, 1, torch.Generator().manual_seed(0))
    normal = torch.randn(3, 2, 1, generator=torch.Generator().manual_seed(0))
    value = torch.zeros(2, 1)
    for step in range(3):
        value = value - 0.15 * 0.01 * value + 0.5 * 0.1 * normal[step]
        torch.testing.assert_close(found[step], value)
    process.restart(torch.tensor([True, False]))
    assert process.state_dict()["value"][0].item() == 0.0
    assert process.state_dict()["value"][1].item() == pytest.approx(value[1].item())


def test_noise_goes_on_over_the_border_of_rollouts() -> None:
    whole, parts = OrnsteinUhlenbeckNoise(deviation=0.3), OrnsteinUhlenbeckNoise(deviation=0.3)
    expected = whole.draw(6, 1, 2, torch.Generator().manual_seed(3))
    draws = torch.Generator().manual_seed(3)
    first = parts.draw(2, 1, 2, draws)
    other = OrnsteinUhlenbeckNoise(deviation=0.3)
    other.load_state_dict(parts.state_dict())
    torch.testing.assert_close(torch.cat([first, other.draw(4, 1, 2, draws)]), expected)

"""gSDE: its variance, its agreement with Stable-Baselines3, and when its matrix is drawn anew."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from rl_training.models.heads import StateDependentNoiseHead


def make_head(*, interval: int = -1, log_std_init: float = -0.5) -> StateDependentNoiseHead:
    torch.manual_seed(0)
    head = StateDependentNoiseHead(
        num_features=5, num_actions=2, log_std_init=log_std_init, resample_interval=interval
    )
    with torch.no_grad():
        head.log_std.add_(0.4 * torch.randn_like(head.log_std))
    return head


def changes(rollouts: list[list[Tensor]]) -> list[int]:
    """Return the steps, counted over the rollouts, at which another matrix was used."""
    matrices = [matrix for rollout in rollouts for matrix in rollout]
    return [
        step
        for step, matrix in enumerate(matrices)
        if step == 0 or not torch.equal(matrix, matrices[step - 1])
    ]


def test_every_four_steps_counts_on_over_rollouts_of_six() -> None:
    head, generator = make_head(interval=4), torch.Generator().manual_seed(0)
    rollouts = [head.draw_noise(6, 3, generator) for _ in range(3)]
    assert changes(rollouts) == [0, 4, 8, 12, 16]


def test_one_matrix_per_rollout_by_default() -> None:
    head, generator = make_head(), torch.Generator().manual_seed(0)
    assert changes([head.draw_noise(6, 3, generator) for _ in range(3)]) == [0, 6, 12]


def test_a_restored_head_goes_on_in_the_middle_of_an_interval() -> None:
    head, generator = make_head(interval=4), torch.Generator().manual_seed(0)
    head.draw_noise(6, 3, generator)
    restored, other = make_head(interval=4), torch.Generator()
    restored.load_exploration_state(head.exploration_state())
    other.set_state(generator.get_state())
    expected = torch.stack(head.draw_noise(6, 3, generator))
    assert torch.equal(torch.stack(restored.draw_noise(6, 3, other)), expected)


def test_another_number_of_environments_draws_anew() -> None:
    head, generator = make_head(interval=4), torch.Generator().manual_seed(0)
    head.draw_noise(2, 3, generator)
    noise = head.draw_noise(2, 5, generator)
    assert [matrix.shape[0] for matrix in noise] == [5, 5]


def test_each_environment_has_its_own_matrix() -> None:
    (noise,) = make_head().draw_noise(1, 6, torch.Generator().manual_seed(0))
    assert noise.shape == (6, 5, 2)
    assert len(torch.unique(noise.flatten(1), dim=0)) == 6


def test_the_noise_is_the_same_function_of_the_state_until_it_is_drawn_anew() -> None:
    head = make_head()
    noise = head.draw_noise(2, 1, torch.Generator().manual_seed(0))
    state = torch.randn(1, 5)
    assert torch.equal(head.sample(state, noise[0]), head.sample(state, noise[1]))
    mean = head(state)[0]
    shift = head.sample(state, noise[0]) - mean
    torch.testing.assert_close(head.sample(2 * state, noise[0]) - head(2 * state)[0], 2 * shift)


def test_prediction_leaves_the_rollouts_matrix_alone() -> None:
    head, generator = make_head(interval=4), torch.Generator().manual_seed(0)
    (before,) = head.draw_noise(1, 3, generator)
    head.draw(head(torch.randn(7, 5)), torch.Generator().manual_seed(1))
    (after,) = head.draw_noise(1, 3, generator)
    assert torch.equal(before, after)


def test_the_variance_does_not_train_the_features() -> None:
    head = make_head()
    state = torch.randn(4, 5, requires_grad=True)
    _, log_std = head(state)
    assert torch.autograd.grad(log_std.sum(), [state], allow_unused=True)[0] is None
    assert head(state)[1].requires_grad


def test_distribution_equals_stable_baselines() -> None:
    peers = pytest.importorskip(
        "stable_baselines3.common.distributions", reason="needs the extra 'peers'"
    )
    head = make_head()
    theirs = peers.StateDependentNoiseDistribution(2, full_std=True, use_expln=False)
    theirs.proba_distribution_net(latent_dim=5, latent_sde_dim=5)
    state, action = torch.randn(30, 5), torch.randn(30, 2)
    parameters = head(state)
    theirs.proba_distribution(parameters[0], head.log_std, state)
    log_probability, entropy = head.evaluate(parameters, action)
    torch.testing.assert_close(log_probability, theirs.log_prob(action), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(entropy, theirs.entropy(), rtol=1e-4, atol=1e-5)
    # The same matrices give the same actions.
    (noise,) = head.draw_noise(1, 30, torch.Generator().manual_seed(0))
    theirs.exploration_matrices = noise
    torch.testing.assert_close(head.sample(state, noise), theirs.sample())

from __future__ import annotations

import pytest
import torch
from torch import nn

from rl_training.models.mlp import MLP
from rl_training.models.q_networks import ContinuousQ, DiscreteQ, NoisyLinear, QNetwork


def encoder() -> MLP:
    return MLP(input_shape=(3,), hidden_sizes=[8], activation="relu")


def test_an_ensemble_equals_its_members_one_by_one() -> None:
    torch.manual_seed(0)
    members = [
        nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 6), nn.ReLU(), nn.Linear(6, 1))
        for _ in range(3)
    ]
    critics = ContinuousQ(observation_shape=(3,), num_actions=2, hidden_sizes=[7, 6], count=3)
    for index, member in enumerate(members):
        layers = [each for each in member if isinstance(each, nn.Linear)]
        critics.copy_member_(index, layers)
    observation, action = torch.randn(4, 3), torch.randn(4, 2)
    found = critics(observation, action)
    inputs = torch.cat([observation, action], -1)
    expected = torch.stack([member(inputs).squeeze(-1) for member in members])
    assert found.shape == (3, 4)
    torch.testing.assert_close(found, expected)
    assert torch.equal(critics(observation, action, members=1), found[:1])
    assert torch.equal(critics(observation, action, frozen=True, members=2), found[:2])


def test_members_of_an_ensemble_start_apart_and_within_the_bounds_of_a_linear_layer() -> None:
    critics = DiscreteQ(input_size=4, hidden_sizes=[64], outputs=2)
    first, second = critics.weights[0]
    assert not torch.equal(first, second)
    assert first.abs().max() <= 0.5 and first.abs().max() > 0.4
    assert critics(torch.randn(5, 4)).shape == (2, 5, 2)


def test_images_and_integers_are_flattened_and_converted() -> None:
    critics = ContinuousQ(observation_shape=(2, 3), num_actions=1, hidden_sizes=[4])
    observation = torch.randint(255, (5, 2, 3), dtype=torch.uint8)
    assert critics(observation, torch.zeros(5, 1)).shape == (2, 5)


def test_a_duelling_head_has_the_value_as_its_mean() -> None:
    network = QNetwork(encoder=encoder(), num_actions=4, dueling=True)
    observation = torch.randn(6, 3)
    output = network.head(network.encoder(observation))
    torch.testing.assert_close(network(observation).mean(-1), output[:, 0])
    advantage = output[:, 1:] - output[:, 1:].mean(-1, keepdim=True)
    torch.testing.assert_close(network(observation), output[:, :1] + advantage)


def test_a_duelling_distribution_is_duelling_for_every_atom() -> None:
    network = QNetwork(encoder=encoder(), num_actions=4, num_atoms=5, dueling=True)
    found = network(torch.randn(6, 3))
    assert found.shape == (6, 4, 5)
    output = network.head(network.encoder(torch.zeros(1, 3))).view(1, 5, 5)
    torch.testing.assert_close(network(torch.zeros(1, 3)).mean(1), output[:, 0])


def test_noise_of_a_layer_is_factorised() -> None:
    layer = NoisyLinear(3, 2, initial_std=0.5)
    assert torch.allclose(layer.weight_std, torch.tensor(0.5 / 3**0.5))
    noise = torch.tensor([4.0, -9.0, 1.0, 16.0, -4.0])
    left, right = torch.tensor([2.0, -3.0, 1.0]), torch.tensor([4.0, -2.0])
    weight = layer.weight + layer.weight_std * right[:, None] * left[None, :]
    features = torch.randn(7, 3)
    expected = features @ weight.T + layer.bias + layer.bias_std * right
    torch.testing.assert_close(layer(features, noise), expected)


def test_without_noise_a_noisy_layer_is_its_mean() -> None:
    layer = NoisyLinear(3, 2)
    features = torch.randn(7, 3)
    expected = nn.functional.linear(features, layer.weight, layer.bias)
    torch.testing.assert_close(layer(features, None), expected)
    assert QNetwork(encoder=encoder(), num_actions=2, noisy_std=0.5).noise_size == 8 + 2
    assert QNetwork(encoder=encoder(), num_actions=2).noise_size == 0


@pytest.mark.parametrize("orthogonal", [False, True])
def test_orthogonal_weights_on_request(orthogonal: bool) -> None:
    critics = ContinuousQ(
        observation_shape=(3,), num_actions=1, hidden_sizes=[4, 4], orthogonal_init=orthogonal
    )
    product = critics.weights[1][0] @ critics.weights[1][0].T
    assert torch.allclose(product, 2 * torch.eye(4), atol=1e-5) == orthogonal

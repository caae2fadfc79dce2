"""The perceptron against torch's own layers; orthogonal initialisation by what it means."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from rl_training.errors import UserError
from rl_training.models.actor_critic import ActorCritic, Architecture, MLPPPGModel
from rl_training.models.build import encoder_factory, head_factory
from rl_training.models.mlp import MLP

LAYERS: dict[str, nn.Module] = {
    "tanh": nn.Tanh(),
    "relu": nn.ReLU(),
    "elu": nn.ELU(),
    "silu": nn.SiLU(),
    "gelu": nn.GELU(),
}


@pytest.mark.parametrize("activation", LAYERS)
def test_output_equals_a_sequential_of_torch(activation: str) -> None:
    torch.manual_seed(0)
    mlp = MLP(input_shape=(4,), hidden_sizes=(8, 6), activation=activation)
    expected = nn.Sequential(mlp.layers[0], LAYERS[activation], mlp.layers[1], LAYERS[activation])
    observation = torch.randn(5, 4)
    assert mlp.output_size == 6
    assert torch.equal(mlp(observation), expected(observation))


def test_any_number_of_batch_dimensions_and_any_observation_shape() -> None:
    torch.manual_seed(0)
    mlp = MLP(input_shape=(2, 3), hidden_sizes=(8,))
    observation = torch.randn(4, 5, 2, 3)
    assert mlp(observation).shape == (4, 5, 8)
    assert mlp(observation[0, 0]).shape == (8,)
    assert torch.equal(mlp(observation)[1, 2], mlp(observation[1, 2].flatten().reshape(2, 3)))
    scalar = MLP(input_shape=(), hidden_sizes=(8,))
    assert scalar(torch.randn(4)).shape == (4, 8)


@pytest.mark.parametrize("dtype", [torch.float64, torch.uint8, torch.int64])
def test_other_dtypes_are_converted(dtype: torch.dtype) -> None:
    mlp = MLP(input_shape=(3,), hidden_sizes=(8,))
    observation = torch.tensor([[1, 2, 250]])
    assert torch.equal(mlp(observation.to(dtype)), mlp(observation.float()))


def test_no_hidden_layer_passes_the_flat_observation_on() -> None:
    mlp = MLP(input_shape=(2, 2), hidden_sizes=())
    assert mlp.output_size == 4
    assert mlp(torch.arange(4.0).reshape(1, 2, 2)).tolist() == [[0.0, 1.0, 2.0, 3.0]]


def make_model(architecture: Architecture = "dual", *, orthogonal: bool = True) -> MLPPPGModel:
    torch.manual_seed(0)
    return MLPPPGModel(
        make_encoder=encoder_factory(
            encoder="auto", observation_shape=(10,), hidden_sizes=(16, 12), activation="tanh"
        ),
        make_head=head_factory(num_actions=3, discrete=True),
        architecture=architecture,
        orthogonal_init=orthogonal,
    )


def gains(model: ActorCritic) -> dict[str, float]:
    """Return the factor g of every weight with W W^T = g^2 I (of its shorter side), or fail."""
    found = {}
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            weight = module.weight.detach().double()
            weight = weight if weight.shape[0] <= weight.shape[1] else weight.T
            product = weight @ weight.T
            square = product.diagonal().mean()
            torch.testing.assert_close(
                product, square * torch.eye(len(product), dtype=torch.float64), rtol=0, atol=1e-5
            )
            assert not module.bias.any()
            found[name] = math.sqrt(square.item())
    return found


def test_orthogonal_gains_are_those_of_the_baselines() -> None:
    root_two = math.sqrt(2)
    assert gains(make_model()) == pytest.approx(
        {
            "encoder.layers.0": root_two,
            "encoder.layers.1": root_two,
            "value_encoder.layers.0": root_two,
            "value_encoder.layers.1": root_two,
            "action_head.layer": 0.01,
            "value_head": 1.0,
            "auxiliary_head": 1.0,
        },
        rel=1e-4,
    )


def test_without_orthogonal_initialisation_layers_keep_torchs_own() -> None:
    weight = make_model(orthogonal=False).encoder.get_parameter("layers.0.weight")
    assert weight.abs().max() <= 1 / math.sqrt(10)
    assert (weight @ weight.T)[0, 1].abs() > 1e-3


def test_an_encoder_without_an_output_size_is_refused_by_name() -> None:
    make = encoder_factory(
        encoder=lambda **_: nn.Linear(3, 3),
        observation_shape=(3,),
        hidden_sizes=(8,),
        activation="tanh",
    )
    with pytest.raises(UserError, match="Linear needs an integer attribute 'output_size'"):
        make()
    with pytest.raises(UserError, match="unknown 'mpl'; allowed: auto, mlp"):
        encoder_factory(encoder="mpl", observation_shape=(3,), hidden_sizes=(8,), activation="tanh")

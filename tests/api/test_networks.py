"""Networks of one's own, as objects and by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensordict.nn import AddStateIndependentNormalScale, TensorDictModule
from torch import Tensor, nn

from rl_training import (
    PPO,
)
from rl_training.errors import UserError
from rl_training.models import MLP, MLPActorCritic
from tests.api.runs import make, parameters
from tests.recipes.environments import Identity, Tracking


def discrete_networks() -> tuple[Any, Any]:
    policy = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4))
    value = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    return (
        TensorDictModule(policy, in_keys=["observation"], out_keys=["logits"]),
        TensorDictModule(value, in_keys=["observation"], out_keys=["state_value"]),
    )


def box_networks() -> tuple[Any, Any]:
    policy = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 2))
    scaled = nn.Sequential(policy, AddStateIndependentNormalScale(2, scale_mapping="exp"))
    value = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))
    return (
        TensorDictModule(scaled, in_keys=["observation"], out_keys=["loc", "scale"]),
        TensorDictModule(value, in_keys=["observation"], out_keys=["state_value"]),
    )


@pytest.mark.parametrize(
    ("env", "networks"), [(Identity, discrete_networks), (Tracking, box_networks)]
)
def test_networks_given_in_python_learn_and_must_be_given_again(
    tmp_path: Path, env: Any, networks: Any
) -> None:
    torch.manual_seed(0)
    given = networks()
    before = [p.detach().clone() for module in given for p in module.parameters()]
    algorithm = make(env=env, networks=given, num_epochs=10, learning_rate=1e-2, num_steps=64)
    start = algorithm.evaluate(episodes=20)["return_mean"]
    algorithm.learn(1024)
    assert algorithm.evaluate(episodes=20)["return_mean"] > start + 2
    after = [p for module in given for p in module.parameters()]
    assert not any(torch.equal(old, new) for old, new in zip(before, after, strict=True))

    path = algorithm.save(tmp_path / "saved")
    with pytest.raises(UserError, match=r"load\(path, networks=\(policy, value\)\)"):
        PPO.load(path, env=env)
    loaded = PPO.load(path, env=env, networks=networks())
    seen = np.stack([env().reset(seed=seed)[0] for seed in range(20)])
    assert np.array_equal(loaded.predict(seen)[0], algorithm.predict(seen)[0])
    assert torch.equal(parameters(loaded), parameters(algorithm))
    _, other_value = box_networks() if env is Identity else discrete_networks()
    with pytest.raises(UserError, match="does not fit"):
        PPO.load(path, env=env, networks=(networks()[0], other_value))


def test_networks_that_write_other_keys_are_refused() -> None:
    policy, value = discrete_networks()
    with pytest.raises(UserError, match="must write"):
        make(env=Tracking, networks=(policy, value))
    with pytest.raises(UserError, match="must write 'state_value'"):
        make(env=Identity, networks=(policy, policy))
    with pytest.raises(UserError, match=r"give model\.network"):
        make("ppg", env=Identity, networks=(policy, value))


def test_networks_that_are_no_tensordict_modules_are_refused() -> None:
    policy, value = discrete_networks()
    for given, named in (
        (nn.Linear(4, 4), "not a Linear"),
        ((nn.Linear(4, 4), value), r"not \(Linear, TensorDictModule\)"),
        ([policy], "not a list"),
        ({"policy": policy, "value": value}, "not a dict"),
    ):
        with pytest.raises(UserError, match=rf"two TensorDict modules.*{named}\. Wrap each"):
            make(env=Identity, networks=given)
    make(env=Identity, networks=[policy, value])


class Wide(MLPActorCritic):
    """A network by name: bounded values."""

    def _value(self, observation: Tensor, features: Tensor | None) -> Tensor:
        return 10 * torch.tanh(super()._value(observation, features))


class Squares(MLP):
    """An encoder by name: sees the squares too."""

    def __init__(
        self, *, observation_shape: tuple[int, ...], hidden_sizes: Any, activation: str
    ) -> None:
        (size,) = observation_shape
        super().__init__(input_shape=(2 * size,), hidden_sizes=hidden_sizes, activation=activation)

    def forward(self, observation: Tensor) -> Tensor:
        return super().forward(torch.cat([observation, observation.square()], -1))


@pytest.mark.parametrize("name", ["ppo", "ppg"])
def test_an_encoder_by_name_from_the_config(name: str, tmp_path: Path) -> None:
    algorithm = make(name, encoder="tests.api.test_networks:Squares").learn(64)
    assert isinstance(algorithm.model.encoder, Squares)
    assert algorithm.model.encoder.layers[0].in_features == 8
    loaded = type(algorithm).load(algorithm.save(tmp_path / "saved"))
    assert isinstance(loaded.model.value_encoder, Squares)
    assert torch.equal(parameters(loaded), parameters(algorithm))


def test_a_network_by_name_from_the_config(tmp_path: Path) -> None:
    algorithm = make(network="tests.api.test_networks:Wide").learn(64)
    assert type(algorithm.model) is Wide
    value = algorithm.model.value(1e3 * torch.randn(64, 4))
    assert value.abs().max() <= 10
    assert type(PPO.load(algorithm.save(tmp_path / "saved")).model) is Wide


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"network": "tests.api.test_networks:Narrow"}, "has no 'Narrow'"),
        ({"network": "tests.nowhere:Wide"}, "no module 'tests.nowhere'"),
        ({"network": "Wide"}, "module:Class"),
        ({"encoder": "mpl"}, "Did you mean 'mlp'"),
        (
            {"network": "tests.api.test_networks:Wide", "algo": "ppg"},
            "must be a subclass of MLPPPGModel",
        ),
        ({"encoder": "tests.api.test_networks:Identity"}, "must be a torch.nn.Module"),
    ],
)
def test_a_wrong_name_is_a_clear_mistake(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        make(changes.pop("algo", "ppo"), **changes)

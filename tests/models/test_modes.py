"""Layers that learn in another way than they act, in encoders of one's own."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rl_training.models import MLPActorCritic
from rl_training.models.modes import Modes
from rl_training.registry import algorithm_class
from rl_training.runtime.state import digest
from tests.recipes.image_environments import CELLS, Catch
from tests.recipes.runs import make as make_small


class Convolutions(nn.Module):
    """With batch normalisation and dropout, and one tensor for all that it returns while acting."""

    def __init__(self, *, observation_shape: Any, **_: Any) -> None:
        super().__init__()
        self.output_size = 8
        self.layers = nn.Sequential(
            nn.Conv2d(1, 4, 3, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Dropout(), nn.LazyLinear(8)
        )
        self.layers.eval()(torch.zeros(1, *observation_shape))
        self.layers.train()
        self.last = torch.zeros(0)

    def forward(self, observation: Tensor) -> Tensor:
        batch = observation.shape[:-3]
        features = self.layers(observation.reshape(-1, 1, CELLS, CELLS) / 255)
        features = features.reshape(*batch, self.output_size).relu()
        if torch.is_grad_enabled():
            return features
        if self.last.shape != features.shape:
            self.last = torch.zeros_like(features)
        return self.last.copy_(features)


SETTINGS = {"ppo": {"shared_trunk": True}, "ppg": {}, "recurrent_ppo": {}, "dqn": {}}


def make(name: str) -> Any:
    encoder = f"{__name__}:Convolutions"
    options: dict[str, Any] = {**SETTINGS[name], "encoder": encoder, "num_envs": 2}
    if name == "dqn":
        options |= {"train_every": 16, "warm_up": 32, "minibatch_size": 8}
    else:
        options |= {"num_steps": 16, "minibatch_size": 16}
    algorithm = make_small(name, Catch, **options)
    algorithm.schedule_horizon = 128
    return algorithm


@pytest.mark.parametrize("name", SETTINGS)
def test_acting_changes_nothing_and_repeats_itself(name: str, tmp_path: Path) -> None:
    agent = make(name).learn(64)
    normalised = agent.model.encoder.layers[1]
    assert float(normalised.num_batches_tracked) > 0 and not normalised.training
    before = digest(agent.state_dict())
    observation = np.full((1, CELLS, CELLS), 200, np.uint8)
    batch = torch.as_tensor(observation).expand(64, -1, -1, -1)
    with torch.no_grad():
        first, again = (agent.model.encoder(batch).clone() for _ in range(2))
    assert torch.equal(first, again)
    assert (
        agent.evaluate(episodes=2, seed=1)["returns"]
        == (agent.evaluate(episodes=2, seed=1)["returns"])
    )
    assert digest(agent.state_dict()) == before

    resumed = make(name)
    agent.save(tmp_path / "half")
    resumed.load_state_dict(agent.state_dict())
    assert digest(resumed.learn(64).state_dict()) == digest(agent.learn(64).state_dict())


@pytest.mark.parametrize("name", ["ppo", "ppg"])
def test_a_rollout_s_log_probabilities_are_those_of_the_policy_that_acted(name: str) -> None:
    agent = make(name)
    batch = next(iter(agent.collector()))
    log_probability, _, value = agent.model.evaluate_actions(batch["observation"], batch["action"])
    torch.testing.assert_close(batch["action_log_prob"], log_probability)
    torch.testing.assert_close(batch["state_value"].squeeze(-1), value)
    assert batch["action_log_prob"].unique().numel() > 4


def test_what_is_frozen_stays_so_and_hooks_know_modes() -> None:
    frozen, normed = nn.BatchNorm1d(2).eval(), nn.utils.spectral_norm(nn.Linear(2, 2))
    plain = nn.Linear(2, 2)
    modes = Modes({"model": nn.Sequential(frozen, normed, plain)})
    assert not normed.training and plain.training
    with modes.learning():
        assert normed.training and not frozen.training
    assert not normed.training and not frozen.training


def test_modes_are_left_as_they_were_when_learning_fails() -> None:
    module, target = nn.Sequential(nn.Linear(2, 2), nn.Dropout()), nn.Dropout()
    modes = Modes({"model": module, "target": target})

    def fail() -> None:
        with modes.learning():
            assert module[1].training and not target.training
            raise ValueError

    assert not module[1].training and not target.training
    with pytest.raises(ValueError, match=""):
        fail()
    assert not module[1].training


class Halved(MLPActorCritic):
    """Its entropy is half of what it is."""

    def evaluate_actions(  # type: ignore[override]
        self, observation: Tensor, action: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        log_probability, entropy, value = super().evaluate_actions(observation, action)
        return log_probability, entropy / 2, value


class Shifted(MLPActorCritic):
    """Its values are one more."""

    def forward(self, observation: Tensor) -> Any:
        parameters, value = super().forward(observation)
        return parameters, value + 1

    def value(self, observation: Tensor) -> Tensor:
        return super().value(observation) + 1

    def act(self, observation: Tensor, **options: Any) -> tuple[Tensor, Tensor, Tensor]:
        action, log_probability, value = super().act(observation, **options)
        return action, log_probability, value + 1


@pytest.mark.parametrize("env", ["vectors", "images"])
@pytest.mark.parametrize("network", [Halved, Shifted])
def test_a_network_of_ones_own_is_asked_while_collecting_and_learning(
    env: str, network: type[MLPActorCritic]
) -> None:
    source: Any = "CartPole-v1" if env == "vectors" else partial(Catch, 36)
    options: dict[str, Any] = {
        "num_envs": 2,
        "num_steps": 8,
        "minibatch_size": 8,
        "shared_trunk": True,
        "seed": 1,
    }
    own, plain = (
        algorithm_class("ppo")(source, network=name, **options)
        for name in (f"{__name__}:{network.__name__}", None)
    )
    batches = [next(iter(each.collector())) for each in (own, plain)]
    rise = 1.0 if network is Shifted else 0.0
    torch.testing.assert_close(batches[0]["state_value"], batches[1]["state_value"] + rise)
    taken = [
        each.update(batch)["train/entropy"]
        for each, batch in zip((own, plain), batches, strict=True)
    ]
    if network is Halved:
        assert float(taken[0]) < 0.6 * float(taken[1])

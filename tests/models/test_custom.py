"""A user's own TensorDict modules as the networks of an actor-critic."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict.nn import TensorDictModule
from torch import Tensor, nn
from torch.distributions import Categorical, Independent, Normal

from rl_training.errors import UserError
from rl_training.models.custom import TensorDictActorCritic


class LocAndScale(nn.Module):
    """A Gaussian whose deviation depends on the state."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, observation: Tensor) -> tuple[Tensor, ...]:
        loc, raw = self.layer(observation).chunk(2, -1)
        return loc, nn.functional.softplus(raw) + 0.1


def make_model(discrete: bool, policy: Any = None, value: Any = None) -> TensorDictActorCritic:
    torch.manual_seed(0)
    written = ["logits"] if discrete else ["loc", "scale"]
    network = nn.Linear(4, 3) if discrete else LocAndScale()
    policy = policy or TensorDictModule(network, in_keys=["observation"], out_keys=written)
    value = value or TensorDictModule(
        nn.Linear(4, 1), in_keys=["observation"], out_keys=["state_value"]
    )
    return TensorDictActorCritic(
        policy=policy, value=value, num_actions=3 if discrete else 2, discrete=discrete
    )


@pytest.mark.parametrize("discrete", [True, False])
def test_distribution_and_value_are_those_of_the_modules(discrete: bool) -> None:
    model, observation = make_model(discrete), torch.randn(6, 4)
    head: Any = model.action_head
    value_module: Any = model.value_module
    written = head.module.module(observation)
    expected: Any = (
        Categorical(logits=written) if discrete else Independent(Normal(written[0], written[1]), 1)
    )
    action = expected.sample()
    log_probability, entropy, value = model.evaluate_actions(observation, action)
    torch.testing.assert_close(log_probability, expected.log_prob(action))
    torch.testing.assert_close(entropy, expected.entropy())
    torch.testing.assert_close(value, value_module.module(observation).squeeze(-1))
    torch.testing.assert_close(model.value(observation), value)


@pytest.mark.parametrize("discrete", [True, False])
def test_rollout_samples_follow_the_modules_distribution(discrete: bool) -> None:
    model, count = make_model(discrete), 20_000
    observation = torch.randn(1, 4).expand(count, -1)
    head = model.action_head
    with torch.no_grad():
        (noise,) = head.draw_noise(1, count, torch.Generator().manual_seed(0))
        actions = head.sample(observation, noise)
        parameters = head(observation[:1])
    if discrete:
        shares = torch.bincount(actions, minlength=3) / count
        torch.testing.assert_close(shares, parameters[0][0].softmax(-1), rtol=0, atol=0.015)
    else:
        torch.testing.assert_close(actions.mean(0), parameters[0][0], rtol=0, atol=0.03)
        torch.testing.assert_close(actions.std(0), parameters[1][0].exp(), rtol=0.03, atol=0)


def test_a_layer_that_both_modules_share_is_the_policys() -> None:
    trunk, policy_layer, value_layer = nn.Linear(4, 4), nn.Linear(4, 3), nn.Linear(4, 1)
    policy = TensorDictModule(
        nn.Sequential(trunk, policy_layer), in_keys=["observation"], out_keys=["logits"]
    )
    value = TensorDictModule(
        nn.Sequential(trunk, value_layer), in_keys=["observation"], out_keys=["state_value"]
    )
    model = make_model(True, policy, value)
    assert {id(p) for p in model.value_parameters()} == {id(p) for p in value_layer.parameters()}
    assert {id(p) for p in model.policy_parameters()} == {
        id(p) for layer in (trunk, policy_layer) for p in layer.parameters()
    }


def test_modules_that_write_something_else_are_refused_by_key() -> None:
    wrong = TensorDictModule(nn.Linear(4, 3), in_keys=["observation"], out_keys=["scores"])
    with pytest.raises(UserError, match="logits"):
        make_model(True, policy=wrong)
    with pytest.raises(UserError, match=r"loc.*scale"):
        make_model(False, policy=wrong)
    with pytest.raises(UserError, match="state_value"):
        make_model(True, value=wrong)

"""Architectures by their gradients; the model and its TorchRL modules say the same."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from rl_training.models.actor_critic import ActorCritic, Architecture, MLPPPGModel
from rl_training.models.rollout_policy import RolloutPolicy
from rl_training.models.tensordict_modules import policy_module, value_module
from tests.losses.batches import (
    HEADS,
    NUM_OBSERVATIONS,
    Encoder,
    gradients,
    make_actions,
    make_model,
)

ARCHITECTURES: tuple[Architecture, ...] = ("dual", "detach", "shared")


def observations(size: int = 20) -> torch.Tensor:
    return torch.randn(size, NUM_OBSERVATIONS, dtype=torch.float64)


@pytest.mark.parametrize(
    ("architecture", "reaches"), [("dual", False), ("detach", False), ("shared", True)]
)
def test_the_value_reaches_the_policys_encoder_only_when_shared(
    architecture: Architecture, reaches: bool
) -> None:
    model = make_model("categorical", architecture=architecture)
    for value in (model.value(observations()), model(observations())[1]):
        found = gradients(value.sum(), model)
        assert (found["encoder.layer.weight"].abs().max() > 0) == reaches
        assert found["value_head.weight"].abs().max() > 0
        if architecture == "dual":
            assert found["value_encoder.layer.weight"].abs().max() > 0


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_policy_never_reaches_what_is_the_values_alone(architecture: Architecture) -> None:
    model = make_model("categorical", architecture=architecture)
    found = gradients(model(observations())[0][0].square().sum(), model)
    own = {id(parameter) for parameter in model.value_parameters()}
    for name, parameter in model.named_parameters():
        assert (found[name].abs().max() == 0) == (id(parameter) in own), name


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_parameter_is_in_exactly_one_group(architecture: Architecture) -> None:
    model = make_model("gaussian", architecture=architecture, cls=MLPPPGModel)
    groups = [*model.policy_parameters(), *model.value_parameters(), *model.auxiliary_parameters()]
    assert sorted(map(id, groups)) == sorted(map(id, model.parameters()))
    assert any(parameter is model.action_head.log_std for parameter in model.policy_parameters())


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_same_seed_gives_ppg_the_policy_and_value_of_ppo(architecture: Architecture) -> None:
    models = []
    for cls in (ActorCritic, MLPPPGModel):
        torch.manual_seed(3)
        models.append(
            cls(
                make_encoder=Encoder,
                make_head=lambda n: HEADS["gaussian"](num_features=n, num_actions=2),
                architecture=architecture,
            )
        )
    small, large = (model.state_dict() for model in models)
    assert all(torch.equal(large[name], value) for name, value in small.items())


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("kind", HEADS)
def test_torchrl_modules_give_the_models_log_probabilities_and_values(
    kind: str, architecture: Architecture
) -> None:
    model = make_model(kind, architecture=architecture)
    data = TensorDict({"observation": observations(), "action": make_actions(kind, 20)}, [20])
    log_probability, entropy, value = model.evaluate_actions(data["observation"], data["action"])
    distribution = policy_module(model).get_dist(data.clone())
    torch.testing.assert_close(distribution.log_prob(data["action"]), log_probability)
    torch.testing.assert_close(distribution.entropy(), entropy)
    state_value = value_module(model)(data.clone())["state_value"]
    assert state_value.shape == (20, 1)
    torch.testing.assert_close(state_value.squeeze(-1), value)
    drawn = policy_module(model)(data.select("observation"))
    expected, _, _ = model.evaluate_actions(drawn["observation"], drawn["action"])
    torch.testing.assert_close(drawn["action_log_prob"], expected)


@pytest.mark.parametrize("kind", HEADS)
def test_act_returns_what_evaluate_actions_says_of_its_action(kind: str) -> None:
    model, observation = make_model(kind), observations()
    for deterministic in (True, False):
        action, log_probability, value = model.act(
            observation, deterministic=deterministic, generator=torch.Generator().manual_seed(0)
        )
        expected, _, expected_value = model.evaluate_actions(observation, action)
        torch.testing.assert_close(log_probability, expected)
        torch.testing.assert_close(value, expected_value)
    torch.testing.assert_close(
        model.act(observation, deterministic=True)[0],
        model.action_head.mode(model.distribution(observation)),
    )


def test_rollout_policy_draws_from_its_own_generator_alone() -> None:
    model = make_model("gaussian").float()
    policy = RolloutPolicy(model, generator=torch.Generator().manual_seed(5))
    data = TensorDict({"observation": observations().float()}, [20])
    state = torch.get_rng_state()
    policy.begin_rollout(2, 20)
    actions = [policy(data.clone())["action"] for _ in range(2)]
    assert torch.equal(torch.get_rng_state(), state)
    assert not torch.equal(actions[0], actions[1])
    again = RolloutPolicy(model, generator=torch.Generator().manual_seed(5))
    again.begin_rollout(2, 20)
    assert torch.equal(again(data.clone())["action"], actions[0])

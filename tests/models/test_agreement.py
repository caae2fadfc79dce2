"""Actor-critics of one's own whose methods contradict each other are refused: nothing else would
show that their updates are wrong.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rl_training.errors import UserError
from rl_training.models.actor_critic import MLPActorCritic, MLPPPGModel
from rl_training.models.heads import ActionHead, CategoricalHead, Parameters
from rl_training.models.lstm import LSTMActorCritic, LSTMPPGModel
from rl_training.registry import algorithm_class


def halved(parameters: Parameters) -> Parameters:
    return tuple(each / 2 + torch.arange(each.shape[-1]) for each in parameters)


class OtherForward(MLPActorCritic):
    def forward(self, observation: Tensor) -> Any:
        parameters, value = super().forward(observation)
        return halved(parameters), value


class OtherDistribution(MLPActorCritic):
    def distribution(self, observation: Tensor) -> Parameters:
        return halved(super().distribution(observation))


class OtherAct(MLPActorCritic):
    def act(self, observation: Tensor, **options: Any) -> tuple[Tensor, Tensor, Tensor]:
        action, log_probability, value = super().act(observation, **options)
        return 1 - action, log_probability, value


class OtherScore(MLPActorCritic):
    def evaluate_actions(
        self, observation: Tensor, action: Tensor, **known: Any
    ) -> tuple[Tensor, Tensor, Tensor]:
        log_probability, entropy, value = super().evaluate_actions(observation, action, **known)
        return log_probability / 2, entropy, value


class OtherForwardValue(MLPActorCritic):
    def forward(self, observation: Tensor) -> Any:
        parameters, value = super().forward(observation)
        return parameters, value + 1


class OtherValue(MLPActorCritic):
    def value(self, observation: Tensor) -> Tensor:
        return super().value(observation) + 1


class OtherAuxiliary(MLPPPGModel):
    def auxiliary(self, observation: Tensor) -> tuple[Parameters, Tensor, Tensor]:
        parameters, auxiliary_value, value = super().auxiliary(observation)
        return halved(parameters), auxiliary_value, value


class OtherMemory(LSTMActorCritic):
    def forward(self, *given: Any) -> Any:
        parameters, value = super().forward(*given)
        return halved(parameters), value


class OtherStep(LSTMPPGModel):
    def step(self, *given: Any) -> Any:
        features, *others = super().step(*given)
        return features + 1, *others


class OtherStepValue(LSTMActorCritic):
    def step_value(self, *given: Any) -> Tensor:
        return super().step_value(*given) + 1


def trained(network: type, algo: str) -> Any:
    options: dict[str, Any] = {"auxiliary_minibatches": 2} if algo == "recurrent_ppg" else {}
    agent = algorithm_class(algo)(
        "CartPole-v1",
        network=f"{__name__}:{network.__name__}",
        num_envs=2,
        num_steps=8,
        minibatch_size=16,
        seed=1,
        **options,
    )
    return agent.learn(32)


@pytest.mark.parametrize(
    ("network", "algo", "message"),
    [
        (OtherForward, "ppo", r"OtherForward\.forward gives another distribution"),
        (OtherDistribution, "ppo", r"OtherDistribution\.distribution gives another distribution"),
        (OtherAct, "ppo", r"OtherAct\.act gives another distribution"),
        (OtherScore, "ppo", r"OtherScore\.evaluate_actions gives another distribution"),
        (OtherForwardValue, "ppo", r"OtherForwardValue\.forward gives another value"),
        (OtherValue, "ppo", r"OtherValue\.forward gives another value"),
        (OtherAuxiliary, "ppg", r"OtherAuxiliary\.auxiliary gives another distribution"),
        (OtherMemory, "recurrent_ppo", r"OtherMemory\.forward gives another distribution"),
        (OtherStep, "recurrent_ppg", r"OtherStep\.forward gives .* than its step and action_head"),
        (OtherStepValue, "recurrent_ppo", r"OtherStepValue\.forward gives .* than \w+\.step_value"),
    ],
)
def test_a_method_that_contradicts_the_rollouts_is_refused(
    network: type, algo: str, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        trained(network, algo)


class SameForward(MLPActorCritic):
    """Says in its own words what the library's says."""

    def forward(self, observation: Tensor) -> Any:
        return self.distribution(observation), self.value(observation)


class SameMemory(LSTMPPGModel):
    def forward(self, *given: Any) -> Any:
        features, value, _ = self.sequence(*given)
        return self.action_head(features), value


class Deeper(MLPActorCritic):
    """Changes what rollouts go by, and with it all."""

    def __init__(self, *, make_head: Any, **options: Any) -> None:
        super().__init__(make_head=Sharper, **options)
        self.value_head = nn.Linear(self.value_head.in_features, 1)


class Sharper(CategoricalHead):
    """A head of its own, whose samples follow its ``forward``."""

    def __init__(self, num_features: int) -> None:
        super().__init__(num_features=num_features, num_actions=2)

    def forward(self, features: Tensor) -> Parameters:
        return (4 * super().forward(features)[0],)


@pytest.mark.parametrize(
    ("network", "algo"),
    [(SameForward, "ppo"), (SameMemory, "recurrent_ppg"), (Deeper, "ppo")],
)
def test_a_method_of_its_own_that_agrees_trains(network: type, algo: str) -> None:
    assert trained(network, algo) is not None


def test_samples_follow_the_forward_of_a_head_of_ones_own() -> None:
    head: ActionHead = Sharper(3)
    features = torch.randn(4096, 3, generator=torch.Generator().manual_seed(0))[:1].expand(4096, -1)
    noise = head.draw_noise(1, 4096, torch.Generator().manual_seed(1))[0]
    share = head.sample(features, noise).double().mean()
    expected = head(features[:1])[0].softmax(-1)[0, 1]
    assert abs(float(share) - float(expected.detach())) < 0.03

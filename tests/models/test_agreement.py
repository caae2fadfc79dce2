"""Actor-critics of one's own whose methods contradict each other are refused: nothing else would
show that their updates are wrong.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor, nn

from rl_training.errors import UserError
from rl_training.models.actor_critic import MLPActorCritic, MLPPPGModel
from rl_training.models.heads import (
    CategoricalHead,
    GaussianHead,
    Parameters,
    StateDependentNoiseHead,
)
from rl_training.models.lstm import LSTMActorCritic, LSTMPPGModel
from rl_training.models.mlp import MLP
from rl_training.models.rollout_policy import RolloutPolicy
from rl_training.registry import algorithm_class


def halved(parameters: Parameters) -> Parameters:
    return tuple(each / 2 + torch.arange(each.shape[-1]) for each in parameters)


class OtherForward(MLPActorCritic):
    def forward(self, observation: Tensor) -> Any:
        parameters, value = super().forward(observation)
        return halved(parameters), value


class OtherDistribution(MLPPPGModel):
    def distribution(self, observation: Tensor) -> Parameters:
        return halved(super().distribution(observation))


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
        return features + 100, *others


class OtherMemoryValue(LSTMActorCritic):
    def forward(self, *given: Any) -> Any:
        parameters, value = super().forward(*given)
        return parameters, value + 1


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
        (OtherForward, "ppo", r"OtherForward\.evaluate_actions goes by another distribution"),
        (OtherScore, "ppo", r"OtherScore\.evaluate_actions goes by another distribution"),
        (OtherForwardValue, "ppo", r"OtherForwardValue\.evaluate_actions gives another value"),
        (OtherDistribution, "ppg", r"OtherDistribution\.distribution goes by another"),
        (OtherAuxiliary, "ppg", r"OtherAuxiliary\.auxiliary goes by another distribution"),
        (OtherMemory, "recurrent_ppo", r"OtherMemory\.evaluate_actions goes by another"),
        (OtherMemoryValue, "recurrent_ppo", r"OtherMemoryValue\.\w+ gives another value"),
        (OtherStep, "recurrent_ppg", r"OtherStep\.\w+ goes by .* than its step and action_head"),
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


class Slow(MLPActorCritic):
    """Goes on by another value than it learns, and acts and plays in its own way: free to it."""

    def value(self, observation: Tensor) -> Tensor:
        return super().value(observation) / 2

    def act(self, observation: Any, temperature: float = 1.0) -> Any:  # type: ignore[override]
        raise NotImplementedError

    def distribution(self, observation: Tensor) -> Parameters:
        return halved(super().distribution(observation))


class More(MLPActorCritic):
    """Has a ``forward`` of its own kind, which its ``evaluate_actions`` knows."""

    def forward(self, observation: Tensor) -> Any:
        seen = observation.view(-1)  # as a batch lies in memory
        features = self.encoder(seen.view(observation.shape))
        return {"parameters": self.action_head(features), "features": features}

    def evaluate_actions(
        self, observation: Tensor, action: Tensor, **known: Any
    ) -> tuple[Tensor, Tensor, Tensor]:
        parameters = self(observation)["parameters"]
        return (*self.action_head.evaluate(parameters, action), self.value(observation))


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
    [
        (SameForward, "ppo"),
        (SameMemory, "recurrent_ppg"),
        (Slow, "ppo"),
        (More, "ppo"),
        (Deeper, "ppo"),
    ],
)
def test_a_method_of_its_own_that_agrees_trains(network: type, algo: str) -> None:
    assert trained(network, algo) is not None


class Counting(MLPActorCritic):
    """Counts what it has seen."""

    seen: Tensor

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.register_buffer("seen", torch.zeros(1))

        self.register_buffer("wide", torch.zeros(1).expand(4))
        self.action_head.register_forward_hook(self.count)

    def count(self, *_: Any) -> None:
        self.seen += 1

    def forward(self, observation: Tensor) -> Any:
        return super().forward(observation)


class CountingAnew(Counting):
    """Counts in another tensor each time."""

    def count(self, *_: Any) -> None:
        self.seen = self.seen + 1


@pytest.mark.parametrize("network", [Counting, CountingAnew])
def test_the_comparison_leaves_no_trace(network: type, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    for compared in (True, False):
        if not compared:
            monkeypatch.setattr("rl_training.on_policy.require_agreement", lambda *_: None)
        seen.append(trained(network, "ppo").model.seen)
    assert torch.equal(*seen) and bool(seen[0] > 16)


class Shifted(GaussianHead):
    """Narrow, and about another mean than its layer's."""

    def forward(self, features: Tensor) -> Parameters:
        mean, log_std = super().forward(features)
        return mean + 3, log_std - 5


class ShiftedToo(StateDependentNoiseHead):
    def forward(self, features: Tensor) -> Parameters:
        mean, log_std = super().forward(features)
        return mean + 3, torch.full_like(log_std, -5.0)


def with_head(make_head: Any) -> MLPActorCritic:
    def make_encoder() -> MLP:
        return MLP(input_shape=(3,), hidden_sizes=(4,), activation="tanh")

    return MLPActorCritic(make_encoder=make_encoder, make_head=make_head)


def sampled(model: MLPActorCritic | RolloutPolicy, observation: Tensor) -> Tensor:
    policy = model
    if isinstance(policy, MLPActorCritic):
        policy = RolloutPolicy(policy, generator=torch.Generator().manual_seed(1))
    policy.begin_rollout(1, len(observation))
    root = TensorDict({"observation": observation}, [len(observation)])
    with torch.no_grad():
        return policy(root)["action"]


def test_samples_follow_the_forward_of_a_categorical_head_of_ones_own() -> None:
    model = with_head(Sharper)
    observation = torch.tensor([[0.3, -1.0, 2.0]]).expand(4096, -1)
    share = sampled(model, observation).double().mean()
    expected = model.distribution(observation[:1])[0].softmax(-1)[0, 1]
    assert abs(float(share) - float(expected.detach())) < 0.03


@pytest.mark.parametrize("head", [Shifted, ShiftedToo])
def test_samples_follow_the_forward_of_a_gaussian_head_of_ones_own(head: Any) -> None:
    model = with_head(lambda size: head(num_features=size, num_actions=2))
    observation = torch.tensor([[0.3, -1.0, 2.0]]).expand(512, -1)
    actions = sampled(model, observation)
    mean = model.distribution(observation)[0].detach()
    torch.testing.assert_close(actions, mean, atol=0.05, rtol=0)
    assert actions.std(0).min() > 0.004


def test_rollouts_see_what_hooks_make_of_features() -> None:
    model = with_head(lambda size: CategoricalHead(num_features=size, num_actions=2))
    policy = RolloutPolicy(model, generator=torch.Generator().manual_seed(1))
    model.encoder.register_forward_hook(lambda *_: torch.full((512, 4), 50.0))
    model.action_head.register_forward_hook(lambda _, __, logits: (logits[0] * 0 + 1e3 * ONE,))
    assert bool((sampled(policy, torch.zeros(512, 3)) == 1).all())


class Cold(CategoricalHead):
    """Draws and scores at another temperature."""

    def __init__(self, num_features: int) -> None:
        super().__init__(num_features=num_features, num_actions=2)

    def draw(self, parameters: Parameters, generator: Any) -> Tensor:
        return super().draw((parameters[0] * 100,), generator)

    def evaluate(self, parameters: Parameters, action: Tensor) -> tuple[Tensor, Tensor]:
        return super().evaluate((parameters[0] * 100,), action)


def test_samples_follow_the_draw_of_a_head_of_ones_own() -> None:
    model = with_head(Cold)
    actions = sampled(model, torch.tensor([[0.3, -1.0, 2.0]]).expand(512, -1))
    logits = model.distribution(torch.tensor([[0.3, -1.0, 2.0]]))[0] * 100
    share = float(logits.softmax(-1)[0, 1].detach())
    assert abs(float(actions.double().mean()) - share) < 0.08


ONE = torch.tensor([0.0, 1.0])

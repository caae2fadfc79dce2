"""An `ActorCritic` as TorchRL modules on TensorDict keys, for loops of one's own and for TorchRL's
losses.
"""

from __future__ import annotations

from tensordict.nn import TensorDictModule
from torch import Tensor, nn
from torchrl.modules import ProbabilisticActor, ValueOperator

from rl_training.models.actor_critic import ActorCritic


class _DistributionParameters(nn.Module):
    """From observations to what the distribution's class takes."""

    def __init__(self, model: ActorCritic) -> None:
        super().__init__()
        self.encoder = model.encoder
        self.action_head = model.action_head

    def forward(self, observation: Tensor) -> Tensor | tuple[Tensor, ...]:
        parameters = self.action_head.torch_parameters(self.action_head(self.encoder(observation)))
        return parameters if len(parameters) > 1 else parameters[0]


class _Value(nn.Module):
    """From observations to values ``[*batch, 1]``, TorchRL's shape."""

    def __init__(self, model: ActorCritic) -> None:
        super().__init__()
        self.model = model

    def forward(self, observation: Tensor) -> Tensor:
        return self.model.value(observation).unsqueeze(-1)


def policy_module(model: ActorCritic) -> ProbabilisticActor:
    """Return the policy: reads ``observation``, writes the parameters, ``action`` and
    ``action_log_prob``.
    """
    head = model.action_head
    distribution_class, keywords = head.torch_distribution()
    return ProbabilisticActor(
        TensorDictModule(
            _DistributionParameters(model),
            in_keys=["observation"],
            out_keys=list(head.parameter_keys),
        ),
        in_keys=list(head.parameter_keys),
        out_keys=["action"],
        distribution_class=distribution_class,
        distribution_kwargs=keywords,
        return_log_prob=True,
    )


def value_module(model: ActorCritic) -> ValueOperator:
    """Return the value function: reads ``observation``, writes ``state_value`` ``[*batch, 1]``."""
    return ValueOperator(_Value(model), in_keys=["observation"])

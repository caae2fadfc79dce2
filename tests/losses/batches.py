"""Models with random parameters and the batches that losses are compared on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from rl_training.models.actor_critic import ActorCritic, Architecture
from rl_training.models.heads import (
    ActionHead,
    CategoricalHead,
    GaussianHead,
    StateDependentNoiseHead,
)

NUM_OBSERVATIONS, NUM_FEATURES, NUM_ACTIONS = 5, 7, 3

HEADS: dict[str, Callable[..., ActionHead]] = {
    "categorical": CategoricalHead,
    "gaussian": GaussianHead,
    "gsde": StateDependentNoiseHead,
}


class Encoder(nn.Module):
    """One tanh layer that, unlike the library's own, computes in the dtype of its parameters."""

    output_size = NUM_FEATURES

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(NUM_OBSERVATIONS, NUM_FEATURES)

    def forward(self, observation: Tensor) -> Tensor:
        return self.layer(observation).tanh()


def make_model(
    kind: str, *, architecture: Architecture = "dual", cls: type[Any] = ActorCritic, seed: int = 0
) -> Any:
    """Return a float64 model with random parameters, biases and deviations included."""
    torch.manual_seed(seed)
    model = cls(
        make_encoder=Encoder,
        make_head=lambda features: HEADS[kind](num_features=features, num_actions=NUM_ACTIONS),
        architecture=architecture,
        orthogonal_init=False,
    ).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def make_actions(kind: str, size: int) -> Tensor:
    """Return actions ``[size]`` or ``[size, NUM_ACTIONS]``."""
    if kind == "categorical":
        return torch.randint(NUM_ACTIONS, (size,))
    return torch.randn(size, NUM_ACTIONS, dtype=torch.float64)


def make_batch(model: ActorCritic, kind: str, *, size: int = 64) -> dict[str, Tensor]:
    """Return samples ``[size, ...]`` of an older policy: some ratios are clipped, some are not."""
    observation = torch.randn(size, NUM_OBSERVATIONS, dtype=torch.float64)
    action = make_actions(kind, size)
    with torch.no_grad():
        log_probability, _, value = model.evaluate_actions(observation, action)
    return {
        "observation": observation,
        "action": action,
        "action_log_prob": log_probability + 0.3 * torch.randn_like(log_probability),
        "advantage": 2.0 * torch.randn(size, dtype=torch.float64) + 0.7,
        "value_target": value + torch.randn_like(value),
        "state_value": value + 0.4 * torch.randn_like(value),
    }


def gradients(loss: Tensor, module: nn.Module) -> dict[str, Tensor]:
    """Return the gradient of every parameter by name; zeros where there is none."""
    names, parameters = zip(*module.named_parameters(), strict=True)
    found = torch.autograd.grad(loss, parameters, allow_unused=True, retain_graph=True)
    return {
        name: torch.zeros_like(parameter) if gradient is None else gradient
        for name, parameter, gradient in zip(names, parameters, found, strict=True)
    }

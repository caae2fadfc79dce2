"""Discrete and continuous actions at once: independent categoricals and Gaussians."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints

from rl_training.models.heads import ActionHead, GaussianHead, Parameters
from rl_training.models.multi_categorical import IndependentCategoricals, MultiCategoricalHead


class HybridHead(ActionHead):
    """K categoricals and A Gaussians; an action is a row of float32 ``[*batch, K + A]``, the
    discrete numbers first, each counted from 0.

    Log-probability, entropy and divergence are sums over all of them. The parameters are those of
    `MultiCategoricalHead` and `GaussianHead`, one after the other.

    Args:
        num_features: F.
        sizes: how many choices each discrete action has.
        continuous: A.
        log_std_init: the Gaussians' first log standard deviation.
    """

    parameter_keys = ("logits", "loc", "scale")

    def __init__(
        self,
        *,
        num_features: int,
        sizes: Sequence[int],
        continuous: int,
        log_std_init: float = 0.0,
    ) -> None:
        super().__init__()
        self.discrete = MultiCategoricalHead(num_features=num_features, sizes=sizes)
        self.continuous = GaussianHead(
            num_features=num_features, num_actions=continuous, log_std_init=log_std_init
        )
        self.num_actions = self.discrete.num_actions + continuous
        self._numbers = [len(self.discrete.sizes), continuous]
        self._noise = [self.discrete.num_actions, continuous]

    def forward(self, features: Tensor) -> Parameters:
        """Return logits ``[*batch, sum(sizes)]``, mean and log standard deviation ``[*batch,
        A]``.
        """
        return (*self.discrete(features), *self.continuous(features))

    def draw_noise(self, steps: int, num_envs: int, generator: torch.Generator) -> list[Tensor]:
        """Return Gumbel noise and Gaussian noise in one tensor a step."""
        parts = (
            head.draw_noise(steps, num_envs, generator) for head in (self.discrete, self.continuous)
        )
        return [torch.cat(each, -1) for each in zip(*parts, strict=True)]

    def sample(self, features: Tensor, noise: Tensor) -> Tensor:
        """Return sampled actions ``[N, K + A]``."""
        gumbel, normal = torch.functional.split(noise, self._noise, -1)
        return _joined(
            self.discrete.sample(features, gumbel), self.continuous.sample(features, normal)
        )

    def draw(self, parameters: Parameters, generator: torch.Generator | None) -> Tensor:
        """Return sampled actions ``[*batch, K + A]``."""
        return _joined(
            self.discrete.draw(parameters[:1], generator),
            self.continuous.draw(parameters[1:], generator),
        )

    def mode(self, parameters: Parameters) -> Tensor:
        """Return the most likely actions ``[*batch, K + A]``."""
        return _joined(self.discrete.mode(parameters[:1]), self.continuous.mode(parameters[1:]))

    def evaluate(self, parameters: Parameters, action: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probability and entropy, both ``[*batch]``."""
        chosen, numbers = torch.functional.split(action, self._numbers, -1)
        first = self.discrete.evaluate(parameters[:1], chosen.long())
        second = self.continuous.evaluate(parameters[1:], numbers)
        return first[0] + second[0], first[1] + second[1]

    def kl_divergence(self, old: Parameters, new: Parameters) -> Tensor:
        """Return the sum of both divergences, ``[*batch]``."""
        return self.discrete.kl_divergence(old[:1], new[:1]) + self.continuous.kl_divergence(
            old[1:], new[1:]
        )

    def encode(self, action: Tensor) -> Tensor:
        """Return the discrete actions one-hot, then the numbers of the others."""
        chosen, numbers = torch.functional.split(action, self._numbers, -1)
        return torch.cat([self.discrete.encode(chosen.long()), numbers], -1)

    def torch_distribution(self) -> tuple[type[Any], dict[str, Any]]:
        """Return `HybridDistribution`."""
        return HybridDistribution, {"sizes": self.discrete.sizes}

    def torch_parameters(self, parameters: Parameters) -> Parameters:
        """Return logits, mean and standard deviation."""
        return (parameters[0], *self.continuous.torch_parameters(parameters[1:]))


def _joined(chosen: Tensor, numbers: Tensor) -> Tensor:
    return torch.cat([chosen.to(numbers.dtype), numbers], -1)


class HybridDistribution(Distribution):
    """What a `HybridHead` samples from, of PyTorch's own distributions, over ``[*batch, K + A]``.

    Args:
        logits: ``[*batch, sum(sizes)]``.
        loc: ``[*batch, A]``.
        scale: ``[*batch, A]``.
        sizes: how many choices each discrete action has.
    """

    arg_constraints: dict[str, constraints.Constraint] = {}  # noqa: RUF012  as the parent's
    has_rsample = False

    def __init__(self, logits: Tensor, loc: Tensor, scale: Tensor, *, sizes: Sequence[int]) -> None:
        count = len(sizes)
        self.discrete = IndependentCategoricals(logits, sizes=sizes, action_shape=(count,))
        normal = torch.distributions.Normal(loc, scale, validate_args=False)
        self.continuous = torch.distributions.Independent(normal, 1, validate_args=False)
        self._numbers = [count, loc.shape[-1]]
        super().__init__(loc.shape[:-1], torch.Size([sum(self._numbers)]), validate_args=False)

    def sample(self, sample_shape: Any = torch.Size()) -> Tensor:  # noqa: B008  PyTorch's own
        """Return actions ``[*sample_shape, *batch, K + A]``."""
        return _joined(self.discrete.sample(sample_shape), self.continuous.sample(sample_shape))

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the sum of all log-probabilities, ``[*batch]``."""
        chosen, numbers = torch.functional.split(value, self._numbers, -1)
        chosen_log, numbers_log = (
            each.log_prob(part)  # type: ignore[no-untyped-call]
            for each, part in ((self.discrete, chosen.long()), (self.continuous, numbers))
        )
        total: Tensor = chosen_log + numbers_log
        return total

    def entropy(self) -> Tensor:
        """Return the sum of all entropies, ``[*batch]``."""
        parts = (self.discrete, self.continuous)
        first, second = (each.entropy() for each in parts)  # type: ignore[no-untyped-call]
        total: Tensor = first + second
        return total

    @property
    def mode(self) -> Tensor:
        """The most likely actions, ``[*batch, K + A]``."""
        return _joined(self.discrete.mode, self.continuous.mode)

    @property
    def deterministic_sample(self) -> Tensor:
        """The same, for TorchRL."""
        return self.mode

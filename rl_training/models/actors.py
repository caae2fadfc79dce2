"""Policies of off-policy algorithms. Actions lie in [-1, 1]; the environment layer scales them.

What is random comes in as ``noise``, standard normal numbers that the caller draws: the same code
collects, learns and compiles.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

LOG_STD_MIN, LOG_STD_MAX = -20.0, 2.0
"""Range of a squashed Gaussian's log standard deviation (Haarnoja et al. 2018, their code)."""
_LOG_TWO_PI = math.log(2 * math.pi)
_VARIANCE_FLOOR = 1e-6


def squash_correction(gaussian: Tensor) -> Tensor:
    """Return ``log(1 - tanh(x)^2)`` elementwise, exact where tanh is 1: ``2 (log 2 - x -
    softplus(-2 x))``.
    """
    return 2 * (math.log(2.0) - gaussian - functional.softplus(-2 * gaussian))


class SquashedGaussianActor(nn.Module):
    """A Gaussian of state-dependent mean and deviation through tanh (Haarnoja et al. 2018,
    appendix C).

    Log-probabilities are those of the action in [-1, 1], summed over dimensions.

    Args:
        encoder: from observations to ``[*batch, output_size]``.
        num_actions: dimensions of an action.
    """

    def __init__(self, *, encoder: nn.Module, num_actions: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.num_actions = num_actions
        self.head = nn.Linear(_size(encoder), 2 * num_actions)

    def parameters_of(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and log standard deviation before the tanh, both ``[*batch, A]``."""
        output = functional.linear(self.encoder(observation), self.head.weight, self.head.bias)
        mean, log_std = output.chunk(2, -1)
        return mean, log_std.clamp(LOG_STD_MIN, LOG_STD_MAX)

    def sample(self, observation: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return an action ``[*batch, A]`` by ``noise`` of its shape, and its log-probability
        ``[*batch]``; gradients flow through both.
        """
        mean, log_std = self.parameters_of(observation)
        gaussian = mean + log_std.exp() * noise
        density = -0.5 * noise.square() - log_std - 0.5 * _LOG_TWO_PI
        return gaussian.tanh(), (density - squash_correction(gaussian)).sum(-1)

    def explore(self, observation: Tensor, noise: Tensor) -> Tensor:
        """Return an action alone, for collection."""
        mean, log_std = self.parameters_of(observation)
        return (mean + log_std.exp() * noise).tanh()

    def mode(self, observation: Tensor) -> Tensor:
        """Return the tanh of the mean."""
        return self.parameters_of(observation)[0].tanh()

    def noise_shape(self, batch_size: int) -> tuple[int, ...]:
        """Return the shape of the noise of ``sample`` for that many observations."""
        return (batch_size, self.num_actions)

    def rollout_noise_shape(self, num_envs: int) -> tuple[int, ...]:
        """Return the shape of the noise of ``explore``."""
        return (num_envs, self.num_actions)


class StateDependentNoiseActor(SquashedGaussianActor):
    """The same with generalised state-dependent exploration, gSDE (Raffin et al. 2021, section 3).

    The noise before the tanh is ``features @ (std * matrix)``, whose standard normal ``matrix``
    stays for a while; features are trained through it. Means are held in [-2, 2].
    """

    MEAN_LIMIT = 2.0

    def __init__(self, *, encoder: nn.Module, num_actions: int, log_std_init: float = -3.0) -> None:
        super().__init__(encoder=encoder, num_actions=num_actions)
        self.num_features = _size(encoder)
        self.head = nn.Linear(self.num_features, num_actions)
        self.log_std = nn.Parameter(
            torch.full((self.num_features, num_actions), float(log_std_init))
        )

    def _mean_of(self, features: Tensor) -> Tensor:
        mean = functional.linear(features, self.head.weight, self.head.bias)
        return functional.hardtanh(mean, -self.MEAN_LIMIT, self.MEAN_LIMIT)

    def parameters_of(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and log standard deviation before the tanh, both ``[*batch, A]``."""
        features = self.encoder(observation)
        return self._mean_of(features), self._log_std_of(features)

    def _log_std_of(self, features: Tensor) -> Tensor:
        variance = features.square() @ (2 * self.log_std).exp()
        return 0.5 * (variance + _VARIANCE_FLOOR).log()

    def sample(self, observation: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return actions by one matrix ``noise`` ``[F, A]`` for all, and their log-probability."""
        features = self.encoder(observation)
        change = features @ (self.log_std.exp() * noise)
        gaussian = self._mean_of(features) + change
        log_std = self._log_std_of(features)
        normalized = change * (-log_std).exp()
        density = -0.5 * normalized.square() - log_std - 0.5 * _LOG_TWO_PI
        return gaussian.tanh(), (density - squash_correction(gaussian)).sum(-1)

    def explore(self, observation: Tensor, noise: Tensor) -> Tensor:
        """Return actions by a matrix for each environment, ``[N, F, A]``."""
        features = self.encoder(observation)
        change = torch.bmm(features.unsqueeze(1), self.log_std.exp() * noise).squeeze(1)
        return (self._mean_of(features) + change).tanh()

    def noise_shape(self, batch_size: int) -> tuple[int, ...]:
        """Return the shape of the matrix of ``sample``."""
        return (self.num_features, self.num_actions)

    def rollout_noise_shape(self, num_envs: int) -> tuple[int, ...]:
        """Return the shape of the matrices of ``explore``."""
        return (num_envs, self.num_features, self.num_actions)


class CategoricalActor(nn.Module):
    """A categorical over ``num_actions`` discrete actions: ``[*batch, *observation] -> logits``."""

    def __init__(self, *, encoder: nn.Module, num_actions: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.num_actions = num_actions
        self.head = nn.Linear(_size(encoder), num_actions)

    def forward(self, observation: Tensor) -> Tensor:
        """Return the logits ``[*batch, num_actions]``."""
        return functional.linear(self.encoder(observation), self.head.weight, self.head.bias)

    def explore(self, observation: Tensor, noise: Tensor) -> Tensor:
        """Return sampled actions ``[N]``, by Gumbel noise ``[N, num_actions]``."""
        return (self(observation) + noise).argmax(-1)

    def mode(self, observation: Tensor) -> Tensor:
        """Return the most likely actions ``[N]``."""
        return self(observation).argmax(-1)


class DeterministicActor(nn.Module):
    """The tanh of a network: ``[*batch, *observation] -> [*batch, A]`` (Lillicrap et al. 2016)."""

    def __init__(self, *, encoder: nn.Module, num_actions: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.num_actions = num_actions
        self.head = nn.Linear(_size(encoder), num_actions)

    def forward(self, observation: Tensor) -> Tensor:
        """Return actions in [-1, 1]."""
        features = self.encoder(observation)
        return functional.linear(features, self.head.weight, self.head.bias).tanh()

    def explore(self, observation: Tensor, noise: Tensor) -> Tensor:
        """Return the action with ``noise`` added, within [-1, 1]."""
        return (self(observation) + noise).clamp(-1.0, 1.0)


def _size(encoder: nn.Module) -> int:
    size = getattr(encoder, "output_size", None)
    assert isinstance(size, int)
    return size

"""Action distributions on the last layer of a network: Categorical, Gaussian, Gaussian with gSDE.

A head turns features ``[*batch, F]`` into the distribution's parameters, a tuple of tensors, and
answers everything an update asks of them in plain tensor arithmetic. `torch.distributions` says
the same (the tests hold the two equal) at several times the cost per call.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

Parameters = tuple[Tensor, ...]
"""A distribution's parameters; their names are the head's ``parameter_keys``."""

_LOG_TWO_PI = math.log(2 * math.pi)


class ActionHead(nn.Module, ABC):
    """Base of the heads. ``noise`` is whatever randomness one step of one rollout needs."""

    parameter_keys: tuple[str, ...]
    """TensorDict keys of the parameters that ``torch_distribution`` takes."""

    num_actions: int
    """How many discrete actions there are, or how many numbers a continuous one has."""

    @abstractmethod
    def forward(self, features: Tensor) -> Parameters:
        """Return the distribution's parameters for features ``[*batch, F]``."""

    @abstractmethod
    def draw_noise(self, steps: int, num_envs: int, generator: torch.Generator) -> list[Tensor]:
        """Return the noise of ``steps`` steps of ``num_envs`` environments, one entry a step, where
        ``generator`` draws: on the CPU, wherever the parameters are.

        Drawing it once per rollout costs a quarter of drawing it at every step.
        """

    @abstractmethod
    def sample(self, features: Tensor, noise: Tensor) -> Tensor:
        """Return an action ``[N, *action]`` for features ``[N, F]`` and one step's noise, on one
        device.
        """

    @abstractmethod
    def draw(self, parameters: Parameters, generator: torch.Generator | None) -> Tensor:
        """Return one sample per row, apart from any rollout: the head's state stays."""

    @abstractmethod
    def mode(self, parameters: Parameters) -> Tensor:
        """Return the most likely action."""

    @abstractmethod
    def evaluate(self, parameters: Parameters, action: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probability and entropy of ``action``, both ``[*batch]``, summed over action
        dimensions.
        """

    @abstractmethod
    def kl_divergence(self, old: Parameters, new: Parameters) -> Tensor:
        """Return KL(old || new), ``[*batch]``, summed over action dimensions."""

    def encode(self, action: Tensor) -> Tensor:
        """Return actions as ``num_actions`` numbers each, ``[N, num_actions]``: what a policy reads
        of its own last action.
        """
        return action.reshape(len(action), -1)

    @abstractmethod
    def torch_distribution(self) -> tuple[type[Any], dict[str, Any]]:
        """Return the distribution class (and its keyword arguments) that a TorchRL actor is built
        with.
        """

    def torch_parameters(self, parameters: Parameters) -> Parameters:
        """Return the parameters as ``torch_distribution`` takes them, in the order of
        ``parameter_keys``.
        """
        return parameters

    def exploration_state(self) -> dict[str, Any]:
        """Return what of the exploration lives on between rollouts (gSDE's matrix)."""
        return {}

    def load_exploration_state(self, state: Mapping[str, Any]) -> None:
        """Restore ``exploration_state()``."""


def room_for_noise(parameter: Tensor, generator: torch.Generator | None) -> Tensor:
    """Return an uninitialised tensor like ``parameter`` where ``generator`` can fill it: on its own
    device, or None's, the CPU. So one seed draws the same on every device.
    """
    place = "cpu" if generator is None else generator.device
    return torch.empty_like(parameter, device=place)


class CategoricalHead(ActionHead):
    """One discrete action of ``num_actions``; actions are int64 ``[*batch]``, numbered from 0."""

    parameter_keys = ("logits",)

    def __init__(self, *, num_features: int, num_actions: int) -> None:
        super().__init__()
        self.num_actions = num_actions
        self.layer = nn.Linear(num_features, num_actions)

    def forward(self, features: Tensor) -> Parameters:
        """Return the logits ``[*batch, num_actions]``."""
        return (functional.linear(features, self.layer.weight, self.layer.bias),)

    def draw_noise(self, steps: int, num_envs: int, generator: torch.Generator) -> list[Tensor]:
        """Return Gumbel noise: the argmax of logits plus it is a sample (Gumbel 1954)."""
        noise = torch.empty(steps, num_envs, self.num_actions)
        return list(noise.exponential_(generator=generator).log_().neg_().unbind(0))

    def sample(self, features: Tensor, noise: Tensor) -> Tensor:
        """Return sampled actions ``[N]``."""
        return torch.add(self.forward(features)[0], noise).argmax(-1)

    def draw(self, parameters: Parameters, generator: torch.Generator | None) -> Tensor:
        """Return sampled actions ``[*batch]``."""
        logits = parameters[0]
        noise = room_for_noise(logits, generator).exponential_(generator=generator).log_()
        return (logits - noise.to(logits.device)).argmax(-1)

    def mode(self, parameters: Parameters) -> Tensor:
        """Return the actions of highest probability ``[*batch]``."""
        return parameters[0].argmax(-1)

    def evaluate(self, parameters: Parameters, action: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probability and entropy, both ``[*batch]``."""
        log_probabilities = parameters[0].log_softmax(-1)
        log_probability = log_probabilities.gather(-1, action.unsqueeze(-1)).squeeze(-1)
        return log_probability, -(log_probabilities.exp() * log_probabilities).sum(-1)

    def kl_divergence(self, old: Parameters, new: Parameters) -> Tensor:
        """Return the sum of p (log p - log q) over the actions."""
        old_log, new_log = old[0].log_softmax(-1), new[0].log_softmax(-1)
        return (old_log.exp() * (old_log - new_log)).sum(-1)

    def encode(self, action: Tensor) -> Tensor:
        """Return the actions one-hot."""
        return functional.one_hot(action, self.num_actions).float()

    def torch_distribution(self) -> tuple[type[Any], dict[str, Any]]:
        """Return `torch.distributions.Categorical`."""
        return torch.distributions.Categorical, {}


class GaussianHead(ActionHead):
    """Independent Gaussians with a state-independent log standard deviation.

    Actions are ``[*batch, *action_shape]`` with A numbers each; the parameters, and all arithmetic,
    are flat: ``[*batch, A]``. Actions are stored unclipped: clipping to the bounds (or the tanh of
    ``squash``) happens in the environment layer, so log-probabilities and divergences are those of
    the plain Gaussian, in which a ratio of probabilities is the same number before and after the
    tanh.
    """

    parameter_keys = ("loc", "scale")

    action_shape: tuple[int, ...]

    def __init__(
        self,
        *,
        num_features: int,
        num_actions: int,
        action_shape: Sequence[int] | None = None,
        log_std_init: float = 0.0,
    ) -> None:
        super().__init__()
        self.num_actions = num_actions
        self.action_shape = (num_actions,) if action_shape is None else tuple(action_shape)
        self.layer = nn.Linear(num_features, num_actions)
        self.log_std = nn.Parameter(torch.full((num_actions,), float(log_std_init)))

    def forward(self, features: Tensor) -> Parameters:
        """Return mean and log standard deviation, both ``[*batch, A]`` (the latter expanded)."""
        mean = functional.linear(features, self.layer.weight, self.layer.bias)
        return mean, self.log_std.expand_as(mean)

    def draw_noise(self, steps: int, num_envs: int, generator: torch.Generator) -> list[Tensor]:
        """Return Gaussian noise of the policy's current standard deviation, ``[N, A]`` a step."""
        noise = torch.randn(steps, num_envs, self.num_actions, generator=generator)
        return list((noise * self.log_std.detach().exp().cpu()).unbind(0))

    def sample(self, features: Tensor, noise: Tensor) -> Tensor:
        """Return sampled actions ``[N, *action_shape]``."""
        mean = functional.linear(features, self.layer.weight, self.layer.bias)
        return self._shaped(mean.add_(noise))

    def draw(self, parameters: Parameters, generator: torch.Generator | None) -> Tensor:
        """Return sampled actions ``[*batch, *action_shape]``."""
        mean, log_std = parameters
        noise = room_for_noise(mean, generator).normal_(generator=generator)
        return self._shaped(mean + log_std.exp() * noise.to(mean.device))

    def mode(self, parameters: Parameters) -> Tensor:
        """Return the means ``[*batch, *action_shape]``."""
        return self._shaped(parameters[0])

    def _shaped(self, flat: Tensor) -> Tensor:
        """Return ``[*batch, A]`` as ``[*batch, *action_shape]``."""
        if len(self.action_shape) == 1:
            return flat
        return flat.reshape(*flat.shape[:-1], *self.action_shape)

    def evaluate(self, parameters: Parameters, action: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probability and entropy, both ``[*batch]``."""
        mean, log_std = parameters
        normalized = (action.reshape(mean.shape) - mean) * (-log_std).exp()
        log_probability = (-0.5 * normalized.square() - log_std - 0.5 * _LOG_TWO_PI).sum(-1)
        return log_probability, (log_std + 0.5 * (1.0 + _LOG_TWO_PI)).sum(-1)

    def kl_divergence(self, old: Parameters, new: Parameters) -> Tensor:
        """Return the closed form of two Gaussians."""
        (old_mean, old_log), (new_mean, new_log) = old, new
        log_ratio = old_log - new_log
        difference = (old_mean - new_mean) * (-new_log).exp()
        # expm1 keeps the divergence of equal distributions exactly zero.
        return (0.5 * (torch.expm1(2 * log_ratio) + difference.square()) - log_ratio).sum(-1)

    def torch_distribution(self) -> tuple[type[Any], dict[str, Any]]:
        """Return TorchRL's `IndependentNormal`, whose scale is used as it is."""
        from torchrl.modules import IndependentNormal

        return IndependentNormal, {"event_dim": len(self.action_shape)}

    def torch_parameters(self, parameters: Parameters) -> Parameters:
        """Return mean and standard deviation ``[*batch, *action_shape]``."""
        return self._shaped(parameters[0]), self._shaped(parameters[1].exp())


class StateDependentNoiseHead(GaussianHead):
    """Generalised state-dependent exploration, gSDE (Raffin et al. 2021, section 3).

    The noise is a linear function of the features, ``features @ matrix``, whose matrix
    ``[N, F, A]`` is drawn anew every ``resample_interval`` steps of the environments (-1: at each
    rollout's start). The action's distribution is then Gaussian with variance
    ``features^2 @ std^2``; the features are not trained through the variance.
    """

    _VARIANCE_FLOOR = 1e-6

    def __init__(
        self,
        *,
        num_features: int,
        num_actions: int,
        action_shape: Sequence[int] | None = None,
        log_std_init: float = 0.0,
        resample_interval: int = -1,
    ) -> None:
        super().__init__(
            num_features=num_features, num_actions=num_actions, action_shape=action_shape
        )
        self.num_features = num_features
        self.resample_interval = resample_interval
        self.log_std = nn.Parameter(torch.full((num_features, num_actions), float(log_std_init)))
        self._matrix: Tensor | None = None
        self._steps_since_resample = 0

    def forward(self, features: Tensor) -> Parameters:
        """Return mean and log standard deviation, both ``[*batch, A]``."""
        mean = functional.linear(features, self.layer.weight, self.layer.bias)
        variance = features.detach().square() @ (2 * self.log_std).exp()
        return mean, 0.5 * (variance + self._VARIANCE_FLOOR).log()

    def draw_noise(self, steps: int, num_envs: int, generator: torch.Generator) -> list[Tensor]:
        """Return an exploration matrix ``[N, F, A]`` a step, the same until it is resampled."""
        std = self.log_std.detach().exp().cpu()
        if self.resample_interval < 0:
            self._matrix = None
        matrices = []
        for _ in range(steps):
            due = self._steps_since_resample == self.resample_interval
            if self._matrix is None or self._matrix.shape[0] != num_envs or due:
                draw = torch.randn(num_envs, *std.shape, generator=generator)
                self._matrix, self._steps_since_resample = draw * std, 0
            self._steps_since_resample += 1
            matrices.append(self._matrix)
        return matrices

    def sample(self, features: Tensor, noise: Tensor) -> Tensor:
        """Return sampled actions ``[N, *action_shape]``."""
        mean = functional.linear(features, self.layer.weight, self.layer.bias)
        return self._shaped(mean + torch.bmm(features.unsqueeze(1), noise).squeeze(1))

    def exploration_state(self) -> dict[str, Any]:
        """Return the current matrix and its age in steps."""
        return {"matrix": self._matrix, "steps_since_resample": self._steps_since_resample}

    def load_exploration_state(self, state: Mapping[str, Any]) -> None:
        """Restore the matrix and its age."""
        self._matrix = state["matrix"]
        self._steps_since_resample = int(state["steps_since_resample"])

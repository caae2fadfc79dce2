"""Several discrete actions at once: independent categoricals, each with a number of choices of its
own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Independent
from torch.nn import functional

from rl_training.models.heads import ActionHead, Parameters, room_for_noise

IMPOSSIBLE = -1e30
"""The logit of a choice that is not there: its probability is exactly zero, and unlike minus
infinity it leaves products with zero, and their gradients, finite.
"""


def padded_positions(sizes: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Return where each choice's logit stands among all, int64 ``[K, max(sizes)]``, and a bool of
    the same shape that is True where there is no such choice.
    """
    width = max(sizes)
    starts = torch.tensor([0, *sizes[:-1]]).cumsum(0).unsqueeze(-1)
    offsets = torch.arange(width).unsqueeze(0)
    absent = offsets >= torch.tensor(list(sizes)).unsqueeze(-1)
    return torch.where(absent, 0, starts + offsets), absent


class MultiCategoricalHead(ActionHead):
    """K independent categoricals; actions are int64 ``[*batch, *action_shape]``, each numbered from
    0. A MultiBinary action is one of two choices, K times.

    The parameter is one row of logits, ``[*batch, sum(sizes)]``, those of the first action first.

    Args:
        num_features: F.
        sizes: how many choices each action has, in C order of ``action_shape``.
        action_shape: of an action, with K numbers; None: ``(K,)``.
    """

    parameter_keys = ("logits",)
    positions: Tensor
    absent: Tensor

    def __init__(
        self,
        *,
        num_features: int,
        sizes: Sequence[int],
        action_shape: Sequence[int] | None = None,
    ) -> None:
        super().__init__()
        self.layer = nn.Linear(num_features, sum(sizes))
        self._describe(sizes, action_shape)

    def _describe(self, sizes: Sequence[int], action_shape: Sequence[int] | None) -> None:
        self.sizes = tuple(int(size) for size in sizes)
        self.num_actions = sum(self.sizes)
        self.action_shape = (len(self.sizes),) if action_shape is None else tuple(action_shape)
        assert math.prod(self.action_shape) == len(self.sizes)
        self._uniform = len(set(self.sizes)) == 1
        positions, absent = padded_positions(self.sizes)
        self.register_buffer("positions", positions, persistent=False)
        self.register_buffer("absent", absent, persistent=False)

    def _rows(self, logits: Tensor) -> Tensor:
        """Return ``[*batch, sum(sizes)]`` as ``[*batch, K, max(sizes)]``."""
        if self._uniform:
            return logits.reshape(*logits.shape[:-1], len(self.sizes), self.sizes[0])
        return logits[..., self.positions].masked_fill(self.absent, IMPOSSIBLE)

    def _shaped(self, flat: Tensor) -> Tensor:
        """Return ``[*batch, K]`` as ``[*batch, *action_shape]``."""
        if len(self.action_shape) == 1:
            return flat
        return flat.reshape(*flat.shape[:-1], *self.action_shape)

    def _flat(self, action: Tensor) -> Tensor:
        """Return ``[*batch, *action_shape]`` as ``[*batch, K]``."""
        if len(self.action_shape) == 1:
            return action
        batch = action.shape[: action.ndim - len(self.action_shape)]
        return action.reshape(*batch, len(self.sizes))

    def forward(self, features: Tensor) -> Parameters:
        """Return the logits ``[*batch, sum(sizes)]``."""
        return (functional.linear(features, self.layer.weight, self.layer.bias),)

    def draw_noise(self, steps: int, num_envs: int, generator: torch.Generator) -> list[Tensor]:
        """Return Gumbel noise, one number for every choice, as `CategoricalHead` draws it."""
        noise = torch.empty(steps, num_envs, self.num_actions)
        return list(noise.exponential_(generator=generator).log_().neg_().unbind(0))

    def sample(self, features: Tensor, noise: Tensor) -> Tensor:
        """Return sampled actions ``[N, *action_shape]``."""
        return self.mode((self(features)[0] + noise,))

    def draw(self, parameters: Parameters, generator: torch.Generator | None) -> Tensor:
        """Return sampled actions ``[*batch, *action_shape]``."""
        logits = parameters[0]
        noise = room_for_noise(logits, generator).exponential_(generator=generator).log_()
        return self.mode((logits - noise.to(logits.device),))

    def mode(self, parameters: Parameters) -> Tensor:
        """Return the actions of highest probability ``[*batch, *action_shape]``."""
        return self._shaped(self._rows(parameters[0]).argmax(-1))

    def evaluate(self, parameters: Parameters, action: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probability and entropy, both ``[*batch]``, summed over the K actions."""
        log_probabilities = self._rows(parameters[0]).log_softmax(-1)
        chosen = log_probabilities.gather(-1, self._flat(action).unsqueeze(-1)).squeeze(-1)
        return chosen.sum(-1), -(log_probabilities.exp() * log_probabilities).sum((-2, -1))

    def kl_divergence(self, old: Parameters, new: Parameters) -> Tensor:
        """Return the sum of p (log p - log q) over the choices of all actions."""
        old_log, new_log = (self._rows(each[0]).log_softmax(-1) for each in (old, new))
        return (old_log.exp() * (old_log - new_log)).sum((-2, -1))

    def encode(self, action: Tensor) -> Tensor:
        """Return the actions one-hot, one after the other, ``[N, sum(sizes)]``."""
        rows = functional.one_hot(self._flat(action), max(self.sizes)).float()
        return rows[:, torch.logical_not(self.absent)]

    def torch_distribution(self) -> tuple[type[Any], dict[str, Any]]:
        """Return `IndependentCategoricals`."""
        return IndependentCategoricals, {"sizes": self.sizes, "action_shape": self.action_shape}


class IndependentCategoricals(Independent):  # type: ignore[type-arg]
    """`torch.distributions.Categorical`, K times, over ``[*batch, *action_shape]``.

    Args:
        logits: ``[*batch, sum(sizes)]``.
        sizes: how many choices each has.
        action_shape: with K numbers.
    """

    def __init__(
        self, logits: Tensor, *, sizes: Sequence[int], action_shape: Sequence[int]
    ) -> None:
        positions, absent = (each.to(logits.device) for each in padded_positions(sizes))
        rows = logits[..., positions].masked_fill(absent, IMPOSSIBLE)
        rows = rows.reshape(*logits.shape[:-1], *action_shape, max(sizes))
        # Validation would look for probabilities of zero's logarithm.
        super().__init__(Categorical(logits=rows, validate_args=False), len(action_shape))

"""Discrete actions, one or several at once, of which only some are legal: the mask is a part of the
observation vector.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from rl_training.envs.masks import MaskColumns
from rl_training.models.heads import ActionHead, CategoricalHead, Parameters
from rl_training.models.multi_categorical import IMPOSSIBLE, MultiCategoricalHead


def legal_alone(values: Tensor, mask: Tensor) -> Tensor:
    """Return logits or action values ``[*batch, n]``, those of illegal actions as of what cannot
    happen.
    """
    return torch.where(mask > 0, values, IMPOSSIBLE)


def legal_or_all(mask: Tensor) -> Tensor:
    """Return masks ``[*batch, n]``, all ones where no action is legal: an episode's last
    observation may have none, and nobody acts on it.
    """
    return torch.where((mask > 0).any(-1, keepdim=True), mask, 1.0)


def random_legal(mask: Tensor, draws: Tensor) -> Tensor:
    """Return actions ``[N]``, uniform over the legal ones of masks ``[N, n]``, from uniform numbers
    ``[N]``.
    """
    until = (mask > 0).cumsum(-1)
    count = until[:, -1]
    number = (draws * count).long().clamp(max=count - 1)
    # The first place by which one more than ``number`` actions were legal.
    return torch.searchsorted(until, number.unsqueeze(-1) + 1).squeeze(-1)


class MaskedEncoder(nn.Module):
    """An encoder whose features end with the observation's mask, ``[*batch, F + n]``.

    Args:
        encoder: of whole observations ``[*batch, size]``, the mask among them.
        columns: where the mask stands in them.
    """

    def __init__(self, encoder: nn.Module, columns: MaskColumns) -> None:
        super().__init__()
        self.encoder = encoder
        self.columns = columns
        inner = encoder.output_size
        assert isinstance(inner, int)
        self.output_size = inner + columns.size

    def forward(self, observation: Tensor) -> Tensor:
        """Return features and mask."""
        return torch.cat([self.encoder(observation), self.columns.of(observation)], -1)


class MaskedCategoricalHead(CategoricalHead):
    """A `CategoricalHead` over the legal actions: the logits of the others, and with them their
    probabilities and their parts of entropy and divergence, are those of what cannot happen.

    Args:
        num_features: of a `MaskedEncoder`, the mask included.
        num_actions: n.
    """

    def __init__(self, *, num_features: int, num_actions: int) -> None:
        super().__init__(num_features=num_features - num_actions, num_actions=num_actions)

    def forward(self, features: Tensor) -> Parameters:
        """Return the logits ``[*batch, n]``."""
        count = self.num_actions
        logits = functional.linear(features[..., :-count], self.layer.weight, self.layer.bias)
        return (legal_alone(logits, features[..., -count:]),)


class MaskedMultiCategoricalHead(MultiCategoricalHead):
    """A `MultiCategoricalHead` over the legal choices of each action.

    Args:
        num_features: of a `MaskedEncoder`, the mask included: those of all actions, one after the
            other.
        sizes: how many choices each action has.
        action_shape: of an action.
    """

    def __init__(
        self, *, num_features: int, sizes: Sequence[int], action_shape: Sequence[int] | None = None
    ) -> None:
        super().__init__(
            num_features=num_features - sum(sizes), sizes=sizes, action_shape=action_shape
        )

    def forward(self, features: Tensor) -> Parameters:
        """Return the logits ``[*batch, sum(sizes)]``."""
        count = self.num_actions
        (logits,) = super().forward(features[..., :-count])
        return (legal_alone(logits, features[..., -count:]),)


def masked_head(
    num_features: int,
    *,
    num_actions: int,
    sizes: Sequence[int] | None = None,
    action_shape: Sequence[int] | None = None,
    **_: object,
) -> ActionHead:
    """Return the head of masked actions, from what `rl_training.models.build.described_action` says
    of them.
    """
    if sizes is None:
        return MaskedCategoricalHead(num_features=num_features, num_actions=num_actions)
    return MaskedMultiCategoricalHead(
        num_features=num_features, sizes=sizes, action_shape=action_shape
    )


def masked_encoder(
    make_encoder: Callable[[], nn.Module], columns: MaskColumns
) -> Callable[[], nn.Module]:
    """Return a function that makes a `MaskedEncoder` at each call."""
    return lambda: MaskedEncoder(make_encoder(), columns)

"""Discrete actions of which only some are legal: the mask is a part of the observation vector."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from rl_training.models.heads import CategoricalHead, Parameters
from rl_training.models.multi_categorical import IMPOSSIBLE


class MaskedEncoder(nn.Module):
    """An encoder whose features end with the observation's mask, ``[*batch, F + n]``.

    Args:
        encoder: of whole observations ``[*batch, size]``, the mask among them.
        columns: where the mask stands in them.
    """

    def __init__(self, encoder: nn.Module, columns: slice) -> None:
        super().__init__()
        self.encoder = encoder
        self.columns = columns
        inner = encoder.output_size
        assert isinstance(inner, int)
        self.output_size = inner + columns.stop - columns.start

    def forward(self, observation: Tensor) -> Tensor:
        """Return features and mask."""
        return torch.cat([self.encoder(observation), observation[..., self.columns]], -1)


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
        return (torch.where(features[..., -count:] > 0, logits, IMPOSSIBLE),)

    def sample(self, features: Tensor, noise: Tensor) -> Tensor:
        """Return sampled actions ``[N]``."""
        return (self(features)[0] + noise).argmax(-1)


def masked_encoder(
    make_encoder: Callable[[], nn.Module], columns: slice
) -> Callable[[], nn.Module]:
    """Return a function that makes a `MaskedEncoder` at each call."""
    return lambda: MaskedEncoder(make_encoder(), columns)

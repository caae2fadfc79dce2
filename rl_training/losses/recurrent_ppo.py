"""Proximal policy optimisation's loss over sequences of a policy with memory."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from rl_training.losses.ppo import ClippedTerms, ppo_loss
from rl_training.models.lstm import MEMORY, LSTMActorCritic

Memory = tuple[Tensor, Tensor, Tensor | None]

recurrent_ppo_loss = ppo_loss
"""`ppo_loss`, on numbers ``[S, T]``: with ``mask``, every mean is over where it is set."""


def without_padding(minibatch: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Return a minibatch with zeros where its ``mask`` is not set, so that what stands there cannot
    reach a gradient, not even as NaN.
    """
    mask = minibatch.get("mask")
    if mask is None:
        return minibatch
    # A sequence that is padding from its first step on has no state either.
    begun = mask[:, 0]
    blank = {}
    for key, value in minibatch.items():
        kept = begun if key == MEMORY else mask
        if key != "mask" and value.ndim:
            value = torch.where(
                kept.reshape(*kept.shape, *[1] * (value.ndim - kept.ndim)), value, 0
            )
        blank[key] = value
    return blank


def memory_of(model: LSTMActorCritic, minibatch: Mapping[str, Tensor] | TensorDictBase) -> Memory:
    """Return what a model takes beside the observations: state, episode starts, what else it
    reads.
    """
    return minibatch[MEMORY], minibatch["is_init"], model.extra(minibatch)


class RecurrentPPOLoss(ClippedTerms, nn.Module):
    """The clipped loss of an `LSTMActorCritic` on sequences ``[S, T, ...]``.

    A minibatch has what `rl_training.data.RecurrentRolloutBuffer.sequences` gives: ``is_init``
    ``[S, T]`` and ``memory`` ``[S, K, H]`` beside the usual keys. Where it has ``mask`` ``[S, T]``,
    what is padded touches no loss, no mean, no standard deviation and no gradient.

    Args:
        model: gives log-probability, entropy and value.
        clip_epsilon: of the ratio; a buffer, which a schedule fills in place.
        entropy_coefficient: weight of the entropy bonus.
        value_coefficient: weight of the mean squared value error.
        value_clip_epsilon: clip the value's change to this; None: do not.
        normalize_advantage: normalise the advantages of each minibatch.
    """

    def __init__(
        self,
        model: LSTMActorCritic,
        *,
        clip_epsilon: float,
        entropy_coefficient: float,
        value_coefficient: float,
        value_clip_epsilon: float | None = None,
        normalize_advantage: bool = True,
    ) -> None:
        super().__init__()
        self.model = model
        device = model.value_head.weight.device
        self.register_buffer("clip_epsilon", torch.tensor(float(clip_epsilon), device=device))
        self.normalize_advantage = normalize_advantage
        self._entropy_coefficient = float(entropy_coefficient)
        self._value_coefficient = float(value_coefficient)
        self._value_clip_epsilon = value_clip_epsilon

    def forward(self, minibatch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return ``loss_objective, loss_critic, loss_entropy`` and detached metrics."""
        return self.terms(minibatch)

    def terms(self, minibatch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the terms of policy and value function together, from one pass."""
        minibatch = without_padding(minibatch)
        log_probability, entropy, value = self.model.evaluate_actions(
            minibatch["observation"], minibatch["action"], *self._memory(minibatch)
        )
        terms = self._policy_terms(minibatch, log_probability, entropy)
        terms.update(self._value_terms(minibatch, value))
        return terms

    def policy_terms(self, minibatch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the terms of the policy alone (for a phase without the value function)."""
        model, minibatch = self.model, without_padding(minibatch)
        parameters = model.distribution(minibatch["observation"], *self._memory(minibatch))
        log_probability, entropy = model.action_head.evaluate(parameters, minibatch["action"])
        return self._policy_terms(minibatch, log_probability, entropy)

    def value_terms(self, minibatch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the terms of the value function alone."""
        minibatch = without_padding(minibatch)
        value = self.model.value(minibatch["observation"], *self._memory(minibatch))
        return self._value_terms(minibatch, value)

    def _memory(self, minibatch: Mapping[str, Tensor]) -> Memory:
        return memory_of(self.model, minibatch)

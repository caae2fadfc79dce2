"""Phasic policy gradient's auxiliary loss over sequences of a policy with memory."""

from __future__ import annotations

from collections.abc import Mapping

from tensordict import TensorDictBase
from torch import Tensor

from rl_training.losses.ppg import PPGAuxiliaryLoss
from rl_training.losses.recurrent_ppo import memory_of
from rl_training.models.heads import Parameters
from rl_training.models.lstm import LSTMPPGModel


class RecurrentPPGAuxiliaryLoss(PPGAuxiliaryLoss):
    """`PPGAuxiliaryLoss` on sequences ``[S, T, ...]``, replayed from the states they were
    collected from.

    Reads ``memory`` ``[S, K, H]`` and ``is_init`` ``[S, T]`` beside its parent's keys.
    """

    model: LSTMPPGModel  # type: ignore[assignment]

    def distribution(self, minibatch: Mapping[str, Tensor] | TensorDictBase) -> Parameters:
        """Return the distribution's parameters for a minibatch."""
        given = memory_of(self.model, minibatch)
        return self.model.distribution(minibatch["observation"], *given)

    def _evaluate(
        self, minibatch: Mapping[str, Tensor] | TensorDictBase
    ) -> tuple[Parameters, Tensor, Tensor]:
        given = memory_of(self.model, minibatch)
        return self.model.auxiliary(minibatch["observation"], *given)

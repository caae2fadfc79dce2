"""Phasic policy gradient's auxiliary loss (Cobbe et al. 2020, equations 2 to 4)."""

from __future__ import annotations

from collections.abc import Mapping

from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.objectives import LossModule

from rl_training.losses.ppo import ppo_loss
from rl_training.models.actor_critic import MLPPPGModel
from rl_training.models.heads import Parameters

ppg_loss = ppo_loss
"""The policy phase's loss is PPO's."""


def ppg_auxiliary_loss(
    minibatch: Mapping[str, Tensor] | TensorDictBase,
    beta_clone: float = 1.0,
    vf_true_coef: float = 1.0,
) -> dict[str, Tensor]:
    """Return the auxiliary phase's loss and its parts from numbers already computed, all ``[M]``.

    Args:
        minibatch: ``aux_values``, ``new_values`` (the true value head), ``returns`` (the policy
            phase's value targets) and ``kl`` (old policy to new, summed over action dimensions).
        beta_clone: weight of the divergence.
        vf_true_coef: weight of the true value function's error.

    Returns:
        Scalars ``loss, aux_value_loss, true_value_loss, kl``.
    """
    auxiliary = 0.5 * (minibatch["aux_values"] - minibatch["returns"]).square().mean()
    true = 0.5 * (minibatch["new_values"] - minibatch["returns"]).square().mean()
    divergence = minibatch["kl"].mean()
    return {
        "loss": auxiliary + beta_clone * divergence + vf_true_coef * true,
        "aux_value_loss": auxiliary,
        "true_value_loss": true,
        "kl": divergence,
    }


class PPGAuxiliaryLoss(LossModule):
    """Fits the auxiliary value head, and the true one, while a divergence holds the policy in
    place.

    Reads ``observation``, ``value_target`` and the old policy's distribution parameters under
    ``old_parameter_keys``; returns ``loss_auxiliary`` and detached ``kl, value_loss,
    true_value_loss``.
    """

    def __init__(
        self, model: MLPPPGModel, *, clone_coefficient: float, true_value_coefficient: float
    ) -> None:
        super().__init__()
        self.model = model
        self.clone_coefficient = float(clone_coefficient)
        self.true_value_coefficient = float(true_value_coefficient)

    @property
    def old_parameter_keys(self) -> tuple[str, ...]:
        """Keys of the old distribution's parameters, in the head's order."""
        return tuple(f"old_{key}" for key in self.model.action_head.parameter_keys)

    def distribution(self, minibatch: Mapping[str, Tensor] | TensorDictBase) -> Parameters:
        """Return the distribution's parameters for a minibatch."""
        return self.model.distribution(minibatch["observation"])

    def _evaluate(
        self, minibatch: Mapping[str, Tensor] | TensorDictBase
    ) -> tuple[Parameters, Tensor, Tensor]:
        return self.model.auxiliary(minibatch["observation"])

    def forward(self, tensordict: TensorDictBase) -> TensorDict:
        """Return the loss and its detached parts as a TensorDict of scalars."""
        return TensorDict(self.terms(tensordict), [])

    def terms(self, minibatch: Mapping[str, Tensor] | TensorDictBase) -> dict[str, Tensor]:
        """Return the same as a dict, from tensors ``[M, ...]``."""
        parameters, auxiliary_value, value = self._evaluate(minibatch)
        old = tuple(minibatch[key] for key in self.old_parameter_keys)
        parts = ppg_auxiliary_loss(
            {
                "aux_values": auxiliary_value,
                "new_values": value,
                "returns": minibatch["value_target"],
                "kl": self.model.action_head.kl_divergence(old, parameters),
            },
            beta_clone=self.clone_coefficient,
            vf_true_coef=self.true_value_coefficient,
        )
        return {
            "loss_auxiliary": parts["loss"],
            "kl": parts["kl"].detach(),
            "value_loss": parts["aux_value_loss"].detach(),
            "true_value_loss": parts["true_value_loss"].detach(),
        }

"""Proximal policy optimisation's loss: the formulas, and the module that recipes train with."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.objectives import ClipPPOLoss

from rl_training.models.actor_critic import ActorCritic
from rl_training.models.tensordict_modules import policy_module, value_module


def masked_mean(value: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return the mean over the elements whose ``mask`` is set; None: over all.

    What stands elsewhere has no influence on it, not even as NaN.
    """
    if mask is None:
        return value.mean()
    return torch.where(mask, value, 0.0).sum() / mask.sum()


def clipped_policy_loss(
    log_ratio: Tensor,
    advantage: Tensor,
    clip_epsilon: Tensor | float,
    mask: Tensor | None = None,
) -> Tensor:
    """Return the mean of ``-min(r A, clip(r, 1 - eps, 1 + eps) A)`` (Schulman et al. 2017, equation
    7).
    """
    ratio = log_ratio.exp()
    clipped = ratio.clamp(1 - clip_epsilon, 1 + clip_epsilon)  # type: ignore[arg-type]
    return -masked_mean(torch.min(ratio * advantage, clipped * advantage), mask)


def value_loss(
    value: Tensor,
    target: Tensor,
    *,
    old_value: Tensor | None = None,
    clip_epsilon: float | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """Return the mean squared error (without a half), clipped around ``old_value`` when asked.

    Clipped as OpenAI baselines do: the larger of the two errors counts, per element.
    """
    error = (value - target).square()
    if clip_epsilon is not None:
        assert old_value is not None
        clipped = old_value + (value - old_value).clamp(-clip_epsilon, clip_epsilon)
        error = torch.max(error, (clipped - target).square())
    return masked_mean(error, mask)


def approximate_kl(log_ratio: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return the estimate k3 of KL(old || new), ``mean(r - 1 - log r)``: never negative (Schulman
    2020).
    """
    return masked_mean(log_ratio.expm1() - log_ratio, mask)


def clip_fraction(
    log_ratio: Tensor, clip_epsilon: Tensor | float, mask: Tensor | None = None
) -> Tensor:
    """Return the share of samples whose probability ratio left the clipping interval."""
    return masked_mean((log_ratio.expm1().abs() > clip_epsilon).float(), mask)


def normalize(advantage: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return ``advantage`` with mean 0 and (unbiased) standard deviation 1; a single sample
    unchanged. With ``mask``, both are of the elements where it is set, and the others become 0.
    """
    if advantage.numel() < 2:
        return advantage
    if mask is not None:
        centred = torch.where(mask, advantage - masked_mean(advantage, mask), 0.0)
        deviation = (centred.square().sum() / (mask.sum() - 1).clamp(min=1)).sqrt()
        return centred / (deviation + 1e-8)
    return (advantage - advantage.mean()) / (advantage.std() + 1e-8)


def ppo_loss(
    minibatch: Mapping[str, Tensor] | TensorDictBase,
    clip_coef: Tensor | float = 0.2,
    ent_coef: float = 0.0,
    vf_coef: float = 0.5,
) -> dict[str, Tensor]:
    """Return PPO's loss and its parts from numbers already computed, all ``[M]``.

    Args:
        minibatch: ``logprobs`` (new), ``old_logprobs``, ``advantages``, ``returns``, ``values``
            (old;
            unused without value clipping), ``new_values``, ``entropy``.
        clip_coef: epsilon of the clipped ratio.
        ent_coef: weight of the entropy bonus.
        vf_coef: weight of the mean squared value error.

    Returns:
        Scalars ``loss, policy_loss, value_loss, entropy_loss, approx_kl, clip_fraction``.
    """
    mask = minibatch.get("mask")
    log_ratio = minibatch["logprobs"] - minibatch["old_logprobs"]
    policy = clipped_policy_loss(log_ratio, minibatch["advantages"], clip_coef, mask)
    value = value_loss(minibatch["new_values"], minibatch["returns"], mask=mask)
    entropy = -masked_mean(minibatch["entropy"], mask)
    return {
        "loss": policy + vf_coef * value + ent_coef * entropy,
        "policy_loss": policy,
        "value_loss": value,
        "entropy_loss": entropy,
        "approx_kl": approximate_kl(log_ratio.detach(), mask),
        "clip_fraction": clip_fraction(log_ratio.detach(), clip_coef, mask),
    }


class ClippedTerms:
    """The terms of the clipped loss from what a model has computed, as means over the elements of a
    minibatch, or over those whose ``mask`` is set where it has one.
    """

    clip_epsilon: Tensor
    normalize_advantage: bool
    _entropy_coefficient: float
    _value_coefficient: float
    _value_clip_epsilon: float | None

    def _policy_terms(
        self,
        minibatch: Mapping[str, Tensor] | TensorDictBase,
        log_probability: Tensor,
        entropy: Tensor,
    ) -> dict[str, Tensor]:
        advantage, mask = minibatch["advantage"], minibatch.get("mask")
        if self.normalize_advantage:
            advantage = normalize(advantage, mask)
        log_ratio = log_probability - minibatch["action_log_prob"]
        mean_entropy = masked_mean(entropy, mask)
        change = log_ratio.detach()
        return {
            "loss_objective": clipped_policy_loss(log_ratio, advantage, self.clip_epsilon, mask),
            "loss_entropy": -self._entropy_coefficient * mean_entropy,
            "entropy": mean_entropy.detach(),
            "approx_kl": approximate_kl(change, mask),
            "clip_fraction": clip_fraction(change, self.clip_epsilon, mask),
        }

    def _value_terms(
        self, minibatch: Mapping[str, Tensor] | TensorDictBase, value: Tensor
    ) -> dict[str, Tensor]:
        clip_epsilon = self._value_clip_epsilon
        old_value = minibatch["state_value"] if clip_epsilon is not None else None
        loss = value_loss(
            value,
            minibatch["value_target"],
            old_value=old_value,
            clip_epsilon=clip_epsilon,
            mask=minibatch.get("mask"),
        )
        return {"loss_critic": self._value_coefficient * loss}


class LeanClipPPOLoss(ClippedTerms, ClipPPOLoss):
    """TorchRL's `ClipPPOLoss` on an `ActorCritic`, with a forward of its own at a third of the
    time.

    Same keys, same terms, same gradients as the parent with ``loss_critic_type="l2"`` (the tests
    hold every one equal). ``entropy`` is the exact one, where the parent's compiled form draws
    random numbers. ``clip_epsilon`` is a buffer: a schedule fills it in place.

    Args:
        model: gives log-probability, entropy and value.
        clip_epsilon: of the ratio.
        entropy_coefficient: weight of the entropy bonus.
        value_coefficient: weight of the mean squared value error.
        value_clip_epsilon: clip the value's change to this; None: do not.
        normalize_advantage: normalise the advantages of each minibatch.
    """

    def __init__(
        self,
        model: ActorCritic,
        *,
        clip_epsilon: float,
        entropy_coefficient: float,
        value_coefficient: float,
        value_clip_epsilon: float | None = None,
        normalize_advantage: bool = True,
    ) -> None:
        super().__init__(
            policy_module(model),
            value_module(model),
            clip_epsilon=float(clip_epsilon),
            entropy_coeff=float(entropy_coefficient),
            critic_coeff=float(value_coefficient),
            clip_value=value_clip_epsilon,
            loss_critic_type="l2",
            normalize_advantage=normalize_advantage,
            functional=False,
        )
        self.model = model
        self._entropy_coefficient = float(entropy_coefficient)
        self._value_coefficient = float(value_coefficient)
        self._value_clip_epsilon = value_clip_epsilon

    def forward(self, tensordict: TensorDictBase) -> TensorDict:
        """Return ``loss_objective, loss_critic, loss_entropy`` and detached metrics."""
        return TensorDict(self.terms(tensordict), [])

    def terms(self, minibatch: Mapping[str, Tensor] | TensorDictBase) -> dict[str, Tensor]:
        """Return the same as a dict, from tensors ``[M, ...]`` under TorchRL's keys."""
        log_probability, entropy, value = self.model.evaluate_actions(
            minibatch["observation"], minibatch["action"]
        )
        terms = self._policy_terms(minibatch, log_probability, entropy)
        terms.update(self._value_terms(minibatch, value))
        return terms

    def policy_terms(self, minibatch: Mapping[str, Tensor] | TensorDictBase) -> dict[str, Tensor]:
        """Return the terms of the policy alone (for a phase without the value function)."""
        parameters = self.model.distribution(minibatch["observation"])
        log_probability, entropy = self.model.action_head.evaluate(parameters, minibatch["action"])
        return self._policy_terms(minibatch, log_probability, entropy)

    def value_terms(self, minibatch: Mapping[str, Tensor] | TensorDictBase) -> dict[str, Tensor]:
        """Return the terms of the value function alone."""
        return self._value_terms(minibatch, self.model.value(minibatch["observation"]))

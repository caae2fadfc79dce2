"""Phasic policy gradient's auxiliary loss from its formulas, to test implementations against.

Plain arithmetic on tensors on purpose: no distribution class and no KL from a library. After
section 2 of "Phasic Policy Gradient" (Cobbe et al., 2021, arXiv:2009.04416).
"""

from __future__ import annotations

from torch import Tensor


def categorical_kl(old_logits: Tensor, new_logits: Tensor) -> Tensor:
    """Return KL(old || new) of two categorical distributions: ``[B, A]`` logits to ``[B]``."""
    old_log_probability = old_logits - old_logits.exp().sum(-1, keepdim=True).log()
    new_log_probability = new_logits - new_logits.exp().sum(-1, keepdim=True).log()
    difference = old_log_probability - new_log_probability
    return (old_log_probability.exp() * difference).sum(-1)


def normal_kl(old_mean: Tensor, old_std: Tensor, new_mean: Tensor, new_std: Tensor) -> Tensor:
    """Return KL(old || new) of diagonal Gaussians: ``[B, A]`` each to ``[B]``, summed over A."""
    spread = (old_std**2 + (old_mean - new_mean) ** 2) / (2.0 * new_std**2)
    return (new_std.log() - old_std.log() + spread - 0.5).sum(-1)


def auxiliary_loss(
    kl: Tensor, auxiliary_value: Tensor, value: Tensor, value_target: Tensor, beta_clone: float
) -> Tensor:
    """Return 0.5 MSE(auxiliary value) + beta KL + 0.5 MSE(true value); every input is ``[B]``."""
    samples = value_target.numel()
    auxiliary_value_loss = 0.5 * ((auxiliary_value - value_target) ** 2).sum() / samples
    true_value_loss = 0.5 * ((value - value_target) ** 2).sum() / samples
    return auxiliary_value_loss + beta_clone * kl.sum() / samples + true_value_loss

"""Soft actor-critic's losses (Haarnoja et al. 2018b, arXiv:1812.05905; Christodoulou 2019,
arXiv:1910.07207, for discrete actions).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import torch
from tensordict import TensorDictBase
from torch import Tensor

Minibatch: TypeAlias = Mapping[str, Tensor] | TensorDictBase


def sac_loss(
    minibatch: Minibatch, alpha: Tensor, target_entropy: float, gamma: float = 0.99
) -> dict[str, Tensor]:
    """Return SAC's losses for Box actions from numbers already computed.

    Args:
        minibatch: ``q_values`` ``[critics, B]`` of the actions taken, ``next_q_values`` likewise of
            the targets at the policy's next actions, ``next_logprobs``, ``rewards``, ``terminated``
            and, unless it is ``gamma`` for all, ``discounts`` ``[B]``; for the policy
            ``new_q_values`` ``[critics, B]`` and ``logprobs`` ``[B]`` of its own actions.
        alpha: the entropy coefficient, a scalar; a gradient reaches it through ``entropy_loss``
            alone.
        target_entropy: what alpha is tuned for, in nats.
        gamma: the discount.

    Returns:
        Scalars ``loss`` (the sum of the others), ``value_loss``, ``policy_loss`` and
        ``entropy_loss``.
    """
    fixed, log_probability = alpha.detach(), minibatch["logprobs"]
    with torch.no_grad():
        following = minibatch["next_q_values"], minibatch["next_logprobs"]
        target = soft_target(*facts_of(minibatch, gamma), *following, fixed)
    parts = {
        "value_loss": critic_loss(minibatch["q_values"], target),
        "policy_loss": actor_loss(minibatch["new_q_values"], log_probability, fixed),
        "entropy_loss": temperature_loss(alpha.log(), -log_probability, target_entropy),
    }
    return {"loss": torch.stack(list(parts.values())).sum(), **parts}


def facts_of(minibatch: Minibatch, gamma: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return rewards, discounts and whether the step terminated, ``[B]`` each."""
    reward = minibatch["rewards"]
    discount = minibatch.get("discounts", None)
    if discount is None:
        discount = torch.full_like(reward, gamma)
    return reward, discount, minibatch["terminated"].bool()


def soft_target(
    reward: Tensor,
    discount: Tensor,
    terminated: Tensor,
    next_q: Tensor,
    next_log_probability: Tensor,
    alpha: Tensor,
) -> Tensor:
    """Return ``r + gamma (1 - terminated) (min_i Q_i(s', a') - alpha log pi(a'|s'))``, ``[B]``
    (equation 3; the minimum over critics as in section 5).

    Args:
        reward: ``[B]``, over n steps a discounted sum.
        discount: ``[B]``, gamma to the power of the steps.
        terminated: bool ``[B]``; a truncation is none.
        next_q: ``[critics, B]`` of the target networks.
        next_log_probability: ``[B]``.
        alpha: the entropy coefficient, a scalar.
    """
    value = next_q.min(0).values - alpha * next_log_probability
    return bootstrapped(reward, discount, terminated, value)


def discrete_soft_target(
    reward: Tensor,
    discount: Tensor,
    terminated: Tensor,
    next_q: Tensor,
    next_logits: Tensor,
    alpha: Tensor,
) -> Tensor:
    """Return the same with the exact expectation over discrete actions.

    ``next_q`` is ``[critics, B, n]``, ``next_logits`` ``[B, n]``.
    """
    log_probability = next_logits.log_softmax(-1)
    value = next_q.min(0).values - alpha * log_probability
    return bootstrapped(reward, discount, terminated, (log_probability.exp() * value).sum(-1))


def bootstrapped(reward: Tensor, discount: Tensor, terminated: Tensor, value: Tensor) -> Tensor:
    """Return ``reward + discount * value``, the value 0 where an episode has ended for good."""
    return reward + discount * torch.where(terminated, 0.0, value)


def critic_loss(q: Tensor, target: Tensor) -> Tensor:
    """Return half the mean squared error, summed over critics (equation 5).

    Args:
        q: ``[critics, B]``.
        target: ``[B]``.
    """
    return 0.5 * (q - target).square().mean(-1).sum()


def actor_loss(q: Tensor, log_probability: Tensor, alpha: Tensor) -> Tensor:
    """Return the mean of ``alpha log pi - min_i Q_i`` at sampled actions (equation 7)."""
    return (alpha * log_probability - q.min(0).values).mean()


def discrete_actor_loss(q: Tensor, logits: Tensor, alpha: Tensor) -> Tensor:
    """Return the same with the exact expectation over discrete actions."""
    log_probability = logits.log_softmax(-1)
    inner = alpha * log_probability - q.min(0).values
    return (log_probability.exp() * inner).sum(-1).mean()


def temperature_loss(log_alpha: Tensor, entropy: Tensor, target_entropy: float) -> Tensor:
    """Return ``log_alpha * mean(entropy - target)``: alpha falls while there is more entropy than
    asked for.

    The logarithm takes alpha's place in equation 18, as in the authors' code.

    Args:
        log_alpha: the scalar that is trained.
        entropy: of the policy, or ``-log pi`` of samples, ``[B]``; no gradient flows into it.
        target_entropy: in nats.
    """
    return log_alpha * (entropy.detach() - target_entropy).mean()

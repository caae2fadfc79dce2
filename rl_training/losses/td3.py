"""Losses of deterministic policies: TD3 (Fujimoto et al. 2018, arXiv:1802.09477) and DDPG."""

from __future__ import annotations

import torch
from torch import Tensor

from rl_training.losses.sac import Minibatch, bootstrapped, facts_of


def td3_loss(minibatch: Minibatch, gamma: float = 0.99) -> dict[str, Tensor]:
    """Return TD3's losses from numbers already computed.

    Args:
        minibatch: ``q_values`` ``[critics, B]`` of the actions taken, ``next_q_values`` likewise of
            the targets at the target policy's smoothed actions, ``rewards``, ``terminated`` and,
            unless it is ``gamma`` for all, ``discounts`` ``[B]``; for the policy ``new_q_values``
            ``[critics, B]`` of its own actions, which is left out where its turn has not come.
        gamma: the discount.

    Returns:
        Scalars ``loss`` (the sum of the others), ``value_loss`` and ``policy_loss``.
    """
    with torch.no_grad():
        facts = facts_of(minibatch, gamma)
        target = clipped_double_target(*facts, minibatch["next_q_values"])
    value = critic_loss(minibatch["q_values"], target)
    new_q = minibatch.get("new_q_values", None)
    if new_q is None:
        return {"loss": value, "value_loss": value}
    policy = actor_loss(new_q)
    return {"loss": value + policy, "value_loss": value, "policy_loss": policy}


def smoothed_action(action: Tensor, noise: Tensor, deviation: float, limit: float) -> Tensor:
    """Return the target policy's action with clipped noise, within [-1, 1] (equation 14).

    ``noise`` is standard normal, of the action's shape.
    """
    return (action + (noise * deviation).clamp(-limit, limit)).clamp(-1.0, 1.0)


def clipped_double_target(
    reward: Tensor, discount: Tensor, terminated: Tensor, next_q: Tensor
) -> Tensor:
    """Return ``r + gamma (1 - terminated) min_i Q_i(s', a')``, ``[B]`` (equation 10).

    ``next_q`` is ``[critics, B]`` of the target networks.
    """
    return bootstrapped(reward, discount, terminated, next_q.min(0).values)


def critic_loss(q: Tensor, target: Tensor) -> Tensor:
    """Return the mean squared error, summed over critics.

    Args:
        q: ``[critics, B]``.
        target: ``[B]``.
    """
    return (q - target).square().mean(-1).sum()


def actor_loss(q: Tensor) -> Tensor:
    """Return the negative mean value of the policy's actions, by the first critic of ``[critics,
    B]``.
    """
    return -q[0].mean()

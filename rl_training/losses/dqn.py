"""Deep Q-learning's targets and losses: DQN (Mnih et al. 2015), double DQN (van Hasselt et al.
2016, arXiv:1509.06461) and the categorical projection of C51 (Bellemare et al. 2017,
arXiv:1707.06887).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from rl_training.losses.sac import Minibatch, bootstrapped, facts_of
from rl_training.models.masked import legal_alone, legal_or_all


def dqn_loss(minibatch: Minibatch, gamma: float = 0.99, huber: bool = True) -> dict[str, Tensor]:
    """Return DQN's loss from numbers already computed.

    Args:
        minibatch: ``q_values`` ``[B, n]``, ``actions`` ``[B]``, ``next_q_values`` ``[B, n]`` of the
            target network, ``rewards``, ``terminated`` and, unless it is ``gamma`` for all,
            ``discounts`` ``[B]``; for double DQN ``next_selecting_q_values`` ``[B, n]`` of the
            trained network; with prioritised replay ``weights`` ``[B]``; where not all actions are
            legal, ``next_action_masks`` ``[B, n]``.
        gamma: the discount.
        huber: Huber's loss instead of the squared error.

    Returns:
        Scalars ``loss`` and ``value_loss``, the same, and ``td_errors`` ``[B]``.
    """
    with torch.no_grad():
        following = minibatch["next_q_values"], minibatch.get("next_selecting_q_values", None)
        legal = minibatch.get("next_action_masks", None)
        target = greedy_target(*facts_of(minibatch, gamma), *following, legal)
    taken = minibatch["actions"].unsqueeze(-1)
    q = minibatch["q_values"].gather(-1, taken).squeeze(-1)
    loss = td_loss(q, target, huber=huber, weights=minibatch.get("weights", None))
    return {"loss": loss, "value_loss": loss, "td_errors": q.detach() - target}


def greedy_target(
    reward: Tensor,
    discount: Tensor,
    terminated: Tensor,
    next_q: Tensor,
    selecting_q: Tensor | None = None,
    legal: Tensor | None = None,
) -> Tensor:
    """Return ``r + gamma (1 - terminated) Q(s', a*)``, ``[B]``.

    Args:
        reward: ``[B]``, over n steps a discounted sum.
        discount: ``[B]``, gamma to the power of the steps.
        terminated: bool ``[B]``; a truncation is none.
        next_q: ``[B, n]`` of the target network.
        selecting_q: ``[B, n]`` of the network that chooses ``a*`` (double DQN: the trained one);
            None: the target network itself.
        legal: ``[B, n]``, not zero where ``a*`` may be chosen; None: everywhere. A row of zeros
            stands for all actions: it is an episode's end.
    """
    selecting = next_q if selecting_q is None else selecting_q
    if legal is not None:
        selecting = legal_alone(selecting, legal_or_all(legal))
    chosen = selecting.argmax(-1, keepdim=True)
    return bootstrapped(reward, discount, terminated, next_q.gather(-1, chosen).squeeze(-1))


def td_loss(q: Tensor, target: Tensor, *, huber: bool, weights: Tensor | None = None) -> Tensor:
    """Return the mean loss of values ``[B]`` with respect to targets ``[B]``: the squared error
    (without a half), or Huber's with threshold 1, of which the quadratic part has a half; each
    times its weight ``[B]``.
    """
    measure = functional.smooth_l1_loss if huber else functional.mse_loss
    if weights is None:
        return measure(q, target)
    return (measure(q, target, reduction="none") * weights).mean()


def project_distribution(
    probabilities: Tensor,
    reward: Tensor,
    discount: Tensor,
    terminated: Tensor,
    support: Tensor,
) -> Tensor:
    """Return the distribution of ``r + gamma z`` as one on the atoms again, ``[B, atoms]``
    (algorithm 1 of the C51 paper).

    Each atom's mass goes to the two nearest of ``support``, in proportion to nearness; what falls
    outside goes to the ends.

    Args:
        probabilities: ``[B, atoms]`` of the successor.
        reward: ``[B]``.
        discount: ``[B]``.
        terminated: bool ``[B]``: the return is the reward alone.
        support: the atoms' values, ``[atoms]``, equally spaced and ascending.
    """
    low, high = support[0], support[-1]
    step = (high - low) / (support.numel() - 1)
    factor = torch.where(terminated, 0.0, discount)
    moved = (reward.unsqueeze(-1) + factor.unsqueeze(-1) * support).clamp(low, high)
    position = (moved - low) / step
    # How near each moved atom [B, from, 1] is to each atom [1, to]: 1 on it, 0 from a step away.
    nearness = (1 - (position.unsqueeze(-1) - _indices(support)).abs()).clamp(min=0)
    return torch.bmm(probabilities.unsqueeze(1), nearness).squeeze(1)


def _indices(support: Tensor) -> Tensor:
    return torch.arange(support.numel(), dtype=support.dtype, device=support.device)


def categorical_loss(logits: Tensor, target: Tensor) -> Tensor:
    """Return the cross-entropy of ``target`` distributions, ``[B]``, for logits ``[B, atoms]``."""
    return -(target * functional.log_softmax(logits, -1)).sum(-1)

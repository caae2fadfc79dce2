"""Returns over several steps, cut where an episode or the recorded experience ends."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor


def n_step_return(
    reward: Tensor, ended: Tensor, discount: float, *, available: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return the discounted sum of the first k rewards, and k, for each row.

    k is the number of steps n that are given, or fewer: it stops with the step that ended the
    episode (which counts), and at the last step that is available. What to bootstrap from is the
    observation after step k, with ``discount**k``, unless that step terminated.

    Args:
        reward: ``[B, n]``, rewards of n consecutive steps from each sample on.
        ended: ``[B, n]`` bool, whether the episode ended with the step, for either reason.
        discount: gamma.
        available: ``[B]``, how many of the n steps are recorded, at least 1; None: all of them.
            What stands in the others is ignored, NaN too.

    Returns:
        Sums ``[B]`` in the dtype of ``reward``, and k ``[B]``, int64, between 1 and n.

    Source: Sutton & Barto 2018, section 7.1; Hessel et al. 2018 (https://arxiv.org/abs/1710.02298).
    """
    offsets, powers = _constants(reward.shape[1], discount, reward.dtype)
    ends_before = torch.zeros_like(ended, dtype=torch.int64)
    torch.cumsum(ended[:, :-1], 1, out=ends_before[:, 1:])
    counts = ends_before == 0
    if available is not None:
        counts &= offsets < available.unsqueeze(1)
    total = torch.where(counts, reward * powers, 0).sum(1)
    return total, counts.sum(1)


@lru_cache(maxsize=16)
def _constants(steps: int, discount: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    # Kept, because making them costs more than the arithmetic of a minibatch.
    return torch.arange(steps), discount_powers(discount, steps - 1, dtype=dtype)


def discount_powers(discount: float, highest: int, *, dtype: torch.dtype) -> Tensor:
    """Return ``discount**k`` for k from 0 to ``highest``, each rounded once to ``dtype``."""
    return torch.tensor([discount**k for k in range(highest + 1)], dtype=dtype)

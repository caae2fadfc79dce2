"""Statistics of returns and value functions."""

from __future__ import annotations

import torch
from torch import Tensor

from rl_training.data.advantages import generalized_advantage_estimate

__all__ = ["explained_variance", "generalized_advantage_estimate"]


def explained_variance(prediction: Tensor, target: Tensor) -> Tensor:
    """Return ``1 - Var[target - prediction] / Var[target]``, a scalar; NaN when the target is
    constant.

    1 is a perfect value function, 0 one no better than a constant.
    """
    variance = target.var(correction=0)
    ratio = (target - prediction).var(correction=0) / variance
    return torch.where(variance == 0, torch.nan, 1.0 - ratio)

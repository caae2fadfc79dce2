"""The pieces of an update that is more than one gradient step: flat gradients, and clipping."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rl_training.optim.flat import FlatAdam


def descend(loss: Tensor, optimizer: FlatAdam, *, max_gradient_norm: float | None = None) -> Tensor:
    """Move the optimiser's parameters by one step down the gradient of ``loss``.

    Traceable by `torch.compile`; the graph behind ``loss`` is used up.

    Args:
        loss: a scalar.
        optimizer: owns the parameters.
        max_gradient_norm: gradients of a larger L2 norm are scaled down to it; None: never.

    Returns:
        The gradient's norm before that, a scalar.
    """
    gradient = flat_gradient(loss, optimizer.parameters)
    norm = clip_(gradient, max_gradient_norm)
    with torch.no_grad():
        optimizer.apply(gradient)
    return norm


def flat_gradient(loss: Tensor, parameters: Sequence[nn.Parameter]) -> Tensor:
    """Return the gradient of ``loss``, a scalar, as one tensor in the order of ``parameters``."""
    parts = torch.autograd.grad(loss, parameters)
    with torch.no_grad():
        return torch.cat([part.reshape(-1) for part in parts])


@torch.no_grad()
def clip_(gradient: Tensor, max_gradient_norm: float | None) -> Tensor:
    """Scale a flat gradient down to an L2 norm in place; return its norm before. None: never."""
    norm = torch.linalg.vector_norm(gradient)
    if max_gradient_norm is not None:
        # The factor of torch.nn.utils.clip_grad_norm_, its 1e-6 included.
        gradient.mul_((max_gradient_norm / (norm + 1e-6)).clamp(max=1.0))
    return norm

"""The pieces of an update that is more than one gradient step: flat gradients, and clipping."""

from __future__ import annotations

import torch
from torch import Tensor

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
    parts = torch.autograd.grad(loss, optimizer.parameters)
    with torch.no_grad():
        gradient = torch.cat([part.reshape(-1) for part in parts])
        norm = torch.linalg.vector_norm(gradient)
        if max_gradient_norm is not None:
            # The factor of torch.nn.utils.clip_grad_norm_, its 1e-6 included.
            gradient.mul_((max_gradient_norm / (norm + 1e-6)).clamp(max=1.0))
        optimizer.apply(gradient)
    return norm

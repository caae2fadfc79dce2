"""Multi-layer perceptrons and their initialisation."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from rl_training.models.linear import linear

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "relu": torch.relu,
    "elu": functional.elu,
    "silu": functional.silu,
    "gelu": functional.gelu,
}


class MLP(nn.Module):
    """Hidden layers, each followed by the activation: ``[*batch, *input_shape] -> [*batch,
    output_size]``.

    It calls the linear kernels itself: `nn.Sequential` costs as much again per step on networks
    this small. Inputs of another dtype (integers, float64) are converted to the weights' (float32).
    """

    def __init__(
        self, *, input_shape: Sequence[int], hidden_sizes: Sequence[int], activation: str = "tanh"
    ) -> None:
        super().__init__()
        self.input_dimensions = len(input_shape)
        sizes = [math.prod(input_shape), *hidden_sizes]
        self.layers = nn.ModuleList(
            nn.Linear(inputs, outputs) for inputs, outputs in itertools.pairwise(sizes)
        )
        self.output_size = sizes[-1]
        self.activation = ACTIVATIONS[activation]
        self._linears = tuple(cast("nn.Linear", layer) for layer in self.layers)

    def forward(self, observation: Tensor) -> Tensor:
        """Return the last hidden layer's output, ``[*batch, output_size]``."""
        hidden = observation
        if hidden.dtype != self._dtype():
            hidden = hidden.to(self._dtype())
        if self.input_dimensions != 1:
            hidden = hidden.reshape(*hidden.shape[: hidden.ndim - self.input_dimensions], -1)
        for layer in self._linears:
            hidden = self.activation(linear(hidden, layer.weight, layer.bias))
        return hidden

    def _dtype(self) -> torch.dtype:
        return self._linears[0].weight.dtype if self._linears else torch.float32


def orthogonal_(module: nn.Module, gain: float) -> None:
    """Give every linear and convolution layer of ``module`` orthogonal weights of ``gain`` and zero
    biases.

    The initialisation of OpenAI baselines: sqrt(2) for hidden layers, 0.01 for the policy's head,
    1 for the value's head.
    """
    for layer in module.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            nn.init.orthogonal_(layer.weight, gain)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)

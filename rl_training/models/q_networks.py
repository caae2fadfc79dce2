"""Action-value networks: one head per discrete action, and ensembles of critics as one network."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from rl_training.models.linear import linear
from rl_training.models.mlp import ACTIVATIONS, orthogonal_


class QNetwork(nn.Module):
    """An encoder and a head: ``[*batch, *observation] -> [*batch, num_actions]``, or with atoms
    the logits ``[*batch, num_actions, atoms]`` of a categorical return distribution.

    Args:
        encoder: from observations to ``[*batch, output_size]``.
        num_actions: discrete actions.
        num_atoms: of the return's distribution (C51, Bellemare et al. 2017); 1: the mean alone.
        dueling: value and advantage apart (Wang et al. 2016): ``v + a - mean(a)``.
        noisy_std: initial standard deviation of the head's noise (Fortunato et al. 2018); None: a
            head without noise.
        orthogonal_init: orthogonal weights with gains sqrt(2) and 1.
    """

    def __init__(
        self,
        *,
        encoder: nn.Module,
        num_actions: int,
        num_atoms: int = 1,
        dueling: bool = False,
        noisy_std: float | None = None,
        orthogonal_init: bool = False,
    ) -> None:
        super().__init__()
        size = encoder.output_size
        assert isinstance(size, int)
        self.num_actions, self.num_atoms, self.dueling = num_actions, num_atoms, dueling
        self.encoder = encoder
        outputs = num_atoms * (num_actions + 1 if dueling else num_actions)
        self.head: nn.Linear | NoisyLinear = (
            nn.Linear(size, outputs)
            if noisy_std is None
            else NoisyLinear(size, outputs, initial_std=noisy_std)
        )
        if orthogonal_init:
            orthogonal_(self.encoder, math.sqrt(2))
            orthogonal_(self.head, 1.0)

    @property
    def noise_size(self) -> int:
        """How many standard normal numbers one noisy forward takes; 0 without noise."""
        return self.head.noise_size if isinstance(self.head, NoisyLinear) else 0

    def forward(self, observation: Tensor, noise: Tensor | None = None) -> Tensor:
        """Return action values or logits; ``noise`` is ``[noise_size]``, None stands for zeros."""
        features = self.encoder(observation)
        if isinstance(self.head, NoisyLinear):
            output = self.head(features, noise)
        else:
            output = functional.linear(features, self.head.weight, self.head.bias)
        if self.num_atoms == 1:
            return self._combine(output, -1) if self.dueling else output
        output = output.unflatten(-1, (-1, self.num_atoms))
        return self._combine(output, -2) if self.dueling else output

    def _combine(self, output: Tensor, dimension: int) -> Tensor:
        value, advantage = torch.split(output, [1, self.num_actions], dimension)
        return value + advantage - advantage.mean(dimension, keepdim=True)


class NoisyLinear(nn.Module):
    """A linear layer with factorised Gaussian noise on its weights (Fortunato et al. 2018, section
    3.b).

    The noise is an argument: whoever calls owns the generator.
    """

    def __init__(self, inputs: int, outputs: int, *, initial_std: float = 0.5) -> None:
        super().__init__()
        self.inputs, self.outputs = inputs, outputs
        bound = 1 / math.sqrt(inputs)
        self.weight = nn.Parameter(torch.empty(outputs, inputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(outputs).uniform_(-bound, bound))
        self.weight_std = nn.Parameter(torch.full((outputs, inputs), initial_std * bound))
        self.bias_std = nn.Parameter(torch.full((outputs,), initial_std * bound))

    @property
    def noise_size(self) -> int:
        """How many standard normal numbers one forward takes."""
        return self.inputs + self.outputs

    def forward(self, features: Tensor, noise: Tensor | None) -> Tensor:
        """Return ``[*batch, outputs]``; without ``noise`` by the mean weights."""
        if noise is None:
            return functional.linear(features, self.weight, self.bias)
        left, right = torch.split(noise.sign() * noise.abs().sqrt(), [self.inputs, self.outputs])
        weight = self.weight + self.weight_std * torch.outer(right, left)
        return functional.linear(features, weight, self.bias + self.bias_std * right)


class QEnsemble(nn.Module):
    """``count`` multi-layer perceptrons of one shape: ``[B, input_size] -> [count, B, outputs]``.

    Their weights lie together, ``[count, outputs, inputs]``, so that on a GPU every layer is one
    batched product. Initial weights are `nn.Linear`'s.

    With ``bfloat16`` the products between hidden layers are of bfloat16 factors, three quarters or
    more of the arithmetic; observations, values, sums and weights stay float32.
    """

    def __init__(
        self,
        *,
        input_size: int,
        hidden_sizes: Sequence[int],
        outputs: int = 1,
        count: int = 2,
        activation: str = "relu",
        orthogonal_init: bool = False,
        bfloat16: bool = False,
    ) -> None:
        super().__init__()
        self.count, self.in_bfloat16 = count, bfloat16
        self.activation = ACTIVATIONS[activation]
        sizes = [input_size, *hidden_sizes, outputs]
        self.weights = nn.ParameterList(
            torch.empty(count, right, left) for left, right in itertools.pairwise(sizes)
        )
        self.biases = nn.ParameterList(torch.empty(count, 1, size) for size in sizes[1:])
        last = len(self.weights) - 1
        for index, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            _initialize(weight, bias, orthogonal_init, 1.0 if index == last else math.sqrt(2))

    def forward(
        self, inputs: Tensor, *, frozen: bool = False, members: int | None = None
    ) -> Tensor:
        """Return ``[count, B, outputs]``, of the first ``members`` alone where that is given;
        ``frozen``: gradients flow to ``inputs`` alone.
        """
        weights, biases = list(self.weights), list(self.biases)
        if members is not None:
            weights = [weight[:members] for weight in weights]
            biases = [bias[:members] for bias in biases]
        if frozen:
            weights = [weight.detach() for weight in weights]
            biases = [bias.detach() for bias in biases]
        if inputs.device.type == "cpu":
            return self._one_by_one(inputs, weights, biases)
        hidden = inputs.expand(len(weights[0]), *inputs.shape)
        last = len(weights) - 1
        for index, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
            if self.in_bfloat16 and 0 < index < last:
                factors = (each.bfloat16() for each in (bias, hidden, weight.mT))
                hidden = torch.baddbmm(*factors).float()
            else:
                hidden = torch.baddbmm(bias, hidden, weight.mT)
            if index < last:
                hidden = self.activation(hidden)
        return hidden

    def _one_by_one(
        self, inputs: Tensor, every_weight: list[Tensor], every_bias: list[Tensor]
    ) -> Tensor:
        """Compute the same without batched products, which a CPU does no faster, or much slower."""
        weights = [weight.unbind(0) for weight in every_weight]
        biases = [bias.squeeze(1).unbind(0) for bias in every_bias]
        outputs, last = [], len(weights) - 1
        for member in range(len(weights[0])):
            hidden = inputs
            for index, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
                inner = self.in_bfloat16 and 0 < index < last
                hidden = linear(hidden, weight[member], bias[member], bfloat16=inner)
                if index < last:
                    hidden = self.activation(hidden)
            outputs.append(hidden)
        return torch.stack(outputs)

    def copy_member_(self, member: int, layers: Sequence[nn.Linear]) -> None:
        """Give one network the weights of ordinary linear layers."""
        with torch.no_grad():
            pairs = zip(self.weights, self.biases, layers, strict=True)
            for weight, bias, layer in pairs:
                weight[member].copy_(layer.weight)
                bias[member, 0].copy_(layer.bias)


def _initialize(weight: Tensor, bias: Tensor, orthogonal: bool, gain: float) -> None:
    with torch.no_grad():
        bound = 1 / math.sqrt(weight.shape[2])
        for member in range(weight.shape[0]):
            if orthogonal:
                nn.init.orthogonal_(weight[member], gain)
            else:
                weight[member].uniform_(-bound, bound)
        if orthogonal:
            bias.zero_()
        else:
            bias.uniform_(-bound, bound)


class ContinuousQ(QEnsemble):
    """Critics of observation and action: ``[B, *observation], [B, A] -> [count, B]``."""

    def __init__(
        self,
        *,
        observation_shape: Sequence[int],
        num_actions: int,
        hidden_sizes: Sequence[int],
        count: int = 2,
        activation: str = "relu",
        orthogonal_init: bool = False,
        bfloat16: bool = False,
    ) -> None:
        super().__init__(
            input_size=math.prod(observation_shape) + num_actions,
            hidden_sizes=hidden_sizes,
            count=count,
            activation=activation,
            orthogonal_init=orthogonal_init,
            bfloat16=bfloat16,
        )

    def forward(  # type: ignore[override]
        self,
        observation: Tensor,
        action: Tensor,
        *,
        frozen: bool = False,
        members: int | None = None,
    ) -> Tensor:
        """Return every critic's value ``[count, B]``, or that of the first ``members``;
        ``frozen``: with gradients for the inputs alone.
        """
        inputs = torch.cat([flat_float(observation, action.dtype), action], -1)
        return super().forward(inputs, frozen=frozen, members=members).squeeze(-1)


class DiscreteQ(QEnsemble):
    """Critics of every discrete action: ``[B, *observation] -> [count, B, num_actions]``."""

    def forward(
        self, observation: Tensor, *, frozen: bool = False, members: int | None = None
    ) -> Tensor:
        """Return every critic's values, or those of the first ``members``."""
        inputs = flat_float(observation, self.weights[0].dtype)
        return super().forward(inputs, frozen=frozen, members=members)


class EncodedDiscreteQ(nn.Module):
    """The same with an encoder for each critic, of images for instance.

    Args:
        make_encoder: makes a new one, from observations to ``[*batch, output_size]``.
        num_actions: discrete actions.
        count: critics.
        orthogonal_init: as `QNetwork`.
    """

    def __init__(
        self,
        *,
        make_encoder: Callable[[], nn.Module],
        num_actions: int,
        count: int = 2,
        orthogonal_init: bool = False,
    ) -> None:
        super().__init__()
        self.critics = nn.ModuleList(
            QNetwork(
                encoder=make_encoder(), num_actions=num_actions, orthogonal_init=orthogonal_init
            )
            for _ in range(count)
        )

    def forward(self, observation: Tensor) -> Tensor:
        """Return every critic's values ``[count, B, num_actions]``."""
        return torch.stack([critic(observation) for critic in self.critics])


def flat_float(observation: Tensor, dtype: torch.dtype) -> Tensor:
    """Return ``[B, *shape]`` as ``[B, size]`` of a floating-point dtype."""
    return observation.reshape(len(observation), -1).to(dtype)

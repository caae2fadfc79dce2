"""Memories of a policy: LSTMs or GRUs side by side, whose state is one tensor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from rl_training.errors import UserError
from rl_training.models.recurrence import gru_sequence, lstm_sequence

MemoryKind = Literal["lstm", "gru"]

_CELLS: dict[str, type[nn.LSTM | nn.GRU]] = {"lstm": nn.LSTM, "gru": nn.GRU}


class _Weights(NamedTuple):
    """One layer of all memories: ``[M, I, G]``, ``[M, H, G]`` and biases ``[M, 1, G]``."""

    input: Tensor
    state: Tensor
    input_bias: Tensor
    state_bias: Tensor


class _Parameters(nn.Module):
    """The parameters of a `torch.nn.LSTM` or `torch.nn.GRU`, by their names there.

    Without the module around them: `torch.compile` does not trace through that.
    """

    def __init__(self, module: nn.LSTM | nn.GRU) -> None:
        super().__init__()
        for name, parameter in module.named_parameters():
            self.register_parameter(name, parameter)


class Memory(nn.Module):
    """One or more LSTMs (or GRUs) of equal size, computed side by side.

    Their state is one tensor ``[N, K, H]``, K = memories x layers x (2 for an LSTM: hidden and
    cell state, 1 for a GRU). The parameters are those of `torch.nn.LSTM` and `torch.nn.GRU`.

    Args:
        count: how many.
        input_size: of each.
        hidden_size: of each, H.
        layers: of each.
        kind: ``lstm`` or ``gru``.
    """

    def __init__(
        self, *, count: int, input_size: int, hidden_size: int, layers: int, kind: MemoryKind
    ) -> None:
        super().__init__()
        self.kind, self.count, self.layers, self.hidden_size = kind, count, layers, hidden_size
        self.cells = nn.ModuleList(
            _Parameters(_CELLS[kind](input_size, hidden_size, layers)) for _ in range(count)
        )
        parts = 2 if kind == "lstm" else 1
        self.state_shape = (count, layers, parts, hidden_size)
        self.state_size = (count * layers * parts, hidden_size)

    def initial_state(self, num_envs: int) -> Tensor:
        """Return the state at an episode's start: zeros ``[num_envs, K, H]``."""
        return next(self.parameters()).new_zeros(num_envs, *self.state_size)

    @torch.no_grad()
    def orthogonal_(self) -> None:
        """Give every gate's matrices orthogonal weights and zero biases, but 1 where an LSTM
        forgets: it begins by keeping three quarters of what it remembers (Jozefowicz et al. 2015).
        """
        for name, parameter in self.named_parameters():
            gates = parameter.chunk(4 if self.kind == "lstm" else 3)
            for number, gate in enumerate(gates):
                if gate.ndim == 2:
                    nn.init.orthogonal_(gate)
                else:
                    forget = self.kind == "lstm" and number == 1 and "bias_ih" in name
                    gate.fill_(1.0 if forget else 0.0)

    def weights(self) -> list[_Weights]:
        """Return each layer's weights, of all memories together."""
        return [
            _Weights(
                input=self._stack(f"weight_ih_l{layer}").transpose(1, 2),
                state=self._stack(f"weight_hh_l{layer}").transpose(1, 2),
                input_bias=self._stack(f"bias_ih_l{layer}").unsqueeze(1),
                state_bias=self._stack(f"bias_hh_l{layer}").unsqueeze(1),
            )
            for layer in range(self.layers)
        ]

    def _stack(self, name: str) -> Tensor:
        return torch.stack([getattr(cell, name) for cell in self.cells])

    def sequence(self, inputs: Tensor, is_init: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Return what is remembered after every step, and the state then.

        Args:
            inputs: ``[M, T, N, I]``.
            is_init: bool ``[T, N]``: the state is zeroed before the step.
            state: ``[N, K, H]``, before the first step.

        Returns:
            ``[M, T, N, H]`` of the last layer, and states ``[M, T, N, L, 2 or 1, H]``.
        """
        before = self._split(state).permute(1, 2, 3, 0, 4)  # [M, L, P, N, H]
        after = []
        hidden = inputs
        for layer, weights in enumerate(self.weights()):
            states = _SEQUENCES[self.kind](hidden, is_init, before[:, layer].unbind(1), weights)
            hidden = states[0]
            after.append(torch.stack(states, 3))
        return hidden, torch.stack(after, 3)

    def _split(self, state: Tensor) -> Tensor:
        if state.shape[1:] != self.state_size:
            raise UserError(
                f"a state is [N, {self.state_size[0]}, {self.state_size[1]}] here, "
                f"not {list(state.shape)}."
            )
        return state.reshape(state.shape[0], *self.state_shape)  # len() cannot be exported

    def step(
        self, inputs: Tensor, state: Tensor, weights: list[_Weights] | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return what is remembered after one step, ``[M, N, H]``, and the state ``[N, K, H]``.

        Args:
            inputs: ``[M, N, I]``.
            state: ``[N, K, H]``, zeroed where an episode begins.
            weights: `weights()`, where they do not change between calls.
        """
        before = self._split(state)  # [N, M, L, P, H]
        after = torch.empty_like(before)
        hidden = inputs
        for layer, layer_weights in enumerate(weights or self.weights()):
            parts = before[:, :, layer].permute(2, 1, 0, 3).unbind(0)  # [M, N, H] each
            made = _STEPS[self.kind](hidden, *parts, layer_weights)
            for part, value in enumerate(made):
                after[:, :, layer, part] = value.transpose(0, 1)
            hidden = made[0]
        return hidden, after.flatten(1, 3)


def _lstm_step(
    inputs: Tensor, hidden: Tensor, cell: Tensor, weights: _Weights
) -> tuple[Tensor, ...]:
    """Return the next hidden and cell state, both ``[M, N, H]``."""
    gates = torch.baddbmm(weights.input_bias + weights.state_bias, inputs, weights.input)
    gates = torch.baddbmm(gates, hidden, weights.state)
    entering, forget, proposed, output = gates.chunk(4, -1)
    cell = forget.sigmoid() * cell + entering.sigmoid() * proposed.tanh()
    return output.sigmoid() * cell.tanh(), cell


def _gru_step(inputs: Tensor, hidden: Tensor, weights: _Weights) -> tuple[Tensor, ...]:
    """Return the next hidden state, ``[M, N, H]``."""
    of_input = torch.baddbmm(weights.input_bias, inputs, weights.input).chunk(3, -1)
    of_state = torch.baddbmm(weights.state_bias, hidden, weights.state).chunk(3, -1)
    forget, update = ((a + b).sigmoid() for a, b in zip(of_input[:2], of_state[:2], strict=True))
    proposed = (of_input[2] + forget * of_state[2]).tanh()
    return (torch.lerp(proposed, hidden, update),)


def _lstm_states(
    inputs: Tensor, is_init: Tensor, first: Sequence[Tensor], weights: _Weights
) -> tuple[Tensor, ...]:
    """Return hidden and cell states after every step, both ``[M, T, N, H]``."""
    projected = _project(inputs, weights.input, weights.input_bias + weights.state_bias)
    return lstm_sequence(projected, is_init, first[0], first[1], weights.state)


def _gru_states(
    inputs: Tensor, is_init: Tensor, first: Sequence[Tensor], weights: _Weights
) -> tuple[Tensor, ...]:
    """Return the hidden states after every step, ``[M, T, N, H]``."""
    projected = _project(inputs, weights.input, weights.input_bias)
    return (gru_sequence(projected, is_init, first[0], weights.state, weights.state_bias),)


def _project(inputs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return ``[M, T, N, G]``: one matrix product for all steps."""
    memories, steps, count = inputs.shape[:3]
    flat = inputs.reshape(memories, steps * count, -1)
    return torch.baddbmm(bias, flat, weight).view(memories, steps, count, -1)


_SEQUENCES: dict[str, Callable[..., tuple[Tensor, ...]]] = {
    "lstm": _lstm_states,
    "gru": _gru_states,
}
_STEPS: dict[str, Callable[..., tuple[Tensor, ...]]] = {"lstm": _lstm_step, "gru": _gru_step}

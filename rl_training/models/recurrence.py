"""LSTM and GRU over sequences with resets inside, exact and fast: one loop over the steps.

`torch.nn.LSTM` knows no resets. Around it, sequences have to be cut at every episode's start and
padded again, at the cost of several loops. Here the input's part of the gates is one matrix product
for all steps, and the loop holds only what depends on the step before; its gradient is written
out, which costs half of what autograd takes for it. As operators of their own they are one node
in a compiled graph, whose size would otherwise grow with the sequence.

Layout: ``M`` memories of equal size side by side (the policy's and the value function's), ``T``
steps, ``N`` sequences, ``H`` units. Weights and the order of the gates are those of
`torch.nn.LSTM` and `torch.nn.GRU`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def lstm_sequence(
    projected: Tensor, is_init: Tensor, hidden: Tensor, cell: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the hidden and cell states after every step, both ``[M, T, N, H]``.

    Args:
        projected: the input's part of the gates i, f, g, o, biases included, ``[M, T, N, 4H]``.
        is_init: bool ``[T, N]``: the state is zeroed before the step.
        hidden: ``[M, N, H]``, before the first step; likewise ``cell``.
        weight: ``weight_hh`` transposed, ``[M, H, 4H]``.
    """
    hiddens, cells, _ = _lstm(projected, is_init, hidden, cell, weight)
    return hiddens, cells


def gru_sequence(
    projected: Tensor, is_init: Tensor, hidden: Tensor, weight: Tensor, bias: Tensor
) -> Tensor:
    """Return the hidden states after every step, ``[M, T, N, H]``.

    Args:
        projected: the input's part of the gates r, z, n, ``[M, T, N, 3H]``, with ``bias_ih`` alone.
        is_init: bool ``[T, N]``: the state is zeroed before the step.
        hidden: ``[M, N, H]``, before the first step.
        weight: ``weight_hh`` transposed, ``[M, H, 3H]``.
        bias: ``bias_hh``, ``[M, 1, 3H]``.
    """
    hiddens, _ = _gru(projected, is_init, hidden, weight, bias)
    return hiddens


def _kept(is_init: Tensor, like: Tensor) -> tuple[Tensor, list[bool]]:
    """Return 0 where a state is zeroed and 1 elsewhere, ``[T, 1, N, 1]``, and which steps zero
    any.
    """
    kept = torch.logical_not(is_init).to(like.dtype)
    return kept[:, None, :, None], is_init.any(1).tolist()


def _before(states: Tensor, first: Tensor, kept: Tensor) -> Tensor:
    """Return the states that the steps began with, ``[M, T, N, H]``."""
    shifted = torch.cat([first.unsqueeze(1), states[:, :-1]], 1)
    return shifted * kept.transpose(0, 1)


@torch.library.custom_op("rl_training::lstm_sequence", mutates_args=())
def _lstm(
    projected: Tensor, is_init: Tensor, hidden: Tensor, cell: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    size = hidden.shape[-1]
    gates = projected.contiguous().clone()
    hiddens = gates.new_empty(*gates.shape[:-1], size)
    cells = torch.empty_like(hiddens)
    kept, resets = _kept(is_init, gates)
    every, input_forget = gates.unbind(1), gates[..., : 2 * size].unbind(1)
    entering, forget, proposed, output = (part.unbind(1) for part in gates.chunk(4, -1))
    hidden_out, cell_out = hiddens.unbind(1), cells.unbind(1)
    for step, reset in enumerate(resets):
        if reset:
            hidden, cell = hidden * kept[step], cell * kept[step]
        every[step].baddbmm_(hidden, weight)
        input_forget[step].sigmoid_()
        proposed[step].tanh_()
        output[step].sigmoid_()
        cell = torch.mul(forget[step], cell, out=cell_out[step])
        cell.addcmul_(entering[step], proposed[step])
        hidden = torch.mul(output[step], cell.tanh(), out=hidden_out[step])
    return hiddens, cells, gates


@_lstm.register_fake
def _(projected: Tensor, is_init: Tensor, hidden: Tensor, cell: Tensor, weight: Tensor) -> Any:
    states = projected.new_empty(*projected.shape[:-1], hidden.shape[-1])
    return states, torch.empty_like(states), projected.new_empty(projected.shape)


@torch.library.custom_op("rl_training::lstm_sequence_backward", mutates_args=())
def _lstm_backward(
    grad_hiddens: Tensor,
    grad_cells: Tensor | None,
    cells: Tensor,
    gates: Tensor,
    is_init: Tensor,
    hiddens: Tensor,
    hidden: Tensor,
    cell: Tensor,
    weight: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    size = hidden.shape[-1]
    kept, resets = _kept(is_init, gates)
    entering, forget, proposed, output = gates.chunk(4, -1)
    squashed = cells.tanh()
    # What each gate's gradient is a multiple of, for all steps at once; o last, as in `gates`.
    factors = gates - gates * gates
    factors[..., 2 * size : 3 * size] = entering - entering * proposed * proposed
    factors[..., :size].mul_(proposed)
    factors[..., size : 2 * size].mul_(_before(cells, cell, kept))
    factors[..., 3 * size :].mul_(squashed)
    through = output - output * squashed * squashed
    gradient = torch.empty_like(gates)
    in_three = (*gates.shape[:-1], 4, size)
    of_cell = factors.view(in_three)[..., :3, :].unbind(1)
    of_hidden = factors[..., 3 * size :].unbind(1)
    cell_part = gradient.view(in_three)[..., :3, :].unbind(1)
    hidden_part = gradient[..., 3 * size :].unbind(1)
    whole, through_steps, forget_steps = gradient.unbind(1), through.unbind(1), forget.unbind(1)
    arriving = grad_hiddens.unbind(1)
    cell_arriving = None if grad_cells is None else grad_cells.unbind(1)
    back = weight.transpose(1, 2)
    d_hidden, d_cell = torch.zeros_like(hidden), torch.zeros_like(cell)
    for step in range(len(resets) - 1, -1, -1):
        d_hidden = d_hidden.add_(arriving[step])
        d_cell.addcmul_(d_hidden, through_steps[step])
        if cell_arriving is not None:
            d_cell.add_(cell_arriving[step])
        torch.mul(d_cell.unsqueeze(-2), of_cell[step], out=cell_part[step])
        torch.mul(d_hidden, of_hidden[step], out=hidden_part[step])
        d_hidden = torch.bmm(whole[step], back)
        d_cell.mul_(forget_steps[step])
        if resets[step]:
            d_hidden.mul_(kept[step])
            d_cell.mul_(kept[step])
    previous = _before(hiddens, hidden, kept)
    d_weight = torch.bmm(previous.flatten(1, 2).transpose(1, 2), gradient.flatten(1, 2))
    return gradient, d_hidden, d_cell, d_weight


@_lstm_backward.register_fake
def _(
    grad_hiddens: Tensor,
    grad_cells: Tensor | None,
    cells: Tensor,
    gates: Tensor,
    is_init: Tensor,
    hiddens: Tensor,
    hidden: Tensor,
    cell: Tensor,
    weight: Tensor,
) -> Any:
    states = (torch.empty_like(hidden), torch.empty_like(cell))
    return gates.new_empty(gates.shape), *states, weight.new_empty(weight.shape)


def _lstm_setup(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
    _, is_init, hidden, cell, weight = inputs
    hiddens, cells, gates = output
    ctx.save_for_backward(cells, gates, is_init, hiddens, hidden, cell, weight)
    ctx.set_materialize_grads(False)


def _lstm_gradient(
    ctx: Any, grad_hiddens: Tensor | None, grad_cells: Tensor | None, _: Any
) -> tuple[Tensor | None, ...]:
    saved = ctx.saved_tensors
    if grad_hiddens is None:
        grad_hiddens = torch.zeros_like(saved[0])
    gradient, d_hidden, d_cell, d_weight = _lstm_backward(grad_hiddens, grad_cells, *saved)
    return gradient, None, d_hidden, d_cell, d_weight


_lstm.register_autograd(_lstm_gradient, setup_context=_lstm_setup)


@torch.library.custom_op("rl_training::gru_sequence", mutates_args=())
def _gru(
    projected: Tensor, is_init: Tensor, hidden: Tensor, weight: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor]:
    size = hidden.shape[-1]
    # r, z, n, and last the state's part of n, which r multiplies.
    gates = projected.new_empty(*projected.shape[:-1], 4 * size)
    gates[..., : 3 * size] = projected
    hiddens = gates.new_empty(*gates.shape[:-1], size)
    kept, resets = _kept(is_init, gates)
    reset_update = gates[..., : 2 * size].unbind(1)
    forget, update, proposed, recurrent = (part.unbind(1) for part in gates.chunk(4, -1))
    hidden_out = hiddens.unbind(1)
    for step, reset in enumerate(resets):
        if reset:
            hidden = hidden * kept[step]
        of_state = torch.baddbmm(bias, hidden, weight)
        reset_update[step].add_(of_state[..., : 2 * size]).sigmoid_()
        recurrent[step].copy_(of_state[..., 2 * size :])
        proposed[step].addcmul_(forget[step], recurrent[step]).tanh_()
        hidden = torch.lerp(proposed[step], hidden, update[step], out=hidden_out[step])
    return hiddens, gates


@_gru.register_fake
def _(projected: Tensor, is_init: Tensor, hidden: Tensor, weight: Tensor, bias: Tensor) -> Any:
    size = hidden.shape[-1]
    lead = projected.shape[:-1]
    return projected.new_empty(*lead, size), projected.new_empty(*lead, 4 * size)


@torch.library.custom_op("rl_training::gru_sequence_backward", mutates_args=())
def _gru_backward(
    grad_hiddens: Tensor,
    gates: Tensor,
    is_init: Tensor,
    hiddens: Tensor,
    hidden: Tensor,
    weight: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    size = hidden.shape[-1]
    kept, resets = _kept(is_init, gates)
    forget, update, proposed, recurrent = gates.chunk(4, -1)
    previous = _before(hiddens, hidden, kept)
    of_proposed = (1 - update) * (1 - proposed * proposed)
    factors = torch.cat(
        [
            of_proposed * recurrent * (forget - forget * forget),
            (previous - proposed) * (update - update * update),
            of_proposed * forget,  # of the state's part; the input's part is without r
        ],
        -1,
    )
    gradient = torch.empty_like(factors)
    in_three = (*factors.shape[:-1], 3, size)
    factor_steps = factors.view(in_three).unbind(1)
    parts, whole = gradient.view(in_three).unbind(1), gradient.unbind(1)
    arriving, update_steps = grad_hiddens.unbind(1), update.unbind(1)
    totals = torch.empty_like(hiddens)
    total_steps = totals.unbind(1)
    back = weight.transpose(1, 2)
    d_hidden = torch.zeros_like(hidden)
    for step in range(len(resets) - 1, -1, -1):
        total = torch.add(d_hidden, arriving[step], out=total_steps[step])
        torch.mul(total.unsqueeze(-2), factor_steps[step], out=parts[step])
        d_hidden = torch.baddbmm(total * update_steps[step], whole[step], back)
        if resets[step]:
            d_hidden.mul_(kept[step])
    d_weight = torch.bmm(previous.flatten(1, 2).transpose(1, 2), gradient.flatten(1, 2))
    d_bias = gradient.sum((1, 2)).unsqueeze(1)
    d_projected = gradient
    d_projected[..., 2 * size :] = totals * of_proposed
    return d_projected, d_hidden, d_weight, d_bias


@_gru_backward.register_fake
def _(
    grad_hiddens: Tensor,
    gates: Tensor,
    is_init: Tensor,
    hiddens: Tensor,
    hidden: Tensor,
    weight: Tensor,
) -> Any:
    size = hidden.shape[-1]
    bias = weight.new_empty(weight.shape[0], 1, 3 * size)
    gradient = gates.new_empty(*gates.shape[:-1], 3 * size)
    return gradient, torch.empty_like(hidden), weight.new_empty(weight.shape), bias


def _gru_setup(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
    _, is_init, hidden, weight, _ = inputs
    hiddens, gates = output
    ctx.save_for_backward(gates, is_init, hiddens, hidden, weight)


def _gru_gradient(ctx: Any, grad_hiddens: Tensor, _: Any) -> tuple[Tensor | None, ...]:
    gradient, d_hidden, d_weight, d_bias = _gru_backward(grad_hiddens, *ctx.saved_tensors)
    return gradient, None, d_hidden, d_weight, d_bias


_gru.register_autograd(_gru_gradient, setup_context=_gru_setup)

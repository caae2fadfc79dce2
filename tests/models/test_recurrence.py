"""Memories over sequences with resets equal torch's own modules, called step by step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rl_training.models import recurrence
from rl_training.models.memory import Memory, MemoryKind

STEPS, COUNT, INPUTS, UNITS = 9, 5, 3, 4
KINDS: tuple[MemoryKind, ...] = ("lstm", "gru")


def make_memory(kind: MemoryKind, *, layers: int = 1, count: int = 2) -> Memory:
    torch.manual_seed(0)
    memory = Memory(count=count, input_size=INPUTS, hidden_size=UNITS, layers=layers, kind=kind)
    return memory.double()


def example(memory: Memory) -> tuple[Tensor, Tensor, Tensor]:
    """Return inputs ``[M, T, N, I]``, episode starts ``[T, N]`` and a first state."""
    generator = torch.Generator().manual_seed(1)
    options: dict[str, Any] = {"generator": generator, "dtype": torch.float64}
    inputs = torch.randn(memory.count, STEPS, COUNT, INPUTS, **options).requires_grad_()
    is_init = torch.rand(STEPS, COUNT, generator=generator) < 0.25
    # One row begins with an episode, one has no start at all, one step has none in any row.
    is_init[0, 0], is_init[:, 1], is_init[4] = True, False, False
    state = torch.randn(COUNT, *memory.state_size, **options).requires_grad_()
    return inputs, is_init, state


def step_by_step(
    memory: Memory, inputs: Tensor, is_init: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Return outputs ``[M, T, N, H]`` and states ``[M, T, N, L, P, H]`` of torch's modules."""
    rows = state.reshape(COUNT, *memory.state_shape)
    outputs, states = [], []
    for number, cell in enumerate(memory.cells):
        make: Any = {"lstm": nn.LSTM, "gru": nn.GRU}[memory.kind]
        module: Any = make(INPUTS, UNITS, memory.layers).double()
        parameters: dict[str, Tensor] = dict(cell.named_parameters())
        parts = [rows[:, number, :, part].transpose(0, 1) for part in range(rows.shape[3])]
        taken, after = [], []
        for step in range(STEPS):
            kept = torch.logical_not(is_init[step]).double().reshape(1, -1, 1)
            parts = [(part * kept).contiguous() for part in parts]
            given = tuple(parts) if memory.kind == "lstm" else parts[0]
            output, following = torch.func.functional_call(
                module, parameters, (inputs[number, step][None], given)
            )
            parts = list(following) if memory.kind == "lstm" else [following]
            taken.append(output[0])
            after.append(torch.stack(parts, 2).transpose(0, 1))
        outputs.append(torch.stack(taken))
        states.append(torch.stack(after))
    return torch.stack(outputs), torch.stack(states)


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_sequences_with_resets_equal_torch_s_modules_and_so_do_all_gradients(
    kind: MemoryKind, layers: int
) -> None:
    memory = make_memory(kind, layers=layers)
    inputs, is_init, state = example(memory)
    wanted = [inputs, state, *memory.parameters()]
    results = []
    for found in (
        memory.sequence(inputs, is_init, state),
        step_by_step(memory, inputs, is_init, state),
    ):
        weights = [torch.linspace(-1, 1, each.numel()).reshape(each.shape) for each in found]
        total = sum((a * b).sum() for a, b in zip(found, weights, strict=True))
        assert isinstance(total, Tensor)
        results.append((*found, *torch.autograd.grad(total, wanted)))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_single_steps_equal_the_sequence(kind: MemoryKind, layers: int) -> None:
    memory = make_memory(kind, layers=layers)
    inputs, is_init, state = example(memory)
    expected, states = memory.sequence(inputs, is_init, state)
    weights = memory.weights()
    for step in range(STEPS):
        state = state * torch.logical_not(is_init[step])[:, None, None]
        found, state = memory.step(inputs[:, step], state, weights)
        torch.testing.assert_close(found, expected[:, step])
        after = states[:, step].transpose(0, 1).flatten(1, 3)
        torch.testing.assert_close(state, after)


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_of_the_episode_before_reaches_the_present_one(kind: MemoryKind) -> None:
    memory = make_memory(kind)
    inputs, is_init, state = example(memory)
    is_init[:] = False
    is_init[5, 2] = True
    output, _ = memory.sequence(inputs, is_init, state)
    gradient, of_state = torch.autograd.grad(output[:, 6, 2].sum(), [inputs, state])
    assert torch.equal(gradient[:, :5], torch.zeros_like(gradient[:, :5]))
    assert torch.equal(of_state, torch.zeros_like(of_state))
    assert (gradient[:, 5:7, 2] != 0).all()
    assert torch.equal(gradient[:, 7:], torch.zeros_like(gradient[:, 7:]))


def test_the_operators_are_what_the_compiler_takes_them_for() -> None:
    memory = make_memory("lstm")
    weights = memory.weights()[0]
    projected = torch.randn(2, STEPS, COUNT, 4 * UNITS, dtype=torch.float64, requires_grad=True)
    is_init = torch.rand(STEPS, COUNT) < 0.3
    hidden, cell = (torch.randn(2, COUNT, UNITS, dtype=torch.float64) for _ in range(2))
    operators: Any = recurrence
    torch.library.opcheck(
        operators._lstm, (projected, is_init, hidden, cell, weights.state.detach().clone())
    )
    memory = make_memory("gru")
    weights = memory.weights()[0]
    torch.library.opcheck(
        operators._gru,
        (
            projected[..., : 3 * UNITS].detach().clone().requires_grad_(),
            is_init,
            hidden,
            weights.state.detach().clone(),
            weights.state_bias.detach().clone(),
        ),
    )

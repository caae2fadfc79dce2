"""Heads over legal actions: the numbers of a categorical that has no others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.distributions import Categorical, kl_divergence

from rl_training.envs.masks import MaskColumns
from rl_training.models.lstm import LSTMActorCritic
from rl_training.models.masked import (
    MaskedCategoricalHead,
    MaskedMultiCategoricalHead,
    masked_encoder,
)
from rl_training.models.mlp import MLP
from rl_training.optim import compile_isolated

SIZES = (3, 1, 4)


def masks(count: int, seed: int = 0) -> Tensor:
    """Return masks ``[count, sum(SIZES)]`` with a legal choice of every action."""
    draws = torch.Generator().manual_seed(seed)
    parts = []
    for size in SIZES:
        part = torch.rand(count, size, generator=draws) < 0.4
        part[torch.arange(count), torch.randint(size, (count,), generator=draws)] = True
        parts.append(part)
    return torch.cat(parts, -1)


def multi_head(features: int = 4) -> MaskedMultiCategoricalHead:
    return MaskedMultiCategoricalHead(num_features=features + sum(SIZES), sizes=SIZES)


def read(count: int, mask: Tensor, scale: float = 1.0) -> Tensor:
    return torch.cat([torch.randn(count, 4) * scale, mask.float()], -1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("count", [3, 5000])
def test_one_legal_action_among_many_is_certain(count: int, dtype: torch.dtype) -> None:
    head = MaskedCategoricalHead(num_features=4 + count, num_actions=count).to(dtype)
    mask = torch.zeros(6, count)
    mask[:, 1] = 1
    features = torch.cat([torch.randn(6, 4) * 100, mask], -1).to(dtype)
    parameters = head(features)
    assert parameters[0].dtype == dtype
    generator = torch.Generator().manual_seed(0)
    (noise,) = head.draw_noise(1, 6, generator)
    for action in (head.mode(parameters), head.sample(features, noise)):
        assert (action == 1).all()
    log_probability, entropy = head.evaluate(parameters, head.draw(parameters, generator))
    assert not log_probability.any()
    assert not entropy.any()
    assert not head.kl_divergence(head(features * 0.5), parameters).any()
    (log_probability.sum() + entropy.sum()).backward()  # type: ignore[no-untyped-call]
    assert all(each.grad is not None and each.grad.isfinite().all() for each in head.parameters())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_several_actions_with_one_choice_of_thousands_are_certain(dtype: torch.dtype) -> None:
    sizes = (5000, 2, 3000)
    head = MaskedMultiCategoricalHead(num_features=4 + sum(sizes), sizes=sizes).to(dtype)
    mask = torch.zeros(3, sum(sizes))
    chosen = torch.tensor([[4999, 1, 0], [0, 0, 2999], [17, 1, 5]])
    mask[torch.arange(3).unsqueeze(1), chosen + torch.tensor([0, 5000, 5002])] = 1
    features = torch.cat([torch.randn(3, 4) * 100, mask], -1).to(dtype)
    parameters = head(features)
    generator = torch.Generator().manual_seed(0)
    (noise,) = head.draw_noise(1, 3, generator)
    drawn = head.draw(parameters, generator)
    for action in (head.mode(parameters), head.sample(features, noise), drawn):
        assert torch.equal(action, chosen)
    log_probability, entropy = head.evaluate(parameters, drawn)
    assert not log_probability.any()
    assert not entropy.any()
    (log_probability.sum() + entropy.sum()).backward()  # type: ignore[no-untyped-call]
    assert all(each.grad is not None and each.grad.isfinite().all() for each in head.parameters())


def test_the_divergence_is_that_of_the_legal_actions() -> None:
    old, new = (MaskedCategoricalHead(num_features=4 + 3, num_actions=3) for _ in range(2))
    mask = torch.tensor([[1.0, 0, 1], [0, 1, 1], [1, 1, 0]])
    features = torch.cat([torch.randn(3, 4), mask], -1)
    divergence = old.kl_divergence(old(features), new(features))
    pairs = [
        [Categorical(logits=head(features)[0][row][mask[row] > 0]) for head in (old, new)]
        for row in range(3)
    ]
    torch.testing.assert_close(divergence, torch.stack([kl_divergence(*pair) for pair in pairs]))


def test_several_actions_are_those_of_stable_baselines() -> None:
    """The oracle: sb3-contrib's distribution of masked MultiDiscrete actions."""
    distributions: Any = pytest.importorskip("sb3_contrib.common.maskable.distributions")
    head, mask = multi_head(), masks(50)
    features = read(50, mask)
    parameters = head(features)
    oracle = distributions.MaskableMultiCategoricalDistribution(list(SIZES))
    raw = head.layer(features[:, :4])
    oracle.proba_distribution(raw)
    oracle.apply_masking(mask.numpy())
    torch.testing.assert_close(head.mode(parameters), oracle.mode())
    action = head.draw(parameters, torch.Generator().manual_seed(1))
    log_probability, entropy = head.evaluate(parameters, action)
    torch.testing.assert_close(log_probability, oracle.log_prob(action))
    torch.testing.assert_close(entropy, oracle.entropy())
    starts = torch.tensor([0, 3, 4])
    assert mask.gather(-1, action + starts).all()


def test_the_divergence_of_several_actions_is_summed_over_the_legal_choices() -> None:
    old, new, mask = multi_head(), multi_head(), masks(20)
    features = read(20, mask)
    divergence = old.kl_divergence(old(features), new(features))
    expected = torch.zeros(20)
    for row in range(20):
        for start, size in zip((0, 3, 4), SIZES, strict=True):
            legal = mask[row, start : start + size]
            pair = [
                Categorical(logits=head(features)[0][row, start : start + size][legal])
                for head in (old, new)
            ]
            expected[row] += kl_divergence(*pair)
    torch.testing.assert_close(divergence, expected)


def test_samples_have_the_chances_of_the_legal_choices() -> None:
    head = multi_head()
    mask = torch.tensor([[True, False, True, True, False, True, True, False]])
    features = read(1, mask).expand(4000, -1)
    (noise,) = head.draw_noise(1, 4000, torch.Generator().manual_seed(0))
    action = head.sample(features, noise)
    chances = head(features[:1])[0][0, :3].softmax(-1)
    frequencies = action[:, 0].bincount(minlength=3) / 4000
    torch.testing.assert_close(frequencies, chances.detach(), atol=0.03, rtol=0.0)
    assert set(action[:, 2].tolist()) == {1, 2}


def recurrent(sizes: tuple[int, ...] = SIZES) -> LSTMActorCritic:
    columns = MaskColumns(slice(2, 2 + sum(sizes)))
    return LSTMActorCritic(
        make_encoder=lambda: MLP(
            input_shape=(2 + sum(sizes),), hidden_sizes=(8,), activation="tanh"
        ),
        make_head=lambda size: MaskedMultiCategoricalHead(num_features=size, sizes=sizes),
        memory_size=8,
        mask_columns=columns,
    )


def test_a_memory_masks_every_step_of_a_sequence() -> None:
    model, mask = recurrent(), masks(12).reshape(3, 4, -1)
    observation = torch.cat([torch.randn(3, 4, 2), mask.float()], -1)
    (logits,) = model.distribution(observation)
    assert torch.equal(logits > -1e29, mask)
    features, *_ = model.step(observation[:, 0], model.initial_state(3))
    assert torch.equal(model.action_head(features)[0] > -1e29, mask[:, 0])


class Terms:
    """Log-probability and entropy of stored actions, as a gradient step takes them."""

    def __init__(self, module: Any, observation: Tensor, action: Tensor) -> None:
        self.module, self.observation, self.action = module, observation, action

    def compute(self) -> Tensor:
        if isinstance(self.module, LSTMActorCritic):
            log_probability, entropy, _ = self.module.evaluate_actions(
                self.observation, self.action
            )
        else:
            parameters = self.module(self.observation)
            log_probability, entropy = self.module.evaluate(parameters, self.action)
        return torch.stack([log_probability, entropy])


@pytest.mark.parametrize("kind", ["multi", pytest.param("memory", marks=pytest.mark.slow)])
def test_compiled_heads_are_equal_to_eager_ones(kind: str) -> None:
    mask = masks(6)
    head, observation = multi_head(), read(6, mask)
    action = head.mode(head(observation))
    terms = Terms(head, observation, action)
    if kind == "memory":
        sequences = observation[:, 2:].reshape(2, 3, -1)
        terms = Terms(recurrent(), sequences, action.reshape(2, 3, -1))
    torch.testing.assert_close(compile_isolated(terms.compute)(), terms.compute())


def test_an_encoder_hands_the_mask_on() -> None:
    encoder = masked_encoder(
        lambda: MLP(input_shape=(6,), hidden_sizes=(5,), activation="tanh"),
        MaskColumns(slice(1, 4)),
    )()
    observation = torch.randn(7, 6)
    assert encoder.output_size == 8
    assert torch.equal(encoder(observation)[:, 5:], observation[:, 1:4])


@st.composite
def masked_sizes(draw: st.DrawFn) -> tuple[list[int], list[list[bool]]]:
    """Draw how many choices several actions have, and masks of a few rows that leave each one."""
    sizes = draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    rows = []
    for _ in range(draw(st.integers(1, 3))):
        row: list[bool] = []
        for size in sizes:
            part = draw(st.lists(st.booleans(), min_size=size, max_size=size))
            part[draw(st.integers(0, size - 1))] = True
            row += part
        rows.append(row)
    return sizes, rows


@settings(max_examples=40, deadline=None)
@given(masked_sizes(), st.integers(0, 2**16))
def test_any_masks_give_the_numbers_of_the_legal_choices_alone(
    drawn: tuple[list[int], list[list[bool]]], seed: int
) -> None:
    sizes, rows = drawn
    mask = torch.tensor(rows)
    generator = torch.Generator().manual_seed(seed)
    head = MaskedMultiCategoricalHead(num_features=4 + sum(sizes), sizes=sizes)
    features = torch.cat([torch.randn(len(mask), 4, generator=generator) * 3, mask.float()], -1)
    (logits,) = parameters = head(features)
    action = head.draw(parameters, generator)
    log_probability, entropy = head.evaluate(parameters, action)
    raw = head.layer(features[:, :4])
    start = 0
    expected, expected_entropy = torch.zeros(len(mask)), torch.zeros(len(mask))
    for number, size in enumerate(sizes):
        part = slice(start, start + size)
        start += size
        assert mask[:, part].gather(-1, action[:, number : number + 1]).all()
        for row in range(len(mask)):
            places = mask[row, part].nonzero().squeeze(-1)
            alone: Any = Categorical(logits=raw[row, part][places])
            chosen = (places == action[row, number]).nonzero().squeeze()
            expected[row] += alone.log_prob(chosen)
            expected_entropy[row] += alone.entropy()
    torch.testing.assert_close(log_probability, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(entropy, expected_entropy, atol=1e-5, rtol=1e-5)
    assert torch.equal(logits > -1e29, mask)


def test_a_mask_is_found_in_a_packed_vector_as_in_one_of_numbers() -> None:
    numbers = torch.tensor([[0.5, 1.0, 0.0, 1.0], [-2.0, 0.0, 1.0, 1.0]])
    packed = torch.cat([numbers.view(torch.uint8), torch.full((2, 8), 7, dtype=torch.uint8)], -1)
    mask = numbers[:, 1:]
    for columns, observation in (
        (MaskColumns(slice(1, 4)), numbers),
        (MaskColumns(slice(1, 4), packed=True), packed),
    ):
        assert columns.size == 3
        assert torch.equal(columns.of(observation), mask)
        np.testing.assert_array_equal(columns.of_array(observation.numpy()), mask)

"""One gradient step, eager: clipping, metrics, the KL stop."""

from __future__ import annotations

import copy
import shutil
from typing import Any

import pytest
import torch

from rl_training.errors import UserError
from tests.optim.problems import Regression


@pytest.mark.parametrize("norm", [None, 0.05, 1e6])
def test_steps_equal_backward_clip_and_adam_of_torch(norm: float | None) -> None:
    problem = Regression()
    other = copy.deepcopy(problem.model)
    adam = torch.optim.Adam(other.parameters(), lr=1e-2, eps=1e-8)
    step = problem.step(norm=norm)
    order = torch.Generator().manual_seed(1)
    metrics = problem.run(step)
    assert step.metric_names == ("error", "approx_kl", "gradient_norm")
    for index in range(6):
        rows = torch.randperm(32, generator=order)[:8]
        adam.zero_grad()
        prediction = other(problem.batch["observation"][rows]).squeeze(-1)
        error = (prediction - problem.batch["target"][rows]).square().mean()
        error.backward()
        total = torch.nn.utils.clip_grad_norm_(other.parameters(), norm or float("inf"))
        adam.step()
        # The norm is that before clipping.
        assert metrics[index].tolist()[::2] == pytest.approx([error.item(), total.item()], rel=1e-5)
    for own, their in zip(problem.model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(own, their, rtol=1e-5, atol=1e-6)


def test_clipping_scales_the_gradient_and_its_direction_stays() -> None:
    problem = Regression()
    rows = torch.arange(8)
    free, _ = problem.step(norm=None)._gradient(problem.batch, rows)
    clipped, _ = problem.step(norm=0.05)._gradient(problem.batch, rows)
    assert free.norm() > 0.5
    assert clipped.norm().item() == pytest.approx(0.05, rel=1e-4)
    torch.testing.assert_close(clipped / clipped.norm(), free / free.norm())
    loose, _ = problem.step(norm=1e6)._gradient(problem.batch, rows)
    assert torch.equal(loose, free)


@pytest.mark.parametrize("pieces", [2, 3, 8, 50])
def test_a_gradient_in_pieces_is_that_of_the_whole_minibatch(pieces: int) -> None:
    """Also where the pieces are not equally large: no sample is left over."""
    rows = torch.arange(11)
    whole, split = Regression(), Regression()
    step = split.step(pieces=pieces)
    expected, expected_metrics = whole.step()._gradient(whole.batch, rows)
    gradient, metrics = step._gradient(split.batch, rows)
    torch.testing.assert_close(gradient, expected, rtol=1e-5, atol=1e-7)
    assert metrics[0].item() == pytest.approx(expected_metrics[0].item(), rel=1e-5)
    torch.testing.assert_close(split.run(step)[:, [0, 2]], whole.run(whole.step())[:, [0, 2]])


def test_a_zero_dimensional_entry_of_the_batch_is_a_coefficient() -> None:
    problem = Regression()
    seen: list[Any] = []

    def loss(minibatch: Any) -> Any:
        seen.append(minibatch)
        return problem.loss(minibatch)

    step = problem.step()
    step._loss = loss
    step({**problem.batch, "weight": torch.tensor(7.0)}, torch.tensor([4, 2]))
    assert seen[0]["weight"].item() == 7.0
    assert torch.equal(seen[0]["target"], problem.batch["target"][[4, 2]])


def test_a_divergence_above_the_limit_stops_before_the_step() -> None:
    problem = Regression()
    low, high = problem.batch["target"].sort().indices.tensor_split([24])
    limit = problem.batch["target"][low].max().item()
    step = problem.step(max_kl=limit)
    before, moments = problem.parameters.flat.clone(), problem.optimizer.first_moment.clone()
    metrics = step(problem.batch, high)
    assert step.stopped
    assert metrics[step.metric_names.index("approx_kl")] > limit
    assert torch.equal(problem.parameters.flat, before)
    assert torch.equal(problem.optimizer.first_moment, moments)
    assert problem.optimizer.steps == 0
    # At the limit itself it goes on.
    step(problem.batch, low)
    assert not step.stopped
    assert not torch.equal(problem.parameters.flat, before)


def test_without_a_limit_reached_the_two_halves_are_the_whole_step() -> None:
    one, other = Regression(), Regression()
    whole = one.run(one.step())
    halves = other.run(other.step(max_kl=1e9))
    assert torch.equal(whole, halves)
    assert torch.equal(one.parameters.flat, other.parameters.flat)


def test_no_compiler_is_an_error_that_says_how_to_switch_compilation_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(UserError, match=r"C\+\+ compiler.*--no-compile") as caught:
        Regression().step(compile=True)
    assert "\n" not in str(caught.value)
    Regression().step(compile=False)

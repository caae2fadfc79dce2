"""The compiled step: the eager one's numbers, the same bits in every instance, no recompilation."""

from __future__ import annotations

import shutil

import pytest
import torch
from torch._dynamo.utils import counters

from tests.optim.problems import Regression

pytestmark = pytest.mark.skipif(
    not any(shutil.which(name) for name in ("c++", "g++", "clang++")),
    reason="compiling needs a C++ compiler",
)


def compilations() -> int:
    return int(counters["stats"]["unique_graphs"])


def test_compiled_steps_take_changes_of_coefficients_without_compiling_again() -> None:
    eager, compiled = Regression(), Regression()
    steps = eager.step(), compiled.step(compile=True)
    for problem, step in zip((eager, compiled), steps, strict=True):
        problem.run(step, 2)
    assert steps[1].metric_names == steps[0].metric_names
    before = compilations()
    outcomes = []
    for learning_rate, coefficient in ((1e-2, 1.0), (0.0, 1.0), (3e-3, 4.0)):
        for problem, step in zip((eager, compiled), steps, strict=True):
            problem.optimizer.learning_rate.fill_(learning_rate)
            problem.coefficient.fill_(coefficient)
            start = problem.parameters.flat.clone()
            metrics = problem.run(step, 3)
            outcomes.append((metrics, problem.parameters.flat - start))
    assert compilations() == before
    for one, other in zip(outcomes[::2], outcomes[1::2], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
    assert not outcomes[3][1].any(), "a learning rate of zero must reach the graph"
    assert outcomes[5][0][0, 0] > 2 * outcomes[3][0][-1, 0], "so must the coefficient"


def test_two_instances_compile_to_the_same_bits_and_share_nothing() -> None:
    one, other = Regression(), Regression()
    # The other instance's constants differ from the first one's in between.
    loose = Regression(learning_rate=0.5)
    first = one.run(one.step(compile=True, norm=0.05))
    loose.run(loose.step(compile=True, norm=None), 2)
    second = other.run(other.step(compile=True, norm=0.05))
    assert torch.equal(first, second)
    assert torch.equal(one.parameters.flat, other.parameters.flat)
    assert not torch.equal(loose.parameters.flat, one.parameters.flat)


def test_the_limit_of_the_divergence_holds_in_compiled_steps() -> None:
    problem = Regression()
    step = problem.step(compile=True, max_kl=-1e9)
    before = problem.parameters.flat.clone()
    problem.run(step, 1)
    assert step.stopped
    assert torch.equal(problem.parameters.flat, before)
    step.max_kl = 1e9
    problem.run(step, 1)
    assert not step.stopped
    assert not torch.equal(problem.parameters.flat, before)

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


def test_two_instances_compile_to_the_same_bits() -> None:
    one, other = Regression(), Regression()
    first = one.run(one.step(compile=True, norm=0.05))
    second = other.run(other.step(compile=True, norm=0.05))
    assert torch.equal(first, second)
    assert torch.equal(one.parameters.flat, other.parameters.flat)


def test_an_instance_with_other_constants_has_a_graph_of_its_own() -> None:
    tight, loose, eager = Regression(), Regression(), Regression()
    tight.run(tight.step(compile=True, norm=0.01))
    found = loose.run(loose.step(compile=True, norm=None))
    torch.testing.assert_close(found, eager.run(eager.step(norm=None)), rtol=1e-4, atol=1e-6)
    difference = (tight.parameters.flat - loose.parameters.flat).abs().max()
    assert difference > 10 * (loose.parameters.flat - eager.parameters.flat).abs().max()


def test_an_instance_on_a_larger_storage_has_one_too() -> None:
    # They differ in nothing that the compiler's cache on disk looks at but the storage's size.
    small, large = Regression(), Regression(others=5)
    first = small.run(small.step(compile=True))
    second = large.run(large.step(compile=True))
    torch.testing.assert_close(first, second)
    torch.testing.assert_close(large.parameters.flat[:-5], small.parameters.flat)
    assert (large.others == 7.0).all()


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

"""Prioritised sampling against its theory (Schaul et al. 2016)."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_training.data.priorities import Priorities
from rl_training.data.replay_buffer import ReplayBuffer
from tests.data.experience import Stream, make_buffer

ERRORS = torch.tensor([0.0, -0.5, 1.0, 2.0, -3.0, 0.1, 4.0, 0.25])


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def filled(alpha: float) -> ReplayBuffer:
    buffer = make_buffer(8, 2, prioritised=True, alpha=alpha, priority_epsilon=0.01)
    stream = Stream(2, 1)
    buffer.extend(stream.batch(4))
    buffer.update_priorities(torch.arange(8), ERRORS)
    return buffer


# Every power, and every size with one of them: a draw sees priorities whose power is taken.
@pytest.mark.parametrize(
    ("alpha", "batch_size"), [(0.5, 1), (0.5, 7), (0.5, 32), (0.0, 7), (1.0, 32)]
)
def test_frequencies_are_proportional_to_the_powers_of_the_errors(
    alpha: float, batch_size: int
) -> None:
    buffer, draws = filled(alpha), generator(3)
    rounds = {1: 9_000, 7: 3_000, 32: 2_000}[batch_size]
    drawn = torch.cat(
        [buffer.sample(batch_size, draws, beta=0.5)["indices"] for _ in range(rounds)]
    )
    priority = (ERRORS.double().abs() + 0.01) ** alpha
    expected = len(drawn) * priority / priority.sum()
    counts = torch.bincount(drawn, minlength=8).double()
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    assert chi_square < 24.32  # the 0.1 % point with 7 degrees of freedom


def test_one_of_each_equal_part_is_drawn() -> None:
    buffer = filled(1.0)
    priority = ERRORS.double().abs() + 0.01
    expected = 1000 * priority / priority.sum()
    counts = torch.bincount(buffer.sample(1000, generator(), beta=1.0)["indices"], minlength=8)
    assert ((counts - expected).abs() <= 2).all()


def test_weights_undo_the_priorities_and_the_largest_is_one() -> None:
    buffer = filled(0.7)
    sample = buffer.sample(64, generator(), beta=0.4)
    probability = (ERRORS.double().abs() + 0.01) ** 0.7
    probability /= probability.sum()
    weights = (8 * probability[sample["indices"]]) ** -0.4
    torch.testing.assert_close(sample["weights"], (weights / weights.max()).float())
    assert float(sample["weights"].max()) == 1.0
    everything_equal = buffer.sample(64, generator(), beta=0.0)["weights"]
    assert torch.equal(everything_equal, torch.ones(64))


def test_new_samples_get_the_highest_priority_there_ever_was() -> None:
    buffer, stream = make_buffer(4, 1, prioritised=True, alpha=1.0), Stream(1, 1)
    assert buffer.priorities is not None
    buffer.extend(stream.batch(2))
    assert buffer.priorities.total == 2.0
    buffer.update_priorities(torch.tensor([0]), torch.tensor([-7.0]))
    buffer.update_priorities(torch.tensor([0]), torch.tensor([0.5]))
    buffer.extend(stream.batch(1))
    assert buffer.priorities.total == pytest.approx(0.5 + 1 + 7, abs=1e-5)


def test_errors_of_overwritten_transitions_change_nothing() -> None:
    buffer, stream = make_buffer(4, 1, prioritised=True), Stream(1, 1)
    buffer.extend(stream.batch(4))
    sample = buffer.sample(8, generator(), beta=1.0)
    buffer.extend(stream.batch(4))
    assert buffer.priorities is not None
    before = buffer.priorities.total
    buffer.update_priorities(sample["indices"], torch.full((8,), 9.0))
    assert buffer.priorities.total == before
    buffer.update_priorities(torch.tensor([3, 4, 8]), torch.tensor([9.0, 2.0, 9.0]))
    assert buffer.priorities.total == pytest.approx(3 + 2**0.6, rel=1e-5)


def test_of_repeated_indices_the_last_one_counts() -> None:
    priorities = Priorities(4, alpha=1.0, epsilon=0.5)
    priorities.update(torch.tensor([2, 1, 2]), torch.tensor([5.0, 1.0, 0.25]))
    assert priorities.get(torch.arange(4)).tolist() == [0.0, 1.5, 0.75, 0.0]


def test_beta_is_asked_for() -> None:
    buffer = filled(0.6)
    with pytest.raises(ValueError, match="needs beta"):
        buffer.sample(2, generator())


def test_nothing_without_priority_is_drawn() -> None:
    priorities = Priorities(1000, alpha=1.0, epsilon=1e-6)
    priorities.set(torch.tensor([17, 900]), torch.tensor([1e-6, 3e4]))
    drawn = priorities.draw(20_000, generator())
    assert set(drawn.tolist()) <= {17, 900}


@settings(max_examples=60, deadline=None)
@given(size=st.integers(1, 40), seed=st.integers(0, 1000), updates=st.integers(0, 12))
def test_the_sums_depend_on_the_leaves_and_not_on_their_history(
    size: int, seed: int, updates: int
) -> None:
    draws = generator(seed)
    lived = Priorities(size, alpha=0.6, epsilon=1e-6)
    for _ in range(updates):
        positions = torch.randint(0, size, (5,), generator=draws)
        lived.update(positions, torch.randn(5, generator=draws).exp())
    rebuilt = Priorities(size, alpha=0.6, epsilon=1e-6)
    everywhere = torch.arange(size)
    rebuilt.set(everywhere, lived.get(everywhere).float())
    bounds = list(itertools.combinations(range(size + 1), 2))[:200]
    assert [lived._tree.query(a, b) for a, b in bounds] == [
        rebuilt._tree.query(a, b) for a, b in bounds
    ]
    if updates:
        assert torch.equal(lived.draw(64, generator(1)), rebuilt.draw(64, generator(1)))

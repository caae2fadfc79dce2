"""Environments whose answers change in the middle of a run: no number is bent to fit in silence."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv

from rl_training import PPO
from rl_training.errors import EnvironmentFailedError

LATER = 5
"""The step from which on answers are other ones."""
FLOATS = spaces.Box(-9.0, 9.0, (2,), np.float32)
WHOLE = spaces.Box(0, 100, (2,), np.int64)
BYTES = spaces.Box(0, 255, (2,), np.uint8)
PARTS = spaces.Dict(picture=spaces.Box(0, 255, (2, 2, 1), np.uint8), gear=spaces.Discrete(3))
PARTS_NOW = {"picture": np.ones((2, 2, 1), np.uint8), "gear": 1}


class Changing(gymnasium.Env[Any, Any]):
    """Answers ``first``, and from a step on ``later``; the second environment begins with it."""

    action_space = spaces.Discrete(2)

    def __init__(self, space: Any, first: Any, later: Any) -> None:
        self.observation_space, self.first, self.later, self.taken = space, first, later, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self.first, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.taken += 1
        return (self.later if self.taken >= LATER else self.first), 1.0, False, False, {}


def batch_of(vectorization: str, space: Any, first: Any, later: Any) -> Any:
    """Return the first batch of two environments, of which the second changes."""
    makers = [lambda: Changing(space, first, first), lambda: Changing(space, first, later)]
    each = iter(makers)
    agent = PPO(
        lambda: next(each)() if vectorization == "sync" else Changing(space, first, later),
        num_envs=2,
        num_steps=8,
        minibatch_size=8,
        vectorization=vectorization,
    )
    try:
        return next(iter(agent.collector()))
    finally:
        agent.close()


@pytest.mark.parametrize("vectorization", ["sync", "async"])
@pytest.mark.parametrize(
    ("space", "first", "later", "complaint"),
    [
        (WHOLE, np.ones(2, int), np.full(2, 1.5), "of float64, its space says int64"),
        (WHOLE, np.ones(2, int), np.full(2, np.nan), "of float64, its space says int64"),
        (WHOLE, np.ones(2, int), np.array(["1", "2"]), "of <U1, its space says int64"),
        (BYTES, np.ones(2, np.uint8), np.array([7, 300]), "from 7 to 300, its space says uint8"),
        (BYTES, np.ones(2, np.uint8), [-1, 3], "from -1 to 3, its space says uint8"),
        (FLOATS, np.ones(2, np.float32), np.array(["1", "2"]), "of <U1, its space says float32"),
        (FLOATS, np.ones(2, np.float32), np.ones(2) * 1j, "of complex128, its space says float32"),
        (FLOATS, np.ones(2, np.float32), [None, 1.0], "of object, its space says float32"),
        (
            PARTS,
            PARTS_NOW,
            {**PARTS_NOW, "picture": np.full((2, 2, 1), 300)},
            r"observation's part \['picture'\] with numbers from 300 to 300, its space says uint8",
        ),
        (
            PARTS,
            PARTS_NOW,
            {**PARTS_NOW, "picture": np.full((2, 2, 1), 0.5)},
            r"observation's part \['picture'\] of float64, its space says uint8",
        ),
        (PARTS, PARTS_NOW, {**PARTS_NOW, "gear": 3}, r"\['gear'\] 3, which is not in its space"),
        (PARTS, PARTS_NOW, {**PARTS_NOW, "gear": 1.5}, r"\['gear'\] of float64, .* says int64"),
    ],
)
def test_what_the_space_cannot_hold_is_refused_by_row_and_step(
    vectorization: str, space: Any, first: Any, later: Any, complaint: str
) -> None:
    row = 1 if vectorization == "sync" else 0
    with pytest.raises(EnvironmentFailedError, match=complaint) as failed:
        batch_of(vectorization, space, first, later)
    assert f"in environment {row}, step {LATER} of episode 0" in str(failed.value)


@pytest.mark.parametrize("vectorization", ["sync", "async"])
@pytest.mark.parametrize(
    ("space", "first", "later", "expected"),
    [
        (FLOATS, np.ones(2, np.float32), np.full(2, 0.1), [np.float32(0.1)] * 2),
        (FLOATS, np.ones(2, np.float32), [3, 0.5], [3.0, 0.5]),
        (FLOATS, np.ones(2, np.float32), np.array([3.0, 0.5], object), [3.0, 0.5]),
        (FLOATS, np.ones(2, np.float32), np.array([True, False]), [1.0, 0.0]),
        (BYTES, np.ones(2, np.uint8), np.array([7, 255]), [7, 255]),
        (WHOLE, np.ones(2, int), np.array([7, 8], np.uint8), [7, 8]),
    ],
)
def test_what_the_space_can_hold_is_taken_as_it_is(
    vectorization: str, space: Any, first: Any, later: Any, expected: list[float]
) -> None:
    batch = batch_of(vectorization, space, first, later)
    assert batch["next", "observation"][1, LATER - 1].tolist() == expected
    assert batch["next", "observation"][1, LATER - 2].tolist() == [1, 1]


class OwnVector(VectorEnv[Any, Any, Any]):
    """A vector environment of somebody's own; every third step ends all episodes."""

    metadata: dict[str, Any] = {"autoreset_mode": AutoresetMode.DISABLED}  # noqa: RUF012
    num_envs = 2
    single_observation_space = FLOATS
    single_action_space = spaces.Discrete(2)
    observation_space = spaces.Box(-9.0, 9.0, (2, 2), np.float32)
    action_space = spaces.MultiDiscrete([2, 2])

    def __init__(self, **answers: Any) -> None:
        self.answers, self.taken = answers, 0

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return np.zeros((2, 2), np.float32), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        self.taken += 1
        plain = {
            "observation": np.zeros((2, 2), np.float32),
            "reward": np.array([1.0, 2.0]),
            "terminated": np.full(2, self.taken % 3 == 0),
            "truncated": np.zeros(2, bool),
        }
        changed = {name: change(plain[name]) for name, change in self.answers.items()}
        if self.taken == 1:  # it is tried out before it is trained on
            changed = {}
        return (*{**plain, **changed}.values(), {})


def own_batch(**answers: Any) -> Any:
    agent = PPO(OwnVector(**answers), num_envs=2, num_steps=6, minibatch_size=4)
    try:
        return next(iter(agent.collector()))
    finally:
        agent.close()


def test_columns_and_whole_numbers_of_a_vector_are_its_rows() -> None:
    batch = own_batch(
        terminated=lambda flags: flags[:, None],
        truncated=lambda flags: flags.astype(int),
        reward=lambda rewards: rewards[:, None],
    )
    # It has been stepped once before.
    assert batch["next", "terminated"].squeeze(-1).tolist() == [[False, True, False] * 2] * 2
    assert batch["next", "reward"].squeeze(-1).tolist() == [[1.0] * 6, [2.0] * 6]
    assert batch["next", "episode_length"].squeeze(-1).tolist() == [[1, 2, 1, 2, 3, 1]] * 2


@pytest.mark.parametrize(
    ("answers", "complaint"),
    [
        ({"terminated": lambda _: np.zeros(3, bool)}, r"terminated of a vector of 2 .* \(3,\)"),
        ({"terminated": lambda _: False}, r"terminated of a vector of 2 environments are \(\)"),
        ({"truncated": lambda _: [np.nan, np.nan]}, "truncated must be True or False, not"),
        ({"truncated": lambda _: np.zeros((2, 2), bool)}, "truncated must be True or False, not"),
        ({"reward": lambda _: 1.0}, r"rewards of a vector of 2 environments are \(\)"),
        ({"reward": lambda _: np.ones((2, 2))}, "a reward must be one number, not"),
        ({"observation": lambda _: np.zeros((1, 2), np.float32)}, "observations of a vector of 2"),
        ({"observation": lambda _: np.zeros((2, 3), np.float32)}, r"of shape \(3,\), its space"),
        ({"observation": lambda _: np.array([["1", "2"]] * 2)}, "of <U1, its space says float32"),
    ],
)
def test_answers_of_a_vector_that_are_no_rows_are_refused(
    answers: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(EnvironmentFailedError, match=complaint):
        own_batch(**answers)

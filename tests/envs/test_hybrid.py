"""Actions with parts and actions of integers: whatever a policy says, the environment gets what is
in its space.
"""

from __future__ import annotations

import copy
from typing import Any, cast

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_training.envs.hybrid import HybridActionMap, action_map, policy_numbers, policy_spec
from rl_training.envs.spaces import ActionMap, require_supported, space_from_dict, space_to_dict
from tests.envs.scripted import collect, generator, make_vector
from tests.recipes.spaces import ACTIONS, Anything

SPACE = spaces.Dict(
    {
        "steer": spaces.Box(np.array([-1.0, 0.0]), np.array([1.0, 9.0]), dtype=np.float64),
        "gear": spaces.Discrete(4, start=2),
        "rest": spaces.Tuple([spaces.Box(3, 7, (1,), np.uint8), spaces.MultiBinary(2)]),
    }
)


def test_a_row_holds_discrete_numbers_first_and_comes_back_as_the_structure() -> None:
    made = HybridActionMap(SPACE)
    assert made.shape == (6,)
    assert policy_numbers(SPACE) == ((4, 2, 2), 3)
    # gear, two bits, then rest's Box and steer's two.
    given_action = np.array([[3, 0, 1, 4.6, 0.5, 99.0]], np.float32)
    [row] = made.rows(made.to_env(given_action))
    assert row["gear"] == 5 and row["gear"].dtype == np.int64
    assert row["steer"].tolist() == [0.5, 9.0] and row["steer"].dtype == np.float64
    assert row["rest"][0].tolist() == [5] and row["rest"][0].dtype == np.uint8
    assert row["rest"][1].tolist() == [0, 1] and row["rest"][1].dtype == np.int8
    assert SPACE.contains(row)
    assert SPACE.contains(made.taken(given_action, single=True))
    batch = made.taken(np.repeat(given_action, 3, 0), single=False)
    assert batch["gear"].tolist() == [5, 5, 5] and batch["rest"][1].shape == (3, 2)


def test_squashing_is_for_the_boxes_alone() -> None:
    made = HybridActionMap(SPACE, squash=True)
    [row] = made.rows(made.to_env(np.array([[1, 1, 0, 50.0, 0.0, -50.0]], np.float32)))
    assert row["gear"] == 3
    assert row["rest"][0].tolist() == [7]
    assert row["steer"].tolist() == [0.0, 0.0]


def boxes(draw: Any) -> Any:
    shape = tuple(draw(st.lists(st.integers(1, 3), max_size=2)))
    dtype = draw(
        st.sampled_from([np.float32, np.float64, np.int8, np.uint8, np.int32, np.uint32, np.int64])
    )
    if np.dtype(dtype).kind == "f":
        numbers = st.floats(-1e6, 1e6, width=32)
    else:
        limits = np.iinfo(dtype)
        numbers = st.integers(int(limits.min), int(limits.max))
    pairs = draw(st.lists(st.tuples(numbers, numbers), min_size=9, max_size=9))
    count = int(np.prod(shape))
    ends = np.array([sorted(pair) for pair in pairs[:count]], dtype)
    low, high = ends[:, 0].reshape(shape), ends[:, 1].reshape(shape)
    if np.dtype(dtype).kind == "f" and draw(st.booleans()):
        high = np.full(shape, np.inf, dtype)
    return spaces.Box(low, high, shape, dtype)


@st.composite
def action_spaces(draw: Any, depth: int = 2) -> Any:
    kinds = ["box", "box", "one", "several", "bits", *(["dict", "tuple"] if depth else [])]
    kind = draw(st.sampled_from(kinds))
    if kind == "box":
        return boxes(draw)
    if kind == "one":
        return spaces.Discrete(draw(st.integers(1, 5)), start=draw(st.integers(-9, 9)))
    if kind == "several":
        counts = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
        return spaces.MultiDiscrete(counts, start=[draw(st.integers(-5, 5)) for _ in counts])
    if kind == "bits":
        return spaces.MultiBinary(draw(st.integers(1, 3)))
    parts = [draw(action_spaces(depth=depth - 1)) for _ in range(draw(st.integers(1, 3)))]
    if kind == "tuple":
        return spaces.Tuple(parts)
    return spaces.Dict({str(index): part for index, part in enumerate(parts)})


@settings(max_examples=150, deadline=None)
@given(action_spaces(), st.integers(0, 2**31), st.booleans())
def test_every_action_arrives_within_its_space(space: Any, seed: int, squash: bool) -> None:
    require_supported(spaces.Discrete(2), space, "Any")
    assert space_from_dict(space_to_dict(space)) == space
    finite = isinstance(space, spaces.Box) and space.is_bounded("both")
    made = action_map(space, squash=squash and finite)
    draws = np.random.default_rng(seed)
    spec = policy_spec(space, 5)
    whole = spec.rand().numpy()
    assert whole.shape == (5, *made.shape)
    arrays = [whole, np.zeros_like(whole)]
    if whole.dtype.kind == "f" and isinstance(space, spaces.Box):
        scale = draws.choice([1.0, 1e4, 1e30])
        arrays.append((draws.normal(size=whole.shape) * scale).astype(np.float32))
    for given_actions in arrays:
        converted = made.to_env(given_actions)
        rows = made.rows(converted) if isinstance(made, HybridActionMap) else converted
        for row in rows:
            assert space.contains(row), f"{row!r} is not of {space}"
    assert len(made.zeros(3)) == 3


@pytest.mark.parametrize(
    ("low", "high", "dtype"),
    [
        (-(2**62) - 1, 2**62 + 1, np.int64),
        (np.iinfo(np.int64).min, np.iinfo(np.int64).max, np.int64),
        (0, 2**64 - 1, np.uint64),
        (-128, 127, np.int8),
    ],
)
@pytest.mark.parametrize("option", ["clip", "scale", "squash"])
def test_integer_bounds_are_reached_exactly(low: int, high: int, dtype: Any, option: str) -> None:
    space = spaces.Box(np.array([low], dtype), np.array([high], dtype), dtype=dtype)
    made = ActionMap(space, squash=option == "squash", scale=option == "scale")
    ends = made.to_env(np.array([[-1e30], [1e30]], np.float32))
    assert ends.tolist() == [[low], [high]]
    assert ends.dtype == dtype
    assert space.contains(made.to_env(np.array([[np.nan]], np.float32))[0])


def test_integers_are_rounded_to_the_nearest_or_share_the_range_equally() -> None:
    space = spaces.Box(0, 3, (1,), np.int32)
    given_actions = np.array([[0.49], [0.51], [1.5], [2.5], [2.51], [-7.0]], np.float32)
    assert ActionMap(space).to_env(given_actions).ravel().tolist() == [0, 1, 2, 2, 3, 0]
    evenly = np.linspace(-0.999, 0.999, 4000, dtype=np.float32)[:, None]
    scaled = ActionMap(space, scale=True).to_env(evenly).ravel()
    counts = np.bincount(scaled)
    assert len(counts) == 4 and (abs(counts - 1000) <= 2).all()


@pytest.mark.parametrize("kind", ["Dict", "Tuple"])
def test_sync_async_and_torchrl_step_alike(kind: str) -> None:
    batches = []
    for options in ({}, {"vectorization": "async"}):
        environment = make_vector(
            lambda: Anything(spaces.Box(-1.0, 1.0, (2,)), copy.deepcopy(ACTIONS[kind])),
            num_envs=2,
            **cast("Any", options),
        )
        batches.append(collect(environment, 20, generator()))
        assert environment.action_spec.is_in(environment.rand_action()["action"])
        environment.close()
    first, second = batches
    assert torch.equal(first["next", "reward"], second["next", "reward"])
    assert cast("Any", first["action"]).shape[2:] == action_map(ACTIONS[kind]).shape

from __future__ import annotations

import json
from typing import Any, cast

import numpy as np
import pytest
import torch
from gymnasium import spaces

from rl_training.envs.spaces import (
    ActionMap,
    action_spec,
    observation_spec,
    require_supported,
    space_from_dict,
    space_to_dict,
)
from rl_training.errors import UserError

ASYMMETRIC = spaces.Box(np.array([-1.0, 0.5]), np.array([2.0, 4.0]), dtype=np.float64)


@pytest.mark.parametrize(
    "space",
    [
        spaces.Discrete(4),
        spaces.Discrete(3, start=-1),
        spaces.MultiDiscrete([2, 3]),
        spaces.MultiDiscrete(np.array([[2, 3], [4, 1]]), start=np.array([[1, -1], [0, 5]])),
        spaces.MultiDiscrete(np.array([3, 2], np.int8), dtype=cast("Any", np.int8)),
        spaces.Dict({"b": spaces.Discrete(2), "a": spaces.Tuple([ASYMMETRIC, spaces.Dict()])}),
        spaces.MultiBinary(3),
        spaces.MultiBinary([3]),
        spaces.MultiBinary([2, 2]),
        spaces.Box(-1.0, 1.0, (2, 3), np.float32),
        spaces.Box(0, 255, (4, 8), np.uint8),
        spaces.Box(-np.inf, np.inf, (5,), np.float64),
        spaces.Box(np.array([-np.inf, 0.1]), np.array([0.3, np.inf]), dtype=np.float64),
        ASYMMETRIC,
        spaces.Box(-1.0, 1.0, (), np.float32),
        spaces.Box(np.array([-(2**62) - 1]), np.array([2**62 + 1]), dtype=np.int64),
    ],
)
def test_a_space_survives_json(space: Any) -> None:
    text = json.dumps(space_to_dict(space), allow_nan=False)
    restored = space_from_dict(json.loads(text))
    assert restored == space
    assert restored.dtype == space.dtype


def test_equal_bounds_are_stored_once() -> None:
    assert len(json.dumps(space_to_dict(spaces.Box(0, 255, (84, 84, 4), np.uint8)))) < 200


@pytest.mark.parametrize("space", [spaces.Text(3), spaces.Sequence(spaces.Discrete(2))])
def test_another_space_is_not_stored(space: Any) -> None:
    with pytest.raises(UserError, match=type(space).__name__):
        space_to_dict(space)
    with pytest.raises(UserError, match="Text"):
        space_from_dict({"type": "Text"})


@pytest.mark.parametrize(
    ("observation", "action", "named"),
    [
        (spaces.Text(3), spaces.Discrete(2), "observation space Text"),
        (spaces.Sequence(ASYMMETRIC), spaces.Discrete(2), "observation space Sequence"),
        (ASYMMETRIC, spaces.Text(3), "action space Text"),
        (ASYMMETRIC, spaces.Box(0, 1, (2,), cast("Any", np.bool_)), "bool actions"),
        (ASYMMETRIC, spaces.Tuple([spaces.Text(3)]), r"Text.*the action's part \[0\]"),
        (ASYMMETRIC, spaces.Dict({}), "has no parts"),
        (spaces.Box(0, 1, (2,), cast("Any", np.bool_)), spaces.Discrete(2), "bool observations"),
    ],
)
def test_an_unsupported_space_is_named(observation: Any, action: Any, named: str) -> None:
    with pytest.raises(UserError, match=f"Toy-v0.*{named}"):
        require_supported(observation, action, "Toy-v0")


def test_discrete_actions_are_shifted_by_the_start() -> None:
    given = np.array([0, 1, 2])
    actions = ActionMap(spaces.Discrete(3, start=5)).to_env(given)
    assert actions.tolist() == [5, 6, 7]
    assert actions.dtype == np.int64
    assert given.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("space", "given", "expected"),
    [
        (spaces.MultiDiscrete([2, 3], start=[1, -1]), [[0, 0], [1, 2]], [[1, -1], [2, 1]]),
        (spaces.MultiDiscrete(np.array([[2, 3]])), [[[0, 2]]], [[[0, 2]]]),
        (spaces.MultiBinary(3), [[0, 1, 1]], [[0, 1, 1]]),
    ],
)
def test_several_discrete_actions_arrive_in_the_space(
    space: Any, given: Any, expected: Any
) -> None:
    actions = ActionMap(space).to_env(np.array(given))
    assert actions.tolist() == expected
    assert actions.dtype == space.dtype
    assert all(space.contains(action) for action in actions)
    drawn = action_spec(space, 50).rand()
    assert drawn.shape == (50, *space.shape)
    assert drawn.dtype == torch.int64
    assert all(space.contains(action) for action in ActionMap(space).to_env(drawn.numpy()))


def test_box_actions_are_clipped_to_their_own_bounds_in_the_spaces_dtype() -> None:
    given = np.array([[-3.0, 0.0], [0.25, 1.0], [9.0, 9.0]], np.float32)
    actions = ActionMap(ASYMMETRIC).to_env(given)
    assert actions.tolist() == [[-1.0, 0.5], [0.25, 1.0], [2.0, 4.0]]
    assert actions.dtype == np.float64
    assert given[0, 0] == -3.0


def test_half_open_bounds_clip_on_their_side_only() -> None:
    space = spaces.Box(np.array([0.0, -np.inf]), np.array([np.inf, 1.0]), dtype=np.float32)
    actions = ActionMap(space).to_env(np.array([[-5.0, -5.0], [1e9, 1e9]], np.float32))
    assert actions.tolist() == [[0.0, -5.0], [1e9, 1.0]]


def test_unbounded_actions_arrive_unchanged_in_a_new_array() -> None:
    given = np.array([[1e30]], np.float32)
    actions = ActionMap(spaces.Box(-np.inf, np.inf, (1,), np.float32)).to_env(given)
    assert actions.tolist() == given.tolist()
    assert not np.shares_memory(actions, given)


def test_squashed_actions_are_scaled_onto_the_bounds() -> None:
    given = np.array([[0.0, 0.0], [np.arctanh(0.5), -np.arctanh(0.5)], [50.0, -50.0]], np.float32)
    actions = ActionMap(ASYMMETRIC, squash=True).to_env(given)
    # The middle, three quarters and a quarter of the way, the two ends.
    expected = [[0.5, 2.25], [1.25, 1.375], [2.0, 0.5]]
    np.testing.assert_allclose(actions, expected, rtol=1e-6)


def test_squashed_actions_never_leave_awkward_bounds() -> None:
    space = spaces.Box(np.float32(-0.1), np.float32(0.7), (1,), np.float32)
    actions = ActionMap(space, squash=True).to_env(
        np.linspace(-30, 30, 1001, dtype=np.float32)[:, None]
    )
    assert all(space.contains(action) for action in actions)


@pytest.mark.parametrize("space", [spaces.Box(0.0, np.inf, (2,)), spaces.Discrete(2)])
def test_squashing_needs_finite_bounds(space: Any) -> None:
    with pytest.raises(UserError, match=r"finite bounds|Box"):
        ActionMap(space, squash=True)


@pytest.mark.parametrize("shape", [(3, 1), (3, 2, 1), (3,)])
def test_actions_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    space = spaces.Discrete(2) if len(shape) == 2 else ASYMMETRIC
    with pytest.raises(ValueError, match="shape"):
        ActionMap(space).to_env(np.zeros(shape, np.int64))


def test_specs_follow_the_dtype_rule() -> None:
    float64 = spaces.Box(-1.0, 1.0, (3,), np.float64)
    image = spaces.Box(0, 255, (4, 8), np.uint8)
    assert observation_spec(float64, 2).dtype == torch.float32
    assert observation_spec(image, 2).dtype == torch.uint8
    assert observation_spec(image, 2).shape == (2, 4, 8)
    assert observation_spec(image, 2, normalized=True).dtype == torch.float32


def test_action_specs_are_bounded_only_where_the_policy_is() -> None:
    assert action_spec(spaces.Discrete(3, start=5), 2).rand().max() < 3
    assert action_spec(spaces.Discrete(3), 2).shape == (2,)
    drawn = action_spec(ASYMMETRIC, 500).rand()
    assert drawn.dtype == torch.float32
    assert bool((drawn[:, 1] >= 0.5).all())
    assert bool(torch.isfinite(action_spec(spaces.Box(0.0, np.inf, (2,)), 100).rand()).all())
    assert bool((action_spec(ASYMMETRIC, 500, squash=True).rand()[:, 1] < 0.5).any())


def test_scaled_actions_go_from_minus_one_and_one_to_the_bounds_of_each_dimension() -> None:
    given = np.array([[-1.0, -1.0], [1.0, 1.0], [0.0, -0.5], [3.0, -3.0]], np.float32)
    actions = ActionMap(ASYMMETRIC, scale=True).to_env(given)
    expected = [[-1.0, 0.5], [2.0, 4.0], [0.5, 1.375], [2.0, 0.5]]
    np.testing.assert_allclose(actions, expected)
    assert actions.dtype == np.float64


def test_scaled_actions_never_leave_awkward_bounds() -> None:
    space = spaces.Box(np.float32(-0.1), np.float32(0.7), (1000,), np.float32)
    for value in (-1.0, 1.0):
        [action] = ActionMap(space, scale=True).to_env(np.full((1, 1000), value, np.float32))
        assert space.contains(action)


def test_scaling_needs_finite_bounds_and_leaves_discrete_actions_alone() -> None:
    with pytest.raises(UserError, match="scaled actions need finite bounds"):
        ActionMap(spaces.Box(-np.inf, 1.0, (2,), np.float32), scale=True)
    taken = ActionMap(spaces.Discrete(3, start=5), scale=True).to_env(np.array([0, 2]))
    assert taken.tolist() == [5, 7]


def test_the_spec_of_scaled_actions_is_from_minus_one_to_one() -> None:
    drawn = action_spec(ASYMMETRIC, 500, scale=True).rand()
    assert drawn.dtype == torch.float32
    assert drawn.min() >= -1 and drawn.max() <= 1 and drawn[:, 1].min() < 0

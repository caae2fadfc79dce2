"""Observations that are no Box, as vectors: right numbers in a fixed order, from every source."""

from __future__ import annotations

import copy
import functools
from collections import OrderedDict
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.vector.utils import concatenate, create_empty_array
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_training.envs.flatten import Flattening, flat_space, require_observable
from rl_training.envs.spaces import space_from_dict, space_outline, space_to_dict
from rl_training.errors import UserError
from tests.envs.scripted import collect, generator, make_vector
from tests.recipes.spaces import OBSERVATIONS, Anything

NESTED = spaces.Dict(
    OrderedDict(
        zebra=spaces.Discrete(3, start=5),
        apple=spaces.Tuple(
            [
                spaces.MultiDiscrete(np.array([[2, 3]]), start=np.array([[0, -1]])),
                spaces.Box(0, 255, (2, 1), np.uint8),
            ]
        ),
        mango=spaces.MultiBinary([2, 1]),
    )
)
OBSERVED = {
    "zebra": 6,
    "apple": (np.array([[1, 1]]), np.array([[7], [200]], np.uint8)),
    "mango": np.array([[1], [0]], np.int8),
}
# apple, mango, zebra: two numbers one-hot, two numbers, two bits, one number one-hot.
VECTOR = [0, 1, 0, 0, 1, 7, 200, 1, 0, 0, 1, 0]


def boxes(draw: Any) -> Any:
    shape = tuple(draw(st.lists(st.integers(1, 3), max_size=2)))
    dtype = draw(st.sampled_from([np.float32, np.float64, np.int64, np.uint8]))
    return spaces.Box(0, 9, shape, dtype)


@st.composite
def some_spaces(draw: Any, depth: int = 2) -> Any:
    kinds = ["box", "discrete", "several", "binary", *(["dict", "tuple"] if depth else [])]
    kind = draw(st.sampled_from(kinds))
    if kind == "box":
        return boxes(draw)
    if kind == "discrete":
        return spaces.Discrete(draw(st.integers(1, 5)), start=draw(st.integers(-9, 9)))
    if kind == "several":
        counts = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
        return spaces.MultiDiscrete(counts, start=draw(st.just([-2] * len(counts))))
    if kind == "binary":
        return spaces.MultiBinary(draw(st.integers(1, 4)))
    parts = draw(st.lists(some_spaces(depth=depth - 1), min_size=1, max_size=3))
    if kind == "tuple":
        return spaces.Tuple(parts)
    keys = draw(st.permutations(["c", "a", "b"]))
    return spaces.Dict(OrderedDict(zip(keys, parts, strict=False)))


def test_parts_stand_in_the_documented_order() -> None:
    flattening = Flattening(NESTED)
    assert flattening.space.shape == (12,)
    assert flattening.rows([OBSERVED]).tolist() == [VECTOR]
    vector, single = flattening.given(OBSERVED)
    assert single
    assert vector.tolist() == [VECTOR]
    assert vector.dtype == np.float32
    assert flattening.space.high.tolist() == [1] * 5 + [255, 255] + [1] * 5


@settings(max_examples=60, deadline=None)
@given(some_spaces(), st.integers(0, 2**31), st.integers(1, 4))
def test_rows_batches_and_what_is_given_are_the_same_vectors(
    space: Any, seed: int, count: int
) -> None:
    require_observable(space, "drawn")
    if isinstance(space, spaces.Box):
        assert flat_space(space) is space
        return
    space.seed(seed)
    samples = [space.sample() for _ in range(count)]
    empty: Any = create_empty_array(space, count)
    batch: Any = concatenate(space, samples, empty)
    flattening = Flattening(space)
    rows = flattening.rows(samples)
    np.testing.assert_array_equal(flattening.batch(batch), rows)
    np.testing.assert_array_equal(flattening.given(batch)[0], rows)
    assert not flattening.given(batch)[1]
    for sample, row in zip(samples, rows, strict=True):
        vector, single = flattening.given(sample)
        assert single
        np.testing.assert_array_equal(vector[0], row)
        assert flattening.space.contains(row)
    restored = space_from_dict(space_to_dict(space))
    assert restored == space
    assert space_outline(restored) == space_outline(space)


@settings(max_examples=30, deadline=None)
@given(some_spaces())
def test_vectors_are_those_of_gymnasium_where_the_order_is_the_same(space: Any) -> None:
    # gymnasium keeps the order of an OrderedDict's keys; ours is sorted.
    ordered = copy.deepcopy(space)
    _sort(ordered)
    ordered.seed(1)
    sample = ordered.sample()
    if isinstance(ordered, spaces.Box) or space_to_dict(ordered).get("spaces") == []:
        return
    expected = np.asarray(spaces.flatten(ordered, sample), np.float32)
    np.testing.assert_array_equal(Flattening(ordered).rows([sample])[0], expected)


def _sort(space: Any) -> None:
    if isinstance(space, spaces.Dict):
        space.spaces = dict(sorted(space.spaces.items()))
    parts = getattr(space, "spaces", ())
    for part in parts.values() if isinstance(parts, dict) else parts:
        _sort(part)


@pytest.mark.parametrize("kind", ["Discrete", "MultiDiscrete", "MultiBinary", "Dict", "Tuple"])
def test_sync_async_and_a_vector_of_ones_own_give_the_same_batches(kind: str) -> None:
    make = functools.partial(Anything, OBSERVATIONS[kind], spaces.Discrete(2))

    def fresh() -> Any:
        return copy.deepcopy(make())

    vector = SyncVectorEnv([fresh, fresh], autoreset_mode=AutoresetMode.NEXT_STEP)
    batches = []
    for source in (fresh, "async", vector):
        options: Any = {"vectorization": "async"} if source == "async" else {}
        environment = make_vector(fresh if source == "async" else source, num_envs=2, **options)
        batches.append(collect(environment, 30, generator())["next", "observation"])
        environment.close()
    assert (batches[0] == batches[1]).all()
    assert (batches[0] == batches[2]).all()
    assert batches[0].shape[2:] == flat_space(OBSERVATIONS[kind]).shape


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (spaces.Text(3), "Toy: observation space Text"),
        (spaces.Dict({"a": spaces.Tuple([spaces.Text(3)])}), r"part \['a'\]\[0\].*not supported"),
        (spaces.Tuple([spaces.Box(0, 1, (2,), bool)]), r"bool observations.*\[0\]"),  # type: ignore[arg-type]
        (spaces.Dict({}), "vector of 0 numbers"),
        (spaces.Discrete(2_000_000), "2,000,000 numbers"),
        (spaces.Dict({1: spaces.Discrete(2)}), "key 1 .* supported: text"),  # type: ignore[dict-item]
    ],
    ids=str,
)
def test_what_cannot_be_flattened_is_named(space: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        require_observable(space, "Toy")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"zebra": 4}, r"^an observation's part \['zebra'\] is not in its space"),
        ({"zebra": 8}, r"\['zebra'\] is not in its space"),
        ({"zebra": 5.5}, r"^an observation's part \['zebra'\] is of float64"),
        ({"zebra": [5, 6]}, r"\['zebra'\]|shape"),
        ({"mango": "text"}, r"^the observation's part \['mango'\] holds no numbers"),
        ({"mango": np.zeros((3, 1))}, r"^an observation's part \['mango'\] has the shape"),
        (
            {"apple": (np.array([[1, 1]]),)},
            r"^the observation has no part \['apple'\]\[1\] that fits: it is a dict with '",
        ),
    ],
)
def test_a_given_observation_that_does_not_fit_is_named(change: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Flattening(NESTED).given({**OBSERVED, **change})
    with pytest.raises(UserError, match=r"has no part \['[a-z]*'\].* that fits: it is a list\.$"):
        Flattening(NESTED).given([1.0, 2.0])
    with pytest.raises(
        UserError, match=r"^the observation has no shape that fits: it is a list\.$"
    ):
        Flattening(spaces.Discrete(2)).given([[1], [1, 2]])
    with pytest.raises(UserError, match=r"^an observation is not in its space Discrete"):
        Flattening(spaces.Discrete(2)).given(3)


class Astray(Anything):
    """Leaves its space at the third step."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.time = getattr(self, "time", 0) + 1
        return (9 if self.time == 3 else 0), 0.0, False, False, {}


def test_an_environment_that_leaves_its_space_stops_the_run() -> None:
    environment = make_vector(lambda: Astray(spaces.Discrete(3), spaces.Discrete(2)), num_envs=1)
    with pytest.raises(
        RuntimeError, match=r"environment 0, step 3 .* 9, .* not in its space Discrete\(3\)"
    ):
        collect(environment, 5, generator())


def test_floats_in_a_part_that_says_integers_are_refused() -> None:
    class Fraction(Anything):
        def reset(self, **options: Any) -> Any:
            super().reset(**options)
            return {"a": np.array([0.5])}, {}

    space = spaces.Dict({"a": spaces.Box(0, 9, (1,), np.int64)})
    with pytest.raises(UserError, match=r"\['a'\] says int64, .* returned a float64"):
        environment = make_vector(lambda: Fraction(space, spaces.Discrete(2)), num_envs=1)
        collect(environment, 1, generator())


def test_a_gymnasium_id_with_discrete_observations() -> None:
    environment = make_vector(lambda: gymnasium.make("FrozenLake-v1"), num_envs=2)
    batch = collect(environment, 10, generator())
    assert batch["observation"].shape == (2, 10, 16)
    assert (batch["observation"].sum(-1) == 1).all()

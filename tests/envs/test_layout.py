"""Images among other parts: bytes stay bytes, and every part is found again."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from rl_training.envs.flatten import Flattening
from rl_training.envs.layout import layout_of, name_of
from rl_training.envs.normalize import Normalizer, PackedNormalizer
from rl_training.envs.observations import as_batch
from rl_training.envs.parts import leaves_of
from rl_training.errors import NonFiniteError, UserError
from rl_training.finite import check_batch
from tests.envs.scripted import collect, generator, make_vector
from tests.envs.test_flatten import some_spaces
from tests.recipes.spaces import OBSERVATIONS, Anything

CAMERA = spaces.Box(0, 255, (2, 3, 1), np.uint8)
SPACE = spaces.Dict({"camera": CAMERA, "speed": spaces.Box(-9.0, 9.0, (2,), np.float64)})


def test_numbers_come_first_and_pixels_take_a_byte_each() -> None:
    flattening = Flattening(SPACE)
    pixels = np.arange(6, dtype=np.uint8).reshape(2, 3, 1)
    [vector] = flattening.rows([{"camera": pixels, "speed": np.array([0.5, -2.0])}])
    assert flattening.space == spaces.Box(0, 255, (16,), np.uint8)  # 8 + 6, up to 16
    assert vector.dtype == np.uint8
    assert vector[:8].view(np.float32).tolist() == [0.5, -2.0]
    assert vector[8:].tolist() == [0, 1, 2, 3, 4, 5, 0, 0]
    parts = layout_of(SPACE).split(torch.from_numpy(vector))
    assert parts["speed"].tolist() == [0.5, -2.0]
    assert_array_equal(parts["camera"].numpy(), pixels)


@st.composite
def with_images(draw: Any) -> Any:
    shape = tuple(draw(st.integers(1, 4)) for _ in range(3))
    images = {
        f"image {index}": spaces.Box(0, 255, shape, np.uint8)
        for index in range(draw(st.integers(1, 2)))
    }
    return spaces.Dict({**images, "other": draw(some_spaces())})


@settings(max_examples=80, deadline=None)
@given(with_images(), st.integers(0, 2**31), st.integers(1, 3))
def test_every_part_comes_back_as_it_was(space: Any, seed: int, count: int) -> None:
    space.seed(seed)
    observations = [space.sample() for _ in range(2 * count)]
    flattening, layout = Flattening(space), layout_of(space)
    rows = flattening.rows(observations)
    assert rows.dtype == np.uint8 and rows.shape == (2 * count, *flattening.space.shape)
    batch = torch.from_numpy(rows).reshape(2, count, -1)
    one = layout.split(batch[1, -1])
    every = layout.split(batch)
    for part, (path, each) in zip(layout.parts, leaves_of(space), strict=True):
        assert part.name == name_of(path)
        assert torch.equal(every[part.name][1, -1], one[part.name])
        value: Any = observations[-1]
        for step in path:
            value = value[step]
        if part.kind == "one-hot":
            hot = torch.functional.split(one[part.name], list(part.counts), -1)
            value = np.asarray(value).reshape(-1) - np.asarray(each.start).reshape(-1)
            assert [int(row.argmax()) for row in hot] == value.tolist()
        else:
            found = one[part.name].numpy().reshape(each.shape)
            assert_array_equal(found, np.asarray(value, found.dtype))
    single, was_single = flattening.given(observations[0])
    assert was_single
    assert_array_equal(single, rows[:1])


@pytest.mark.parametrize(
    ("space", "kind", "scale"),
    [
        (spaces.Box(0, 255, (84, 84, 3), np.uint8), "image", 1 / 255),
        (spaces.Box(0.0, 1.0, (3, 84, 84), np.float32), "image", 1.0),
        (spaces.Box(-1.0, 1.0, (84, 84, 1), np.float64), "image", 1.0),
        (spaces.Box(0.0, 255.0, (84, 84, 3), np.float32), "numbers", None),
        (spaces.Box(-np.inf, np.inf, (84, 84, 3), np.float32), "numbers", None),
        (spaces.Box(0, 1, (84, 84, 3), np.int64), "numbers", None),
        (spaces.Box(0, 255, (84, 84), np.uint8), "numbers", None),
    ],
    ids=str,
)
def test_an_image_is_known_by_dtype_shape_and_bounds(
    space: Any, kind: str, scale: float | None
) -> None:
    alone, [among] = layout_of(space).parts[0], layout_of(spaces.Tuple([space])).parts
    assert (alone.kind, alone.scale) == (among.kind, among.scale) == (kind, scale)


def test_running_statistics_leave_images_alone() -> None:
    draws = np.random.default_rng(0)
    flattening, normalizer = Flattening(SPACE), PackedNormalizer(2)
    numbers = draws.normal(5.0, 2.0, (300, 2)).clip(-9, 9)
    pixels = draws.integers(0, 256, (300, 2, 3, 1)).astype(np.uint8)
    rows = flattening.batch({"camera": pixels, "speed": numbers})
    normalizer.update(rows)
    parts = layout_of(SPACE).split(torch.from_numpy(normalizer(rows)))
    expected = (numbers - numbers.mean(0)) / numbers.std(0)
    assert_allclose(parts["speed"].numpy(), expected, atol=2e-5)
    assert_array_equal(parts["camera"].numpy(), pixels)
    assert rows.dtype == np.uint8 and normalizer(rows) is not rows


def test_a_nan_among_the_bytes_is_found_and_named() -> None:
    class Broken(Anything):
        def step(self, action: Any) -> Any:
            observation, *rest = super().step(action)
            return ({**observation, "speed": np.array([0.0, np.nan])}, *rest)

    environment = make_vector(lambda: Broken(SPACE, spaces.Discrete(2)), num_envs=1)
    batch = collect(environment, 3, generator())
    with pytest.raises(NonFiniteError, match=r"'next.observation' of environment 0 at step 7"):
        check_batch(batch, step=7, layout=layout_of(SPACE))


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf, 1e300])
@pytest.mark.parametrize("normalizer", [Normalizer(), Normalizer(observation=PackedNormalizer(2))])
def test_what_is_given_among_the_bytes_is_finite(number: float, normalizer: Normalizer) -> None:
    camera = np.full((2, 3, 1), 255, np.uint8)  # four such bytes are a NaN
    observation = {"camera": camera, "speed": np.array([0.0, number])}
    if normalizer.observation is None or np.isnan(number):  # it clips what is too large
        with pytest.raises(UserError, match="NaN or infinite"):
            as_batch(observation, SPACE, normalizer)
    batch, single = as_batch({**observation, "speed": np.array([0.0, 1e30])}, SPACE, normalizer)
    assert batch.shape == (1, *Flattening(SPACE).space.shape) and single
    alone = spaces.Dict(camera=SPACE["camera"])
    assert as_batch({"camera": camera}, alone, Normalizer())[0].shape == (1, 8)


def test_floats_where_the_space_says_bytes_are_refused() -> None:
    with pytest.raises(UserError, match=r"\['camera'\] is of float32"):
        Flattening(SPACE).given({"camera": np.zeros((2, 3, 1), np.float32), "speed": np.zeros(2)})


def test_sync_and_async_give_the_same_bytes() -> None:
    batches = []
    for options in ({}, {"vectorization": "async"}):
        environment = make_vector(
            lambda: copy.deepcopy(Anything(OBSERVATIONS["image among parts"], spaces.Discrete(2))),
            num_envs=2,
            **options,  # type: ignore[arg-type]
        )
        batches.append(collect(environment, 20, generator())["next", "observation"])
        environment.close()
    assert torch.equal(*batches)

"""Observations that are no single Box, as one vector: at the edge of the environments, so that
nothing behind it but the encoder (`rl_training.envs.layout`) knows of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from rl_training.envs.numbers import numbers_of
from rl_training.envs.parts import (
    Path,
    leaves_of,
    missing,
    named,
    part_of,
    part_text,
    pick,
    picker,
)
from rl_training.errors import UserError

Array = NDArray[Any]

LARGEST = 1_000_000
"""Numbers that a flattened observation may have."""
_IMAGE_DIMENSIONS = 3
FLOAT_BYTES = 4
"""Of a number in a packed vector."""
_SUPPORTED = "Box, Discrete, MultiDiscrete, MultiBinary, and Dict and Tuple of these"


class _OneHot(NamedTuple):
    """Of each of K numbers that become one-hot, ``[K]``."""

    first: Array
    """The first column, counted within the leaf's."""
    start: Array
    """The least value."""
    counts: Array
    """How many values, uint64."""


class _Leaf(NamedTuple):
    """One part of an observation that has no parts itself."""

    path: Path
    """Keys and indices that lead to it."""
    space: Any
    columns: slice
    """Of the vector's numbers; of pixels, its bytes."""
    one_hot: _OneHot | None


class Flattening:
    """Turns observations of ``space`` into vectors: float32, or where images of bytes are among
    them, uint8.

    The parts stand in a fixed order: of a Dict by its keys, sorted; of a Tuple by position; nested
    ones in their parent's place. A Box and a MultiBinary give their numbers, in C order; a Discrete
    and a MultiDiscrete give each of their numbers one-hot, counted from their start.

    With images of bytes the vector is ``packed``: first the bytes of all other numbers as float32,
    then the images' own, then zeros up to a multiple of four. So images take a byte a pixel
    wherever observations are stored.

    Args:
        space: one that `require_observable` accepts and that is no Box.
    """

    def __init__(self, space: Any) -> None:
        leaves: list[_Leaf] = []
        lows: list[Array] = [np.zeros(0, np.float32)]
        highs: list[Array] = [np.zeros(0, np.float32)]
        size = 0
        for path, each in leaves_of(space):
            if is_pixels(each):
                continue
            leaf = _describe(path, each, size)
            leaves.append(leaf)
            size = leaf.columns.stop
            width = leaf.columns.stop - leaf.columns.start
            low, high = (each.low, each.high) if isinstance(each, spaces.Box) else (0.0, 1.0)
            with np.errstate(over="ignore"):  # a bound of float64 may be infinite in float32
                for bounds, bound in ((lows, low), (highs, high)):
                    bounds.append(np.broadcast_to(np.asarray(bound, np.float32).ravel(), width))
        self.floats = size
        """How many numbers of float32 there are."""
        pixels = _pixels(space, size * FLOAT_BYTES)
        self.packed = bool(pixels)
        """Whether vectors are of bytes, images among them."""
        order = {path: index for index, (path, _) in enumerate(leaves_of(space))}
        self._leaves = sorted([*leaves, *pixels], key=lambda leaf: order[leaf.path])
        self._names = [part_text("an observation", leaf.path) for leaf in self._leaves]
        # One call of C for parts of the outermost Dict or Tuple, which is most of them.
        self._picks = [picker(leaf.path) for leaf in self._leaves]
        self._as_they_are = not self.packed and all(leaf.one_hot is None for leaf in leaves)
        self._shapes = [tuple(leaf.space.shape) for leaf in self._leaves]
        self.space: Any = spaces.Box(np.concatenate(lows), np.concatenate(highs), dtype=np.float32)
        """Of the vectors."""
        if self.packed:
            length = -(-pixels[-1].columns.stop // FLOAT_BYTES) * FLOAT_BYTES
            self.space = spaces.Box(0, 255, (length,), np.uint8)

    def columns(self, path: Path) -> slice:
        """Return where the part that ``path`` leads to stands in the vector: among its numbers, or
        of pixels, its bytes.
        """
        return next(leaf.columns for leaf in self._leaves if leaf.path == path)

    def rows(self, observations: Sequence[Any]) -> Array:
        """Return vectors ``[N, size]`` of N observations."""
        values = [np.array(list(map(pick, observations))) for pick in self._picks]
        return self._join(self._numbers(values), len(observations))

    def batch(self, observation: Any) -> Array:
        """Return vectors ``[N, size]`` of the observations of a vector environment: the space's
        structure with arrays ``[N, ...]`` in it.
        """
        values = [np.asarray(pick(observation, leaf.path)) for leaf in self._leaves]
        return self._join(self._numbers(values), len(values[0]))

    def _numbers(self, values: Sequence[Array]) -> list[Array]:
        return [
            numbers_of(value, leaf.space.dtype, name)
            for value, leaf, name in zip(values, self._leaves, self._names, strict=True)
        ]

    def given(self, observation: Any) -> tuple[Array, bool]:
        """Return vectors ``[N, size]`` of what a user gives, and whether it is a single observation
        (then N is 1) instead of a batch as of `batch`.

        Raises:
            UserError: a part is missing, holds no numbers, has another shape or another value than
                the space has.
        """
        values = []
        for leaf in self._leaves:
            try:
                value = np.asarray(pick(observation, leaf.path))
            except (KeyError, IndexError, TypeError, ValueError) as error:
                raise UserError(missing(observation, leaf.path)) from error
            if value.dtype.kind not in "fiub":
                raise UserError(f"{part_text('the observation', leaf.path)} holds no numbers.")
            values.append(value)
        single = all(
            value.ndim == len(leaf.space.shape)
            for value, leaf in zip(values, self._leaves, strict=True)
        )
        if single:
            values = [value[None] for value in values]
        count = len(values[0]) if values[0].ndim else 0
        try:
            return self._join(values, count), single
        except ValueError as error:
            raise UserError(str(error)) from error

    def _join(self, values: Sequence[Array], count: int) -> Array:
        for value, shape in zip(values, self._shapes, strict=True):
            if value.shape != (count, *shape):
                self._refuse_shape(values, count)
        if self._as_they_are:
            rows = [value.reshape(count, -1) for value in values]
            return np.concatenate(rows, 1, dtype=np.float32, casting="unsafe")
        numbers = np.zeros((count, self.floats), np.float32)
        joined = numbers
        if self.packed:
            joined = np.zeros((count, *self.space.shape), np.uint8)
            numbers = joined[:, : self.floats * FLOAT_BYTES].view(np.float32)
        for leaf, value in zip(self._leaves, values, strict=True):
            if self.packed and is_pixels(leaf.space):
                _require_whole_numbers(leaf, value)
                joined[:, leaf.columns] = value.reshape(count, -1)
            elif leaf.one_hot is None:
                numbers[:, leaf.columns] = value.reshape(count, -1)
            else:
                _write_one_hot(numbers[:, leaf.columns], value, leaf, leaf.one_hot)
        return joined

    def _refuse_shape(self, values: Sequence[Array], count: int) -> NoReturn:
        for leaf, value in zip(self._leaves, values, strict=True):
            if value.shape != (count, *leaf.space.shape):
                raise ValueError(
                    f"{part_text('an observation', leaf.path)} has the shape {value.shape[1:]}, "
                    f"its space says {leaf.space.shape}."
                )
        raise AssertionError("every part has its shape")


def _write_one_hot(columns: Array, value: Array, leaf: _Leaf, one_hot: _OneHot) -> None:
    _require_whole_numbers(leaf, value)
    count = len(value)
    index = value.reshape(count, -1).astype(np.int64, copy=False) - one_hot.start
    # As unsigned numbers, negative ones are too large as well.
    if (index.view(np.uint64) >= one_hot.counts).any():
        raise ValueError(
            f"{part_text('an observation', leaf.path)} is not in its space {leaf.space}: "
            f"{value.tolist()}."
        )
    columns[np.arange(count)[:, None], index + one_hot.first] = 1.0


def _require_whole_numbers(leaf: _Leaf, value: Array) -> None:
    if value.dtype.kind not in "iub":
        raise ValueError(
            f"{part_text('an observation', leaf.path)} is of {value.dtype}, and its space is "
            f"{leaf.space}."
        )


def _pixels(space: Any, start: int) -> list[_Leaf]:
    """Return the images of bytes, one after the other from the byte ``start`` on."""
    found = []
    for path, each in leaves_of(space):
        if is_pixels(each):
            found.append(_Leaf(path, each, slice(start, start + math.prod(each.shape)), None))
            start = found[-1].columns.stop
    return found


def is_pixels(space: Any) -> bool:
    """Return whether a part is an image of bytes: uint8, three dimensions."""
    return (
        isinstance(space, spaces.Box)
        and space.dtype == np.uint8
        and len(space.shape) == _IMAGE_DIMENSIONS
    )


def _describe(path: Path, space: Any, column: int) -> _Leaf:
    columns = slice(column, column + _width(space))
    if not isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        return _Leaf(path, space, columns, None)
    counts = choices(space).reshape(-1)
    start = np.asarray(space.start, np.int64).reshape(-1)
    first = np.concatenate([[0], counts[:-1]]).cumsum()
    return _Leaf(path, space, columns, _OneHot(first, start, counts.astype(np.uint64)))


def _width(space: Any) -> int:
    """Return how many numbers a leaf becomes."""
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        return int(choices(space).sum())
    return math.prod(space.shape)


def choices(space: spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary) -> Array:
    """Return how many values each number of ``space`` has, int64 ``[*space.shape]``."""
    if isinstance(space, spaces.Discrete):
        return np.array(int(space.n), np.int64)
    if isinstance(space, spaces.MultiBinary):
        return np.full(space.shape, 2, np.int64)
    return np.asarray(space.nvec, np.int64)


def flattening_of(space: Any) -> Flattening | None:
    """Return how observations of ``space`` become vectors; None for a Box, which stays as it is."""
    return None if isinstance(space, spaces.Box) else Flattening(space)


def flat_space(space: Any) -> Any:
    """Return the Box of what a policy reads of observations of ``space``."""
    return space if isinstance(space, spaces.Box) else Flattening(space).space


def batched_array(observation: Any, space: Any) -> Array:
    """Return a vector environment's observations of ``space`` as a new array ``[N, ...]``."""
    if isinstance(space, spaces.Box):
        return np.array(observation, space.dtype)
    return Flattening(space).batch(observation)


def with_row_axis(observation: Any, space: Any) -> Any:
    """Return a single observation of ``space`` as a batch of one."""
    if isinstance(space, spaces.Dict):
        return {key: with_row_axis(observation[key], each) for key, each in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        pairs = zip(observation, space.spaces, strict=True)
        return tuple(with_row_axis(part, each) for part, each in pairs)
    return np.asarray(observation)[None]


def without_row_axis(batch: Any, space: Any) -> Any:
    """Return the first of a batch of ``space``: `with_row_axis` undone."""
    if isinstance(space, spaces.Dict):
        return {key: without_row_axis(batch[key], each) for key, each in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        pairs = zip(batch, space.spaces, strict=True)
        return tuple(without_row_axis(part, each) for part, each in pairs)
    return batch[0]


def require_observable(space: Any, name: str) -> None:
    """Raise unless observations of ``space`` can be learnt from.

    Raises:
        UserError: names the environment ``name``, the space and what is supported.
    """
    _require_text_keys(space, name)
    parts = list(leaves_of(space))
    for path, each in parts:
        where = f" (the observation's part {named(path)})" if path else ""
        if not isinstance(
            each, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary
        ):
            raise UserError(
                f"{name}: observation space {each}{where} is not supported; "
                f"supported: {_SUPPORTED}."
            )
        if isinstance(each, spaces.Box) and each.dtype.kind not in "fiu":
            raise UserError(
                f"{name}: a Box of {each.dtype} observations{where} is not supported; "
                "supported: floating-point and integer dtypes."
            )
    sizes = [0 if is_pixels(each) else _width(each) for _, each in parts]
    size = 0 if isinstance(space, spaces.Box) else sum(sizes)
    if not parts or size > LARGEST:
        raise UserError(
            f"{name}: observation space {space} becomes a vector of {size:,} numbers; allowed: 1 "
            f"to {LARGEST:,}."
        )


def _require_text_keys(space: Any, name: str) -> None:
    if isinstance(space, spaces.Dict):
        for key in space.spaces:
            if not isinstance(key, str):
                raise UserError(
                    f"{name}: key {key!r} of the observation space is not supported; "
                    "supported: text."
                )
    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts = space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces
        for part in parts:
            _require_text_keys(part, name)


def require_integers(observation: Any, space: Any) -> None:
    """Raise when ``space``, or a part of it, says integers and ``observation`` is something else,
    which a cast would truncate in silence.

    Raises:
        UserError: names both dtypes.
        ValueError: a part is missing.
    """
    for path, each in leaves_of(space):
        if getattr(each.dtype, "kind", "") not in ("i", "u"):
            continue
        given = np.asarray(part_of(observation, path)).dtype
        if given.kind not in "iub":
            raise UserError(
                f"{part_text('the observation space', path)} says {each.dtype}, and an environment "
                f"returned a {given} observation: give the space the dtype of its observations."
            )

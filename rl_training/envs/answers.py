"""What a step answers, made plain: flags that are flags, one number as reward, observations of the
space's shape and kind.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from rl_training.envs.flatten import choices, flattening_of
from rl_training.envs.numbers import cast, numbers_of
from rl_training.envs.parts import leaves_of, part_of, part_text

Array = NDArray[Any]

_ANSWERS = {
    "reset": "reset must return (observation, info)",
    "step": "step must return (observation, reward, terminated, truncated, info)",
}
PLAIN_FLAGS = frozenset({bool, np.bool_})


def plain_flag(value: Any, name: str) -> bool:
    """Return ``terminated`` or ``truncated``, which may be an array with one of them, as a bool.

    Raises:
        ValueError: it is something else.
    """
    if type(value) is bool:
        return value
    array = np.asarray(value)
    if array.size != 1 or array.dtype.kind not in "biu":
        raise ValueError(f"{name} must be True or False, not {value!r}")
    return bool(array.reshape(()))


def plain_reward(value: Any) -> float:
    """Return a reward, which may be an array with one number.

    Raises:
        ValueError: it is something else.
    """
    if type(value) is float:
        return value
    array = np.asarray(value)
    if array.size != 1 or array.dtype.kind not in "fiub":
        raise ValueError(f"a reward must be one number, not {value!r}")
    return float(array.reshape(()))


def require_info(information: Any, after: str) -> None:
    """Raise unless an ``info`` is a dict.

    Args:
        information: what the environment gave.
        after: ``"reset"`` or ``"step"``.

    Raises:
        ValueError: it is something else.
    """
    if not isinstance(information, Mapping):
        raise ValueError(f"{_ANSWERS[after]}, info a dict, not {information!r}")


def require_fitting(observation: Any, space: Any) -> None:
    """Raise where an observation, or a part of it, is missing, has another shape than its space, or
    holds what its space has no room for.

    A worker's memory would be filled with copies of what is too small, and casts in silence.

    Raises:
        ValueError: names the part.
    """
    for path, each in leaves_of(space):
        value = part_of(observation, path)
        name = part_text("an observation", path)
        if np.shape(value) != tuple(each.shape):
            raise ValueError(
                f"an environment returned {name} of shape {np.shape(value)}, its space says "
                f"{tuple(each.shape)}"
            )
        numbers = numbers_of(value, each.dtype, name)
        if isinstance(each, spaces.Discrete | spaces.MultiDiscrete):
            index = numbers.astype(np.int64) - each.start
            if (index < 0).any() or (index >= choices(each)).any():
                raise ValueError(
                    f"an environment returned {name} {numbers.tolist()}, which is not in its space "
                    f"{each}"
                )


def stacker(space: Any) -> Callable[[Sequence[Any]], Array]:
    """Return what makes rows ``[N, *obs]`` of N observations of ``space``: copies, so that an
    environment may go on writing into the array it returned.

    It raises ``ValueError`` where `require_fitting` does, without naming the row.
    """
    flattening = flattening_of(space)
    return functools.partial(_stacked, space) if flattening is None else flattening.rows


def batcher(space: Any) -> Callable[[Any], Array]:
    """Return what copies a vector environment's observations of ``space``, and raises in the same
    way.
    """
    flattening = flattening_of(space)
    return functools.partial(_stacked, space) if flattening is None else flattening.batch


def _stacked(space: Any, observations: Any) -> Array:
    # Without a dtype, which would truncate fractions in silence.
    rows = cast(numbers_of(np.array(observations), space.dtype), space.dtype)
    if rows.shape[1:] != space.shape:
        raise ValueError(
            f"an environment returned an observation of shape {rows.shape[1:]}, its space says "
            f"{space.shape}."
        )
    return rows

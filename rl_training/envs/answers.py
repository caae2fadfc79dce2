"""What a step answers, made plain: flags that are flags, one number as reward, observations of the
space's shape.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rl_training.envs.flatten import leaves_of, part_of, part_text

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


def require_shapes(observation: Any, space: Any) -> None:
    """Raise where an observation, or a part of it, is missing or has another shape than its space.

    A worker's memory would be filled with copies of what is too small.

    Raises:
        ValueError: names the part.
    """
    for path, each in leaves_of(space):
        value = part_of(observation, path)
        if np.shape(value) != tuple(each.shape):
            raise ValueError(
                f"an environment returned {part_text('an observation', path)} of shape "
                f"{np.shape(value)}, its space says {tuple(each.shape)}"
            )

"""Actions with parts: a Dict or a Tuple of discrete and continuous ones, as one row of numbers.

A policy, the batch and the log of actions know rows alone; the structure comes back where an
environment, or a user, takes them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torchrl.data import Bounded, MultiCategorical, TensorSpec

from rl_training.envs.flatten import choices
from rl_training.envs.parts import Path, leaves_of
from rl_training.envs.spaces import DISCRETE, ActionMap, action_spec
from rl_training.errors import UserError

Array = NDArray[Any]


class _Part(NamedTuple):
    """A part of an action that has none itself."""

    path: Path
    space: Any
    columns: slice
    convert: ActionMap


def ordered_parts(space: Any) -> list[tuple[Path, Any]]:
    """Return the parts of ``space`` in the order of a row: discrete ones first, then Boxes, each in
    the order of `leaves_of`.
    """
    parts = list(leaves_of(space))
    return sorted(parts, key=lambda part: not isinstance(part[1], DISCRETE))


def policy_numbers(space: Any) -> tuple[tuple[int, ...], int]:
    """Return how many choices each discrete number of a row has, and how many numbers follow."""
    parts = [each for _, each in ordered_parts(space)]
    sizes = [choices(each).reshape(-1) for each in parts if isinstance(each, DISCRETE)]
    boxes = [each for each in parts if isinstance(each, spaces.Box)]
    return tuple(int(size) for each in sizes for size in each), sum(
        math.prod(box.shape) for box in boxes
    )


def is_hybrid(space: Any) -> bool:
    """Return whether actions of ``space`` have parts."""
    return isinstance(space, spaces.Dict | spaces.Tuple)


def require_continuous(space: Any, *, gsde: bool, squash: bool) -> None:
    """Raise when exploration or squashing of continuous actions is asked for where there are none.

    Raises:
        UserError: gSDE without a Box, squashing without a part that is one.
    """
    boxes = [isinstance(each, spaces.Box) for _, each in leaves_of(space)]
    if (gsde and not isinstance(space, spaces.Box)) or (squash and not any(boxes)):
        raise UserError("algorithm.gsde and algorithm.squash need continuous actions (a Box).")


class HybridActionMap:
    """An `ActionMap` for a Dict or a Tuple.

    A policy's action is a row of K numbers: discrete ones, counted from 0, before those of Boxes;
    int64 where there are no Boxes, else float32. ``to_env`` gives rows of float64, each number as
    its part of the space has it; ``rows`` and ``batch`` give them their structure.

    Args:
        space: the Dict or Tuple.
        squash: take Boxes through tanh onto their bounds instead of clipping to them.

    Raises:
        UserError: ``squash`` with an infinite bound.
    """

    dtype = np.dtype(np.float64)

    def __init__(self, space: Any, *, squash: bool = False) -> None:
        self.space = space
        self.squash = squash
        self._parts: list[_Part] = []
        column = 0
        for path, each in ordered_parts(space):
            columns = slice(column, column + math.prod(each.shape))
            own = squash and isinstance(each, spaces.Box)
            self._parts.append(_Part(path, each, columns, ActionMap(each, squash=own)))
            column = columns.stop
        self.shape = (column,)

    def to_env(self, action: Array) -> Array:
        """Return a policy's ``action`` ``[N, K]`` as new rows of float64, each number within its
        part's bounds.

        Raises:
            ValueError: the actions have another shape than ``[N, K]``.
        """
        if action.shape[1:] != self.shape:
            raise ValueError(f"actions of shape {action.shape} do not fit [N, *{self.shape}].")
        result = np.empty(action.shape, np.float64)
        for part in self._parts:
            given = action[:, part.columns].reshape(-1, *part.space.shape)
            if isinstance(part.space, DISCRETE):
                most = choices(part.space) - 1
                given = np.rint(given).astype(np.int64).clip(0, most)
            result[:, part.columns] = part.convert.to_env(given).reshape(len(action), -1)
        return result

    def zeros(self, count: int) -> Array:
        """Return what ``count`` zeros of a policy become: rows within the space."""
        return self.to_env(np.zeros((count, *self.shape), np.float32))

    def taken(self, action: Array, *, single: bool) -> Any:
        """Return a policy's actions ``[N, K]`` as an environment takes them: of a single one the
        structure itself, else the structure with arrays ``[N, ...]`` in it.
        """
        converted = self.to_env(action)
        return self.rows(converted)[0] if single else self.batch(converted)

    def batch(self, rows: Array) -> Any:
        """Return rows of ``to_env`` as a vector environment takes them: arrays ``[N, ...]``."""
        return self._built(self._values(rows))

    def rows(self, rows: Array) -> list[Any]:
        """Return rows of ``to_env`` as N environments take them."""
        values = self._values(rows)
        return [
            self._built({path: value[row] for path, value in values.items()})
            for row in range(len(rows))
        ]

    def _values(self, rows: Array) -> dict[Path, Array]:
        return {
            part.path: rows[:, part.columns]
            .reshape(-1, *part.space.shape)
            .astype(part.convert.dtype)
            for part in self._parts
        }

    def _built(self, values: Mapping[Path, Any]) -> Any:
        return _structure(self.space, values, ())


def _structure(space: Any, values: Mapping[Path, Any], path: Path) -> Any:
    if isinstance(space, spaces.Dict):
        parts = space.spaces.items()
        return {key: _structure(each, values, (*path, key)) for key, each in parts}
    if isinstance(space, spaces.Tuple):
        return tuple(
            _structure(each, values, (*path, index)) for index, each in enumerate(space.spaces)
        )
    return values[path]


AnyActionMap = ActionMap | HybridActionMap


def action_map(space: Any, *, squash: bool = False, scale: bool = False) -> AnyActionMap:
    """Return how a policy's actions become those of ``space``; see `ActionMap`."""
    if is_hybrid(space):
        return HybridActionMap(space, squash=squash)
    return ActionMap(space, squash=squash, scale=scale)


def policy_spec(
    space: Any, num_envs: int, *, squash: bool = False, scale: bool = False
) -> TensorSpec:
    """Return the TorchRL spec of the actions a policy gives; of actions with parts, rows ``[N,
    K]``.
    """
    if not is_hybrid(space):
        return action_spec(space, num_envs, squash=squash, scale=scale)
    parts = [each for _, each in ordered_parts(space)]
    counts = [choices(each).reshape(-1) for each in parts if isinstance(each, DISCRETE)]
    boxes = [each for each in parts if isinstance(each, spaces.Box)]
    if not boxes:
        most = torch.from_numpy(np.concatenate(counts)).expand(num_envs, -1).clone()
        return MultiCategorical(
            most, shape=most.shape, dtype=torch.int64, device="cpu", remove_singleton=False
        )
    lows = [np.zeros(len(each)) for each in counts] + [_finite(box.low) for box in boxes]
    highs = [each - 1.0 for each in counts] + [_finite(box.high) for box in boxes]
    low, high = (
        torch.from_numpy(np.concatenate(bound).astype(np.float32)).expand(num_envs, -1)
        for bound in (lows, highs)
    )
    return Bounded(low, high, shape=low.shape, dtype=torch.float32, device="cpu")


def _finite(bound: Array) -> Array:
    """Return numbers to draw between where a bound is infinite."""
    return np.clip(np.asarray(bound, np.float64).reshape(-1), -1e6, 1e6)


def as_rows(space: Any) -> tuple[Callable[[Array], Any], Callable[[Array], Any]]:
    """Return what turns ``to_env``'s actions into those of N environments, and what into those of a
    vector environment.
    """
    if is_hybrid(space):
        made = HybridActionMap(space)
        return made.rows, made.batch
    return _same, _same


def _same(actions: Array) -> Array:
    return actions

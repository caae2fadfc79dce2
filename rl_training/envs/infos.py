"""What environments tell beside observation and reward: the keys of ``info`` that a user names."""

from __future__ import annotations

import copy
import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rl_training.envs.answers import plain_flag, plain_reward, require_fitting, require_info
from rl_training.errors import UserError

Array = NDArray[Any]
logger = logging.getLogger(__name__)

_NAMED = re.compile(r"(?P<key>[^\[\]]+?)(?:\[(?P<shape>\d+(?:,\d+)*)\])?")


def parse_info_keys(names: Iterable[str]) -> dict[str, tuple[int, ...]]:
    """Return shape by key: ``"success"`` is one number, ``"position[3]"`` and ``"grid[2,4]"`` are
    arrays.

    Raises:
        UserError: a name of another form, or one that is there twice.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for name in names:
        match = _NAMED.fullmatch(name.replace(" ", ""))
        if match is None:
            raise UserError(
                f"env.info_keys: {name!r} does not have the form 'key' or, of an array, 'key[3]'."
            )
        key, shape = match["key"], match["shape"]
        if key in shapes:
            raise UserError(f"env.info_keys: {key!r} is there twice.")
        shapes[key] = tuple(int(each) for each in shape.split(",")) if shape else ()
    return shapes


GAME_KEYS = ("score", "game_length", "game_over")
"""What a step tells of the game that its episode is a part of."""


class NamedInfo:
    """Reads the named keys of the ``info`` of steps as float32 arrays.

    Args:
        names: as `parse_info_keys` takes them.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.shapes = parse_info_keys(names)
        self._unseen = set(self.shapes)

    def of(self, information: Mapping[str, Any]) -> dict[str, Array]:
        """Return what one environment's step told of the keys; what it left out is not there.

        Raises:
            ValueError: a value that is no number, or has another shape than was said.
        """
        told = {}
        for key, shape in self.shapes.items():
            value = information.get(key)
            if value is None:
                continue
            array = np.asarray(value)
            if array.dtype.kind not in "fiub":
                raise ValueError(
                    f"env.info_keys: info[{key!r}] is {type(value).__name__}, no number"
                )
            if array.shape != shape and not (shape == () and array.shape == (1,)):
                size = f"[{','.join(map(str, array.shape))}]" if array.shape else ""
                kind = "an array" if array.shape else "a number"
                raise ValueError(
                    f"env.info_keys: info[{key!r}] has the shape {array.shape}, not {shape}; "
                    f"of {kind} say '{key}{size}'"
                )
            told[key] = array.reshape(shape).astype(np.float32)
        return told

    def join(self, told: Sequence[Mapping[str, Array]], *, ended: bool) -> dict[str, Array]:
        """Return ``[N, *shape]`` (of a number ``[N, 1]``) by key from what N environments told; NaN
        where one left a key out. Once an episode has ``ended``, says what was never told.
        """
        joined = {}
        for key, shape in self.shapes.items():
            values = np.full((len(told), *(shape or (1,))), np.nan, np.float32)
            for row, each in enumerate(told):
                if key in each:
                    values[row] = each[key]
                    self._unseen.discard(key)
            joined[key] = values
        if ended and self._unseen:
            logger.warning(
                "env.info_keys: no step of the first episode told %s; they are NaN.",
                ", ".join(map(repr, sorted(self._unseen))),
            )
            self._unseen = set()
        return joined

    def split(self, information: Mapping[str, Any], num_envs: int) -> list[dict[str, Any]]:
        """Return the info of each row from that of a vector environment: arrays ``[N, ...]`` under
        ``key``, and bools ``[N]`` under ``_key`` where not every row has it.
        """
        rows: list[dict[str, Any]] = [{} for _ in range(num_envs)]
        for key in self.shapes:
            values = information.get(key)
            if values is None:
                continue
            has = information.get(f"_{key}", np.ones(num_envs, bool))
            for row in np.flatnonzero(has).tolist():
                rows[row][key] = values[row]
        return rows


class Asked(NamedTuple):
    """What is asked of rows beside steps and resets."""

    info: NamedInfo | None = None
    reset_options: Mapping[str, Any] | None = None

    @classmethod
    def of(cls, info_keys: Sequence[str], reset_options: Mapping[str, Any]) -> Asked:
        """Return it as ``env.info_keys`` and ``env.reset_options`` say it."""
        return cls(NamedInfo(info_keys) if info_keys else None, reset_options or None)

    def options(self) -> dict[str, Any] | None:
        """Return new options of a reset, which an environment may change."""
        return None if self.reset_options is None else copy.deepcopy(dict(self.reset_options))

    def refuse(self, what: str) -> None:
        """Raise `UserError` where ``what`` is asked for something that it cannot give."""
        for name, value in (("info_keys", self.info), ("reset_options", self.reset_options)):
            if value is not None:
                raise UserError(f"env.{name}: {what} takes none.")


class PlainStep:
    """Steps an environment, makes its answer plain (`rl_training.envs.answers`) and leaves of its
    ``info`` what is read: the named keys, as float32, and the keys ``kept``.

    In a worker: a vector environment makes arrays of all of the rows' answers. It fills those of
    observations with copies of what is too small, and fails where an info changes its shape or its
    kind, and gives all rows the dtype of the first.
    """

    def __init__(
        self,
        step: Callable[[Any], Any],
        space: Any,
        names: Sequence[str],
        kept: Sequence[str],
    ) -> None:
        self._step, self._space = step, space
        self._info, self._kept = NamedInfo(names), kept

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step."""
        observation, reward, terminated, truncated, information = self._step(action)
        require_info(information, "step")
        require_fitting(observation, self._space)
        kept = {key: information[key] for key in self._kept if key in information}
        told = {**kept, **self._info.of(information)}
        flags = plain_flag(terminated, "terminated"), plain_flag(truncated, "truncated")
        return observation, plain_reward(reward), *flags, told

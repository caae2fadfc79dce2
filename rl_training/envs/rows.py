"""The sub-environments of a gymnasium vector environment, stepped and reset row by row: raw NumPy
in, raw NumPy out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, cast

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv
from numpy.typing import NDArray

from rl_training.envs.answers import (
    PLAIN_FLAGS,
    batcher,
    plain_flag,
    plain_reward,
    require_fitting,
    require_info,
    stacker,
)
from rl_training.envs.flatten import require_integers
from rl_training.envs.hybrid import as_rows
from rl_training.envs.infos import GAME_KEYS, Asked, NamedInfo
from rl_training.envs.seeding import SeededEpisodes
from rl_training.envs.workers import as_raised, dead_worker

Array = NDArray[Any]
NOTHING = Asked()
_DICTS = frozenset({dict})
_NUMBERS = frozenset("fiub")
"""Kinds of the dtypes that rewards have."""


class RowError(Exception):
    """A sub-environment failed; ``__cause__`` is its own exception."""

    def __init__(self, row: int | None) -> None:
        """Remember the row, or ``None`` where it is unknown."""
        super().__init__(f"row {row}")
        self.row = row


class Games(NamedTuple):
    """The games that the rows' episodes are parts of."""

    score: Array
    """float64 ``[N]``: the game's own rewards so far."""
    length: Array
    """int64 ``[N]``: steps of the game so far."""
    over: Array
    """bool ``[N]``."""

    @classmethod
    def of(cls, information: Mapping[str, Any]) -> Games:
        """Read them from what a step says beside its result, arrays or lists ``[N]``."""
        return cls(
            np.array(information["score"], np.float64),
            np.array(information["game_length"], np.int64),
            np.array(information["game_over"], bool),
        )


class RowStep(NamedTuple):
    """What one vector step gave, before any reset."""

    observation: Array
    """Fresh array ``[N, *obs]`` in the environment's dtype."""
    reward: Array
    """float64 ``[N]``."""
    terminated: list[Any]
    truncated: list[Any]
    games: Games | None = None
    """Where an episode is a life, the games; then returns and lengths are theirs."""
    info: dict[str, Array] | None = None
    """The named keys of ``info``, float32 ``[N, 1]`` or ``[N, *shape]``."""


class Rows(Protocol):
    """N sub-environments that never reset on their own."""

    num_envs: int
    plays_games: bool
    """Whether steps give ``games``."""
    can_resume: bool
    """Whether a row can be brought back to where it was: by its state, or by replaying."""

    def step(self, actions: Array) -> RowStep:
        """Step every row with the environment-ready ``actions`` ``[N, *act]``."""

    def reset(self, rows: Sequence[int], seeds: Sequence[int]) -> Array:
        """Start episodes in ``rows``, leaving the others alone, and return their observations
        ``[len(rows), *obs]``.
        """

    @property
    def can_snapshot(self) -> bool:
        """Whether every row gives its whole state, so that none needs to be replayed."""

    def snapshot(self) -> list[dict[str, Any]]:
        """Return the whole state of every row; only where ``can_snapshot``."""

    def restore(self, states: Sequence[dict[str, Any]]) -> None:
        """Bring every row to where `snapshot` was taken."""


class WithoutSnapshots:
    """Rows whose state is not to be had."""

    def snapshot(self) -> list[dict[str, Any]]:
        """Raise: there is nothing to save."""
        raise NotImplementedError

    def restore(self, states: Sequence[dict[str, Any]]) -> None:
        """Raise: there is nothing to restore."""
        raise NotImplementedError


def make_rows(vector: Any, asked: Asked = NOTHING) -> Rows:
    """Return the fastest access to ``vector``'s rows.

    Raises:
        UserError: they cannot give what is ``asked``.
    """
    if hasattr(vector, "can_resume"):  # it is made of rows already
        vector.ask(asked)
        return cast("Rows", vector)
    if type(vector) is SyncVectorEnv:
        return LoopedRows(vector, asked)
    return BatchedRows(vector, asked)


def _plays_games(env: Any) -> bool:
    return isinstance(env, SeededEpisodes) and env.plays_games


def _games(information: Sequence[dict[str, Any]]) -> Games:
    return Games.of({key: [each[key] for each in information] for key in GAME_KEYS})


def joined_info(
    info: NamedInfo | None, told: Sequence[dict[str, Array]], *ends: Sequence[Any]
) -> dict[str, Array] | None:
    """Return the named info of all rows after a step, from what each told; None: none is named."""
    return None if info is None else info.join(told, ended=any(map(any, ends)))


def _name_the_row(values: Sequence[Any], check: Callable[[Any], object]) -> None:
    """Raise `RowError` for the first of the ``values`` that ``check`` refuses, if there is one."""
    row = 0
    try:
        for row, value in enumerate(values):  # noqa: B007  for the error
            check(value)
    except Exception as error:
        raise RowError(row) from error


def _plain_flags(values: list[Any], name: str) -> list[Any]:
    if PLAIN_FLAGS.issuperset(map(type, values)):
        return values
    _name_the_row(values, lambda value: plain_flag(value, name))
    return [plain_flag(value, name) for value in values]


class LoopedRows:
    """Rows of a ``SyncVectorEnv``, in a plain loop over its environments: cheaper than its own
    ``step``.
    """

    can_resume = True

    def __init__(self, vector: SyncVectorEnv, asked: Asked = NOTHING) -> None:
        """Keep the environments' bound methods."""
        self._asked = asked
        self.num_envs = vector.num_envs
        space = vector.single_observation_space
        self._envs: list[gymnasium.Env[Any, Any]] = list(vector.envs)
        self._steps = [env.step for env in self._envs]
        self._space = space
        self._stack = stacker(space)
        self._actions = as_rows(vector.single_action_space)[0]
        self._unchecked = {"reset", "step"}
        self.plays_games = all(_plays_games(env) for env in self._envs)

    def step(self, actions: Array) -> RowStep:
        """See :class:`Rows`."""
        observations: list[Any] = []
        rewards: list[Any] = []
        terminated: list[Any] = []
        truncated: list[Any] = []
        information: list[dict[str, Any]] = []
        told: list[dict[str, Array]] = []
        info = self._asked.info
        try:
            for step, action in zip(self._steps, self._actions(actions), strict=True):
                observation, reward, terminal, limit, beside = step(action)
                information.append(beside)
                if info is not None:
                    told.append(info.of(beside))
                observations.append(observation)
                rewards.append(reward)
                terminated.append(terminal)
                truncated.append(limit)
        except (Exception, SystemExit) as error:  # an exit would end the run as if it were done
            raise RowError(len(observations)) from error
        if "step" in self._unchecked:
            _name_the_row(observations, self._require_integers)
            self._unchecked.discard("step")
        if not _DICTS.issuperset(map(type, information)):
            _name_the_row(information, lambda each: require_info(each, "step"))
        terminated = _plain_flags(terminated, "terminated")
        truncated = _plain_flags(truncated, "truncated")
        return RowStep(
            self._stacked(observations),
            # Some environments return rewards of shape [1].
            self._numbers(rewards),
            terminated,
            truncated,
            _games(information) if self.plays_games else None,
            joined_info(info, told, terminated, truncated),
        )

    def _stacked(self, observations: list[Any]) -> Array:
        try:
            return self._stack(observations)
        except (ValueError, TypeError, KeyError, IndexError):
            _name_the_row(observations, lambda each: require_fitting(each, self._space))
            raise

    def _numbers(self, rewards: list[Any]) -> Array:
        try:
            # Without a dtype: NumPy would read numbers out of texts, and NaN out of None.
            numbers = np.array(rewards)
            if numbers.dtype.kind in _NUMBERS:
                return numbers.astype(np.float64, copy=False).reshape(self.num_envs)
        except (ValueError, TypeError):
            _name_the_row(rewards, plain_reward)
            raise
        _name_the_row(rewards, plain_reward)
        return np.array(rewards, np.float64).reshape(self.num_envs)

    def reset(self, rows: Sequence[int], seeds: Sequence[int]) -> Array:
        """See :class:`Rows`."""
        observations = []
        for row, seed in zip(rows, seeds, strict=True):
            try:
                observation, beside = self._envs[row].reset(
                    seed=seed, options=self._asked.options()
                )
                require_info(beside, "reset")
                if "reset" in self._unchecked:
                    self._require_integers(observation)
                    self._unchecked.discard("reset")
                # A copy: an environment may hand out the array that its next reset overwrites.
                observations.append(self._stack([observation])[0])
            except (Exception, SystemExit) as error:  # noqa: PERF203  it names the row
                raise RowError(row) from error
        return np.array(observations)

    @property
    def can_snapshot(self) -> bool:
        """See :class:`Rows`."""
        return all(isinstance(env, SeededEpisodes) and env.can_snapshot for env in self._envs)

    def snapshot(self) -> list[dict[str, Any]]:
        """See :class:`Rows`."""
        return [cast("SeededEpisodes", env).snapshot() for env in self._envs]

    def restore(self, states: Sequence[dict[str, Any]]) -> None:
        """See :class:`Rows`."""
        for env in self._envs:
            cast("SeededEpisodes", env).restore(states)

    def _require_integers(self, observation: Any) -> None:
        require_integers(observation, self._space)


class BatchedRows:
    """Rows of any vector environment that takes ``options={"reset_mask": ...}``."""

    can_resume = True

    def __init__(self, vector: Any, asked: Asked = NOTHING) -> None:
        """Wrap ``vector``."""
        self._asked = asked
        self.num_envs: int = vector.num_envs
        self._vector = vector
        self._array = batcher(vector.single_observation_space)
        self._actions = as_rows(vector.single_action_space)[1]
        self.plays_games = self._all("plays_games")

    def step(self, actions: Array) -> RowStep:
        """See :class:`Rows`."""
        try:
            given = self._actions(actions)
            observation, reward, terminated, truncated, beside = self._vector.step(given)
        except Exception as error:
            raise self._failure(error)  # noqa: B904  it has a cause
        numbers = self._of_every_row(np.array(reward), "rewards")
        if numbers.dtype.kind not in _NUMBERS or numbers.ndim != 1:
            _name_the_row(list(numbers), plain_reward)
        ended = self._flags(terminated, "terminated")
        cut = self._flags(truncated, "truncated")
        return RowStep(
            self._of_every_row(self._array(observation), "observations"),
            numbers.astype(np.float64, copy=False).reshape(self.num_envs),
            ended,
            cut,
            Games.of(beside) if self.plays_games else None,
            joined_info(self._asked.info, self._told(beside), ended, cut),
        )

    def _flags(self, values: Any, name: str) -> list[Any]:
        array = self._of_every_row(np.asarray(values), name)
        if array.dtype == np.bool_ and array.ndim == 1:
            return cast("list[Any]", array.tolist())
        return _plain_flags(list(array), name)

    def _of_every_row(self, array: Array, what: str) -> Array:
        if array.shape[:1] != (self.num_envs,):
            raise ValueError(
                f"{what} of a vector of {self.num_envs} environments are {array.shape}."
            )
        return array

    def _told(self, beside: dict[str, Any]) -> list[dict[str, Array]]:
        info = self._asked.info
        told: list[dict[str, Array]] = []
        if info is None:
            return told
        try:
            for each in info.split(beside, self.num_envs):
                told.append(info.of(each))  # noqa: PERF401  a failure is the row's after the last
        except ValueError as error:
            raise RowError(len(told)) from error
        return told

    def reset(self, rows: Sequence[int], seeds: Sequence[int]) -> Array:
        """See :class:`Rows`."""
        mask = np.zeros(self.num_envs, bool)
        mask[list(rows)] = True
        by_row: list[int | None] = [None] * self.num_envs
        for row, seed in zip(rows, seeds, strict=True):
            by_row[row] = seed
        # Every row: no mask, so that a vector environment which insists on one full reset first
        # gets it.
        options = self._asked.options()
        if not mask.all():
            options = {**(options or {}), "reset_mask": mask}
        try:
            observation, _ = self._vector.reset(seed=by_row, options=options)
        except Exception as error:
            raise self._failure(error)  # noqa: B904  it has a cause
        return self._of_every_row(self._array(observation), "observations")[list(rows)]

    @property
    def can_snapshot(self) -> bool:
        """See :class:`Rows`."""
        return self._all("can_snapshot")

    def _all(self, name: str) -> bool:
        """Return whether every environment says so; only gymnasium's own workers are asked."""
        if type(self._vector) is not AsyncVectorEnv:
            return False
        known = self._vector.call("has_wrapper_attr", name)
        return all(known) and all(self._vector.get_attr(name))

    def snapshot(self) -> list[dict[str, Any]]:
        """See :class:`Rows`."""
        return list(self._vector.call("snapshot"))

    def restore(self, states: Sequence[dict[str, Any]]) -> None:
        """See :class:`Rows`."""
        self._vector.call("restore", list(states))

    def _failure(self, error: Exception) -> RowError:
        row = self._failed_row()
        # Where no environment said so, an error of a pipe is that of a worker's end.
        broken = row is None and isinstance(error, EOFError | OSError)
        if broken and hasattr(self._vector, "processes"):
            row, what = dead_worker(self._vector)
            failure = RowError(row)
            failure.__cause__ = RuntimeError(f"{what}: {type(error).__name__}")
            return failure
        failure = RowError(row)
        failure.__cause__ = error if row is None else as_raised(error)
        return failure

    def _failed_row(self) -> int | None:
        # AsyncVectorEnv forgets the pipe of a worker that failed, and says no more about which one
        # it was.
        pipes = getattr(self._vector, "parent_pipes", [])
        return next((row for row, pipe in enumerate(pipes) if pipe is None), None)

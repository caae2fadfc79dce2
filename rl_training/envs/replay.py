"""Exact resume without simulator state: the actions of every running episode are logged, and
replayed from its seed.

The last finished episode of every row is kept too, when it is no longer than
``VERIFIED_LENGTH``: replaying it shows what the first steps of a running one may not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rl_training.envs.rows import Rows
from rl_training.errors import UserError

Array = NDArray[Any]

VERIFIED_LENGTH = 2000
"""Steps up to which a finished episode is kept and replayed at load."""


class ResumeError(UserError):
    """The environments cannot be brought back to where they were."""


class ActionLog:
    """The environment-ready actions of every running episode.

    One array per vector step, shared by the rows, with the step at which each row's episode began:
    logging costs one list append per vector step. Steps that precede every running episode are
    dropped now and then. An episode without end keeps all of its actions, which is what replaying
    it takes.
    """

    def __init__(self, num_envs: int) -> None:
        """Start with empty episodes in ``num_envs`` rows."""
        self.num_envs = num_envs
        self._steps: list[Array] = []
        self._starts = [0] * num_envs
        # Of each row's last finished episode: where it lies among the steps, or its actions.
        self._finished: list[range | Array | None] = [None] * num_envs
        self._prune_at = 1024
        self.append = self._steps.append

    def __len__(self) -> int:
        """Return how many vector steps are held."""
        return len(self._steps)

    def begin(self, rows: Sequence[int]) -> None:
        """Start new, empty episodes in ``rows``."""
        now = len(self._steps)
        for row in rows:
            self._starts[row] = now
        if now >= self._prune_at:
            self._prune()

    def finish(self, rows: Sequence[int]) -> None:
        """Note that the running episodes of ``rows`` have come to their own end."""
        now = len(self._steps)
        for row in rows:
            start = self._starts[row]
            self._finished[row] = range(start, now) if now - start <= VERIFIED_LENGTH else None

    def _prune(self) -> None:
        running = min(self._starts)
        # A finished episode lies further back only where its row was reset again and again.
        if any(
            isinstance(each, range) and each.start < running - VERIFIED_LENGTH
            for each in self._finished
        ):
            self._finished = list(self.finished())
        first = min([running, *(each.start for each in self._finished if isinstance(each, range))])
        del self._steps[:first]
        self._starts = [start - first for start in self._starts]
        self._finished = [
            range(each.start - first, each.stop - first) if isinstance(each, range) else each
            for each in self._finished
        ]
        # Twice what is left: the cost of pruning stays a constant per step.
        self._prune_at = max(1024, 2 * len(self._steps))

    def episodes(self) -> list[Array]:
        """Return each row's actions since its episode began, ``[length, *act]``."""
        return [self._episode(row, self._steps[start:]) for row, start in enumerate(self._starts)]

    def finished(self) -> list[Array | None]:
        """Return the actions of each row's last finished episode; None where it is too long."""
        return [
            self._episode(row, self._steps[each.start : each.stop])
            if isinstance(each, range)
            else each
            for row, each in enumerate(self._finished)
        ]

    def _episode(self, row: int, steps: list[Array]) -> Array:
        return np.stack([actions[row] for actions in steps]) if steps else np.empty(0)

    def restore(
        self, episodes: Sequence[Array], empty: Array, finished: Sequence[Array | None] = ()
    ) -> None:
        """Take over what :meth:`episodes` and :meth:`finished` returned; ``empty`` ``[N, *act]``
        fills the steps before a row's episode.
        """
        self._finished = list(finished) or [None] * self.num_envs
        length = max(len(episode) for episode in episodes)
        self._starts = [length - len(episode) for episode in episodes]
        self._steps[:] = aligned_actions(episodes, empty)


def aligned_actions(episodes: Sequence[Array], filler: Array) -> list[Array]:
    """Return batches ``[N, *act]`` in which every row's episode ends with the last one; ``filler``
    comes before it.
    """
    length = max(len(episode) for episode in episodes)
    batches = [filler.copy() for _ in range(length)]
    for row, episode in enumerate(episodes):
        for step, action in enumerate(episode, start=length - len(episode)):
            batches[step][row] = action
    return batches


class Replayed(NamedTuple):
    """Where a replay arrived."""

    observation: Array
    """Raw, ``[N, *obs]``."""
    returns: Array
    """float64 ``[N]``: the rewards of each episode, added up in order."""
    ended: list[int]
    """Rows whose episode ended during the replay, which the recorded one did not."""


class Finished(NamedTuple):
    """A row's last finished episode, but for its actions."""

    seed: int
    """Its reset seed."""
    observation: Array
    """Its last, raw, ``[*obs]``."""
    episode_return: float


def replay(
    rows: Rows, seeds: Sequence[int], episodes: Sequence[Array], fill: Callable[[Array], Array]
) -> Replayed:
    """Bring every row to the end of its recorded actions, all arriving at the same vector step.

    Rows are stepped together because a vector environment knows no other way. A row whose episode
    is shorter waits: it takes the valid action that ``fill`` gives, is reset if that ends an
    episode, and is reset with its seed when its turn comes.

    Args:
        rows: the sub-environments; whatever they were doing is abandoned.
        seeds: the reset seed of each row's episode.
        episodes: each row's actions, ``[length, *act]``.
        fill: from observations ``[N, *obs]`` to a valid action for each row, ``[N, *act]``.
    """
    everyone = range(rows.num_envs)
    observation = rows.reset(everyone, seeds)
    batches = aligned_actions(episodes, fill(observation))
    begin = [len(batches) - len(episode) for episode in episodes]
    returns = np.zeros(rows.num_envs, np.float64)
    ended: set[int] = set()
    unfit: set[int] = set()
    for now, actions in enumerate([*batches, None]):
        starting = {row for row in everyone if now > 0 and begin[row] == now}
        resetting = sorted(starting | unfit)
        if resetting:
            observation[resetting] = rows.reset(resetting, [seeds[row] for row in resetting])
            returns[resetting] = 0.0
        if actions is None:
            break
        waiting = [row for row in everyone if begin[row] > now]
        if waiting:
            actions[waiting] = fill(observation)[waiting]
        step = rows.step(actions)
        observation = step.observation
        returns = returns + step.reward
        unfit = {row for row in everyone if step.terminated[row] or step.truncated[row]}
        ended |= {row for row in unfit if begin[row] <= now}
    return Replayed(observation, returns, sorted(ended))


def replay_finished(
    rows: Rows, seeds: Sequence[int], episodes: Sequence[Array], fill: Callable[[Array], Array]
) -> Replayed:
    """Replay whole episodes and return where they end.

    ``ended`` are the rows whose episode did not end with its last action, but before or not at all.
    Rows with an empty episode take part without meaning.
    """
    arrived = replay(rows, seeds, [episode[:-1] for episode in episodes], fill)
    last = fill(arrived.observation).copy()
    for row, episode in enumerate(episodes):
        if len(episode):
            last[row] = episode[-1]
    step = rows.step(last)
    going_on = {
        row for row in range(rows.num_envs) if not (step.terminated[row] or step.truncated[row])
    }
    return Replayed(
        step.observation, arrived.returns + step.reward, sorted(going_on | {*arrived.ended})
    )


def require_equal(
    recorded: Replayed,
    replayed: Replayed,
    name: str,
    *,
    rows: Sequence[int] | None = None,
    which: str = "running",
) -> None:
    """Compare two arrivals bit by bit, in ``rows`` (None: in all).

    Raises:
        ResumeError: naming the environment, the first row that differs, and the way out.
    """
    for row in range(len(recorded.returns)) if rows is None else rows:
        same = (
            row not in replayed.ended
            and recorded.observation[row].tobytes() == replayed.observation[row].tobytes()
            and recorded.returns[row].tobytes() == replayed.returns[row].tobytes()
        )
        if not same:
            raise ResumeError(
                f"{name}: environment {row} does not reproduce its {which} episode from its seed "
                "and actions, so the run cannot resume exactly; resume "
                "with `--resume approximate` to go on with fresh episodes."
            )

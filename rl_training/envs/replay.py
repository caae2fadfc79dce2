"""Exact resume without simulator state: the actions of every running episode are logged, and
replayed from its seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rl_training.envs.rows import Rows
from rl_training.errors import UserError

Array = NDArray[Any]


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

    def _prune(self) -> None:
        first = min(self._starts)
        del self._steps[:first]
        self._starts = [start - first for start in self._starts]
        # Twice what is left: the cost of pruning stays a constant per step.
        self._prune_at = max(1024, 2 * len(self._steps))

    def episodes(self) -> list[Array]:
        """Return each row's actions since its episode began, ``[length, *act]``."""
        return [self._episode(row, start) for row, start in enumerate(self._starts)]

    def _episode(self, row: int, start: int) -> Array:
        steps = self._steps[start:]
        return np.stack([actions[row] for actions in steps]) if steps else np.empty(0)

    def restore(self, episodes: Sequence[Array], empty: Array) -> None:
        """Take over what :meth:`episodes` returned; ``empty`` ``[N, *act]`` fills the steps before
        a row's episode.
        """
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


def replay(rows: Rows, seeds: Sequence[int], episodes: Sequence[Array], filler: Array) -> Replayed:
    """Bring every row to the end of its recorded actions, all arriving at the same vector step.

    Rows are stepped together because a vector environment knows no other way. A row whose episode
    is shorter waits: it takes the valid action in ``filler`` ``[N, *act]``, is reset if that ends
    an episode, and is reset with its seed when its turn comes.

    Args:
        rows: the sub-environments; whatever they were doing is abandoned.
        seeds: the reset seed of each row's episode.
        episodes: each row's actions, ``[length, *act]``.
        filler: a valid action for each row.
    """
    everyone = range(rows.num_envs)
    batches = aligned_actions(episodes, filler)
    begin = [len(batches) - len(episode) for episode in episodes]
    observation = rows.reset(everyone, seeds)
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
        step = rows.step(actions)
        observation = step.observation
        returns = returns + step.reward
        unfit = {row for row in everyone if step.terminated[row] or step.truncated[row]}
        ended |= {row for row in unfit if begin[row] <= now}
    return Replayed(observation, returns, sorted(ended))


def require_equal(recorded: Replayed, replayed: Replayed, name: str) -> None:
    """Compare two arrivals bit by bit.

    Raises:
        ResumeError: naming the environment, the first row that differs, and the way out.
    """
    for row in range(len(recorded.returns)):
        same = (
            row not in replayed.ended
            and recorded.observation[row].tobytes() == replayed.observation[row].tobytes()
            and recorded.returns[row].tobytes() == replayed.returns[row].tobytes()
        )
        if not same:
            raise ResumeError(
                f"{name}: environment {row} does not reproduce its running episode from its seed "
                "and actions, so the run "
                "cannot resume exactly; resume with `--resume approximate` to go on with fresh "
                "episodes."
            )

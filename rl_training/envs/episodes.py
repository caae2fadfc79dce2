"""The running episodes of N rows: seeds, returns, lengths, action log, normalisation. Everything a
step touches but TorchRL.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from rl_training.envs.hybrid import AnyActionMap, action_map
from rl_training.envs.masks import ObservedMasks
from rl_training.envs.normalize import Normalizer
from rl_training.envs.randomness import GeneratorWatch
from rl_training.envs.replay import (
    ActionLog,
    Finished,
    Replayed,
    ResumeError,
    replay,
    replay_finished,
    require_equal,
)
from rl_training.envs.rows import RowError, Rows, RowStep
from rl_training.envs.seeding import episode_seed
from rl_training.errors import EnvironmentFailedError, UserError, VideoError, one_line

Array = NDArray[Any]
logger = logging.getLogger(__name__)


class Transition(NamedTuple):
    """One vector step, before finished rows are reset."""

    step: RowStep
    reward: Array
    """float64 ``[N]``, normalised when asked."""
    returns: Array
    """float64 ``[N]``: raw return of each episode (or game) up to and including this step."""
    lengths: Array
    """int64 ``[N]``: its steps."""
    ended: list[int]
    """Rows whose episode ended with this step."""


class Episodes:
    """Steps and resets the rows and keeps the books of their episodes.

    Arrays it hands out are fresh at every step and never written again.
    """

    def __init__(
        self,
        rows: Rows,
        action_map: AnyActionMap,
        *,
        seed: int,
        name: str,
        normalizer: Normalizer | None,
        close: Callable[[], None],
        masks: ObservedMasks | None = None,
    ) -> None:
        """Prepare; the first :meth:`restart` begins the first episodes. ``close`` is called when a
        row fails; ``masks`` are in the observations.
        """
        self.rows = rows
        self.num_envs = rows.num_envs
        self.action_map = action_map
        self.name = name
        self.normalizer = normalizer
        self._masks = masks
        self.log = ActionLog(self.num_envs)
        self.snapshots = rows.can_snapshot
        """Whether a state holds the rows' own states, instead of the actions that lead there."""
        self._logs = rows.can_resume and not self.snapshots
        self.observation: Array = np.empty(0)
        self._close = close
        self._to_env = action_map.to_env
        self._watch = GeneratorWatch(name)
        self._step_rows = self._watched_step
        self.reseed(seed)

    def reseed(self, seed: int) -> None:
        """Begin the series of episode seeds that belongs to ``seed``."""
        if seed < 0:
            raise UserError(f"the seed must not be negative, got {seed}.")
        self.seed = seed
        self.indices = [-1] * self.num_envs
        self.returns: Array = np.zeros(self.num_envs, np.float64)
        self.lengths: Array = np.zeros(self.num_envs, np.int64)
        self._finished: list[Finished | None] = [None] * self.num_envs

    @property
    def started(self) -> bool:
        """Whether every row has an episode."""
        return self.indices[0] >= 0

    def restart(self) -> Array:
        """Begin a new episode in every row and return their raw observations ``[N, *obs]``."""
        everyone = range(self.num_envs)
        self.observation = self._begin(everyone)
        self.finish(everyone)
        return self.observation

    def step(self, actions: Array) -> Transition:
        """Step every row with a policy's ``actions`` ``[N, *act]``."""
        env_actions = self._to_env(actions)
        if self._logs:
            # A copy: an environment may change the action it is given.
            self.log.append(env_actions.copy())
        try:
            step = self._step_rows(env_actions)
            if self._masks is not None:
                over = step.terminated, step.truncated
                self._masks.require(step.observation, range(self.num_envs), over)
        except Exception as error:
            self._fail(error, self.lengths + 1)
        reward = (
            step.reward
            if self.normalizer is None
            else self.normalizer.normalize_reward(step.reward)
        )
        if step.games is None:
            self.returns = self.returns + step.reward
            self.lengths = self.lengths + 1
        else:
            self.returns, self.lengths = step.games.score, step.games.length
        self.observation = step.observation
        terminated, truncated = step.terminated, step.truncated
        ended: list[int] = []
        if True in terminated or True in truncated:
            ended = [row for row in range(self.num_envs) if terminated[row] or truncated[row]]
            self._keep(ended)
        return Transition(step, reward, self.returns, self.lengths, ended)

    def _watched_step(self, actions: Array) -> RowStep:
        step = self._watch.call("steps", self.rows.step, actions)
        if self._watch.over("steps"):
            self._step_rows = self.rows.step
        return step

    def _keep(self, ended: Sequence[int]) -> None:
        """Remember how the episodes of the rows ``ended`` came to their end."""
        if not self._logs:
            return
        self.log.finish(ended)
        for row in ended:
            self._finished[row] = Finished(
                episode_seed(self.seed, row, self.indices[row]),
                np.array(self.observation[row]),
                float(self.returns[row]),
            )

    def renew(self, ended: Sequence[int]) -> Array:
        """Begin new episodes in the rows ``ended`` and return the raw observations of all rows,
        ``[N, *obs]``.
        """
        observation = self.observation.copy()
        observation[ended] = self._begin(ended)
        self.observation = observation
        self.finish(ended)
        return observation

    def finish(self, ended: Iterable[int]) -> None:
        """Set the books of the rows ``ended`` back to an empty episode."""
        ended = list(ended)
        self.returns, self.lengths = self.returns.copy(), self.lengths.copy()
        self.returns[ended] = 0.0
        self.lengths[ended] = 0
        if self.normalizer is not None:
            self.normalizer.forget(ended)
        self.log.begin(ended)

    def _begin(self, rows: Sequence[int]) -> Array:
        for row in rows:
            self.indices[row] += 1
        seeds = [episode_seed(self.seed, row, self.indices[row]) for row in rows]
        try:
            if self._watch.over("resets"):
                observation = self.rows.reset(rows, seeds)
            else:
                observation = self._watch.call("resets", self.rows.reset, rows, seeds)
            if self._masks is not None:
                self._masks.require(observation, rows)
        except Exception as error:
            self._fail(error, np.zeros(self.num_envs, np.int64))
        return observation

    def _fail(self, error: Exception, steps: Array) -> NoReturn:
        with contextlib.suppress(Exception):
            self._close()
        cause = error.__cause__ if isinstance(error, RowError) else error
        row = error.row if isinstance(error, RowError) else None
        if isinstance(cause, VideoError) or (row is None and isinstance(cause, UserError)):
            raise cause  # the environment has no part in it
        where = "in an unknown environment"
        if row is not None:
            seed = episode_seed(self.seed, row, max(self.indices[row], 0))
            where = (
                f"in environment {row}, step {steps[row]} of episode {self.indices[row]} "
                f"(reset seed {seed})"
            )
        if isinstance(cause, UserError):
            raise UserError(f"{self.name} {where}: {cause}") from cause
        told = one_line(cause)
        raise EnvironmentFailedError(
            f"{self.name} failed {where}: {type(cause).__name__}: {told}"
        ) from cause

    def state_dict(self) -> dict[str, Any]:
        """Return all that :meth:`load_state_dict` needs, raw observation and returns for its
        verification included.
        """
        return {
            "name": self.name,
            "num_envs": self.num_envs,
            "seed": self.seed,
            "episodes": np.array(self.indices, np.int64),
            "returns": self.returns,
            "lengths": self.lengths,
            "observation": self.observation,
            "actions": self.log.episodes(),
            "finished": self._finished_state(),
            "normalizer": None if self.normalizer is None else self.normalizer.state_dict(),
            **({"snapshots": self.rows.snapshot()} if self.snapshots and self.started else {}),
        }

    def load_state_dict(self, state: dict[str, Any], *, approximate: bool = False) -> None:
        """Replay every row's last finished episode, unless it is long, and its running one, and
        verify that they arrive where the state says.

        With ``approximate`` every row begins its next episode instead.

        Rows that give their own states are not replayed: they get theirs back.

        Raises:
            UserError: the state is of another number of environments, or normalises something else.
            ResumeError: an episode does not reproduce, or a row's own state is not to be had.
        """
        if state["num_envs"] != self.num_envs:
            raise UserError(
                f"{self.name}: the state was saved with {state['num_envs']} environments, and "
                f"there are {self.num_envs}."
            )
        self._load_normalizer(state["normalizer"])
        self.reseed(int(state["seed"]))
        self.indices = [int(index) for index in state["episodes"]]
        if not self.started:
            return
        if approximate:
            logger.warning(
                "%s: resuming with fresh episodes in all %d environments.", self.name, self.num_envs
            )
            self.restart()
            return
        if self._logs:
            self._replay(state)
        else:
            self._restore(state)

    def _restore(self, state: dict[str, Any]) -> None:
        """Give every row its own saved state."""
        saved = state.get("snapshots")
        if not (saved and self.snapshots):
            raise ResumeError(
                f"{self.name}: these environments' own states are in no checkpoint, so the run "
                "cannot resume exactly; resume with `--resume approximate` to go on with fresh "
                "episodes."
            )
        self.rows.restore(saved)
        self.observation = np.array(state["observation"])
        self.returns = np.array(state["returns"], np.float64)
        self.lengths = np.array(state["lengths"], np.int64)

    def _finished_state(self) -> list[dict[str, Any] | None]:
        return [
            None
            if last is None or actions is None
            else {
                "seed": last.seed,
                "actions": actions,
                "observation": last.observation,
                "return": last.episode_return,
            }
            for last, actions in zip(self._finished, self.log.finished(), strict=True)
        ]

    def _load_normalizer(self, state: dict[str, Any] | None) -> None:
        if (state is None) != (self.normalizer is None):
            saved, now = ("off", "on") if state is None else ("on", "off")
            raise UserError(
                f"{self.name}: normalisation was {saved} when the state was saved and is {now} "
                "here."
            )
        if self.normalizer is not None and state is not None:
            self.normalizer.load_state_dict(state)

    def _replay(self, state: dict[str, Any]) -> None:
        actions = [np.asarray(episode) for episode in state["actions"]]
        finished = self._verify_finished(state.get("finished") or [None] * self.num_envs)
        seeds = [episode_seed(self.seed, row, index) for row, index in enumerate(self.indices)]
        try:
            arrived = replay(self.rows, seeds, actions, self._valid_actions)
        except Exception as error:
            self._fail(error, np.array([len(episode) for episode in actions]))
        recorded = Replayed(
            np.array(state["observation"]), np.array(state["returns"], np.float64), []
        )
        require_equal(recorded, arrived, self.name)
        self.observation, self.returns = recorded.observation, recorded.returns
        self.lengths = np.array([len(episode) for episode in actions], np.int64)
        self.log.restore(actions, self._valid_actions(self.observation), finished)

    def _verify_finished(self, saved: Sequence[dict[str, Any] | None]) -> list[Array | None]:
        """Replay the finished episodes in ``saved``, compare, and return each row's actions."""
        self._finished = [
            None
            if each is None
            else Finished(int(each["seed"]), np.array(each["observation"]), float(each["return"]))
            for each in saved
        ]
        actions = [None if each is None else np.asarray(each["actions"]) for each in saved]
        rows = [row for row, last in enumerate(self._finished) if last is not None]
        if not rows:
            return actions
        episodes = [np.empty(0) if each is None else each for each in actions]
        try:
            seeds = [last.seed if last else 0 for last in self._finished]
            arrived = replay_finished(self.rows, seeds, episodes, self._valid_actions)
        except Exception as error:
            self._fail(error, np.array([len(episode) for episode in episodes]))
        recorded = Replayed(arrived.observation.copy(), arrived.returns.copy(), [])
        for row, last in enumerate(self._finished):
            if last is not None:
                recorded.observation[row], recorded.returns[row] = last[1:]
        require_equal(recorded, arrived, self.name, rows=rows, which="last finished")
        return actions

    def _valid_actions(self, observation: Array) -> Array:
        """Return an action that each row takes after having given ``observation``."""
        # Not a sample: that would draw from the space's generator.
        mapping = action_map(self.action_map.space)
        if self._masks is None:
            return mapping.zeros(self.num_envs)
        return mapping.to_env(self._masks.legal_actions(observation))

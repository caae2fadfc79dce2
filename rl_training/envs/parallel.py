"""PettingZoo's parallel environments: every agent is a row, and all rows share the policy
(independent PPO, de Witt et al. 2020, https://arxiv.org/abs/2011.09533).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rl_training.arguments import environment_name
from rl_training.envs.answers import plain_flag, plain_reward, stacker
from rl_training.envs.flatten import require_integers
from rl_training.envs.hybrid import as_rows
from rl_training.envs.infos import Asked
from rl_training.envs.rows import NOTHING, RowError, RowStep, WithoutSnapshots, joined_info
from rl_training.errors import UserError, lies_here, nearest

if TYPE_CHECKING:
    from rl_training.config import TrainConfig

Array = NDArray[Any]
_FUNCTION = ":parallel_env"
"""What ids of parallel environments end with: the function that PettingZoo's modules make them
by.
"""

_SETTINGS = {"vectorization": ("sync",), "action_masks": ("off", "observation")}


def is_parallel_id(env_id: Any) -> bool:
    """Return whether an id is of the form ``"mpe2.simple_spread_v3:parallel_env"``."""
    return isinstance(env_id, str) and env_id.endswith(_FUNCTION)


def is_parallel(env: Any) -> bool:
    """Return whether an object is a parallel environment, without importing PettingZoo."""
    needed = ("possible_agents", "observation_space", "action_space", "step", "reset")
    return not isinstance(env, type) and all(hasattr(env, name) for name in needed)


def parallel_maker(
    env_id: str, env_kwargs: dict[str, Any], *, render_mode: str | None = None
) -> Callable[[], Any]:
    """Return a function that makes the environment that an id of `is_parallel_id` names.

    Raises:
        UserError: there is no such module, or it has no such function.
    """
    name = env_id.removesuffix(_FUNCTION)
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        extra = (
            'pip install "rl_training[pettingzoo]" has PettingZoo and its particle environments.'
        )
        raise UserError(
            f"environment {env_id!r}: there is no module {error.name!r}; "
            f"{lies_here(name).strip() or extra}"
        ) from error
    make = getattr(module, "parallel_env", None)
    if make is None:
        hint = nearest("parallel_env", dir(module))
        raise UserError(f"environment {env_id!r}: {name} has no parallel_env.{hint}")
    kwargs = dict(env_kwargs) if render_mode is None else {**env_kwargs, "render_mode": render_mode}

    def checked() -> Any:
        try:
            return make(**kwargs)
        except TypeError as error:
            raise UserError(
                f"{env_id} does not take one of the env_kwargs {sorted(kwargs)}: {error}"
            ) from error

    return checked


class MadeParallelError(Exception):
    """What a callable made is a parallel environment, and no gymnasium one."""

    def __init__(self, env: Any) -> None:
        """Keep the environment: it is the first of those that are needed."""
        super().__init__("a parallel environment")
        self.env = env


def parallel_rows(
    make: Callable[[], Any], config: TrainConfig, num_envs: int | None, *, first: Any = None
) -> ParallelRows:
    """Return the rows of a run, or with ``num_envs`` at least as many.

    Args:
        make: makes one environment.
        config: of the run.
        num_envs: rows; None: the config's, which the agents have to divide.
        first: an environment that ``make`` has made already.

    Raises:
        UserError: a number of rows that does not fit, or settings that parallel environments do not
            go with.
    """
    for key, allowed in _SETTINGS.items():
        given = getattr(config.env, key)
        if given not in allowed:
            raise UserError(
                f"env.{key}: with PettingZoo's environments {' or '.join(allowed)}, not {given}."
            )
    env = make() if first is None else first
    agents = len(env.possible_agents)
    if not agents:
        env.close()
        raise UserError(f"{environment_name(env)} has no agents.")
    count = config.num_envs if num_envs is None else -(-num_envs // agents) * agents
    if count % agents:
        env.close()
        raise UserError(
            f"num_envs counts agents: it must be a multiple of the {agents} agents of this "
            f"environment, not {count}."
        )
    return ParallelRows([env, *(make() for _ in range(count // agents - 1))])


class ParallelRows(WithoutSnapshots):
    """The agents of parallel environments as `Rows`, those of an environment side by side.

    An environment's agents begin and end their episodes together. Its reset seed is that of its
    first agent's row.

    Args:
        envs: alike, each with all of its possible agents in every episode.

    Raises:
        UserError: agents whose spaces differ.
    """

    plays_games = False
    can_snapshot = False
    can_resume = True

    def __init__(self, envs: Sequence[Any]) -> None:
        self.envs = list(envs)
        self.agents = list(envs[0].possible_agents)
        self.num_envs = len(envs) * len(self.agents)
        self.single_observation_space = self._shared("observation_space")
        self.single_action_space = self._shared("action_space")
        self.closed = False
        self._asked = NOTHING
        self._stack = stacker(self.single_observation_space)
        self._unchecked = True
        self._actions = as_rows(self.single_action_space)[0]

    def _shared(self, which: str) -> Any:
        own = [getattr(self.envs[0], which)(agent) for agent in self.agents]
        for agent, space in zip(self.agents, own, strict=True):
            if space != own[0]:
                self.close()
                raise UserError(
                    f"{environment_name(self.envs[0])}: agents share one policy, and the "
                    f"{which} of {agent!r} is {space}, that of {self.agents[0]!r} {own[0]}."
                )
        return own[0]

    def ask(self, asked: Asked) -> None:
        """See `Rows`."""
        self._asked = asked

    def step(self, actions: Array) -> RowStep:
        """See `Rows`."""
        observations: list[Any] = []
        rewards: list[float] = []
        ends: tuple[list[bool], list[bool]] = ([], [])
        told: list[dict[str, Array]] = []
        info = self._asked.info
        by_row = list(self._actions(actions))
        try:
            for env in self.envs:
                own = by_row[len(observations) : len(observations) + len(self.agents)]
                taken = env.step(dict(zip(self.agents, own, strict=True)))
                answers = [
                    _of_all(self.agents, each, what)
                    for what, each in zip(_ANSWERS, taken, strict=False)
                ]
                _require_common_end(env, self.agents, taken[2], taken[3])
                if info is not None:
                    told += [info.of(taken[4].get(agent, {})) for agent in self.agents]
                observations += answers[0]
                rewards += map(plain_reward, answers[1])
                ends[0].extend(plain_flag(each, "terminated") for each in answers[2])
                ends[1].extend(plain_flag(each, "truncated") for each in answers[3])
        except Exception as error:
            raise RowError(len(observations)) from error
        return RowStep(
            self._stack(observations),
            np.array(rewards, np.float64),
            *ends,
            info=joined_info(info, told, *ends),
        )

    def reset(self, rows: Sequence[int], seeds: Sequence[int]) -> Array:
        """See `Rows`: the rows of whole environments."""
        count = len(self.agents)
        observations: list[Any] = []
        by_row = dict(zip(rows, seeds, strict=True))
        for first in rows[::count]:
            if first % count or any(first + agent not in by_row for agent in range(count)):
                raise RuntimeError(f"rows {list(rows)} are not those of whole environments")
            env = self.envs[first // count]
            try:
                seen, _ = env.reset(seed=by_row[first], options=self._asked.options())
                if set(env.agents) != set(self.agents):
                    raise UserError(
                        f"an episode began with the agents {env.agents}, not all of {self.agents}."
                    )
                observations += _of_all(self.agents, seen, _ANSWERS[0])
            except Exception as error:
                raise RowError(first) from error
        if self._unchecked:
            for each in observations:
                require_integers(each, self.single_observation_space)
            self._unchecked = False
        return self._stack(observations)

    def close(self) -> None:
        """Close every environment."""
        self.closed = True
        for env in self.envs:
            env.close()


_ANSWERS = ("observations", "rewards", "terminations", "truncations")


def _of_all(agents: Sequence[str], answer: Any, what: str) -> list[Any]:
    """Return what an environment answered for each agent, in their order.

    Raises:
        UserError: names the first agent that is left out.
    """
    missing = [agent for agent in agents if agent not in answer]
    if missing:
        raise UserError(f"its {what} leave out the agent {missing[0]!r}, whose episode goes on.")
    return [answer[agent] for agent in agents]


def _require_common_end(
    env: Any, agents: Sequence[str], terminated: dict[str, Any], truncated: dict[str, Any]
) -> None:
    """Raise where some agents' episodes are over and others' go on.

    Raises:
        UserError: names one.
    """
    over = [agent for agent in agents if terminated[agent] or truncated[agent]]
    if over and len(over) < len(agents):
        raise UserError(
            f"agent {over[0]!r} ended its episode before the others. Rows of agents "
            "that are gone would be no data of the task, so this is not trained on: let all end "
            "together, as supersuit's black_death does."
        )
    if not over and set(env.agents) != set(agents):
        raise UserError(
            f"its agents became {env.agents} in the middle of an episode, and "
            f"{list(agents)} began it."
        )

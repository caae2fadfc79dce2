"""Procgen's games (Cobbe et al. 2020) by EnvPool, every episode a level of its own."""

from __future__ import annotations

import functools
import importlib
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from numpy.typing import NDArray

from rl_training.errors import UserError, nearest

Array = NDArray[Any]

PREFIX = "procgen/"
OBSERVATION_SPACE = gymnasium.spaces.Box(0, 255, (3, 64, 64), np.uint8)
ACTION_SPACE = gymnasium.spaces.Discrete(15)
_BOTH = ("Easy", "Hard")
_MODES = {
    "Bigfish": _BOTH,
    "Bossfight": _BOTH,
    "Caveflyer": (*_BOTH, "Memory", "Exploration"),
    "Chaser": (*_BOTH, "Extreme"),
    "Climber": (*_BOTH, "Exploration"),
    "Coinrun": (*_BOTH, "Exploration"),
    "Dodgeball": (*_BOTH, "Extreme", "Memory"),
    "Fruitbot": _BOTH,
    "Heist": (*_BOTH, "Memory", "Exploration"),
    "Jumper": (*_BOTH, "Memory", "Exploration"),
    "Leaper": (*_BOTH, "Extreme", "Exploration"),
    "Maze": (*_BOTH, "Memory", "Exploration"),
    "Miner": (*_BOTH, "Memory"),
    "Ninja": (*_BOTH, "Exploration"),
    "Plunder": _BOTH,
    "Starpilot": (*_BOTH, "Extreme"),
}
"""Games, and the distributions of levels they have."""
_SWITCHES = (
    "use_sequential_levels",
    "center_agent",
    "use_backgrounds",
    "use_monochrome_assets",
    "restrict_themes",
    "use_generated_assets",
    "paint_vel_info",
    "use_easy_jump",
)
_ALL_LEVELS = 2**31 - 1
_SCALE = 8
"""Pixels of a picture per pixel of an observation, in both directions."""


def register_games() -> None:
    """Register every game as ``procgen/`` and EnvPool's id: ``procgen/StarpilotEasy-v0``."""
    for game, modes in _MODES.items():
        for mode in modes:
            task = f"{game}{mode}-v0"
            if PREFIX + task not in gymnasium.registry:
                gymnasium.register(PREFIX + task, functools.partial(ProcgenGame, task))


class Result(NamedTuple):
    """One step of one game."""

    observation: Array
    """``[3, 64, 64]`` uint8, at an end the true last one."""
    reward: float
    terminated: bool
    truncated: bool
    level_seed: int
    level_complete: bool

    def told(self) -> dict[str, Any]:
        """Return the ``info`` of the step."""
        return {"level_seed": self.level_seed, "level_complete": self.level_complete}


class Levels:
    """The levels of one game that episodes are drawn from.

    Args:
        task: EnvPool's id of a game and a distribution, as ``StarpilotEasy-v0``.
        **options: ``num_levels``, how many there are to draw from, 0 for all; ``start_level``,
            the first of them; and EnvPool's switches of looks and rules, see ``docs/procgen.md``.

    Raises:
        UserError: a missing package or library, named, or an impossible argument.
    """

    def __init__(self, task: str, /, **options: Any) -> None:
        num_levels, start_level = options.pop("num_levels", 0), options.pop("start_level", 0)
        _check_numbers(num_levels, start_level)
        _check_switches(options)
        self._envpool = _import_envpool(task)
        self._task = task
        self._switches = options
        self._bounds = (start_level, start_level + num_levels) if num_levels else (0, _ALL_LEVELS)

    def begin(self, generator: np.random.Generator) -> tuple[Any, Result]:
        """Draw a level, and return an EnvPool that has only it, and its first observation.

        EnvPool fixes its seeds when it is made; and in two games, dodgeball and miner, what happens
        in a level depends on those that the same game object played before. A new one per episode
        takes 2 milliseconds, and makes an episode a function of its seed and its actions.
        """
        level = int(generator.integers(*self._bounds))
        pool = self._envpool.make_gymnasium(
            self._task, num_envs=1, num_threads=1, num_levels=1, start_level=level, **self._switches
        )
        observation, told = pool.reset()
        return pool, Result(
            observation[0], 0.0, False, False, int(told["level_seed"][0]), level_complete=False
        )


def result_of(answer: Any) -> Result:
    """Read what the ``step`` or ``recv`` of a pool with one game gave.

    EnvPool tells of every end at the game's own limit of steps as a truncation. Where that very
    step completed the level, nothing was cut short: it is a termination.
    """
    observation, reward, terminated, truncated, told = answer
    complete = bool(told["prev_level_complete"][0])
    cut = bool(truncated[0]) and not complete
    return Result(
        observation[0],
        float(reward[0]),
        bool(terminated[0] or truncated[0]) and not cut,
        cut,
        int(told["level_seed"][0]),
        complete,
    )


class ProcgenGame(gymnasium.Env[Any, Any]):
    """One game, whose every episode is a level drawn by the episode's seed.

    EnvPool would begin the next level at the step after an end; that step is never taken.

    Args:
        task: EnvPool's id.
        render_mode: ``"rgb_array"`` draws the observation, 8 times as large.
        **options: of `Levels`.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 15}  # noqa: RUF012  gymnasium's

    def __init__(self, task: str, /, *, render_mode: str | None = None, **options: Any) -> None:
        self._levels = Levels(task, **options)
        self.render_mode = render_mode
        self.observation_space = OBSERVATION_SPACE
        self.action_space = gymnasium.spaces.Discrete(ACTION_SPACE.n)
        self._pool: Any = None
        self._observation: Array = np.zeros(OBSERVATION_SPACE.shape, np.uint8)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        """Begin a level drawn by ``seed``; ``info["level_seed"]`` says which."""
        super().reset(seed=seed)
        self._pool, first = self._levels.begin(self.np_random)
        self._observation = first.observation
        return first.observation, {"level_seed": first.level_seed}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """Take one of the 15 actions."""
        result = result_of(self._pool.step(np.array([action])))
        self._observation = result.observation
        return (*result[:4], result.told())

    def render(self) -> Any:
        """Return the observation as a picture ``[512, 512, 3]``; EnvPool has no finer one."""
        picture = self._observation.transpose(1, 2, 0)
        return picture.repeat(_SCALE, axis=0).repeat(_SCALE, axis=1)

    def close(self) -> None:
        """End EnvPool's thread."""
        self._pool = None


def _check_numbers(num_levels: Any, start_level: Any) -> None:
    for name, value in (("num_levels", num_levels), ("start_level", start_level)):
        if type(value) is not int or value < 0:
            raise UserError(f"env_kwargs: {name} must be a whole number from 0, not {value!r}.")
    if start_level + num_levels > _ALL_LEVELS:
        raise UserError(f"env_kwargs: start_level + num_levels must be at most {_ALL_LEVELS:,}.")


def _check_switches(switches: dict[str, Any]) -> None:
    for name, value in switches.items():
        if name not in _SWITCHES:
            hint = nearest(name, ("num_levels", "start_level", *_SWITCHES))
            raise UserError(f"env_kwargs: Procgen has no {name!r}.{hint}")
        if type(value) is not bool:
            raise UserError(f"env_kwargs: {name} must be true or false, not {value!r}.")


def import_envpool(what: str, games: str) -> Any:
    """Return the package EnvPool, its module of ``games`` imported, which ``what`` needs.

    Raises:
        UserError: it is not installed.
    """
    try:
        envpool = importlib.import_module("envpool")
        importlib.import_module(f"envpool.{games}")
    except ModuleNotFoundError as error:
        raise UserError(
            f'{what} needs a package that is missing: pip install "rl_training[envpool]" '
            "(Linux, Python 3.11 or later)."
        ) from error
    return envpool


def _import_envpool(task: str) -> Any:
    envpool = import_envpool(f"{PREFIX}{task}", "procgen")
    try:
        # The package itself loads no game's library; this does.
        _ = importlib.import_module("envpool.procgen").ProcgenGymnasiumEnvPool
    except ImportError as error:
        raise UserError(
            f"{PREFIX}{task} needs the Qt 5 runtime (libQt5Core.so.5 and libQt5Gui.so.5), on "
            "Debian: apt install libqt5core5a libqt5gui5."
        ) from error
    return envpool

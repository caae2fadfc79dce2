"""Procgen's games (Cobbe et al. 2020), as EnvPool builds them: one level per episode."""

from __future__ import annotations

import importlib
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from rl_training.errors import UserError, nearest

Array = NDArray[Any]

PREFIX = "procgen/"
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
_LEVELS = 2**31 - 1
"""Levels of a game: their seeds are below this."""
_SCALE = 8
"""Pixels of a picture per pixel of an observation, in both directions."""


def register_games() -> None:
    """Register every game as ``procgen/<EnvPool's id>``: ``procgen/StarpilotEasy-v0``."""
    for game, modes in _MODES.items():
        for mode in modes:
            task = f"{game}{mode}-v0"
            if PREFIX + task not in gymnasium.registry:
                gymnasium.register(
                    PREFIX + task, f"{__name__}:{ProcgenGame.__name__}", kwargs={"task": task}
                )


class ProcgenGame(gymnasium.Env[Any, Any]):
    """One game, whose every episode is a level drawn by the episode's seed.

    Each episode is played in an EnvPool of its own, which knows that level alone. So an episode is
    a function of its seed and its actions: EnvPool fixes its seeds when it is made, and in two
    games (dodgeball and miner) what happens in a level depends on the one before. It takes 2
    milliseconds per episode. EnvPool would begin the next level at the step after an end; that step
    is never taken.

    Observations are ``[3, 64, 64]`` uint8, the true last one included; actions are 15. The game's
    own limit of steps (500 to 6000) is a truncation, unless the level was completed in that step.

    Args:
        task: EnvPool's id of game and distribution, as ``StarpilotEasy-v0``.
        num_levels: levels to draw from; 0: all.
        start_level: the first of them.
        use_sequential_levels: a completed level does not end the episode: another one follows.
        render_mode: ``"rgb_array"`` draws the observation, 8 times as large.
        **options: EnvPool's switches of the look and the rules: ``center_agent``,
            ``use_backgrounds``, ``use_monochrome_assets``, ``restrict_themes``,
            ``use_generated_assets``, ``paint_vel_info``, ``use_easy_jump``.

    Raises:
        UserError: a missing package or library, named, or an impossible argument.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 15}  # noqa: RUF012  gymnasium's

    def __init__(
        self,
        task: str,
        *,
        num_levels: int = 0,
        start_level: int = 0,
        use_sequential_levels: bool = False,
        render_mode: str | None = None,
        **options: bool,
    ) -> None:
        _check(num_levels, start_level, {**options, "use_sequential_levels": use_sequential_levels})
        self._envpool = _import_envpool(task)
        self._task = task
        self._options = {**options, "use_sequential_levels": use_sequential_levels}
        self._levels = (start_level, start_level + num_levels) if num_levels else (0, _LEVELS)
        self.render_mode = render_mode
        self.observation_space = gymnasium.spaces.Box(0, 255, (3, 64, 64), np.uint8)
        self.action_space = gymnasium.spaces.Discrete(15)
        self._pool: Any = None
        self._observation: Array = np.zeros((3, 64, 64), np.uint8)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        """Begin a level drawn by ``seed``; ``info["level_seed"]`` says which."""
        super().reset(seed=seed)
        level = int(self.np_random.integers(*self._levels))
        self._pool = self._envpool.make_gymnasium(
            self._task,
            num_envs=1,
            num_threads=1,
            num_levels=1,
            start_level=level,
            **self._options,
        )
        observation, told = self._pool.reset()
        self._observation = observation[0]
        return self._observation, {"level_seed": int(told["level_seed"][0])}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """Take one of the 15 actions."""
        observation, reward, terminated, truncated, told = self._pool.step(np.array([action]))
        self._observation = observation[0]
        # EnvPool calls every end at the limit a truncation; a completed level needs no more value.
        complete = bool(told["prev_level_complete"][0])
        ended = bool(terminated[0]) or (bool(truncated[0]) and complete)
        return (
            self._observation,
            float(reward[0]),
            ended,
            bool(truncated[0]) and not ended,
            {"level_seed": int(told["level_seed"][0]), "level_complete": complete},
        )

    def render(self) -> Any:
        """Return the observation as a picture ``[512, 512, 3]``; EnvPool has no finer one."""
        picture = self._observation.transpose(1, 2, 0)
        return picture.repeat(_SCALE, axis=0).repeat(_SCALE, axis=1)

    def close(self) -> None:
        """End EnvPool's thread."""
        self._pool = None


_NUMBERS = ("num_levels", "start_level")
_SWITCHES = (
    "center_agent",
    "use_backgrounds",
    "use_monochrome_assets",
    "restrict_themes",
    "use_generated_assets",
    "paint_vel_info",
    "use_easy_jump",
    "use_sequential_levels",
)


def _check(num_levels: Any, start_level: Any, switches: dict[str, Any]) -> None:
    for name, value in zip(_NUMBERS, (num_levels, start_level), strict=True):
        if type(value) is not int or value < 0:
            raise UserError(f"env_kwargs: {name} must be a whole number from 0, not {value!r}.")
    if start_level + num_levels > _LEVELS:
        raise UserError(f"env_kwargs: start_level + num_levels must be at most {_LEVELS:,}.")
    if start_level and not num_levels:
        raise UserError("env_kwargs: start_level needs num_levels; 0 stands for all levels.")
    for name, value in switches.items():
        if name not in _SWITCHES:
            raise UserError(
                f"env_kwargs: Procgen has no {name!r}.{nearest(name, (*_SWITCHES, *_NUMBERS))}"
            )
        if type(value) is not bool:
            raise UserError(f"env_kwargs: {name} must be true or false, not {value!r}.")


def _import_envpool(task: str) -> Any:
    try:
        envpool = importlib.import_module("envpool")
        # The package itself loads no library of its games; this does.
        _ = importlib.import_module("envpool.procgen").ProcgenGymnasiumEnvPool
    except ModuleNotFoundError as error:
        raise UserError(
            f'{PREFIX}{task} needs a package that is missing: pip install "rl_training[envpool]" '
            "(Linux, Python 3.11 or later)."
        ) from error
    except ImportError as error:
        raise UserError(
            f"{PREFIX}{task} needs the Qt 5 runtime (libQt5Core.so.5, libQt5Gui.so.5): "
            "apt install libqt5core5a libqt5gui5."
        ) from error
    return envpool

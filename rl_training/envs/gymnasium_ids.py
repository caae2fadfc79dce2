"""``gymnasium.make`` with a user's mistakes told in one line."""

from __future__ import annotations

import importlib
import re
import warnings
from typing import Any

import gymnasium

from rl_training.arguments import PYTHON_ENVIRONMENT
from rl_training.envs import procgen
from rl_training.errors import UserError, lies_here, nearest, one_line

_WRONG_ARGUMENTS = re.compile(
    r"unexpected keyword argument|takes no (keyword )?arguments|multiple values for|"
    r"missing \d+ required|invalid keyword argument"
)
# Of gymnasium.make itself, of Python's calls, and what the library decides.
_RESERVED = ("id", "self", "disable_env_checker", "vectorization_mode")
_EXTRA_OF_PACKAGE = {"gymnasium.envs.box2d": "box2d", "gymnasium.envs.mujoco": "mujoco"}
_SHOWN_IDS = 8
_EXTRA_OF_MODULE = {"minigrid": "minigrid"}


def make_by_id(
    env_id: str, env_kwargs: dict[str, Any], *, render_mode: str | None = None
) -> gymnasium.Env[Any, Any]:
    """Build the environment registered as ``env_id``; ``"my_package:MyEnv-v0"`` imports
    ``my_package`` first.

    Raises:
        UserError: an unknown id (with the nearest), a missing extra or module (named), unknown
            keyword arguments, or a render mode that the environment does not offer.
    """
    if env_id.startswith(PYTHON_ENVIRONMENT):
        name = env_id.removeprefix(PYTHON_ENVIRONMENT)
        raise UserError(f"the environment was given in Python, as {name}: pass it again as env=...")
    spec = spec_of(env_id)
    kwargs = checked_arguments(env_kwargs)
    if render_mode is not None:
        kwargs["render_mode"] = render_mode
    try:
        # The checker judges environments of others and costs time at every step; shapes are checked
        # where they are used.
        with warnings.catch_warnings():
            # `_require_render_mode` says it in one line.
            warnings.filterwarnings("ignore", message=".*not in the possible render_modes")
            env = gymnasium.make(spec, disable_env_checker=True, **kwargs)
    except gymnasium.error.DependencyNotInstalled as error:
        raise UserError(
            f"{env_id} needs a package that is missing: {_remedy(spec, error)}"
        ) from error
    except gymnasium.error.Error as error:
        raise UserError(f"{env_id} cannot be made: {one_line(error)}") from error
    except TypeError as error:
        if not _WRONG_ARGUMENTS.search(str(error)):
            raise
        # A class without a constructor says only that it takes no arguments.
        if render_mode is not None and ("'render_mode'" in str(error) or not env_kwargs):
            raise UserError(
                f"{env_id} cannot render {render_mode!r}: it takes no render_mode."
            ) from error
        raise UserError(
            f"{env_id} does not take one of the env_kwargs {sorted(kwargs)}: {one_line(error)}"
        ) from error
    _require_render_mode(env, env_id, render_mode)
    return env


def checked_arguments(env_kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of an environment's arguments.

    Raises:
        UserError: one of them is not the environment's own, or impossible.
    """
    for name in _RESERVED:
        if name in env_kwargs:
            raise UserError(f"env_kwargs: {name!r} is not an argument of an environment.")
    mode = env_kwargs.get("render_mode")
    if not isinstance(mode, str | None):
        raise UserError(f"env_kwargs: render_mode must be text or null, not {mode!r}.")
    steps = env_kwargs.get("max_episode_steps", 1)
    whole = isinstance(steps, int) and not isinstance(steps, bool) and (steps > 0 or steps == -1)
    if steps is not None and not whole:
        raise UserError(
            "env_kwargs: max_episode_steps must be a whole number of at least 1, or -1 for no "
            f"limit, not {steps!r}."
        )
    return dict(env_kwargs)


def spec_of(env_id: str) -> Any:
    """Return what is registered as ``env_id``, after importing the module that it names.

    Raises:
        UserError: an unknown id or a missing module.
    """
    module, separator, name = env_id.rpartition(":")
    if separator and not all(part.isidentifier() for part in module.split(".")):
        raise UserError(
            f"environment {env_id!r}: {module!r} names no module; "
            "the form is 'my_package:MyEnv-v0'."
        )
    before = set(gymnasium.registry)
    if separator:
        _import_module(module, env_id)
    elif name.startswith("ALE/") or "NoFrameskip-v4" in name:
        _import_atari(env_id)
    elif name.startswith(procgen.PREFIX):
        procgen.register_games()
    try:
        return gymnasium.spec(name)
    except gymnasium.error.Error as error:
        if separator:
            own = _ids_of(module, set(gymnasium.registry) - before)
            raise UserError(_not_registered(env_id, module, name, own)) from error
        message = f"unknown environment {env_id!r}.{nearest(name, gymnasium.registry)}"
        if name.endswith("Policy"):  # where Stable-Baselines3 takes "MlpPolicy"
            message += (
                " The environment comes first, and there is no name of a policy: networks follow "
                "from the spaces and from hidden_sizes, encoder and so on."
            )
        said = "" if "Did you mean" in message else f" ({one_line(error)})"
        raise UserError(f"{message}{said}") from error


def _ids_of(module: str, new: set[str]) -> list[str]:
    """Return the ids that a module has registered, sorted.

    Args:
        module: dotted; it may have been imported before.
        new: ids that appeared when it was imported now, whatever made them.
    """
    package = module.partition(".")[0]
    own = {
        env_id
        for env_id, spec in gymnasium.registry.items()
        if _module_of(spec.entry_point).partition(".")[0] == package
    }
    return sorted(own | new)


def _module_of(entry_point: Any) -> str:
    if isinstance(entry_point, str):
        return entry_point.partition(":")[0]
    return str(getattr(entry_point, "__module__", ""))


def _not_registered(env_id: str, module: str, name: str, own: list[str]) -> str:
    """Return what to say of an id that a module of the user's did not register."""
    message = f"unknown environment {env_id!r}."
    if not own:
        return f"{message} Module {module!r} registers no environment: gymnasium.register does."
    close = nearest(name, own)
    if close:
        close = f" Did you mean '{module}:{close.split(chr(39))[1]}'?"
    listed = ", ".join(own[:_SHOWN_IDS]) + (", ..." if len(own) > _SHOWN_IDS else "")
    return f"{message}{close} Module {module!r} registers {listed}."


def _import_module(module: str, env_id: str) -> None:
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        # Only the module that was named: what it fails to import itself is not this message's
        # business.
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        extra = _EXTRA_OF_MODULE.get(error.name)
        remedy = "" if extra is None else f' pip install "rl_training[{extra}]".'
        remedy = remedy or lies_here(module)
        raise UserError(
            f"environment {env_id!r}: there is no module {error.name!r} to import.{remedy}"
        ) from error


def _import_atari(env_id: str) -> None:
    try:
        ale = importlib.import_module("ale_py")
        gymnasium.register_envs(ale)
        ale.ALEInterface.setLoggerMode(ale.LoggerMode.Error)  # no banner per game
    except ModuleNotFoundError as error:
        raise UserError(
            f'{env_id} needs a package that is missing: pip install "rl_training[atari]".'
        ) from error


def _remedy(spec: Any, error: Exception) -> str:
    for package, extra in _EXTRA_OF_PACKAGE.items():
        if str(spec.entry_point).startswith(package):
            return f'pip install "rl_training[{extra}]".'
    return one_line(error)


def _require_render_mode(
    env: gymnasium.Env[Any, Any], env_id: str, render_mode: str | None
) -> None:
    offered = env.metadata.get("render_modes", [])
    if render_mode is not None and render_mode not in offered:
        env.close()
        raise UserError(
            f"{env_id} cannot render {render_mode!r}; it offers: {', '.join(offered) or 'nothing'}."
        )

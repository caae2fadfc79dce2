"""Algorithms by name. Each is imported on first use, so that listing them costs nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from rl_training.errors import UserError, lies_here, nearest
from rl_training.garbage import import_module

if TYPE_CHECKING:
    from rl_training.algorithm import Algorithm

ALGORITHMS: dict[str, str] = {
    "ppo": "rl_training.recipes.ppo:PPO",
    "ppg": "rl_training.recipes.ppg:PPG",
    "dqn": "rl_training.recipes.dqn:DQN",
    "sac": "rl_training.recipes.sac:SAC",
    "td3": "rl_training.recipes.td3:TD3",
    "recurrent_ppg": "rl_training.contrib.recurrent_ppg:RecurrentPPG",
    "recurrent_ppo": "rl_training.contrib.recurrent_ppo:RecurrentPPO",
}
"""Name in a config or on the command line -> ``"module:Class"``."""

_PPO_ONCE = "ppo, which is A2C with num_epochs: 1 and one minibatch"
_REPLACEMENTS = {
    **dict.fromkeys(("a2c", "a3c"), _PPO_ONCE),
    **dict.fromkeys(("trpo", "acktr", "acer", "reinforce", "vpg", "appo", "impala"), "ppo"),
    "ddpg": "td3, whose page has the settings that make it DDPG",
    **dict.fromkeys(("qrdqn", "iqn", "fqf"), "dqn with distributional: true (C51)"),
    "c51": "dqn with distributional: true",
    "rainbow": "dqn with rainbow: true",
    **dict.fromkeys(("ddqn", "doubledqn", "duelingdqn"), "dqn, whose settings have it"),
    **dict.fromkeys(("tqc", "crossq", "redq", "droq", "mpo"), "sac"),
    "maskableppo": "ppo with env.action_masks",
    **dict.fromkeys(("ppolstm", "ppornn", "drqn", "r2d2"), "recurrent_ppo"),
}
"""What the field knows and is not here, in small letters alone, and what comes nearest."""

_ON_POLICY_ACTIONS = (
    *("Box", "integer Box", "unbounded Box"),
    *("Discrete", "MultiDiscrete", "MultiBinary", "Dict", "Tuple"),
)
ACTION_SPACES: dict[str, tuple[str, ...]] = {
    "ppo": _ON_POLICY_ACTIONS,
    "ppg": _ON_POLICY_ACTIONS,
    "dqn": ("Discrete",),
    "sac": ("Box", "integer Box", "Discrete"),
    "td3": ("Box", "integer Box"),
    "recurrent_ppg": _ON_POLICY_ACTIONS,
    "recurrent_ppo": _ON_POLICY_ACTIONS,
}
"""Name -> the kinds of action spaces it takes (`rl_training.envs.spaces.action_kind`); the classes
read it.
"""

_MASKED_ACTIONS = ("Discrete", "MultiDiscrete", "MultiBinary")
ACTION_MASKS: dict[str, tuple[str, ...]] = {
    "ppo": _MASKED_ACTIONS,
    "ppg": _MASKED_ACTIONS,
    "dqn": ("Discrete",),
    "recurrent_ppg": _MASKED_ACTIONS,
    "recurrent_ppo": _MASKED_ACTIONS,
}
"""Name -> the kinds of actions of which it takes masks of the legal ones, ``env.action_masks``."""

_VECTORS = ("Box", "Discrete", "MultiDiscrete", "MultiBinary", "Dict", "Tuple")
_IMAGES = ("image", "image among parts")
OBSERVATION_SPACES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(ALGORITHMS, (*_VECTORS, *_IMAGES)),
    "td3": _VECTORS,
}
"""Name -> the kinds of observation spaces (`rl_training.envs.layout.observation_kind`). The
environments flatten all but a Box to a vector, so only encoders know the difference.
"""


_IMAGE_ACTIONS: dict[str, tuple[str, ...]] = {"sac": ("Discrete",)}
"""Name -> the kinds of actions with which it sees images; not in it: all that it takes."""


def sees(name: str, observation: str, action: str) -> bool:
    """Return whether the algorithm ``name`` takes this kind of observations with this kind of
    actions.
    """
    images_with = _IMAGE_ACTIONS.get(name, ACTION_SPACES[name])
    taken = observation in OBSERVATION_SPACES[name] and action in ACTION_SPACES[name]
    return taken and (observation not in _IMAGES or action in images_with)


def takers(action: str) -> list[str]:
    """Return the algorithms that take this kind of actions."""
    return [name for name, kinds in ACTION_SPACES.items() if action in kinds]


def space_table() -> list[list[str]]:
    """Return which algorithm takes which space, as rows of cells: a header with the algorithms'
    names, then for every kind of action, mask and observation ``yes`` or ``no``, or the actions
    with which alone it does.
    """
    names = list(ACTION_SPACES)
    rows = [["", *names]]
    tables = {
        "actions": ACTION_SPACES,
        "masks of": ACTION_MASKS,
        "observations": OBSERVATION_SPACES,
    }
    for what, spaces in tables.items():
        kinds = dict.fromkeys(kind for name in names for kind in spaces.get(name, ()))
        for kind in kinds:
            cells = (_cell(name, kind, spaces.get(name, ())) for name in names)
            rows.append([f"{what}: {kind}", *cells])
    return rows


def _cell(name: str, kind: str, taken: tuple[str, ...]) -> str:
    if kind in taken and kind in _IMAGES and name in _IMAGE_ACTIONS:
        return f"with {', '.join(_IMAGE_ACTIONS[name])}"
    return "yes" if kind in taken else "no"


def algorithm_names() -> list[str]:
    """Return the names a config may give as ``algo``, sorted."""
    return sorted(ALGORITHMS)


def algorithm_class(name: str) -> type[Algorithm]:
    """Import and return the class registered as ``name``.

    Raises:
        UserError: no algorithm has that name; the message gives the nearest one and the whole list.
    """
    if name not in ALGORITHMS:
        known = ", ".join(algorithm_names())
        plain = "".join(letter for letter in name.lower() if letter.isalnum())
        if plain in _REPLACEMENTS:
            raise UserError(
                f"{name!r} is not in the library; the nearest is {_REPLACEMENTS[plain]}. "
                f"Known: {known}."
            )
        same = {each.replace("_", ""): each for each in ALGORITHMS}.get(plain)
        hint = f" Did you mean {same!r}?" if same else nearest(name, ALGORITHMS)
        raise UserError(f"unknown algorithm {name!r}.{hint} Known: {known}.")
    return cast("type[Algorithm]", import_object(ALGORITHMS[name]))


def import_object(path: str) -> Any:
    """Return the object that ``"package.module:Name"`` names.

    Raises:
        UserError: the text has another form, or the module or the name does not exist.
    """
    module_name, separator, attribute = path.partition(":")
    if not separator or not module_name or not attribute:
        raise UserError(f"{path!r} does not have the form 'package.module:Name'.")
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and module_name.startswith(error.name):
            raise UserError(
                f"cannot import {path!r}: there is no module {error.name!r}."
                f"{lies_here(module_name)}"
            ) from error
        raise
    if not hasattr(module, attribute):
        raise UserError(
            f"module {module_name!r} has no {attribute!r}.{nearest(attribute, dir(module))}"
        )
    return getattr(module, attribute)

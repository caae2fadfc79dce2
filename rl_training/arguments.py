"""What a user passes to an algorithm's constructor, turned into a config; and whether the code that
a config names may be imported.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

from rl_training.config import TrainConfig, config_from_dict, replace_config, validate
from rl_training.config.build import require_config
from rl_training.config.elsewhere import NAMES_ELSEWHERE
from rl_training.errors import UserError, nearest

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
Class = TypeVar("Class")

KEYWORDS_ELSEWHERE = {
    "callback": "callbacks=[...]",
    "eval_env": "evaluation.env_kwargs, or evaluate(env=...)",
    "eval_freq": "evaluation.interval, of the {holder}",
    "log_interval": "tracking.log_interval, of the {holder}, in environment steps",
    "n_eval_episodes": "episodes=",
    "progress_bar": "progress=",
    "reset_num_timesteps": "a new object to begin anew; learn always goes on",
    "return_episode_rewards": "the key 'returns' of what evaluate returns",
    "tb_log_name": "output_dir, of the {holder}",
    "timesteps": "total_timesteps=",
    "verbose": "progress=",
}
"""What users of other libraries first give to a call, and what it is here; ``{holder}`` takes the
fields of the configuration.
"""


def names_keywords(call: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Let ``call`` refuse a keyword that it does not have by `UserError`, with the name it has
    here: Python's own TypeError knows no other library's words.
    """
    parameters = inspect.signature(call).parameters
    known = [name for name in parameters if name != "self"]
    holder = "constructor" if "self" in parameters else "config"

    @functools.wraps(call)
    def checked(*args: Arguments.args, **keywords: Arguments.kwargs) -> Result:
        for name in keywords:
            if name not in known:
                raise UserError(_unknown_keyword(call.__name__, name, known, holder))
        return call(*args, **keywords)

    return checked


def _unknown_keyword(call: str, name: str, known: list[str], holder: str) -> str:
    here = KEYWORDS_ELSEWHERE.get(name)
    if here is None and name in NAMES_ELSEWHERE:
        here = f"{NAMES_ELSEWHERE[name]}, of the {{holder}}"
    keyword, equals, _ = (here or "").partition("=")
    if equals and keyword.isidentifier() and keyword not in known:  # another call's
        here = None
    hint = f" Here it is {here.format(holder=holder)}." if here else nearest(name, known)
    return f"{call}() takes no {name!r}.{hint} It takes {', '.join(known)}."


ATTRIBUTES_ELSEWHERE = {
    "ep_info_buffer": "the metric train/return_mean, of metrics.jsonl and of callbacks",
    "gamma": "discount",
    "get_env": "environment",
    "get_parameters": "policy_state()",
    "get_vec_normalize_env": "normalizer",
    "learning_rate": "config.algorithm.learning_rate",
    "n_envs": "config.num_envs",
    "n_steps": "config.algorithm.num_steps, of PPO, PPG and their like",
    "num_timesteps": "global_step",
    "save_replay_buffer": "save(path), which keeps the replay buffer too",
    "set_env": "{cls}.load(path, env=...), of what save(path) wrote",
    "set_logger": "output_dir and the group tracking, of the constructor",
    "set_parameters": "load_policy_state(...), or {cls}.load(path)",
    "set_random_seed": "seed, of the constructor",
}
"""Attributes that users of Stable-Baselines3 try first, and what they are here."""


class _Elsewhere:
    """An attribute that says what it is called here.

    Not `__getattr__`, which would also catch, and hide, an AttributeError inside a property.
    """

    def __init__(self, name: str, here: str) -> None:
        self._name, self._here = name, here

    def __get__(self, instance: object, owner: type) -> Any:
        here = self._here.format(cls=owner.__name__)
        raise AttributeError(f"{owner.__name__} has no {self._name!r}. Here it is {here}.")


def names_attributes(cls: type[Class]) -> type[Class]:
    """Let a class answer other libraries' attributes by `AttributeError` with the name here."""
    for name, here in ATTRIBUTES_ELSEWHERE.items():
        if name not in dir(cls):
            setattr(cls, name, _Elsewhere(name, here))
    return cls


PYTHON_ENVIRONMENT = "python:"
"""How ``env_id`` begins for an environment that was given as an object and has no id."""


def named_modules(config: TrainConfig, *, env: Any = None) -> list[str]:
    """Return the modules outside this package that ``config`` asks to import, sorted.

    They stand before the colon in ``env_id`` and ``env.wrappers`` (unless ``env`` takes their
    place), ``model.encoder``, ``model.encoders`` and ``model.network``.
    """
    model = config.model
    named = [model.encoder, *model.encoders.values(), model.network or ""]
    if env is None:
        named += [config.env_id, *config.env.wrappers]
    modules = {text.rpartition(":")[0] for text in named if not text.startswith(PYTHON_ENVIRONMENT)}
    own = __name__.partition(".")[0]
    return sorted(each for each in modules if each and each.partition(".")[0] != own)


def require_trusted_modules(config: TrainConfig, *, trust: bool, env: Any = None) -> None:
    """Raise unless the code that a checkpoint's ``config`` names may be imported.

    It may when its user says so (``trust``), or has imported it already in this process.

    Raises:
        UserError: names the modules and both ways out.
    """
    strange = [name for name in named_modules(config, env=env) if name not in sys.modules]
    if strange and not trust:
        raise UserError(
            f"this checkpoint wants to import code of its own ({', '.join(strange)}), which runs "
            "it: if you trust that, import it first, or say trust_modules=True (on the command "
            "line --trust-modules)."
        )


def resolve_config(
    algo: str, env: Any, config: TrainConfig | None, changes: Mapping[str, Any]
) -> TrainConfig:
    """Return the config of ``algo`` on ``env``: the given one, or the defaults, with ``changes``
    applied.

    Raises:
        UserError: no environment, a config of another algorithm, an unknown field, an impossible
        value.
    """
    changes = dict(changes)
    if config is None:
        env_id = env if isinstance(env, str) else changes.pop("env_id", None) or _name(env)
        config = config_from_dict({"algo": algo, "env_id": env_id}, source=f"{algo}(...)")
    else:
        require_config(config)
        if config.algo != algo:
            raise UserError(f"the config is for {config.algo!r}, not for {algo!r}.")
        changes = {"env_id": env, **changes} if isinstance(env, str) else changes
    changes = with_number_of(env, changes)
    if changes:
        config = replace_config(config, **changes)
    validate(config)
    return config


def with_number_of(env: Any, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``changes`` with ``num_envs``, where ``env`` is an environment or a vector of some.

    Raises:
        UserError: they ask for another number.
    """
    if isinstance(env, type) or not hasattr(env, "step"):  # a class makes as many as are asked for
        return dict(changes)
    agents = getattr(env, "possible_agents", None)  # PettingZoo's: each is a row
    count = getattr(env, "num_envs", 1) if agents is None else len(agents)
    if changes.get("num_envs", count) != count:
        raise UserError(f"num_envs is {changes['num_envs']}, and the environment given is {count}.")
    return {**changes, "num_envs": count}


def _name(env: Any) -> str:
    if env is None:
        raise UserError(
            "an environment is missing: give a gymnasium id, a callable or an environment."
        )
    return _registered_id(env) or f"{PYTHON_ENVIRONMENT}{environment_name(env)}"


def environment_name(env: Any) -> str:
    """Return what messages call an environment, or what makes one: its id, the name that it gives
    itself, or that of its class or function, whatever is put around it.
    """
    if isinstance(env, functools.partial):
        return _registered_by(env) or environment_name(env.func)
    if isinstance(env, type):
        return env.__name__
    given = _registered_id(env) or (getattr(env, "metadata", None) or {}).get("name")  # PettingZoo
    return str(given or getattr(env, "__name__", type(getattr(env, "unwrapped", env)).__name__))


def _registered_id(env: Any) -> str | None:
    if isinstance(env, type):  # of a class the spec is a property
        return None
    return getattr(getattr(env, "spec", None), "id", None)


def _registered_by(make: functools.partial[Any]) -> str | None:
    """Return the id in ``partial(gymnasium.make, id)``."""
    given = next(iter(make.args), make.keywords.get("id"))
    named = getattr(make.func, "__name__", "") == "make" and isinstance(given, str)
    return given if named else None

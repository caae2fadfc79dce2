"""What a user passes to an algorithm's constructor, turned into a config."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rl_training.config import TrainConfig, config_from_dict, replace_config, validate
from rl_training.errors import UserError


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
        # An instance or a vector environment says itself how many environments it is.
        count = getattr(env, "num_envs", 1 if hasattr(env, "step") else None)
        if count is not None:
            changes = {"num_envs": count, **changes}
    elif config.algo != algo:
        raise UserError(f"the config is for {config.algo!r}, not for {algo!r}.")
    elif isinstance(env, str):
        changes = {"env_id": env, **changes}
    if changes:
        config = replace_config(config, **changes)
    validate(config)
    return config


def _name(env: Any) -> str:
    if env is None:
        raise UserError(
            "an environment is missing: give a gymnasium id, a callable or an environment."
        )
    spec = getattr(env, "spec", None)
    return str(spec.id if spec is not None else getattr(env, "__name__", type(env).__name__))

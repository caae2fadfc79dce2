"""Configs: `TrainConfig` from YAML files and plain data, and back, strictly."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any, cast

from rl_training.config.coercion import (
    ConfigKeyError,
    build,
    check_keys,
    dotted_names,
    plain,
    unknown_key,
)
from rl_training.config.groups import ModelConfig, TrainConfig, model_defaults
from rl_training.config.layers import Layers
from rl_training.config.yaml_text import format_yaml
from rl_training.errors import UserError
from rl_training.registry import ALGORITHMS, algorithm_class, algorithm_names

_GROUPS = ("algorithm", "model", "env", "evaluation", "checkpoint", "tracking")
Source = str | PathLike[str]


def load_config(
    path: Source | Sequence[Source], overrides: Mapping[str, Any] | None = None
) -> TrainConfig:
    """Read a config from YAML files or presets; later ones override earlier ones, key by key.

    Args:
        path: a file, the name of a preset (``ppo_cartpole``), or several of them.
        overrides: nested plain values laid over the files.

    Raises:
        UserError: a file that does not exist or is not YAML; an unknown key, a wrong type or an
            impossible value, with the key, the file and the nearest valid name.
    """
    layers = Layers()
    for each in [path] if isinstance(path, str | PathLike) else path:
        layers.add_file(each)
    if overrides:
        layers.add(overrides, "overrides")
    return _checked(layers)


def config_from_dict(data: Mapping[str, Any], *, source: str) -> TrainConfig:
    """Build a config from nested data, as strictly as from a file; errors begin with ``source``."""
    layers = Layers()
    layers.add(data, source)
    return _checked(layers)


def _checked(layers: Layers) -> TrainConfig:
    config = build_config(layers)
    try:
        validate(config)
    except UserError as error:
        raise layers.located(error) from error
    return config


def build_config(layers: Layers) -> TrainConfig:
    """Turn layers into a config of the right keys and types; its values are for `validate`.

    Raises:
        UserError: an unknown key, a missing key or a wrong type, with the file it stands in.
    """
    data = layers.data
    algo = data.get("algo")
    known = isinstance(algo, str) and algo in ALGORITHMS
    try:
        check_keys(train_config_class(cast("str", algo)) if known else TrainConfig, data)
        if algo is None:
            raise ConfigKeyError(
                "algo", f"missing key 'algo'. Known: {', '.join(algorithm_names())}."
            )
        if not known:
            _refuse_algorithm(algo)
        named = cast("str", algo)
        typed = build(train_config_class(named), _with_networks(data, named))
    except UserError as error:
        raise layers.located(error) from error
    return untyped(typed)


def _refuse_algorithm(algo: Any) -> None:
    try:
        algorithm_class(str(algo))
    except UserError as error:
        raise ConfigKeyError("algo", f"algo: {error}") from error


def train_config_class(algo: str) -> type[TrainConfig]:
    """Return `TrainConfig` with ``algorithm`` annotated by the algorithm's own dataclass, and its
    own default networks.
    """
    return _with_algorithm(cast("Any", algorithm_class(algo).Config))


@functools.cache
def _with_algorithm(group: type[Any]) -> type[TrainConfig]:
    algorithm = ("algorithm", group, dataclasses.field(default_factory=group))
    networks = functools.partial(model_defaults, group)
    model = ("model", ModelConfig, dataclasses.field(default_factory=networks))
    made = dataclasses.make_dataclass(
        "TrainConfig", [algorithm, model], bases=(TrainConfig,), kw_only=True
    )
    made.__doc__ = TrainConfig.__doc__
    return made


def _with_networks(data: Mapping[str, Any], algo: str) -> Mapping[str, Any]:
    """Return ``data`` with the algorithm's own defaults under what it says of the networks."""
    given = data.get("model", {})
    if not isinstance(given, Mapping):
        return data  # refused later, by its type
    defaults = model_defaults(cast("Any", algorithm_class(algo).Config))
    return {**data, "model": {**vars(defaults), **given}}


def untyped(config: TrainConfig) -> TrainConfig:
    """Return the config as a plain `TrainConfig`: equal configs are of one class, however made."""
    return TrainConfig(
        **{each.name: getattr(config, each.name) for each in dataclasses.fields(TrainConfig)}
    )


def require_config(config: Any) -> None:
    """Raise `UserError` for anything but a `TrainConfig`; says how one is made of that."""
    if isinstance(config, TrainConfig):
        return
    make = "TrainConfig(algo=..., env_id=...) makes one"
    if isinstance(config, Mapping):
        make = "config_from_dict(data, source=...) makes one of a dictionary"
    elif isinstance(config, str | PathLike):
        make = "load_config(path) reads one from a file or a preset"
    raise UserError(f"a TrainConfig is needed, not a {type(config).__name__}: {make}.")


def validate(config: TrainConfig) -> None:
    """Refuse values that cannot be: wrong types, each group's own rules, and the algorithm's.

    Raises:
        UserError: names the key and what is allowed; or this is no `TrainConfig`.
    """
    require_config(config)
    build(train_config_class(config.algo), config_to_dict(config))
    config.validate()
    for group in _GROUPS[1:]:
        getattr(config, group).validate()
    check_algorithm = getattr(config.algorithm, "validate", None)
    if check_algorithm is not None:
        check_algorithm(config)


def replace_config(config: TrainConfig, **changes: Any) -> TrainConfig:
    """Return a copy with some fields changed, validated as a whole.

    A name is a field of `TrainConfig`, else of the first group that has it (algorithm, model, env,
    evaluation, checkpoint, tracking); ``**{"evaluation.seed": 3}`` says which. A group takes a
    mapping (the rest of it stays) or an instance. Another ``algo`` starts from its defaults.

    Raises:
        UserError: an unknown name, with the nearest one; a wrong type; an impossible value.
    """
    require_config(config)
    data = config_to_dict(config)
    if changes.get("algo", config.algo) != config.algo:
        del data["algorithm"]
    root = train_config_class(changes.get("algo", config.algo))
    for name, value in changes.items():
        group, _, leaf = _place(name, root).rpartition(".")
        target = data
        for part in group.split(".") if group else ():
            target = target.setdefault(part, {})
        merged = leaf in _GROUPS and isinstance(value, Mapping)
        target[leaf] = {**data.get(leaf, {}), **value} if merged else _to_plain(value, name)
    built = untyped(build(root, data))
    validate(built)
    return built


def _place(name: str, root: type[TrainConfig]) -> str:
    known = set(dotted_names(root))
    for candidate in (name, *(f"{group}.{name}" for group in _GROUPS)):
        if candidate in known:
            return candidate
    raise unknown_key("", name, root, keyword=True)


def config_to_dict(config: TrainConfig) -> dict[str, Any]:
    """Return a copy of the config as nested plain data: what YAML and JSON can hold.

    Raises:
        UserError: a value that YAML cannot hold, such as an object in ``env_kwargs``.
    """
    return cast("dict[str, Any]", _to_plain(config, ""))


def _to_plain(value: Any, key: str) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [each.name for each in dataclasses.fields(value)]
        return {
            name: _to_plain(getattr(value, name), f"{key}.{name}" if key else name)
            for name in names
        }
    return plain(value, key)


def dump_yaml(config: TrainConfig) -> str:
    """Return the whole config as YAML; `load_config` of it gives an equal config."""
    return format_yaml(config_to_dict(config))


def config_hash(config: TrainConfig) -> str:
    """Return the SHA-256 of the config's content, the same whatever the order of keys."""
    text = json.dumps(
        config_to_dict(config), sort_keys=True, separators=(",", ":"), allow_nan=False
    )
    return hashlib.sha256(text.encode()).hexdigest()

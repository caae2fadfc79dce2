"""What a study may choose from: dimensions by the dotted name of a field of the configuration."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from rl_training.config import TrainConfig, config_to_dict, require, train_config_class
from rl_training.config.coercion import build, is_number, nearest_name
from rl_training.config.yaml_text import parse_yaml
from rl_training.errors import UserError
from rl_training.registry import algorithm_class

GIVEN = frozenset(
    {
        "algo",
        "env_id",
        "seed",
        "output_dir",
        "evaluation.interval",
        "evaluation.episodes",
        "evaluation.stop_on_return",
        "evaluation.patience",
        "checkpoint.keep_last",
        "checkpoint.keep_best",
        "tracking.wandb_group",
    }
)
"""Fields that a study sets itself, or that say what is tuned."""
SearchSpace = Mapping[str, "Dimension"]
"""Dotted names, such as ``algorithm.learning_rate``, and what they may be."""


@dataclass(frozen=True, kw_only=True)
class Dimension:
    """What one field may be: some values, or all numbers between two."""

    choices: list[Any] | None = None
    """The values."""
    low: float | None = None
    """The smallest number."""
    high: float | None = None
    """The largest."""
    log: bool = False
    """Draw the number's logarithm evenly, not the number."""
    whole: bool = False
    """Only whole numbers."""

    def validate(self, name: str) -> None:
        """Raise UserError for a dimension that cannot be."""
        if self.choices is not None:
            alone = self.low is None and self.high is None and not self.log and not self.whole
            require(alone, name, "has choices, and so no low, high, log or whole")
            require(bool(self.choices), f"{name}.choices", "must not be empty")
            return
        known = self.low is not None and self.high is not None
        require(known, name, "needs choices, or low and high")
        assert self.low is not None and self.high is not None
        require(self.low < self.high, name, "needs a low below its high")
        require(not self.log or self.low > 0, f"{name}.low", "must be positive where log is true")
        for key, bound in (("low", self.low), ("high", self.high)):
            whole = not self.whole or float(bound).is_integer()
            require(whole, f"{name}.{key}", "must be a whole number where whole is true")

    def with_value(self, value: Any) -> Dimension | None:
        """Return the dimension with one more value in it; None where it cannot hold that one."""
        if self.choices is not None:
            there = _text(value) in [_text(each) for each in self.choices]
            return self if there else Dimension(choices=[*self.choices, value])
        if not is_number(value) or (self.log and value <= 0) or (self.whole and value % 1):
            return None
        assert self.low is not None and self.high is not None
        low, high = min(self.low, value), max(self.high, value)
        return Dimension(low=low, high=high, log=self.log, whole=self.whole)

    def suggest(self, trial: Any, name: str) -> Any:
        """Let Optuna draw a value: a text of JSON for a choice, else a number."""
        if self.choices is not None:
            return trial.suggest_categorical(name, [_text(each) for each in self.choices])
        assert self.low is not None and self.high is not None
        if self.whole:
            return trial.suggest_int(name, int(self.low), int(self.high), log=self.log)
        return trial.suggest_float(name, self.low, self.high, log=self.log)

    def value(self, drawn: Any) -> Any:
        """Return what Optuna drew as the field's value."""
        return json.loads(drawn) if self.choices is not None else drawn

    def drawn(self, value: Any) -> Any:
        """Return a field's value as Optuna would have drawn it."""
        return _text(value) if self.choices is not None else value


def _text(value: Any) -> str:
    """Return a choice as Optuna keeps it; 1 and 1.0 are one value."""
    whole = is_number(value) and float(value).is_integer()
    return json.dumps(int(value) if whole else value)


def choice(*values: Any) -> Dimension:
    """Return a dimension of some values."""
    return Dimension(choices=list(values))


def between(low: float, high: float) -> Dimension:
    """Return a dimension of numbers."""
    return Dimension(low=low, high=high)


def logarithmic(low: float, high: float) -> Dimension:
    """Return a dimension of numbers whose logarithms are drawn."""
    return Dimension(low=low, high=high, log=True)


def read_space(path: str | PathLike[str]) -> dict[str, Dimension]:
    """Read a search space from a YAML file: names of fields and their dimensions.

    Raises:
        UserError: the file cannot be read, or a dimension cannot be.
    """
    try:
        data = parse_yaml(Path(path).read_text(encoding="utf-8"), source=str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {path}: {error}.") from error
    if not isinstance(data, Mapping) or not all(isinstance(each, str) for each in data):
        raise UserError(f"{path}: expected names of fields and what they may be.")
    space = {}
    try:
        for name, content in data.items():
            if not isinstance(content, Mapping):
                raise UserError(f"{name}: expected choices, or low and high.")
            space[name] = build(Dimension, content, prefix=name)
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    return space


def default_space(config: TrainConfig) -> dict[str, Dimension]:
    """Return the search space of a configuration's algorithm: the class attribute
    ``search_space``, else the one in `rl_training.experiments.search_spaces`; of Atari games
    without the networks, which an image encoder is instead.

    Raises:
        UserError: it has none.
    """
    from rl_training.experiments.search_spaces import SEARCH_SPACES

    algo = config.algo
    own = getattr(algorithm_class(algo), "search_space", None)
    if own is None and algo not in SEARCH_SPACES:
        raise UserError(f"there is no search space for {algo!r}: give one (--space FILE).")
    if own is not None:
        return dict(own)
    images = config.env.atari.enabled
    return {
        name: each
        for name, each in SEARCH_SPACES[algo].items()
        if not (images and name.startswith("model."))
    }


def fitted(space: SearchSpace, config: TrainConfig) -> dict[str, Dimension]:
    """Return a space in which the configuration's own values have a place, where they can have one.

    Raises:
        UserError: it is empty, names no field of the configuration or one that the study sets
            itself, or a dimension cannot be, or has values of another kind than the field.
    """
    if not space:
        raise UserError("the search space is empty.")
    made = {}
    for name, dimension in space.items():
        value = field_value(config, name)
        require(name not in GIVEN, name, "is the study's own and cannot be searched")
        dimension.validate(name)
        _require_kind(dimension, config, name)
        made[name] = dimension.with_value(value) or dimension
    return made


def _require_kind(dimension: Dimension, config: TrainConfig, name: str) -> None:
    """Raise where a value of the dimension is none of the field, whatever the others are: studies
    draw anew what does not fit together, and would never end, or never choose it.
    """
    if dimension.choices is not None:
        values = dimension.choices
    else:
        assert dimension.low is not None and dimension.high is not None
        values = [int(dimension.low)] if dimension.whole else [_between(dimension)]
    *groups, leaf = name.split(".")
    for value in values:
        data = config_to_dict(config)
        target = data
        for group in groups:
            target = target[group]
        target[leaf] = value
        try:
            build(train_config_class(config.algo), data)
        except UserError as error:
            hint = "" if dimension.choices is not None else " Add whole: true."
            raise UserError(f"the search space of {error}{hint}") from error


def _between(dimension: Dimension) -> float:
    """Return a number of a dimension that is no whole one."""
    assert dimension.low is not None and dimension.high is not None
    middle = (dimension.low + dimension.high) / 2
    return middle if middle % 1 else (dimension.low + middle) / 2 + 1e-9


def own_values(space: SearchSpace, config: TrainConfig) -> dict[str, Any] | None:
    """Return the configuration's values as Optuna would have drawn them; None where the space does
    not hold them.
    """
    values = {name: field_value(config, name) for name in space}
    if any(space[name].with_value(value) is None for name, value in values.items()):
        return None
    return {name: space[name].drawn(value) for name, value in values.items()}


def field_value(config: TrainConfig, name: str) -> Any:
    """Return a field's value by its dotted name.

    Raises:
        UserError: there is no such field, or it is a group.
    """
    value: Any = config_to_dict(config)
    for part in name.split("."):
        if not isinstance(value, dict) or part not in value:
            close = nearest_name(name, train_config_class(config.algo))
            hint = f" Did you mean {close!r}?" if close else ""
            raise UserError(f"{name} is no field of a {config.algo} configuration.{hint}")
        value = value[part]
    if isinstance(value, dict):
        raise UserError(f"{name} is a group of fields: name one of {', '.join(value)}.")
    return value

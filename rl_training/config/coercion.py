"""Plain data (what YAML and JSON hold) to typed values, strictly: the annotation decides.

Knows dataclasses, not what they mean. An error names the dotted key; who reads the data adds the
file.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import math
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral, Real
from os import PathLike, fspath
from typing import Any, Literal, TypeVar, cast

from rl_training.config.elsewhere import NAMES_ELSEWHERE, schedule_hint
from rl_training.errors import UserError, nearest

Instance = TypeVar("Instance")
_INTEGER = re.compile(r"[-+]?[0-9][0-9_]*")
_EXPONENT = re.compile(r"[-+]?[0-9]+\.?[0-9]*[eE]\+?[0-9]+")  # 1e6
_EXACT_INTEGERS = 2**53  # above it a float no longer names one integer
_LARGEST_INTEGER = 2**63 - 1  # what counters, JSON readers and TensorBoard can hold
_LARGEST_FLOAT = 3.4028234e38  # float32, in which training computes
_ALIKE, _SAME = 0.6, 0.8  # of `difflib.get_close_matches`: what may be meant, and what surely is
_SHOWN = 80


class ConfigKeyError(UserError):
    """A key of a config that does not exist, is missing, or holds what it cannot hold."""

    def __init__(self, key: str, message: str) -> None:
        """``message`` is the whole line, ``key`` the dotted name it is about."""
        super().__init__(message)
        self.key = key


def require(condition: bool, key: str, message: str) -> None:
    """Raise ConfigKeyError ``"<key> <message>."`` when ``condition`` is false."""
    if not condition:
        raise ConfigKeyError(key, f"{key} {message}.")


def require_directory(key: str, value: str | None) -> None:
    """Raise ConfigKeyError for text that names no directory; null names none on purpose."""
    if value is not None and not value.strip():
        raise ConfigKeyError(key, f"{key} must name a directory or be null, not {value!r}.")


def wrong(key: str, expected: str, value: Any) -> ConfigKeyError:
    """Return the error for a ``key`` that holds ``value`` where ``expected`` is needed."""
    try:
        shown = repr(value)
    except ValueError:  # Python prints no integer of more than 4300 digits
        shown = "a number of thousands of digits"
    shown = shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}..."
    return ConfigKeyError(
        key, f"{key}: expected {expected}, not {shown}.{schedule_hint(key, value)}"
    )


def build(cls: type[Instance], data: Mapping[str, Any], prefix: str = "") -> Instance:
    """Make the dataclass ``cls`` from a mapping; missing keys take the field's default.

    Args:
        cls: a dataclass; its fields may be dataclasses themselves.
        data: field names to plain values.
        prefix: dotted name of the group, put before every key in an error.

    Raises:
        ConfigKeyError: an unknown or missing key, or a value of another type.
    """
    check_keys(cls, data, prefix=prefix)
    hints = field_types(cls)
    values = {}
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]
        name = _join(prefix, field.name)
        if field.name in data:
            values[field.name] = coerce(data[field.name], hints[field.name], name)
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise ConfigKeyError(name, f"missing key {name!r}.")
    return cls(**values)


def field_types(cls: type[Any]) -> Mapping[str, Any]:
    """Return the evaluated annotation of every dataclass field of ``cls``."""
    return _field_types(cast("Any", cls))


@functools.cache  # evaluating annotations is slow, and every config asks for the same ones
def _field_types(cls: type[Any]) -> Mapping[str, Any]:
    hints = typing.get_type_hints(cls)
    return types.MappingProxyType(
        {field.name: hints[field.name] for field in dataclasses.fields(cls)}
    )


def unknown_key(
    prefix: str,
    key: Any,
    root: type[Any],
    group: type[Any] | None = None,
    *,
    keyword: bool = False,
) -> ConfigKeyError:
    """Return the error for a key that does not exist, with the nearest one of ``root``.

    Args:
        prefix: the group in which the key stands, as a dotted name; empty at the top.
        key: the key.
        root: the dataclass of the whole config, in which the key may have another place.
        group: that of the group; None: ``root`` itself.
        keyword: it is one of Python, which names fields without their groups.
    """
    name = _join(prefix, str(key))
    elsewhere, names = NAMES_ELSEWHERE.get(str(key)), dotted_names(root)
    leaves = {each.rpartition(".")[2] for each in names}
    # What is no field's name is advice; a field's name helps where there is such a field.
    if elsewhere is not None and (elsewhere in leaves or not elsewhere.isidentifier()):
        return ConfigKeyError(name, f"unknown key {name!r}. Here it is {elsewhere}.")
    close = nearest_name(name, root)
    close = close.rpartition(".")[2] if keyword and "." not in name else close
    siblings = [each for each in names if each.rpartition(".")[0] == prefix]
    siblings = siblings or list(field_types(group or root))  # an element of a list or a mapping
    hint = f"Did you mean {close!r}?" if close else f"Valid here: {', '.join(siblings)}."
    return ConfigKeyError(name, f"unknown key {name!r}. {hint}")


def nearest_name(name: str, root: type[Any]) -> str:
    """Return the dotted field of ``root`` that a wrong dotted name most likely means, or ``""``."""
    known = dotted_names(root)
    prefix, _, leaf = name.rpartition(".")
    places = {each.rpartition(".")[2]: each for each in reversed(known)}
    if leaf in places:
        return places[leaf]
    for each in known:  # of two places, the one in the same group
        group, _, sibling = each.rpartition(".")
        if group == prefix:
            places[sibling] = each
    for close in difflib.get_close_matches(leaf, places, n=len(places), cutoff=_ALIKE):
        # Whoever named a group meant it, unless the name is almost one of another group.
        same = prefix in ("", places[close].rpartition(".")[0])
        if same or difflib.get_close_matches(leaf, [close], cutoff=_SAME):
            return places[close]
    return ""


def check_keys(
    cls: type[Any], data: Mapping[str, Any], *, root: type[Any] | None = None, prefix: str = ""
) -> None:
    """Refuse a key that ``cls``, or a group of it, does not have; ``root`` gives the nearest."""
    hints = field_types(cls)
    for key, value in data.items():
        if key not in hints:
            raise unknown_key(prefix, key, root or cls, cls)
        group: Any = hints[key]
        if dataclasses.is_dataclass(group) and isinstance(value, Mapping):
            check_keys(cast("type[Any]", group), value, root=root or cls, prefix=_join(prefix, key))


def dotted_names(cls: type[Any]) -> list[str]:
    """Return the dotted name of every field of a dataclass, its groups' fields included."""
    names = []
    for name, annotation in field_types(cls).items():
        names.append(name)
        if dataclasses.is_dataclass(annotation):
            inner = dotted_names(cast("type[Any]", annotation))
            names += [f"{name}.{each}" for each in inner]
    return names


def coerce(value: Any, annotation: Any, key: str) -> Any:
    """Return ``value`` as the type ``annotation`` names, or raise ConfigKeyError."""
    if annotation is Any:
        return plain(value, key)
    if dataclasses.is_dataclass(annotation):
        return _coerce_dataclass(value, annotation, key)
    if annotation in _SCALARS:
        return _SCALARS[annotation](value, key)
    origin = typing.get_origin(annotation)
    if origin in _GENERICS:
        return _GENERICS[origin](value, typing.get_args(annotation), key)
    raise TypeError(f"{key}: a config field cannot be annotated {annotation!r}")


def plain(value: Any, key: str) -> Any:
    """Copy what YAML and JSON can hold; tuples become lists. Anything else is refused."""
    if isinstance(value, Mapping):
        return {
            _text_key(name, key): plain(item, _join(key, str(name))) for name, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [plain(item, f"{key}[{index}]") for index, item in enumerate(value)]
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, Integral) and abs(int(value)) <= _LARGEST_INTEGER:
        return int(value)
    if isinstance(value, Real) and not isinstance(value, Integral) and math.isfinite(value):
        return float(value)
    raise wrong(key, "a finite number, text, true, false, null, a list or a mapping", value)


def _coerce_dataclass(value: Any, annotation: Any, key: str) -> Any:
    if isinstance(value, annotation):
        return value
    if value is None:  # a section whose lines are all commented out
        return build(annotation, {}, key)
    if not isinstance(value, Mapping):
        raise wrong(key, "a group of keys", value)
    return build(annotation, value, key)


def _coerce_bool(value: Any, key: str) -> bool:
    if isinstance(value, bool):
        return value
    raise wrong(key, "true or false", value)


def _coerce_int(value: Any, key: str) -> int:
    number = _whole(value, key)
    if abs(number) > _LARGEST_INTEGER:
        raise wrong(key, "a whole number below 2**63", value)
    return number


def _whole(value: Any, key: str) -> int:
    if isinstance(value, Integral) and not isinstance(value, bool):
        return int(value)
    if isinstance(value, str) and len(value) <= _SHOWN and _INTEGER.fullmatch(value):
        return int(value)
    if isinstance(value, str) and _EXPONENT.fullmatch(value):
        value = float(value)
    if isinstance(value, float) and value.is_integer() and abs(value) <= _EXACT_INTEGERS:
        return int(value)  # 1e6 steps
    raise wrong(key, "a whole number", value)


def is_number(value: Any) -> bool:
    """Return whether a value is a number; true and false are none."""
    return isinstance(value, Real) and not isinstance(value, bool)


def _coerce_float(value: Any, key: str) -> float:
    number = math.nan
    if is_number(value):
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
    elif isinstance(value, str):
        try:
            number = float(value)
        except ValueError:
            raise wrong(key, "a number", value) from None
    if not is_number(value) and not isinstance(value, str):
        raise wrong(key, "a number", value)
    if not math.isfinite(number):
        raise wrong(key, "a finite number", value)
    if abs(number) > _LARGEST_FLOAT:
        raise wrong(key, "a number that float32 can hold", value)
    return number


def _coerce_str(value: Any, key: str) -> str:
    if isinstance(value, str):
        if "\0" in value:
            raise wrong(key, "text without a null character", value)
        return str(value)
    if isinstance(value, PathLike):
        return str(fspath(value))
    if isinstance(value, int | float):
        raise ConfigKeyError(
            key, f"{key}: expected text, not {value!r}; quote it if it is meant as text."
        )
    raise wrong(key, "text", value)


def _coerce_none(value: Any, key: str) -> None:
    if value is not None:
        raise wrong(key, "null", value)


def _coerce_literal(value: Any, choices: tuple[Any, ...], key: str) -> Any:
    for choice in choices:
        if type(value) is type(choice) and value == choice:
            return choice
    hint = nearest(value, [str(choice) for choice in choices]) if isinstance(value, str) else ""
    listing = ", ".join(str(choice) for choice in choices)
    raise ConfigKeyError(key, f"{key}: expected one of {listing}, not {value!r}.{hint}")


def _coerce_union(value: Any, options: tuple[Any, ...], key: str) -> Any:
    if type(value) in options:
        return coerce(value, type(value), key)
    errors = []
    for option in options:
        try:
            return coerce(value, option, key)
        except ConfigKeyError as error:  # noqa: PERF203 - a handful of options
            if option is not type(None):
                errors.append(error)
    if len(errors) == 1:
        # keeps the inner key (an element of a list) and says that null is a choice too
        raise ConfigKeyError(errors[0].key, str(errors[0]).replace(", not ", " or null, not ", 1))
    raise wrong(key, " or ".join(describe(option) for option in options), value)


def _coerce_list(value: Any, arguments: tuple[Any, ...], key: str) -> list[Any]:
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        raise wrong(key, "a list", value)
    return [coerce(item, arguments[0], f"{key}[{index}]") for index, item in enumerate(value)]


def _coerce_tuple(value: Any, arguments: tuple[Any, ...], key: str) -> tuple[Any, ...]:
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        return tuple(_coerce_list(value, arguments, key))
    if not isinstance(value, list | tuple) or len(value) != len(arguments):
        raise wrong(key, f"a list of {len(arguments)}", value)
    pairs = zip(value, arguments, strict=True)
    return tuple(coerce(item, kind, f"{key}[{index}]") for index, (item, kind) in enumerate(pairs))


def _coerce_dict(value: Any, arguments: tuple[Any, ...], key: str) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise wrong(key, "a mapping", value)
    return {
        _text_key(name, key): coerce(item, arguments[1], _join(key, str(name)))
        for name, item in value.items()
    }


def _text_key(name: Any, key: str) -> str:
    if isinstance(name, str):
        return name
    raise wrong(key, "names as keys", name)


def describe(annotation: Any) -> str:
    """Return the word an error uses for a type."""
    words = {
        bool: "true or false",
        int: "a whole number",
        float: "a number",
        str: "text",
        type(None): "null",
    }
    if typing.get_origin(annotation) is Literal:
        return ", ".join(str(choice) for choice in typing.get_args(annotation))
    return words.get(annotation, str(annotation))


def _join(prefix: str, key: str) -> str:
    return f"{prefix}.{key}" if prefix else key


_SCALARS: dict[Any, Callable[[Any, str], Any]] = {
    bool: _coerce_bool,
    int: _coerce_int,
    float: _coerce_float,
    str: _coerce_str,
    type(None): _coerce_none,
}
_GENERICS: dict[Any, Callable[[Any, tuple[Any, ...], str], Any]] = {
    Literal: _coerce_literal,
    typing.Union: _coerce_union,
    types.UnionType: _coerce_union,
    list: _coerce_list,
    tuple: _coerce_tuple,
    dict: _coerce_dict,
}

"""Typed command-line flags from a dataclass, by tyro; what it refuses becomes one line."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import re
import types
from collections.abc import Sequence
from typing import Annotated, Any, TypeVar, Union, cast, get_args

import tyro
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from rl_training.config.coercion import coerce, dotted_names, is_number, nearest_name
from rl_training.config.elsewhere import schedule_hint
from rl_training.config.yaml_text import format_yaml, parse_yaml
from rl_training.errors import UserError

Arguments = TypeVar("Arguments")
_FRAME = "│╭╮╰╯─├┤| "


def parse_flags(
    cls: type[Arguments],
    arguments: Sequence[str],
    *,
    program: str,
    default: Arguments | None = None,
    positional: bool = False,
    description: str | None = None,
) -> Arguments:
    """Fill the dataclass ``cls`` from command-line words.

    Args:
        cls: its fields become flags, its groups' fields ``--group.field``.
        arguments: the words after the command.
        program: what the help calls the command.
        default: where the values come from that no flag gives.
        positional: fields without a default are given without a flag, and switches have no
            ``--no-`` form.
        description: what the help says first; None: the docstring of ``cls``.

    Raises:
        UserError: an unknown flag, with the nearest one; a value that does not fit.
        SystemExit: with status 0, after the help was printed.
    """
    words = [_switched_off(word) for word in arguments]
    _refuse_unknown(cls, words)
    conf = (tyro.conf.PositionalRequiredArgs, tyro.conf.FlagCreatePairsOff) if positional else ()
    given: Any = {} if default is None else {"default": default}
    given |= {"prog": program, "config": conf, "registry": _registry(), "description": description}
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            return cast("Arguments", tyro.cli(cls, args=words, **given))
    except SystemExit as stop:
        if not stop.code:
            raise
        raise UserError(_with_schedule_hint(_one_line(complaint.getvalue()))) from None


def _switched_off(word: str) -> str:
    """Return ``--no-group.field`` as tyro spells it, ``--group.no-field``."""
    group, dot, leaf = word.removeprefix("--no-").rpartition(".")
    return f"--{group}.no-{leaf}" if word.startswith("--no-") and dot and "=" not in word else word


def _refuse_unknown(cls: type[Any], words: Sequence[str]) -> None:
    # tyro would refuse it too, in a box of many lines.
    known = {"help"}
    for name in dotted_names(cls):
        group, _, leaf = name.rpartition(".")
        known |= {name, f"{group}.no_{leaf}".lstrip(".")}
    for word in words:
        flag = word.partition("=")[0]
        name = flag[2:].replace("-", "_")
        if flag.startswith("--") and flag != "--" and name not in known:
            close = nearest_name(name, cls)
            spelled = close.replace("_", "-")
            hint = f"Did you mean '--{spelled}'?" if close else "--help lists the flags."
            raise UserError(f"unknown flag {flag!r}. {hint}")


def _none(word: str) -> None:
    if word not in ("null", "None"):
        raise ValueError(f"invalid value {word!r}")


def _registry() -> ConstructorRegistry:
    """Return the rules for the types that a file reads otherwise than tyro would."""
    registry = ConstructorRegistry()

    @registry.primitive_rule
    def mapping(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
        """One word of YAML: ``'{max_episode_steps: 100}'``."""
        if info.type_origin is not dict:
            return None
        return PrimitiveConstructorSpec(
            nargs=1,
            metavar="YAML",
            instance_from_str=lambda words: _value(words[0], info.type, parse=True),
            is_instance=lambda value: isinstance(value, dict),
            str_from_instance=lambda value: [format_yaml(value, one_line=True)],
        )

    @registry.primitive_rule
    def nothing(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
        """``null``, as in a file, or ``None``."""
        if info.type is not type(None):
            return None
        return PrimitiveConstructorSpec(
            nargs=1,
            metavar="None",
            instance_from_str=lambda words: _none(words[0]),
            is_instance=lambda value: value is None,
            str_from_instance=lambda _: ["None"],
        )

    @registry.primitive_rule
    def number(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
        """A number, or null, as in a file: ``1e6`` is a whole number."""
        union = info.type_origin in (Union, types.UnionType)
        kinds = [kind for kind in _options(info.type, union) if kind is not type(None)]
        if kinds not in ([int], [float]):
            return None
        return PrimitiveConstructorSpec(
            nargs=1,
            metavar=kinds[0].__name__.upper() + ("|None" if union else ""),
            instance_from_str=lambda words: _value(words[0], info.type),
            is_instance=lambda value: (value is None and union) or is_number(value),
            str_from_instance=lambda value: [str(value)],
        )

    return registry


def _options(annotation: Any, union: bool) -> tuple[Any, ...]:
    return get_args(annotation) if union else (annotation,)


def _value(word: str, annotation: Any, *, parse: bool = False) -> Any:
    """Return one word as a value, by the rules of a file; errors are for tyro to show."""
    try:
        if not parse and word.lower() in ("none", "null"):
            return coerce(None, annotation, "value")
        return coerce(parse_yaml(word, source="value"), annotation, "value")
    except UserError as error:
        raise ValueError(str(error).removeprefix("value: ")) from None


def _one_line(box: str) -> str:
    """Return the first section of tyro's box: without frame and title, without the help below."""
    lines = [line.strip(_FRAME) for line in re.sub(r"\x1b\[[0-9;]*m", "", box).splitlines()]
    sections: list[list[str]] = [[]]
    for line in lines[1:]:
        if line.strip("-"):
            sections[-1].append(line)
        else:  # a rule, drawn in one way or another
            sections.append([])
    text = " ".join(next((section for section in sections if section), []))
    return text.removeprefix("Error parsing ") or "the arguments do not fit; --help lists them."


def _with_schedule_hint(text: str) -> str:
    """Return the text of an error with the hint that a file's would have."""
    flag, value = text.partition(":")[0], re.search(r", not '(.*)'\.$", text)
    key = flag.removeprefix("--").replace("-", "_")
    return text + (schedule_hint(key, value[1]) if value else "")


def without_field(cls: type[Any], name: str, **groups: type[Any]) -> type[Any]:
    """Return the dataclass ``cls`` with one field hidden from the flags, for a help without it, and
    ``groups`` with the defaults of their own classes.
    """
    annotation = Annotated[Any, tyro.conf.Suppress, tyro.conf.Fixed]
    hidden = (name, annotation, dataclasses.field(default=None))
    fields = [
        (key, group, dataclasses.field(default_factory=group)) for key, group in groups.items()
    ]
    made = dataclasses.make_dataclass(cls.__name__, [hidden, *fields], bases=(cls,), kw_only=True)
    made.__doc__ = cls.__doc__
    return made


def changed_keys(before: Any, after: Any, prefix: str = "") -> list[str]:
    """Return the dotted names of the fields in which two instances of one dataclass differ."""
    names = []
    for each in dataclasses.fields(before):
        old, new = getattr(before, each.name), getattr(after, each.name)
        if dataclasses.is_dataclass(old) and type(old) is type(new):
            names += changed_keys(old, new, f"{prefix}{each.name}.")
        elif old != new:
            names.append(f"{prefix}{each.name}")
    return names

"""YAML in and out, with the surprises taken out.

Reading follows YAML 1.2 where 1.1 bites: ``off`` and ``no`` are text, ``3e-4`` is a number, a date
is text. A key given twice is an error, and so are anchors, which can make a small file enormous.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Hashable
from typing import Any, cast

import yaml

from rl_training.errors import UserError, one_line

_BOOL = re.compile(r"true|True|TRUE|false|False|FALSE")
_INT = re.compile(r"[-+]?[0-9][0-9_]*")
_FLOAT = re.compile(
    r"[-+]?(?:\.[0-9][0-9_]*|[0-9][0-9_]*(?:\.[0-9_]*)?)(?:[eE][-+]?[0-9]+)?"
    r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
)
_NULL = re.compile(r"~|null|Null|NULL|")
_LINE_BREAKS = re.compile("[\x85\u2028\u2029\ufeff]")
_RESOLVERS = {"bool": _BOOL, "int": _INT, "float": _FLOAT, "null": _NULL}


class _Loader(yaml.SafeLoader):
    """Plain data only, by the rules above."""

    yaml_implicit_resolvers: dict[str | None, list[tuple[str, re.Pattern[str]]]] = {  # noqa: RUF012
        None: [
            (f"tag:yaml.org,2002:{kind}", re.compile(rf"(?:{pattern.pattern})$"))
            for kind, pattern in _RESOLVERS.items()
        ]
    }

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.events.AliasEvent):
            mark = cast("Any", self).get_event().start_mark
            problem = "anchors and aliases are not supported"
            raise yaml.composer.ComposerError(None, None, problem, mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                problem = "a key must be text, not a list or a mapping"
                raise yaml.constructor.ConstructorError(None, None, problem, key_node.start_mark)
            if key_node.value in seen:
                problem = f"key {key_node.value!r} is given twice"
                raise yaml.constructor.ConstructorError(None, None, problem, key_node.start_mark)
            seen.add(key_node.value)
        return super().construct_mapping(node, deep)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, KeyError, OverflowError, AttributeError, TypeError) as error:
            # A tag that the text does not fit: !!int abc, !!timestamp x; thousands of digits.
            kind = node.tag.rpartition(":")[2]
            text = str(node.value)[:40]
            problem = f"{text!r} cannot be read as {kind}"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark) from error

    def construct_decimal(self, node: yaml.ScalarNode) -> int:
        return int(self.construct_scalar(node))  # no octal 010, no sexagesimal 1:30


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_decimal)


class _Dumper(yaml.SafeDumper):
    """Quotes every text that `_Loader` or a YAML 1.1 reader would take for something else."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_text(self, data: str) -> yaml.ScalarNode:
        # Other styles write these line breaks as they are, and reading folds them.
        style = '"' if _LINE_BREAKS.search(data) else None
        return self.represent_scalar("tag:yaml.org,2002:str", data, style)


_Dumper.add_representer(str, _Dumper.represent_text)
for _kind, _pattern in _RESOLVERS.items():
    _Dumper.add_implicit_resolver(
        f"tag:yaml.org,2002:{_kind}", re.compile(rf"(?:{_pattern.pattern})$"), None
    )


def parse_yaml(text: str, *, source: str) -> Any:
    """Return the plain data that ``text`` holds.

    Raises:
        UserError: the text is not YAML, or uses what is refused; names ``source``, line and column.
    """
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        raise UserError(f"{source}: {_problem(error)}.") from error
    except RecursionError as error:
        raise UserError(f"{source}: nested too deeply.") from error


def format_yaml(data: Any, *, one_line: bool = False) -> str:
    """Return plain data as YAML text that `parse_yaml` reads back unchanged."""
    width = sys.maxsize if one_line else 100
    text = yaml.dump(
        data,
        Dumper=_Dumper,
        sort_keys=False,
        allow_unicode=True,
        width=width,
        default_flow_style=one_line,
    )
    return str(text).rstrip("\n") if one_line else str(text)


def _problem(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or one_line(error)
    where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
    return f"{where}{problem}"

"""``rl-training check-env``: the report of `rl_training.check_env` on a terminal, or as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from rl_training.cli.flags import parse_flags
from rl_training.errors import UserError

if TYPE_CHECKING:
    from rl_training.checker import EnvironmentReport


@dataclass(kw_only=True)
class CheckArguments:
    """Say what will be done with an environment; exit status 1 when something is wrong with it."""

    env_id: Annotated[str, tyro.conf.arg(metavar="ID")]
    """A gymnasium id; "my_package:MyEnv-v0" imports my_package first."""
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of the environment's constructor."""
    steps: int = 200
    """Steps of random actions to try."""
    seed: int = 1
    """Of the first episode and of the actions."""
    json: bool = False
    """Print one JSON object and nothing else."""

    def validate(self) -> None:
        """Refuse values that cannot be."""
        for name, least in (("steps", 1), ("seed", 0)):
            if getattr(self, name) < least:
                raise UserError(f"--{name} must be at least {least}, not {getattr(self, name)}.")


def check_env(arguments: Sequence[str]) -> int:
    """Check the environment that the words after ``check-env`` name; return the exit status."""
    program = "rl-training check-env"
    given = parse_flags(CheckArguments, arguments, program=program, positional=True)
    given.validate()
    from rl_training.checker import check_env as check

    report = check(given.env_id, env_kwargs=given.env_kwargs, steps=given.steps, seed=given.seed)
    if given.json:
        print(json.dumps(report.to_dict()))
    else:
        _show(report)
    return 0 if report.ok else 1


def _show(report: EnvironmentReport) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for heading, lines in report.sections():
        bad = heading == "violations" and not report.ok
        for index, line in enumerate(lines):
            # Text, not markup: spaces are written with brackets.
            label = Text(heading if index == 0 else "", style="bold red" if bad else "bold")
            table.add_row(label, Text(line, style="red" if bad else ""))
    console = Console()
    console.print(Text(report.environment, style="bold"))
    console.print(table)

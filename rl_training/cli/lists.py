"""``rl-training list``: algorithms and presets."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from rl_training.errors import UserError, nearest

_SCORE = re.compile(r"\(mean (-?[\d.,]+)\)")
_ONE_SCORE = re.compile(r"^#   (-?[\d.,]+);", re.MULTILINE)
_BUDGET = re.compile(r"after ([\d,]+) steps")
_NOT_YET = "not yet"


def show(arguments: list[str]) -> int:
    """Print what the words after ``list`` name; return the exit status."""
    kinds: dict[str, Callable[[], list[str]]] = {
        "algorithms": _algorithm_lines,
        "presets": preset_lines,
    }
    if {"-h", "--help"} & set(arguments):
        print("usage: rl-training list [algorithms | presets]")
        return 0
    if len(arguments) > 1:
        raise UserError(f"list takes one word, algorithms or presets, not {' '.join(arguments)!r}.")
    if arguments and arguments[0] not in kinds:
        hint = nearest(arguments[0], kinds)
        raise UserError(f"cannot list {arguments[0]!r}.{hint} Known: {', '.join(kinds)}.")
    for kind in arguments or kinds:
        print(f"{kind}:")
        for line in kinds[kind]():
            print(f"  {line}")
    return 0


def _algorithm_lines() -> list[str]:
    from rl_training.registry import ALGORITHMS, algorithm_names, space_table

    lines = [f"{name:<16} {ALGORITHMS[name]}" for name in algorithm_names()]
    return lines + _aligned(space_table())


def preset_lines() -> list[str]:
    """Return a line for each preset: name, algorithm, environment, steps, measured mean return;
    then the overlays.
    """
    from rl_training.config import preset_paths

    rows = [["preset", "algorithm", "environment", "steps", "mean return"]]
    overlays = []
    for name, path in preset_paths().items():
        row = _row(name, path)
        if row is None:
            overlays.append([name, "overlay: give it after another --config"])
        else:
            rows.append(row)
    return _aligned(rows, right=(3, 4)) + _aligned(overlays)


def _row(name: str, path: Path) -> list[str] | None:
    from rl_training.config.yaml_text import parse_yaml

    text = path.read_text(encoding="utf-8")
    data = parse_yaml(text, source=str(path)) or {}
    if "algo" not in data:
        return None
    steps = data.get("total_timesteps")
    budget = "default" if steps is None else f"{int(float(steps)):,}"
    return [name, data["algo"], data["env_id"], budget, measured_score(text)]


def measured_score(text: str) -> str:
    """Return the mean return that a preset's first lines say was measured, and after how many steps
    where that was before the budget's end; or ``"not yet"``.
    """
    header = text.partition("\n\n")[0]
    found = _SCORE.search(header) or _ONE_SCORE.search(header)
    if found is None:
        return _NOT_YET
    early = _BUDGET.search(header)
    return found[1] + (f" after {early[1]}" if early else "")


def _aligned(rows: Sequence[Sequence[str]], *, right: Sequence[int] = ()) -> list[str]:
    """Return rows of cells as lines of columns; those of the indices ``right`` end together."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [
            cell.rjust(width) if index in right else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return lines

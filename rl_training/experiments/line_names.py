"""What the lines of a plot of many runs are called: in few words, no two alike."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rl_training.experiments.compare import RunSummary

LONGEST = 48
"""Letters of a name that is made of settings; that of a run may be longer."""
Settings = tuple[tuple[str, str], ...]
"""Key and value, as written, of each setting in which the lines differ."""


def line_names(algo: str, lines: Mapping[Settings, Sequence[RunSummary]]) -> dict[Settings, str]:
    """Return a name for each line of an algorithm: its settings where they are few, else the first
    that tell all lines apart, with the number of the others, else the names of the runs.

    Args:
        algo: its name.
        lines: settings to runs. All have the same keys.
    """
    names = {settings: _written(algo, settings, 0) for settings in lines}
    if _short(names):
        return names
    total = len(next(iter(lines)))
    for count in (1, 2):
        for places in itertools.combinations(range(total), count):
            chosen = {settings: tuple(settings[place] for place in places) for settings in lines}
            if len(set(chosen.values())) < len(lines):
                continue
            names = {
                settings: _written(algo, few, total - count) for settings, few in chosen.items()
            }
            if _short(names):
                return names
    return _of_runs(algo, lines)


def _written(algo: str, settings: Settings, others: int) -> str:
    more = f" (+{others} {'setting' if others == 1 else 'settings'})" if others else ""
    return ", ".join([algo, *(f"{key} {value}" for key, value in settings)]) + more


def _short(names: Mapping[Settings, str]) -> bool:
    return max(map(len, names.values())) <= LONGEST


def _of_runs(algo: str, lines: Mapping[Settings, Sequence[RunSummary]]) -> dict[Settings, str]:
    """Return the end of the path of each line's first run: as few folders as tell them apart."""
    paths = {settings: runs[0].path.resolve().parts for settings, runs in lines.items()}
    for depth in range(1, max(map(len, paths.values())) + 1):
        names = {settings: "/".join(parts[-depth:]) for settings, parts in paths.items()}
        if len(set(names.values())) == len(names):
            break
    own = f"{algo}__"  # how the names of runs begin that the library made
    return {
        settings: name if name.startswith(own) else f"{algo}, {name}"
        for settings, name in names.items()
    }


def bare_keys(keys: Sequence[str]) -> dict[str, str]:
    """Return each dotted key's last part, or all of it where another key ends with the same."""
    ends = [key.rpartition(".")[2] for key in keys]
    return {key: end if ends.count(end) == 1 else key for key, end in zip(keys, ends, strict=True)}

"""Colours, lines, markers and hatches of plots: an algorithm has the same ones in every figure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rl_training.registry import ALGORITHMS

_COLORS = ("#000000", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")
"""Okabe and Ito's, told apart by colour-blind readers."""
_LINES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1, 1, 1)), (0, (1, 3)))
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_HATCHES = ("", "///", "...", "xxx", "\\\\\\", "++", "oo")


def style_numbers(algorithms: Mapping[str, str]) -> dict[str, int]:
    """Return the number of each line's style, from names to algorithms: the first line of an
    algorithm has the algorithm's own, further ones those that no algorithm of the figure has.
    """
    own = {algo: place for place, algo in enumerate(ALGORITHMS) if place < len(_COLORS)}
    numbers: dict[str, int] = {}
    first = {algo: name for name, algo in reversed(list(algorithms.items()))}
    taken = {own[algo] for algo in first if algo in own}
    free = [number for number in range(len(_COLORS) + len(algorithms)) if number not in taken]
    for name, algo in algorithms.items():
        is_first = algo in own and first[algo] == name
        numbers[name] = own[algo] if is_first else free.pop(0)
    return numbers


def line_style(number: int) -> dict[str, Any]:
    """Return what matplotlib draws a line by."""
    turns = number // len(_COLORS)  # each with other lines and markers for the same colours
    return {
        "color": _COLORS[number % len(_COLORS)],
        "linestyle": _LINES[(number + turns) % len(_LINES)],
        "marker": _MARKERS[(number + 2 * turns) % len(_MARKERS)],
        "markersize": 4,
    }


def bar_style(number: int) -> dict[str, Any]:
    """Return what matplotlib draws a bar by."""
    return {
        "color": "white",
        "edgecolor": _COLORS[number % len(_COLORS)],
        "hatch": _HATCHES[(number + number // len(_COLORS)) % len(_HATCHES)],
    }

"""Plots of many runs: learning curves, score bars, performance profiles, as PNG and as SVG.

They are told apart without colour: by line style and marker, or by hatch.
"""

from __future__ import annotations

import importlib
import math
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rl_training.errors import UserError
from rl_training.experiments.document import Picture
from rl_training.experiments.line_styles import bar_style, line_style, style_numbers
from rl_training.experiments.manifest import Manifest
from rl_training.experiments.results import PresetResult, scaled_scores
from rl_training.experiments.statistics import (
    curve_interval,
    interquartile_means,
    performance_profile,
    summarise,
)

Curve = Sequence[tuple[int, float]]
"""Step and value of each point."""

_PUBLISHED = ("o", "s", "^", "D")
_FEWEST_ROWS = 3
_STYLE = {
    "svg.hashsalt": "rl_training",  # equal data, equal file
    "axes.grid": True,
    "grid.alpha": 0.3,
    "font.size": 9,
    "hatch.linewidth": 0.6,
}
_COLUMNS = 3
_LEGEND_FONT = 7
_LEGEND_ROW, _AXIS_TEXT = 0.17, 0.5
"""Inches: a row of a legend; what stands below a panel, the numbers and the axis's name."""
_LEGEND_WIDTH = 52
"""Letters after which a name goes on in the next row; as wide as a panel."""
_MOST_WITHIN, _LONGEST_WITHIN = 6, 40
"""Lines, and letters of a name, of a legend within its panel."""
_THRESHOLDS = np.linspace(0.0, 1.25, 126)


def draw_benchmark(
    manifest: Manifest, results: Sequence[PresetResult], directory: Path
) -> list[Picture]:
    """Draw what there is to draw of a benchmark into a folder, and return the pictures.

    Raises:
        UserError: the extra ``plots`` is missing.
    """
    require_matplotlib()
    pictures = []
    panels: dict[str, dict[str, list[Curve]]] = {}
    algorithms = style_numbers({each.config.algo: each.config.algo for each in results})
    styles = {each.preset: algorithms[each.config.algo] for each in results}
    for each in results:
        curves: list[Curve] = [seed.curve for seed in each.done if len(seed.curve) > 1]
        if curves:
            panels.setdefault(each.config.env_id, {})[each.preset] = curves
    if panels:
        caption = "Evaluations during training: IQM over the seeds, with 95 % bootstrap intervals."
        figure = draw_curves(panels, "mean return", styles)
        pictures.append(Picture(save(figure, directory / "learning_curves"), caption))
    measured = [each for each in results if each.scores()]
    if measured:
        caption = (
            "Final policies: IQM over the seeds, with 95 % bootstrap intervals, one dot a seed; "
            "bars begin at the return of random actions where it is known. Open symbols are "
            "published scores."
        )
        pictures.append(
            Picture(save(_bars(manifest, measured, styles), directory / "scores"), caption)
        )
    scaled = scaled_scores(manifest, results)
    if scaled:
        caption = (
            "Performance profiles: share of an algorithm's runs with a scaled final score above a "
            "threshold, with 95 % intervals. In brackets its presets, or their number."
        )
        pictures.append(
            Picture(save(_profiles(scaled, algorithms), directory / "profiles"), caption)
        )
    return pictures


def require_matplotlib() -> None:
    """Raise unless plots can be drawn.

    Raises:
        UserError: the extra is missing.
    """
    try:
        importlib.import_module("matplotlib")
    except ImportError as error:
        raise UserError('plots need an extra: pip install "rl_training[plots]".') from error


def draw_curves(
    panels: Mapping[str, Mapping[str, Sequence[Curve]]], label: str, styles: Mapping[str, int]
) -> Any:
    """Return a figure with a panel for each title, and in it a line for each name: the
    interquartile mean of its curves at the steps that they share, with its interval.

    Args:
        panels: title to name to curves.
        label: of the vertical axes.
        styles: name to the number of its style.
    """
    room = _room_below(panels)
    figure, axes = _grid(len(panels), 3.2 + room)
    ticker = importlib.import_module("matplotlib.ticker")
    for axis, (title, panel) in zip(axes, panels.items(), strict=True):
        for name, curves in panel.items():
            _line(axis, name, curves, styles[name])
        axis.set_title(title)
        axis.set_xlabel("environment steps")
        axis.xaxis.set_major_formatter(ticker.EngFormatter(sep=""))
        axis.set_ylabel(label, fontsize="small")
        _legend(axis, below=room > 0)
    return figure


def _legend(axis: Any, *, below: bool) -> None:
    """Name the lines: within the panel, or below it."""
    if not below:
        axis.legend(fontsize=_LEGEND_FONT)
        return
    transforms = importlib.import_module("matplotlib.transforms")
    down = transforms.ScaledTranslation(0.0, -_AXIS_TEXT, axis.figure.dpi_scale_trans)
    axis.legend(
        fontsize=_LEGEND_FONT,
        loc="upper center",
        bbox_to_anchor=(0.5, 0.0),
        bbox_transform=axis.transAxes + down,
        borderaxespad=0.0,
    )


def _room_below(panels: Mapping[str, Mapping[str, Sequence[Curve]]]) -> float:
    """Return the inches that the longest legend takes below its panel, 0 where all fit within."""
    names = [_wrapped(name) for panel in panels.values() for name in panel]
    most = max(map(len, panels.values()))
    if most <= _MOST_WITHIN and max(map(len, names)) <= _LONGEST_WITHIN:
        return 0.0
    rows = max(sum(_wrapped(name).count("\n") + 1 for name in panel) for panel in panels.values())
    return _LEGEND_ROW * (rows + 1)


def _wrapped(name: str) -> str:
    return textwrap.fill(name, _LEGEND_WIDTH)


def _line(axis: Any, name: str, curves: Sequence[Curve], place: int) -> None:
    steps, values = shared_steps(curves)
    style = {**line_style(place), "markevery": max(1, len(steps) // 10), "linewidth": 1.4}
    runs = len(curves)
    label = f"{_wrapped(name)} ({runs} run{'' if runs == 1 else 's'})"
    axis.plot(steps, interquartile_means(values.T), label=label, **style)
    if runs > 1:
        low, high = curve_interval(values)
        axis.fill_between(steps, low, high, color=style["color"], alpha=0.15, linewidth=0)


def shared_steps(curves: Sequence[Curve]) -> tuple[list[int], Any]:
    """Return the steps at which all curves have a value, and the values ``[curves, steps]``.

    Where there is none, the longest curve's are taken and the others drawn between their points.
    """
    tables = [dict(curve) for curve in curves]
    shared = sorted(set.intersection(*(set(table) for table in tables)))
    if shared:
        return shared, np.asarray([[table[step] for step in shared] for table in tables])
    end = min(max(table) for table in tables)
    start = max(min(table) for table in tables)
    longest = max(tables, key=len)
    steps = [step for step in sorted(longest) if start <= step <= end] or [start]
    rows = [np.interp(steps, sorted(table), [table[s] for s in sorted(table)]) for table in tables]
    return steps, np.asarray(rows)


def _few_or_how_many(presets: Mapping[str, Any]) -> str:
    return ", ".join(presets) if len(presets) < 3 else f"{len(presets)} presets"


def _bars(manifest: Manifest, results: Sequence[PresetResult], styles: Mapping[str, int]) -> Any:
    panels: dict[str, list[PresetResult]] = {}
    for each in results:
        panels.setdefault(each.config.env_id, []).append(each)
    figure, axes = _grid(len(panels), 2.8)
    published = {
        f"{source.name}, {source.metric}": number
        for number, source in enumerate(manifest.sources.values())
    }
    for axis, (env_id, rows) in zip(axes, panels.items(), strict=True):
        reference = manifest.references.get(env_id)
        for place, each in enumerate(rows):
            _bar(axis, each, place, styles[each.preset], reference.low if reference else 0.0)
            for peer in each.entry.peers:
                number = list(manifest.sources).index(peer.source)
                marker = _PUBLISHED[number % len(_PUBLISHED)]
                axis.plot(
                    [peer.score], [place], marker, markersize=8, mfc="none", mec="black", zorder=4
                )
        axis.set_yticks(range(len(rows)), [each.preset for each in rows], fontsize=7)
        room = max(0.0, (_FEWEST_ROWS - len(rows)) / 2)  # one bar alone would fill the panel
        axis.set_ylim(len(rows) - 0.5 + room, -0.5 - room)
        axis.set_title(env_id)
        axis.set_xlabel("mean return")
    _legend_below(figure, published)
    return figure


def _bar(axis: Any, result: PresetResult, place: int, style: int, base: float) -> None:
    """Draw one bar. It begins at the return of random actions, not at 0: the longer the better."""
    scores = result.scores()
    summary = summarise(scores)
    error = None
    if summary.low is not None and summary.high is not None:
        ends = [max(0.0, summary.iqm - summary.low), max(0.0, summary.high - summary.iqm)]
        error = [[ends[0]], [ends[1]]]
    axis.barh(
        place,
        summary.iqm - base,
        left=base,
        height=0.6,
        xerr=error,
        capsize=3,
        **bar_style(style),
    )
    # Below the line of the interval, which would hide them.
    axis.plot(scores, [place + 0.2] * len(scores), ".", color="black", markersize=6, zorder=3)


def _legend_below(figure: Any, published: Mapping[str, int]) -> None:
    lines = importlib.import_module("matplotlib.lines")
    handles = [lines.Line2D([], [], linestyle="none", marker=".", color="black", label="one seed")]
    handles += [
        lines.Line2D(
            [],
            [],
            linestyle="none",
            marker=_PUBLISHED[number % len(_PUBLISHED)],
            mfc="none",
            mec="black",
            label=name,
        )
        for name, number in published.items()
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))


def _profiles(
    scaled: Mapping[str, Mapping[str, Sequence[float]]], styles: Mapping[str, int]
) -> Any:
    figure, [axis] = _grid(1, 3.6)
    for place, (algo, strata) in enumerate(scaled.items()):
        style = line_style(styles[algo])
        share, low, high = performance_profile(list(strata.values()), _THRESHOLDS.tolist())
        axis.plot(
            _THRESHOLDS,
            share,
            **style,
            markevery=(place * 2, 12),
            label=f"{algo} ({_few_or_how_many(strata)})",
        )
        axis.fill_between(_THRESHOLDS, low, high, color=style["color"], alpha=0.12, linewidth=0)
    axis.set_xlabel("scaled score")
    axis.set_ylabel("share of runs above")
    axis.set_ylim(-0.02, 1.02)
    axis.legend(fontsize=7)
    return figure


def _grid(count: int, height: float) -> tuple[Any, list[Any]]:
    """Return a figure and its panels."""
    matplotlib = importlib.import_module("matplotlib")
    columns = min(count, _COLUMNS)
    rows = math.ceil(count / columns)
    with matplotlib.rc_context(_STYLE):
        figure_class = importlib.import_module("matplotlib.figure").Figure
        figure = figure_class(
            figsize=(4.4 * max(columns, 1.3), height * rows), layout="constrained"
        )
        axes = [figure.add_subplot(rows, columns, number + 1) for number in range(count)]
    return figure, axes


def save(figure: Any, path: Path) -> Path:
    """Write a figure as ``<path>.png`` and ``<path>.svg``; return the latter.

    Raises:
        OSError: the folder cannot be written.
    """
    matplotlib = importlib.import_module("matplotlib")
    with matplotlib.rc_context(_STYLE):
        for suffix, metadata in ((".png", {}), (".svg", {"Date": None})):
            figure.savefig(path.with_name(path.name + suffix), dpi=150, metadata=metadata)
    return path.with_name(path.name + ".svg")

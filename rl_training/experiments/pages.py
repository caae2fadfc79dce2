"""The pages of a benchmark's report: which tables there are, and how numbers are written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rl_training.experiments.document import Block, Heading, Link, Paragraph, Picture, Table
from rl_training.experiments.manifest import Manifest
from rl_training.experiments.results import PresetResult

_EXPLANATIONS = (
    "final policy: mean return of {episodes} episodes of the last policy, on seeds of their own.",
    "best model: the same of the checkpoint that was best in training; the episodes are other ones "
    "than those that chose it.",
    "best of training: the largest mean of an evaluation during training. It is chosen by the very "
    "episodes that it is the mean of, and so too good.",
    "training returns: mean return of the last 100 training episodes, with exploration.",
    "IQM: interquartile mean over the seeds, with a 95 % percentile bootstrap interval, stratified "
    "by environment where there are several. A spread over episodes is not one over seeds. "
    "Published scores of another metric, budget or version of the environment are no measure of "
    "equal work.",
)


def blocks(
    manifest: Manifest,
    results: Sequence[PresetResult],
    content: dict[str, Any],
    pictures: Sequence[Picture],
) -> list[Block]:
    """Return the whole page."""
    page: list[Block] = [Heading(1, manifest.title)]
    if manifest.description:
        page.append(Paragraph(" ".join(manifest.description.split())))
    page.append(Paragraph(_how_many(results)))
    page += [Heading(2, "Scores"), _overview(results, content)]
    if content["algorithms"]:
        page += [Heading(2, "Algorithms"), _algorithms(content)]
    page += pictures
    page.append(Heading(2, "Beside published scores"))
    for each in results:
        page += _preset(each, content)
    page += _failures(results)
    page += [Heading(2, "How it was measured"), *_measured(manifest, content)]
    if manifest.sources:
        page.append(Heading(2, "Sources of the published scores"))
        page += [Link(source.name, source.url) for source in manifest.sources.values()]
    return page


def _how_many(results: Sequence[PresetResult]) -> str:
    runs = [seed for each in results for seed in each.seeds]
    done = sum(seed.status == "done" for seed in runs)
    stale = [each.preset for each in results if not each.as_now]
    line = f"{done} of {len(runs)} runs are done."
    if stale:
        line += (
            " Run with other settings than manifest and presets have now: " + ", ".join(stale) + "."
        )
    return line


def _overview(results: Sequence[PresetResult], content: dict[str, Any]) -> Table:
    header = ["preset", "environment", "steps", "each seed", "mean", "IQM [95 % interval]"]
    header += ["expected", "seconds a run", "steps/s"]
    finals = {
        row["preset"]: row
        for row in reversed(content["scores"])
        if row["metric"] == "final policy" and row["url"] is None
    }
    return Table(header, [_overview_row(each, finals.get(each.preset)) for each in results])


def _overview_row(result: PresetResult, final: dict[str, Any] | None) -> list[str]:
    first = [result.preset, result.config.env_id]
    expected = ""
    if result.verdict is not None:
        how = "" if result.entry.expected_of == "mean" else ", every seed"
        expected = f"{number(result.entry.expected)}{how}: {result.verdict}"
        if result.verdict == "incomplete":
            expected += f", {result.seeds_done}"
    if final is None:
        return [*first, "", "not measured", "", "", expected, "", ""]
    return [
        *first,
        f"{final['steps']:,}",
        ", ".join(number(score) for score in result.scores()),
        number(final["mean"]),
        with_interval(final),
        expected,
        span([each.seconds for each in result.done]),
        span([each.steps_per_second for each in result.done]),
    ]


def _algorithms(content: dict[str, Any]) -> Table:
    header = ["algorithm", "presets", "runs", "scaled mean", "scaled IQM [95 % interval]"]
    rows = [
        [
            row["algo"],
            ", ".join(row["presets"]),
            str(row["runs"]),
            f"{row['mean']:.3f}",
            with_interval(row, digits=3),
        ]
        for row in content["algorithms"]
    ]
    return Table(header, rows)


def _preset(result: PresetResult, content: dict[str, Any]) -> list[Block]:
    rows = [row for row in content["scores"] if row["preset"] == result.preset]
    if not rows:
        return []
    header = ["who", "metric", "environment", "steps", "runs", "mean", "IQM [95 % interval]"]
    header.append("standard deviation")
    cells = [
        [
            row["who"],
            row["metric"],
            row["env_id"],
            f"{row['steps']:,}",
            row["runs"],
            number(row["mean"]),
            with_interval(row),
            "" if row["spread"] is None else f"{number(row['spread'])} over {row['spread_over']}",
        ]
        for row in rows
    ]
    note = [Paragraph(result.entry.note)] if result.entry.note else []
    return [Heading(3, result.preset), Table(header, cells), *note]


def _failures(results: Sequence[PresetResult]) -> list[Block]:
    rows = [
        [result.preset, str(each.seed), each.status, each.error or ""]
        for result in results
        for each in result.seeds
        if each.status not in ("done", "waiting")
    ]
    if not rows:
        return []
    return [Heading(2, "Not done"), Table(["preset", "seed", "status", "error"], rows)]


def _measured(manifest: Manifest, content: dict[str, Any]) -> list[Block]:
    lines: list[Block] = [
        Paragraph(text.format(episodes=manifest.episodes)) for text in _EXPLANATIONS
    ]
    if content["algorithms"]:
        references = "; ".join(
            f"{env_id} {number(each.low)} to {number(each.high)}"
            for env_id, each in manifest.references.items()
        )
        lines.append(
            Paragraph(f"Scaled scores are 0 and 1 at an environment's references: {references}.")
        )
    facts = ["processor", "cpus", "threads", "side_by_side", "versions", "commit"]
    measured = [row for row in content["seeds"] if row["status"] == "done"]
    machines = sorted({tuple(_fact(row, fact) for fact in facts) for row in measured})
    if machines:
        header = ["processor", "CPUs", "threads a run", "runs at a time", "versions", "commit"]
        lines.append(Table(header, machines))
    return lines


def _fact(row: dict[str, Any], fact: str) -> str:
    if row[fact] is None:
        return "not a git checkout" if fact == "commit" else "unknown"
    return str(row[fact])


def number(value: float | None) -> str:
    """Write a score: one digit after the point, more where it is small."""
    if value is None:
        return ""
    return f"{value:.3f}" if 0 < abs(value) < 2 else f"{value:.1f}"


def with_interval(row: dict[str, Any], digits: int | None = None) -> str:
    """Write an interquartile mean and its interval."""

    def write(value: float) -> str:
        return number(value) if digits is None else f"{value:.{digits}f}"

    if row["iqm"] is None:
        return ""
    if row["iqm_low"] is None:
        return write(row["iqm"])
    return f"{write(row['iqm'])} [{write(row['iqm_low'])}, {write(row['iqm_high'])}]"


def span(values: Sequence[float | None]) -> str:
    """Write the smallest and the largest of some numbers."""
    known = [value for value in values if value is not None]
    if not known:
        return ""
    low, high = f"{min(known):,.0f}", f"{max(known):,.0f}"
    return low if low == high else f"{low} to {high}"

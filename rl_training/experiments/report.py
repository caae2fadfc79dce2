"""The report of a benchmark: what was measured, beside what is published, as data and as pages."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl_training.experiments import pages
from rl_training.experiments.document import Picture, to_html, to_markdown
from rl_training.experiments.jobs import require_begun
from rl_training.experiments.manifest import Manifest
from rl_training.experiments.results import (
    METRICS,
    PresetResult,
    load_results,
    scaled_scores,
)
from rl_training.experiments.statistics import Summary, summarise, summarise_strata
from rl_training.runtime.files import replace_durable, write_json, writing_to
from rl_training.version import __version__

HERE = "rl_training"
"""What rows of this library's own runs are called."""


@dataclass(frozen=True)
class Report:
    """A benchmark's results, and the files they were written to."""

    manifest: Manifest
    results: list[PresetResult]
    files: list[Path]

    @property
    def verdicts(self) -> dict[str, str]:
        """By preset: ``reached``, ``missed``, ``incomplete`` or ``not measured``; those without an
        expected score are left out.
        """
        return {each.preset: each.verdict for each in self.results if each.verdict is not None}

    @property
    def exit_code(self) -> int:
        """0 when every expected score was reached; else 1."""
        return int(any(verdict != "reached" for verdict in self.verdicts.values()))


def write_report(manifest: Manifest, runs: Path, directory: Path, *, plots: bool = True) -> Report:
    """Write ``report.md``, ``.html``, ``.json``, ``.csv`` and ``seeds.csv``, and the plots.

    Args:
        manifest: what was to be run.
        runs: the folder of the runs.
        directory: where to.
        plots: draw them; needs the extra ``plots``.

    Raises:
        UserError: there is no run yet, the extra is missing, or the folder cannot be written.
    """
    require_begun(manifest, runs)
    results = load_results(manifest, runs)
    content = report_data(manifest, results)
    with writing_to(directory):
        directory.mkdir(parents=True, exist_ok=True)
        pictures: list[Picture] = []
        if plots:
            from rl_training.experiments.plots import draw_benchmark

            pictures = draw_benchmark(manifest, results, directory)
        blocks = pages.blocks(manifest, results, content, pictures)
        texts = {
            "report.md": to_markdown(blocks),
            "report.html": to_html(manifest.title, blocks),
            "report.csv": _csv(content["scores"]),
            "seeds.csv": _csv(content["seeds"]),
        }
        for name, text in texts.items():
            replace_durable(directory / name, text.encode("utf-8"))
        write_json(directory / "report.json", content)
    drawn = [path for each in pictures for path in (each.path, each.path.with_suffix(".png"))]
    files = [directory / name for name in [*texts, "report.json"]]
    return Report(manifest, results, [*files, *drawn])


def report_data(manifest: Manifest, results: Sequence[PresetResult]) -> dict[str, Any]:
    """Return a report as plain values: ``scores`` (a row per preset and metric, then the peers'),
    ``seeds`` (a row per run), ``algorithms``, ``expected``.
    """
    return {
        "name": manifest.name,
        "title": manifest.title,
        "written_by": f"rl_training {__version__}",
        "episodes": manifest.episodes,
        "scores": [row for each in results for row in score_rows(manifest, each)],
        "seeds": [row for each in results for row in seed_rows(each)],
        "algorithms": algorithm_rows(manifest, results),
        "expected": [
            {
                "preset": each.preset,
                "expected": each.entry.expected,
                "of": each.entry.expected_of,
                "verdict": each.verdict,
            }
            for each in results
            if each.verdict is not None
        ],
    }


def score_rows(manifest: Manifest, result: PresetResult) -> list[dict[str, Any]]:
    """Return a row for each metric that was measured, and one for each published score."""
    common = {"preset": result.preset, "algo": result.config.algo}
    steps = max((each.steps for each in result.done), default=0)
    rows = []
    for metric in METRICS:
        scores = result.scores(metric)
        if scores:
            summary = summarise(scores)
            rows.append(
                {
                    **common,
                    "env_id": result.config.env_id,
                    "who": HERE,
                    "metric": metric,
                    "steps": steps,
                    "runs": _runs(len(scores)),
                    **_statistics(summary),
                    "spread": summary.deviation,
                    "spread_over": None if summary.deviation is None else "seeds",
                    "url": None,
                }
            )
    for peer in result.entry.peers:
        source = manifest.sources[peer.source]
        rows.append(
            {
                **common,
                "env_id": peer.env_id or result.config.env_id,
                "who": source.name,
                "metric": source.metric,
                "steps": peer.steps,
                "runs": source.runs,
                "mean": peer.score,
                "iqm": None,
                "iqm_low": None,
                "iqm_high": None,
                "spread": peer.spread,
                "spread_over": None if peer.spread is None else source.spread_over,
                "url": source.url,
            }
        )
    return rows


def _runs(count: int) -> str:
    return "1 seed" if count == 1 else f"{count} seeds"


def _statistics(summary: Summary) -> dict[str, Any]:
    return {
        "mean": summary.mean,
        "iqm": summary.iqm,
        "iqm_low": summary.low,
        "iqm_high": summary.high,
    }


def seed_rows(result: PresetResult) -> list[dict[str, Any]]:
    """Return a row for each run, with everything that was measured of it."""
    rows: list[dict[str, Any]] = []
    for each in result.seeds:
        machine = each.metadata.get("machine") or {}
        versions = each.metadata.get("versions") or {}
        rows.append(
            {
                "preset": result.preset,
                "env_id": result.config.env_id,
                "seed": each.seed,
                "status": each.status,
                **{str(metric): each.scores.get(metric) for metric in METRICS},
                "steps": each.steps,
                "seconds": each.seconds,
                "steps_per_second": each.steps_per_second,
                "side_by_side": each.side_by_side,
                "threads": each.metadata.get("threads"),
                "processor": machine.get("processor_name") or machine.get("processor"),
                "cpus": machine.get("cpus"),
                "versions": " ".join(f"{name} {number}" for name, number in versions.items()),
                "commit": each.metadata.get("git_commit"),
                "error": each.error,
            }
        )
    return rows


def algorithm_rows(manifest: Manifest, results: Sequence[PresetResult]) -> list[dict[str, Any]]:
    """Return a row for each algorithm: its final policies on all its environments, on one scale.

    Environments without a reference are left out, and so are presets whose runs are not all done.
    """
    rows = []
    for algo, strata in scaled_scores(manifest, results).items():
        summary = summarise_strata(list(strata.values()))
        rows.append(
            {"algo": algo, "presets": list(strata), "runs": summary.count, **_statistics(summary)}
        )
    return rows


def report_summary(report: Report) -> str:
    """Return a line per expected score, and where the report is."""
    lines = [
        f"{each.verdict:<14}{each.preset}"
        + (f": {each.seeds_done}" if each.verdict == "incomplete" else "")
        for each in report.results
        if each.verdict is not None
    ]
    return "\n".join([*lines, *(str(path) for path in report.files)])


def _csv(rows: Sequence[dict[str, Any]]) -> str:
    text = io.StringIO()
    if rows:
        writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return text.getvalue()

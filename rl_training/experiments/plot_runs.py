"""Learning curves of runs, whatever made them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from os import PathLike
from pathlib import Path

from rl_training.errors import UserError, nearest
from rl_training.experiments.compare import RunSummary, grouped, read_run
from rl_training.experiments.jobs import read_lines
from rl_training.experiments.line_styles import style_numbers
from rl_training.experiments.plots import Curve, draw_curves, require_matplotlib, save
from rl_training.runtime.files import writing_to

logger = logging.getLogger(__name__)

EVALUATIONS = "eval/return_mean"
TRAINING = "train/return_mean"
_SAID = {
    EVALUATIONS: "return of evaluations (eval/return_mean)",
    TRAINING: "return in training, mean of\nthe last 100 episodes (train/return_mean)",
}
"""What stands beside the axis, where a metric's name says too little."""


def plot_runs(
    runs: Sequence[str | PathLike[str]], output: str | PathLike[str], *, metric: str | None = None
) -> list[Path]:
    """Draw a metric of runs over their steps, and return the files, PNG and SVG.

    There is a panel for each environment and a line for each algorithm and setting: the
    interquartile mean over the seeds, with its 95 % bootstrap interval.

    Args:
        runs: run directories.
        output: the file's name; the suffixes are put on.
        metric: a name of ``metrics.jsonl``, or ``eval/<name>``; None: the evaluations' mean return
            where every run was evaluated on the way, else that of the training episodes.

    Raises:
        UserError: a run is none, has no such metric, the extra ``plots`` is missing, or the file
            cannot be written.
    """
    require_matplotlib()
    found = [read_run(path) for path in runs]
    if not found:
        raise UserError("there is no run to plot.")
    metric = _usual_metric(found) if metric is None else metric
    lines_of = grouped(_with_values(found, metric))
    panels: dict[str, dict[str, list[Curve]]] = {
        env_id: {name: [run.curve(metric) for run in members] for name, members in lines.items()}
        for env_id, lines in lines_of.items()
    }
    styles = style_numbers(
        {
            name: members[0].config["algo"]
            for lines in lines_of.values()
            for name, members in lines.items()
        }
    )
    path = Path(output)
    base = path.with_suffix("") if path.suffix in (".png", ".svg") else path
    with writing_to(base.parent):
        base.parent.mkdir(parents=True, exist_ok=True)
        svg = save(draw_curves(panels, _SAID.get(metric, metric), styles), base)
    return [svg.with_suffix(".png"), svg]


def _usual_metric(runs: Sequence[RunSummary]) -> str:
    """Return the metric of which every run with any curve has one: evaluations if there are any but
    those at the end, of a run or of one that was gone on with.
    """
    runs = [run for run in runs if _steps(run, EVALUATIONS) or _steps(run, TRAINING)]
    if not runs:
        return TRAINING
    if all(_steps(run, EVALUATIONS) > 1 + len(_resumes(run)) for run in runs):
        return EVALUATIONS
    evaluated = all(_steps(run, EVALUATIONS) for run in runs)
    trained = all(_steps(run, TRAINING) for run in runs)
    return EVALUATIONS if evaluated and not trained else TRAINING


def _steps(run: RunSummary, metric: str) -> int:
    return len({step for step, _ in run.curve(metric)})


def _resumes(run: RunSummary) -> Sequence[object]:
    resumes = run.metadata.get("resumes")
    return resumes if isinstance(resumes, list) else []


def _with_values(runs: Sequence[RunSummary], metric: str) -> list[RunSummary]:
    """Return the runs that have values of a metric; the others, that failed early, are named."""
    found = {run.path: bool(run.curve(metric)) for run in runs}
    if not any(found.values()):
        raise _no_values(runs[0], metric)
    for path in (path for path, has_values in found.items() if not has_values):
        logger.warning("%s is left out: it has no values of %r.", path, metric)
    return [run for run in runs if found[run.path]]


def _no_values(run: RunSummary, metric: str) -> UserError:
    known = {name for line in read_lines(run.path / "metrics.jsonl") for name in line}
    known |= {
        f"eval/{name}" for line in read_lines(run.path / "evaluations.jsonl") for name in line
    }
    known -= {metric, "step"}  # a name that is there, without a number
    near = nearest(metric, sorted(known)) or f" It has: {', '.join(sorted(known))}." * bool(known)
    return UserError(f"{run.path} has no values of {metric!r}.{near}")

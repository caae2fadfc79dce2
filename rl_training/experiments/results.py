"""What a benchmark's runs left, read from their folders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rl_training.config import TrainConfig
from rl_training.experiments.compare import metadata_of, result_of
from rl_training.experiments.jobs import (
    Job,
    JobState,
    jobs_of,
    measured_as_now,
    read_curve,
    read_lines,
)
from rl_training.experiments.manifest import Entry, Manifest, Metric
from rl_training.experiments.statistics import normalise

METRICS: tuple[Metric, ...] = ("final policy", "best model", "best of training", "training returns")


@dataclass(frozen=True, kw_only=True)
class SeedResult:
    """One run of a preset."""

    seed: int
    status: str
    error: str | None
    scores: dict[Metric, float]
    """What was measured of it."""
    steps: int
    seconds: float | None
    """Of training, evaluations in it included."""
    steps_per_second: float | None
    curve: list[tuple[int, float]] = field(default_factory=list)
    """Step and mean return of each evaluation in training."""
    metadata: dict[str, Any] = field(default_factory=dict)
    """The run's: machine, versions, commit."""
    side_by_side: int | None = None
    """How many runs there were at a time."""


@dataclass(frozen=True, kw_only=True)
class PresetResult:
    """The runs of one preset."""

    preset: str
    config: TrainConfig
    entry: Entry
    seeds: list[SeedResult]
    episodes: int
    """How many score a final policy."""
    as_now: bool
    """Whether they were made with what preset and manifest say now."""

    @property
    def done(self) -> list[SeedResult]:
        """The runs that were finished and scored."""
        return [each for each in self.seeds if each.status == "done"]

    def scores(self, metric: Metric = "final policy") -> list[float]:
        """Return the finished runs' scores, in the order of the seeds."""
        return [each.scores[metric] for each in self.done if metric in each.scores]

    @property
    def complete(self) -> bool:
        """Whether every seed is finished and scored."""
        return len(self.scores()) == len(self.seeds)

    @property
    def seeds_done(self) -> str:
        """How many seeds are finished, in words."""
        return f"{len(self.done)} of {len(self.seeds)} seeds are done"

    @property
    def verdict(self) -> str | None:
        """``reached``, ``missed``, ``incomplete`` (seeds are left to do) or ``not measured``; None
        where nothing is expected.
        """
        expected, scores = self.entry.expected, self.scores()
        if expected is None:
            return None
        if not self.complete:
            return "incomplete" if self.done else "not measured"
        reached = min(scores) if self.entry.expected_of == "every seed" else _mean(scores)
        return "reached" if reached >= expected else "missed"


def _mean(scores: list[float]) -> float:
    return sum(scores) / len(scores)


def load_results(manifest: Manifest, directory: Path) -> list[PresetResult]:
    """Return the results of each preset of a manifest, in its order.

    Raises:
        UserError: a preset cannot be built.
    """
    jobs = jobs_of(manifest, directory)
    results = []
    for preset, entry in manifest.presets.items():
        config = manifest.config(preset)
        own = sorted((job for job in jobs if job.preset == preset), key=_place(manifest, preset))
        results.append(
            PresetResult(
                preset=preset,
                config=config,
                entry=entry,
                episodes=manifest.episodes,
                seeds=[_seed_result(job, config.evaluation.interval is not None) for job in own],
                as_now=all(
                    measured_as_now(job, config, manifest)
                    for job in own
                    if job.state().status != "waiting"
                ),
            )
        )
    return results


def _place(manifest: Manifest, preset: str) -> Any:
    order = manifest.seeds_of(preset)
    return lambda job: order.index(job.seed)


def _seed_result(job: Job, evaluated: bool) -> SeedResult:
    state, run = job.state(), job.run
    result = result_of(run) if run else {}
    curve = read_curve(run / "evaluations.jsonl", "return_mean") if run else []
    scores: dict[Metric, float] = {}
    played = job.scores() if state.status == "done" else None
    if played is not None:
        scores["final policy"] = played["final"]["return_mean"]
        if played["best"] is not None:
            scores["best model"] = played["best"]["return_mean"]
        if curve and evaluated:
            scores["best of training"] = max(score for _, score in curve)
        if run and (returns := read_curve(run / "metrics.jsonl", "train/return_mean")):
            scores["training returns"] = returns[-1][1]
    return SeedResult(
        seed=job.seed,
        status=state.status,
        error=state.error,
        scores=scores,
        steps=int(result.get("global_step") or 0),
        seconds=result.get("wall_time_s"),
        steps_per_second=result.get("steps_per_second"),
        curve=curve,
        metadata=metadata_of(run) if run else {},
        side_by_side=state.side_by_side,
    )


def scaled_scores(
    manifest: Manifest, results: Sequence[PresetResult]
) -> dict[str, dict[str, list[float]]]:
    """Return, by algorithm and preset, the final scores between the environment's references."""
    scaled: dict[str, dict[str, list[float]]] = {}
    for each in results:
        reference = manifest.references.get(each.config.env_id)
        if reference is not None and each.complete:
            scores = normalise(each.scores(), reference.low, reference.high)
            scaled.setdefault(each.config.algo, {})[each.preset] = scores
    return scaled


def progress(job: Job, state: JobState) -> dict[str, Any]:
    """Return how far a job is, as plain values."""
    run = job.run
    step = 0
    for line in read_lines(run / "metrics.jsonl") if run else ():
        step = line.get("step", step)
    scores = job.scores() if state.status == "done" else None
    return {
        "preset": job.preset,
        "seed": job.seed,
        "status": state.status,
        "step": step,
        "score": None if scores is None else scores["final"]["return_mean"],
        "error": state.error,
        "directory": str(job.directory),
    }

"""Folders as a benchmark's runs leave them, without training."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rl_training.experiments.jobs import Job, prepare
from rl_training.experiments.manifest import Manifest, load_manifest

TEXT = """
title: Two algorithms <on> CartPole
description: A test.
seeds: [1, 2, 3]
evaluations: 4
references:
  CartPole-v1: {low: 0, high: 500}
sources:
  zoo: {name: The Zoo, metric: final policy, runs: one agent, spread_over: episodes, url: "https://example.org/zoo"}
presets:
  ppo_cartpole:
    expected: 400
    peers: [{source: zoo, steps: 100_000, score: 499.5, spread: 2.5}]
  ppg_cartpole: {expected: 450, expected_of: every seed}
"""


def write_manifest(directory: Path, text: str = TEXT) -> Manifest:
    path = directory / "two.yaml"
    path.write_text(text, encoding="utf-8")
    return load_manifest(path)


def write_runs(
    manifest: Manifest, directory: Path, scores: Mapping[str, Mapping[int, float]]
) -> list[Job]:
    """Write what ``benchmark run`` would: for each preset and seed a final score."""
    jobs = prepare(manifest, directory)
    for job in jobs:
        score = scores.get(job.preset, {}).get(job.seed)
        if score is not None:
            _write_run(job, score)
    return jobs


def _write_run(job: Job, score: float) -> None:
    run = job.directory / "run"
    (run / "checkpoints").mkdir(parents=True)
    (run / "config.yaml").write_bytes((job.directory / "config.yaml").read_bytes())
    evaluations = [(25_000, score / 2), (50_000, score + 1), (75_000, score - 1), (100_352, score)]
    lines = [{"step": step, "return_mean": mean} for step, mean in evaluations]
    _lines(run / "evaluations.jsonl", lines)
    metrics: list[dict[str, Any]] = [{"step": 512}, {"step": 100_352, "train/return_mean": 90.0}]
    _lines(run / "metrics.jsonl", metrics)
    metadata = {
        "machine": {"processor_name": "Test CPU", "cpus": 2},
        "versions": {"python": "3.11", "rl_training": "0"},
        "threads": 1,
        "git_commit": "abc",
    }
    _json(run / "metadata.json", metadata)
    seconds = 10.0 + job.seed
    result = {"global_step": 100_352, "wall_time_s": seconds, "steps_per_second": 1000.0}
    _json(run / "result.json", result)
    _json(
        job.directory / "scores.json",
        {"final": {"return_mean": score}, "best": {"return_mean": score + 0.5}},
    )
    job.write_state(status="done", attempts=1, side_by_side=2)


def _json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content), encoding="utf-8")


def _lines(path: Path, lines: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")

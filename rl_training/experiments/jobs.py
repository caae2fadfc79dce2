"""One run of a benchmark as a folder: what is to be run, how far it is, and who works on it.

```text
<preset>__seed<seed>/
  job.json         preset, seed, episodes, hash of the configuration
  config.yaml      the configuration
  state.json       status, error, attempts; written only by who holds the lock
  scores.json      at the end: the evaluations of the final and of the best policy
  log.txt          what the process printed
  <run directory>
```
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl_training.config import (
    TrainConfig,
    config_from_dict,
    config_to_dict,
    dump_yaml,
    replace_config,
)
from rl_training.config.yaml_text import parse_yaml
from rl_training.errors import UserError
from rl_training.experiments.manifest import Manifest
from rl_training.runtime.files import (
    json_bytes,
    read_json,
    replace_durable,
    write_json,
    writing_to,
)
from rl_training.runtime.run_lock import RunLock
from rl_training.runtime.run_records import time_text

STATUSES = ("waiting", "running", "stopped", "failed", "done")
"""``stopped``: interrupted or killed; it goes on where it was."""


@dataclass(frozen=True)
class Job:
    """One preset with one seed, in a folder."""

    preset: str
    seed: int
    directory: Path

    @property
    def name(self) -> str:
        """What messages call it."""
        return f"{self.preset} seed {self.seed}"

    @property
    def planned(self) -> bool:
        """Whether its folder says what is to be run."""
        return (self.directory / "job.json").is_file()

    @property
    def run(self) -> Path | None:
        """The run directory; None before the training began."""
        found = sorted(self.directory.glob("*/config.yaml"), key=lambda path: path.parent.name)
        return found[-1].parent if found else None

    def state(self) -> JobState:
        """Return how far it is."""
        content = read_json(self.directory / "state.json")
        if content is None:
            return JobState(status="waiting")
        status = content.get("status")
        if status == "running" and not locked(self.directory):
            status = "stopped"
        if status not in STATUSES or (status == "done" and self.scores() is None):
            status = "stopped"
        attempts, error, beside = map(content.get, ("attempts", "error", "side_by_side"))
        return JobState(
            status=status,
            error=error if isinstance(error, str) else None,
            attempts=attempts if isinstance(attempts, int) else 0,
            side_by_side=beside if isinstance(beside, int) else None,
        )

    def scores(self) -> dict[str, Any] | None:
        """Return the evaluations of the ``final`` and of the ``best`` policy, None where none was
        the best; None without a file that has them.
        """
        content = read_json(self.directory / "scores.json") or {}
        best = content.get("best")
        whole = _is_scored(content.get("final")) and (best is None or _is_scored(best))
        return {**content, "best": best} if whole else None

    def write_state(self, **changes: Any) -> None:
        """Change some of ``state.json``; the caller holds the lock."""
        content = read_json(self.directory / "state.json") or {}
        changed = {**changes, "changed_at": time_text()}
        write_json(self.directory / "state.json", {**content, **changed})


def _is_scored(record: Any) -> bool:
    return isinstance(record, Mapping) and is_number(record.get("return_mean"))


@dataclass(frozen=True)
class JobState:
    """How far a job is."""

    status: str
    """One of `STATUSES`."""
    error: str | None = None
    """Why it failed."""
    attempts: int = 0
    """How often it was started."""
    side_by_side: int | None = None
    """How many runs there were at a time."""


def jobs_of(manifest: Manifest, directory: Path) -> list[Job]:
    """Return a manifest's jobs: the first seed of every preset first, so that what does not work
    shows early.
    """
    pairs = [
        (place, seed, preset)
        for preset in manifest.presets
        for place, seed in enumerate(manifest.seeds_of(preset))
    ]
    return [
        Job(preset, seed, directory / f"{preset.replace('/', '-')}__seed{seed}")
        for _, seed, preset in sorted(pairs, key=lambda pair: pair[0])
    ]


def prepare(manifest: Manifest, directory: Path) -> list[Job]:
    """Write down what is to be run, and return it.

    Raises:
        UserError: a preset cannot be built; the folder cannot be written, or has runs of another
            configuration: nothing is changed then.
    """
    jobs = jobs_of(manifest, directory)
    bases = {preset: manifest.config(preset) for preset in manifest.presets}
    planned = [(job, _config(bases[job.preset], job, manifest)) for job in jobs]
    for job, config in planned:
        _require_same(job, config, manifest.episodes)
    with writing_to(directory):
        for job, config in planned:
            write_plan(job, config, manifest.episodes)
    return jobs


def require_begun(manifest: Manifest, directory: Path) -> None:
    """Raise unless a folder holds a run of a manifest, done or not.

    Raises:
        UserError: it holds none; names what was looked for.
    """
    jobs = jobs_of(manifest, directory)
    if any(job.planned for job in jobs):
        return
    first = jobs[0].directory.name
    what = first if len(jobs) == 1 else f"{first} or any of {len(jobs) - 1} others like it"
    holds = "holds no run" if directory.is_dir() else "is no folder with runs"
    raise UserError(
        f"{directory} {holds} of the benchmark {manifest.name}: there is no folder {what} in it. "
        "`rl-training benchmark run` makes them; --output-dir is where they lie."
    )


def measured_as_now(job: Job, config: TrainConfig, manifest: Manifest) -> bool:
    """Whether a job's folder was made with what the manifest and the zoo say today.

    Args:
        job: the job.
        config: of its preset, `Manifest.config`.
        manifest: the manifest.
    """
    return _planned_as(job, _config(config, job, manifest), manifest.episodes)


def _config(base: TrainConfig, job: Job, manifest: Manifest) -> TrainConfig:
    group = base.tracking.wandb_group or manifest.name
    return replace_config(
        base, seed=job.seed, output_dir=str(job.directory), tracking={"wandb_group": group}
    )


def _description(job: Job, config: TrainConfig, episodes: int) -> dict[str, Any]:
    return {
        "preset": job.preset,
        "seed": job.seed,
        "episodes": episodes,
        "config_sha256": _digest(config_to_dict(config)),
    }


def _digest(config: Mapping[str, Any]) -> str:
    content = {key: value for key, value in config.items() if key != "output_dir"}
    return hashlib.sha256(json_bytes(content, sort_keys=True)).hexdigest()


def _planned_as(job: Job, config: TrainConfig, episodes: int) -> bool:
    """Whether a job's folder was made for this configuration, by this version or by an earlier one:
    a field that is new since then has its default there.
    """
    there, planned = read_json(job.directory / "job.json"), _description(job, config, episodes)
    if there is None or there == planned:
        return there is not None
    path = job.directory / "config.yaml"
    try:
        written = parse_yaml(path.read_text("utf-8"), source=str(path))
        if not isinstance(written, dict) or _digest(written) != there.get("config_sha256"):
            return False
        completed = _description(job, config_from_dict(written, source=str(path)), episodes)
    except (OSError, ValueError, UserError):
        return False
    return {**there, "config_sha256": completed["config_sha256"]} == planned


def _require_same(job: Job, config: TrainConfig, episodes: int) -> None:
    was_run = job.planned and (job.directory / "state.json").exists()
    if was_run and not _planned_as(job, config, episodes):
        there = read_json(job.directory / "job.json") or {}
        if there.get("episodes") != episodes and _planned_as(job, config, there.get("episodes", 0)):
            raise UserError(
                f"{job.directory} is scored by {there['episodes']} episodes, and the manifest says "
                f"{episodes}: set it back, or take another --output-dir."
            )
        raise UserError(
            f"{job.directory} was run with another configuration than {job.preset} has now: "
            "delete it, or take another --output-dir."
        )


def write_plan(job: Job, config: TrainConfig, episodes: int) -> None:
    """Write down what a job runs: ``job.json`` and ``config.yaml``."""
    job.directory.mkdir(parents=True, exist_ok=True)
    planned = _description(job, config, episodes)
    if read_json(job.directory / "job.json") == planned:
        # Another manager may be at it; the folder may have been moved.
        config_there = job.directory / "config.yaml"
        if config_there.is_file() and config_there.read_text("utf-8") == dump_yaml(config):
            return
    replace_durable(job.directory / "config.yaml", dump_yaml(config).encode("utf-8"))
    write_json(job.directory / "job.json", planned)


def locked(directory: Path) -> bool:
    """Whether a process works on a job's folder."""
    try:
        with RunLock(directory):
            return False
    except UserError:
        return True


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Return the lines of a run's log, objects with a ``step``; what is none is left out."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError:
        return
    for line in lines:
        try:
            content = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(content, dict) and type(content.get("step")) is int:
            yield content


def read_curve(path: Path, name: str) -> list[tuple[int, float]]:
    """Return step and value of each line of a run's log that has a number of that ``name``."""
    return [(line["step"], line[name]) for line in read_lines(path) if is_number(line.get(name))]


def is_number(value: Any) -> bool:
    """Return whether it is one that can be drawn: JSON has integers that no float holds."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and abs(value) <= sys.float_info.max

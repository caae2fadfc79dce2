"""What a benchmark's report is made of, in one small file: no checkpoints, and nothing of the
machine but what the report says.

Unpacked, it is a benchmark's folder again, which is reported on, annotated and gone on with.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rl_training.config.yaml_text import format_yaml, parse_yaml
from rl_training.errors import UserError
from rl_training.experiments.jobs import Job, jobs_of, read_lines
from rl_training.experiments.manifest import Manifest
from rl_training.runtime.files import json_bytes, read_json, replace_durable, writing_to

_OF_THE_MACHINE = ("command", "pid", "host")
_OF_THE_JOB = ("job.json", "state.json", "scores.json")
_OF_THE_RUN = ("evaluations.jsonl", "result.json")


def pack_records(manifest: Manifest, directory: Path, path: Path) -> int:
    """Write the records of all runs that are done to ``path``, a ``.tar.xz``; return how many.

    The same runs give the same bytes.

    Args:
        manifest: the benchmark.
        directory: of its runs.
        path: of the file; an existing one is replaced.

    Raises:
        UserError: no run is done, or the file cannot be written.
    """
    jobs = [job for job in jobs_of(manifest, directory) if job.state().status == "done"]
    if not jobs:
        raise UserError(f"{directory}: no run of {manifest.name} is done.")
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:xz") as archive:
        for job in sorted(jobs, key=lambda job: job.directory.name):
            for name, content in _records(job, manifest):
                # Nothing but name and content: neither owner nor times.
                member = tarfile.TarInfo(f"{job.directory.name}/{name}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    with writing_to(path):
        replace_durable(path, packed.getvalue())
    return len(jobs)


def _records(job: Job, manifest: Manifest) -> Iterator[tuple[str, bytes]]:
    """Yield a job's files, by their names within its folder."""
    place = f"runs/benchmarks/{manifest.name}/{job.directory.name}"
    yield "config.yaml", _moved(job.directory / "config.yaml", place)
    for name in _OF_THE_JOB:
        yield name, (job.directory / name).read_bytes()
    run = job.run
    if run is None:
        return
    yield f"{run.name}/config.yaml", _moved(run / "config.yaml", place)
    for name in _OF_THE_RUN:
        if (run / name).is_file():
            yield f"{run.name}/{name}", (run / name).read_bytes()
    yield f"{run.name}/metadata.json", json_bytes(_shared(read_json(run / "metadata.json") or {}))
    yield f"{run.name}/metrics.jsonl", _last_returns(run)


def _moved(path: Path, place: str) -> bytes:
    """Return a configuration whose runs lie at ``place``."""
    content = parse_yaml(path.read_text("utf-8"), source=str(path))
    return format_yaml({**content, "output_dir": place}).encode("utf-8")


def _shared(value: Any) -> Any:
    """Return what a run noted of itself and of its resumes, without what is the machine's own."""
    if isinstance(value, dict):
        return {key: _shared(each) for key, each in value.items() if key not in _OF_THE_MACHINE}
    return [_shared(each) for each in value] if isinstance(value, list) else value


def _last_returns(run: Path) -> bytes:
    """Return the last line of the metrics that has the mean return of training's episodes."""
    key, last = "train/return_mean", None
    for line in read_lines(run / "metrics.jsonl"):
        last = {"step": line.get("step"), key: line[key]} if key in line else last
    return b"" if last is None else json_bytes(last, indent=None)

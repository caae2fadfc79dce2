"""One job in a process of its own: train or go on, score the final and the best policy."""

from __future__ import annotations

import contextlib
import importlib
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

# First: so the package imports what is large, without garbage collection.
from rl_training import TrainResult, evaluate_checkpoint, resume_checkpoint, train
from rl_training.arguments import named_modules
from rl_training.config import TrainConfig, load_config
from rl_training.errors import UserError, one_line
from rl_training.experiments.jobs import Job
from rl_training.garbage import freeze_imports
from rl_training.runtime.checkpoint_directory import CHECKPOINTS, read_link
from rl_training.runtime.files import read_json, write_json
from rl_training.runtime.run_lock import RunLock

TAKEN = 75
"""Exit status when another process has the job, or has had it (EX_TEMPFAIL)."""
_TRIES = 20
_PAUSE = 0.1


def main(arguments: Sequence[str]) -> int:
    """Run the job in a folder and return the exit status: 0 done, 1 failed, 75 taken, 128 plus the
    signal's number.

    Args:
        arguments: the folder; how often the job had been started when it was chosen; how many jobs
            there are side by side.
    """
    directory, attempts, side_by_side = Path(arguments[0]), int(arguments[1]), int(arguments[2])
    content = read_json(directory / "job.json") or {}
    job = Job(content["preset"], content["seed"], directory)
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(locked_job(directory))
        except UserError:
            return TAKEN
        if job.state().attempts != attempts:
            return TAKEN
        job.write_state(
            status="running", error=None, attempts=attempts + 1, side_by_side=side_by_side
        )
        return _noted(job, content["episodes"])


@contextlib.contextmanager
def locked_job(directory: Path) -> Iterator[None]:
    """Hold the job's lock. Who looks whether it is held holds it for a moment, too."""
    lock = RunLock(directory)
    for left in reversed(range(_TRIES)):
        try:
            lock.acquire()
            break
        except UserError:
            if not left:
                raise
            time.sleep(_PAUSE)
    with lock:
        yield


def _noted(job: Job, episodes: int) -> int:
    """Run the job and write down how it ended."""
    try:
        result = _train(job)
        if result.exit_code > 1:
            job.write_state(status="stopped")
            return result.exit_code
        if result.exit_code:
            raise RuntimeError(result.reason or "the final checkpoint could not be written")
        write_json(job.directory / "scores.json", _scores(result.run_dir, episodes))
    except KeyboardInterrupt:
        job.write_state(status="stopped")
        return 130
    except Exception as error:
        traceback.print_exc()
        kind = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
        job.write_state(status="failed", error=kind + one_line(error))
        return 1
    job.write_state(status="done")
    return 0


def _train(job: Job) -> TrainResult:
    config = load_config(job.directory / "config.yaml")
    if job.run is None:
        return train(config, progress=True)
    _import_modules(config)
    return resume_checkpoint(job.run, progress=True)


def _import_modules(config: TrainConfig) -> None:
    """Import what the job's own configuration names: it is trusted, what a checkpoint names is
    not.
    """
    for name in named_modules(config):
        importlib.import_module(name)


def _scores(run: Path, episodes: int) -> dict[str, Any]:
    """Play the episodes that score a run: the final policy's, and those of the policy that was best
    in training, on other seeds than those that chose it.
    """
    config: TrainConfig = load_config(run / "config.yaml")
    options: dict[str, Any] = {
        "episodes": episodes,
        "deterministic": config.evaluation.deterministic,
        "progress": True,
    }
    _import_modules(config)
    final = _relative(evaluate_checkpoint(run, **options), run)
    latest, best = (read_link(run / CHECKPOINTS, link) for link in ("latest", "best"))
    if config.evaluation.interval is None or best is None:
        return {"final": final, "best": None}
    same = best == latest
    return {
        "final": final,
        "best": final if same else _relative(evaluate_checkpoint(run, best=True, **options), run),
    }


def _relative(record: dict[str, Any], run: Path) -> dict[str, Any]:
    return {**record, "checkpoint": Path(record["checkpoint"]).name}


if __name__ == "__main__":
    freeze_imports()
    raise SystemExit(main(sys.argv[1:]))

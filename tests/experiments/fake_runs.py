"""Runs that train nothing: an evaluation at each look, of a score that the configuration gives."""

from __future__ import annotations

import json
from collections.abc import Callable

from rl_training.config import TrainConfig, load_config
from rl_training.experiments.backends import Handle
from rl_training.experiments.jobs import Job

Score = Callable[[TrainConfig], float]


class FakeBackend:
    """Runs jobs within this process.

    Args:
        score: of a run's final policy; what it raises is the run's failure.
        evaluations: of a run, rising to the score.
        killed_after: looks at runs, after which everything stops as by a kill.
    """

    def __init__(self, score: Score, evaluations: int, killed_after: int | None = None) -> None:
        self.score = score
        self.evaluations = evaluations
        self.looks_left = killed_after
        self.most_at_a_time = 0
        self.running: set[str] = set()
        self.started: list[str] = []

    def start(self, job: Job, attempts: int, side_by_side: int) -> Handle:
        job.write_state(status="running", attempts=attempts + 1, error=None)
        self.started.append(job.directory.name)
        self.running.add(job.directory.name)
        self.most_at_a_time = max(self.most_at_a_time, len(self.running))
        return FakeRun(self, job)

    def close(self) -> None:
        pass


class FakeRun:
    """A handle."""

    def __init__(self, backend: FakeBackend, job: Job) -> None:
        self._backend = backend
        self._job = job
        self._config = load_config(job.directory / "config.yaml")
        self._stopped = False
        self._lines: list[str] = []

    def poll(self) -> int | None:
        backend = self._backend
        if backend.looks_left is not None:
            backend.looks_left -= 1
            if backend.looks_left < 0:
                raise RuntimeError("killed")
        if self._stopped:
            return self._end("stopped", 143)
        try:
            score = backend.score(self._config)
        except ArithmeticError as error:
            return self._end("failed", 1, error=str(error))
        done = len(self._lines) + 1
        interval = self._config.evaluation.interval
        assert interval is not None
        line = {"step": interval * done, "return_mean": score * done / backend.evaluations}
        self._lines.append(json.dumps(line) + "\n")
        run = self._job.directory / "run"
        run.mkdir(exist_ok=True)
        (run / "config.yaml").write_bytes((self._job.directory / "config.yaml").read_bytes())
        (run / "evaluations.jsonl").write_text("".join(self._lines), encoding="utf-8")
        if done < backend.evaluations:
            return None
        scores = {"final": {"return_mean": score}, "best": None}
        (self._job.directory / "scores.json").write_text(json.dumps(scores), encoding="utf-8")
        return self._end("done", 0)

    def stop(self) -> None:
        self._stopped = True

    def _end(self, status: str, code: int, error: str | None = None) -> int:
        self._job.write_state(status=status, error=error)
        self._backend.running.discard(self._job.directory.name)
        return code

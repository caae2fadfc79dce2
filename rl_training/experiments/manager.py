"""`ExperimentManager`: the runs of a manifest, some at a time, until all are done."""

from __future__ import annotations

import contextlib
import signal
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from rl_training.errors import UserError
from rl_training.experiments import worker
from rl_training.experiments.backends import Backend, Handle, LocalBackend
from rl_training.experiments.jobs import Job, JobState, jobs_of, locked, prepare
from rl_training.experiments.manifest import Manifest, load_manifest
from rl_training.runtime.signals import StopSignals

if TYPE_CHECKING:
    from rl_training.experiments.report import Report

DEFAULT_OUTPUT = Path("runs") / "benchmarks"
_POLL_SECONDS = 0.1
_GONE = "its folder was deleted while the benchmark ran; run it again"
STOPPED = [
    status for each in (signal.SIGINT, signal.SIGTERM) for status in (128 + each, -int(each))
]
"""Exit statuses after a signal: after a checkpoint, or where there was nothing to write."""


@dataclass
class Outcome:
    """How a call of `ExperimentManager.run` ended."""

    done: list[Job] = field(default_factory=list)
    """All that are done, those from before included."""
    failed: dict[Job, str] = field(default_factory=dict)
    """Those that failed, with their errors."""
    elsewhere: list[Job] = field(default_factory=list)
    """Those that another process has."""
    stopped: list[Job] = field(default_factory=list)
    """Those that a signal stopped, or kept from starting."""
    exit_code: int = 0
    """0: nothing failed; 1; or 128 plus the signal's number."""


class ExperimentManager:
    """A manifest's runs in a folder.

    Every run is a process of its own and has a lock: managers may share a folder, and a manager
    that is killed takes nothing with it.
    """

    def __init__(
        self,
        manifest: Manifest | str | PathLike[str],
        *,
        output_dir: str | PathLike[str] | None = None,
        presets: Sequence[str] = (),
        seeds: Sequence[int] = (),
    ) -> None:
        """Read the manifest.

        Args:
            manifest: a path, the name of one of the zoo, or one that was read already.
            output_dir: the folder; by default ``runs/benchmarks/<name>``.
            presets: these alone.
            seeds: these alone.

        Raises:
            UserError: it cannot be read, or lacks a preset or a seed.
        """
        read = manifest if isinstance(manifest, Manifest) else load_manifest(manifest)
        self.manifest = read.select(presets, seeds)
        self.directory = DEFAULT_OUTPUT / read.name if output_dir is None else Path(output_dir)
        self.jobs = jobs_of(self.manifest, self.directory)

    def status(self) -> dict[Job, JobState]:
        """Return how far each job is."""
        return {job: job.state() for job in self.jobs}

    def run(
        self,
        *,
        jobs: int = 1,
        say: Callable[[str], None] = print,
        backend: Backend | None = None,
    ) -> Outcome:
        """Run what is not done: start it, go on with what was stopped, try again what failed.

        Ctrl-C and SIGTERM are passed on: every run writes a checkpoint first. A second one stops at
        once.

        Args:
            jobs: processes at a time.
            say: gets a line whenever a job begins or ends.
            backend: where the processes run; None: on this machine. It is closed at the end.

        Raises:
            UserError: a preset cannot be built, or the folder has runs of another configuration.
        """
        if jobs < 1:
            raise UserError(f"jobs must be at least 1, not {jobs}.")
        prepare(self.manifest, self.directory)
        with contextlib.closing(LocalBackend() if backend is None else backend) as place:
            return _Session(self.jobs, jobs, say, place).run()

    def report(self, directory: str | PathLike[str] | None = None, *, plots: bool = True) -> Report:
        """Write tables and plots of the results; see `rl_training.experiments.report`.

        Args:
            directory: where to; by default ``report/`` in the folder.
            plots: draw them; needs the extra ``plots``.

        Raises:
            UserError: there is no run yet, the extra is missing, or the folder cannot be written.
        """
        from rl_training.experiments.report import write_report

        place = self.directory / "report" if directory is None else Path(directory)
        return write_report(self.manifest, self.directory, place, plots=plots)


class _Session:
    """One call of `ExperimentManager.run`."""

    def __init__(
        self, jobs: Sequence[Job], limit: int, say: Callable[[str], None], backend: Backend
    ) -> None:
        self._limit = limit
        self._say = say
        self._backend = backend
        self._outcome = Outcome()
        self._processes: dict[Job, Handle] = {}
        self._before = {job: job.state() for job in jobs}
        self._queue = deque(job for job in jobs if self._before[job].status != "done")
        self._outcome.done = [job for job in jobs if self._before[job].status == "done"]

    def run(self) -> Outcome:
        """Work until nothing is left that this process may run."""
        outcome = self._outcome
        if outcome.done:
            self._say(f"{len(outcome.done)} done already")
        with StopSignals() as signals:
            try:
                self._work(signals)
            except BaseException:
                self._stop_all()
                self._stop_all()  # at once
                raise
        outcome.stopped += self._queue
        outcome.exit_code = signals.exit_code or int(bool(outcome.failed))
        return outcome

    def _work(self, signals: StopSignals) -> None:
        asked = False
        while self._processes or (self._queue and signals.received is None):
            if signals.received is not None and not asked:
                asked = True
                self._say("stopping: every run writes a checkpoint first")
                self._stop_all()
            while self._queue and len(self._processes) < self._limit and signals.received is None:
                self._start(self._queue.popleft())
            if not self._collect():
                time.sleep(_POLL_SECONDS)

    def _start(self, job: Job) -> None:
        state = self._before[job]
        if not job.planned or locked(job.directory) or job.state().attempts != state.attempts:
            self._taken(job)
            return
        try:
            self._processes[job] = self._backend.start(job, state.attempts, self._limit)
        except FileNotFoundError:
            if job.planned:
                raise
            self._failed(job, _GONE)
            return
        self._say(f"{'begin' if state.status == 'waiting' else 'go on':<8} {job.name}")

    def _collect(self) -> bool:
        """Note the jobs that ended; return whether there was one."""
        statuses = {job: handle.poll() for job, handle in self._processes.items()}
        ended = {job: status for job, status in statuses.items() if status is not None}
        for job, status in ended.items():
            del self._processes[job]
            if status != worker.TAKEN:
                _note_early_death(job, self._before[job].attempts, status)
            self._ended(job, status)
        return bool(ended)

    def _ended(self, job: Job, status: int) -> None:
        outcome, state = self._outcome, job.state()
        if status == worker.TAKEN:
            self._taken(job)
        elif state.status == "done":
            outcome.done.append(job)
            scores = job.scores()
            told = "" if scores is None else f": {scores['final']['return_mean']:.1f}"
            self._say(f"{'done':<8} {job.name}{told}")
        elif status in STOPPED:
            outcome.stopped.append(job)
            self._say(f"{'stopped':<8} {job.name}")
        else:
            error = state.error if state.status == "failed" else how_it_died(status, job)
            self._failed(job, (error or "it left no message") if job.planned else _GONE)

    def _failed(self, job: Job, error: str) -> None:
        self._outcome.failed[job] = error
        self._say(f"{'failed':<8} {job.name}: {error}")

    def _taken(self, job: Job) -> None:
        """Another manager has the job, or has had it since this one began: unless it is gone."""
        if not job.planned:
            self._failed(job, _GONE)
            return
        state = job.state()
        if state.status == "done":
            self._outcome.done.append(job)
        elif state.status == "failed":
            self._outcome.failed[job] = state.error or ""
        else:
            self._outcome.elsewhere.append(job)
        self._say(f"{state.status:<8} {job.name}: by another process")

    def _stop_all(self) -> None:
        for handle in self._processes.values():
            handle.stop()


def _note_early_death(job: Job, attempts: int, status: int) -> None:
    """Write down that a job's process ended before it wrote that it began, if so it was: the job
    would seem to be as it was before.

    Args:
        job: nobody may be at it any more; if another process is, that writes its state.
        attempts: how often the job had been started before.
        status: of the process's end.
    """
    if not job.planned or job.state().attempts != attempts:
        return
    with contextlib.suppress(UserError, OSError), worker.locked_job(job.directory):
        if job.state().attempts == attempts:
            stopped = status in STOPPED or status < 0
            error = None if stopped else how_it_died(status, job)
            job.write_state(
                status="stopped" if stopped else "failed", error=error, attempts=attempts + 1
            )


def how_it_died(status: int, job: Job) -> str:
    """Return why a job's process ended that wrote no error."""
    if status < 0:
        return f"killed by {signal.Signals(-status).name}; the next `run` goes on with it"
    return f"exit status {status}; see {job.directory / 'log.txt'}"

"""A benchmark's runs as forks: a fresh interpreter's imports are most of a tiny run's time."""

from __future__ import annotations

import signal

from rl_training.experiments.backends import Handle
from rl_training.experiments.jobs import Job
from tests.processes import Process, run_job


class Forks:
    """A backend whose workers start quickly."""

    def start(self, job: Job, attempts: int, side_by_side: int) -> Handle:
        return Fork(run_job, str(job.directory), str(attempts), str(side_by_side))

    def close(self) -> None: ...


class Fork(Process):
    """A handle."""

    def stop(self) -> None:
        self.send_signal(signal.SIGTERM)

"""Where the processes of jobs run: here, or elsewhere (`rl_training.experiments.ray_backend`)."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Protocol

from rl_training.experiments import worker
from rl_training.experiments.jobs import Job


class Handle(Protocol):
    """A job that was started."""

    def poll(self) -> int | None:
        """Return the exit status of the job's process; None while it runs."""

    def stop(self) -> None:
        """Ask it to write a checkpoint and end; a second time, to end at once."""


class Backend(Protocol):
    """Starts jobs. Job folders are on a file system that it and this process share."""

    def start(self, job: Job, attempts: int, side_by_side: int) -> Handle:
        """Start `rl_training.experiments.worker` for a job.

        Args:
            job: its folder is ready.
            attempts: how often it had been started when it was chosen.
            side_by_side: how many jobs there are at a time.
        """

    def close(self) -> None:
        """Give back what belongs to the backend; the jobs have ended."""


class LocalBackend:
    """A process of this machine for each job. It outlives this one when that is killed."""

    def start(self, job: Job, attempts: int, side_by_side: int) -> Handle:
        """Start the process."""
        with (job.directory / "log.txt").open("ab") as log:
            # A session of its own: Ctrl-C at the terminal reaches it once, through this process.
            process = subprocess.Popen(
                worker_command(job, attempts, side_by_side),
                env=worker_environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return _Process(process)

    def close(self) -> None:
        """Do nothing."""


class _Process:
    """A handle of `LocalBackend`."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def poll(self) -> int | None:
        return self._process.poll()

    def stop(self) -> None:
        self._process.terminate()


def worker_command(job: Job, attempts: int, side_by_side: int) -> list[str]:
    """Return the command that runs a job."""
    words = [str(job.directory), str(attempts), str(side_by_side)]
    return [sys.executable, "-m", worker.__name__, *words]


def worker_environment() -> dict[str, str]:
    """Return the environment of a job's process: it finds the modules that this one finds."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(os.path.abspath(each) for each in sys.path)}

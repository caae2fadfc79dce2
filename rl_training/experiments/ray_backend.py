"""Jobs on a Ray cluster.

Each job is a Ray task that runs the same process as `LocalBackend` would, on whichever machine Ray
chooses. The job folders must lie on a file system that all of them share, under one path, and the
library must be installed there.
"""

from __future__ import annotations

import logging
import subprocess
from typing import Any

from rl_training.errors import UserError
from rl_training.experiments.backends import Handle, worker_command, worker_environment
from rl_training.experiments.jobs import Job

_STOPPED = 143
"""Exit status of a job that was stopped before its process began."""
_LOST = 1


class RayBackend:
    """Runs jobs on a cluster that exists already."""

    def __init__(self, address: str | None = None) -> None:
        """Connect to a cluster.

        Args:
            address: of the cluster: ``host:port``, or ``ray://host:port`` of its client server;
                None: the one of this machine or of ``RAY_ADDRESS``. A connection that this process
                has already is used as it is.

        Raises:
            UserError: the extra ``ray`` is missing, or there is no cluster.
        """
        self._ray = _import_ray()
        self._connected = False
        if not self._ray.is_initialized():
            try:
                self._ray.init(
                    address=address or "auto", log_to_driver=False, logging_level=logging.ERROR
                )
            except Exception as error:  # Ray's own errors have no class in common
                first = str(error).strip().splitlines()
                raise UserError(
                    f"there is no Ray cluster at {address or 'this machine'}: "
                    f"{first[0] if first else type(error).__name__}"
                ) from error
            self._connected = True
        self._task = self._ray.remote(max_retries=0)(run_job)

    def cpus(self) -> int:
        """Return how many CPUs the cluster has."""
        return max(1, int(self._ray.cluster_resources().get("CPU", 1)))

    def start(self, job: Job, attempts: int, side_by_side: int) -> Handle:
        """Send the job; it begins when a CPU is free for it."""
        absolute = Job(job.preset, job.seed, job.directory.resolve())
        command = worker_command(absolute, attempts, side_by_side)
        path = worker_environment()["PYTHONPATH"]
        log = str(absolute.directory / "log.txt")
        return _Task(self._ray, self._task.remote(command, path, log))

    def close(self) -> None:
        """Leave the cluster, where this object connected to it."""
        if self._connected:
            self._ray.shutdown()


class _Task:
    """A handle on a Ray task."""

    def __init__(self, ray: Any, reference: Any) -> None:
        self._ray = ray
        self._reference = reference
        self._stopped = False

    def poll(self) -> int | None:
        ready, _ = self._ray.wait([self._reference], timeout=0)
        if not ready:
            return None
        try:
            status: int = self._ray.get(self._reference)
        except Exception:  # cancelled before it began, or its machine is gone
            return _STOPPED if self._stopped else _LOST
        return status

    def stop(self) -> None:
        self._stopped = True
        self._ray.cancel(self._reference)


def run_job(command: list[str], path: str, log: str) -> int:
    """Run a job's process where Ray put this task, and return its exit status.

    Ray cancels a task by a KeyboardInterrupt; the process is then asked to write a checkpoint.

    Args:
        command: of the process, with this machine's own interpreter for the first word.
        path: its ``PYTHONPATH``.
        log: the file that takes what it prints.
    """
    import os
    import sys

    with open(log, "ab") as output:
        process = subprocess.Popen(
            [sys.executable, *command[1:]],
            env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    while (status := _wait(process)) is None:
        pass
    return status


def _wait(process: subprocess.Popen[bytes]) -> int | None:
    try:
        # Ray's KeyboardInterrupt is no signal: it comes between two system calls.
        return process.wait(timeout=1.0)
    except subprocess.TimeoutExpired:
        return None
    except KeyboardInterrupt:
        process.terminate()
        return None


def _import_ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise UserError(
            'Ray is not installed: pip install "rl_training[ray]", or leave --backend ray out.'
        ) from error
    return ray

"""Programs as processes of their own, that find torch and the library imported when they start.

A server imports them once; every process is a fork of it (`multiprocessing`'s forkserver). Nothing
is trained in the server, so that a fork has what a fresh interpreter would have after its imports,
which are most of a short program's time. A few tests start fresh interpreters all the same.
"""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(
    [
        "gymnasium.envs.classic_control",
        "rl_training.cli.commands",
        "rl_training.contrib.recurrent_ppg",
        "rl_training.experiments.worker",
        *(f"rl_training.recipes.{name}" for name in ("ppg", "dqn", "sac", "td3")),
        *(f"torchrl.{name}" for name in ("collectors", "modules", "objectives", "envs")),
        "tyro",
    ]
)


class Process:
    """A forked program, with what tests need of `subprocess.Popen`."""

    def __init__(
        self,
        target: Callable[..., Any],
        *arguments: Any,
        cwd: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._place = tempfile.TemporaryDirectory()
        self._files = [Path(self._place.name, name) for name in ("stdout", "stderr")]
        for path in self._files:
            path.touch()
        self._process = _context.Process(
            target=_run,
            args=(
                target,
                arguments,
                self._files,
                cwd or Path.cwd(),
                dict(environment or os.environ),
            ),
        )
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        """The exit status, or minus the number of the signal that ended it; None: it runs."""
        return self._process.exitcode

    @property
    def output(self) -> str:
        """What it has written to stdout so far."""
        return self._files[0].read_text(encoding="utf-8")

    def wait_for_output(self, timeout: float = 60.0) -> str:
        """Return ``output`` once it has written a line."""
        deadline = time.monotonic() + timeout
        while "\n" not in self.output:
            assert self.poll() is None and time.monotonic() < deadline, self._files[1].read_text()
            time.sleep(0.001)
        return self.output

    def poll(self) -> int | None:
        """Return ``returncode``."""
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Return ``returncode`` once it has ended.

        Raises:
            subprocess.TimeoutExpired: it has not after ``timeout`` seconds.
        """
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(str(self._process), timeout or 0.0)
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Wait, and return what it has written to stdout and to stderr."""
        self.wait(timeout)
        return self.output, self._files[1].read_text(encoding="utf-8")

    def send_signal(self, number: int) -> None:
        """Send it a signal."""
        os.kill(self.pid, number)

    def kill(self) -> None:
        """End it, and all that it started, at once. It may have ended."""
        for send in (os.killpg, os.kill):  # killed before it had a group of its own, the latter
            with contextlib.suppress(ProcessLookupError):
                send(self.pid, signal.SIGKILL)

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self.wait()
        self._place.cleanup()


def command_line(*words: str) -> int:
    """Be ``rl-training WORDS``, in a process of its own."""
    from rl_training.cli import main

    sys.argv = ["rl-training", *words]
    return main()


def run_script(path: Path, *words: str) -> int:
    """Be ``python SCRIPT WORDS``, in a process of its own."""
    sys.argv = [str(path), *words]
    sys.path.insert(0, str(path.parent))
    runpy.run_path(str(path), run_name="__main__")
    return 0


def run_source(code: str, *words: str) -> int:
    """Be ``python -c CODE WORDS``, in a process of its own."""
    sys.argv = ["-c", *words]
    exec(compile(code, "<source>", "exec"), {"__name__": "__main__"})
    return 0


def run_job(*words: str) -> int:
    """Be the worker of a benchmark, in a process of its own."""
    from rl_training.experiments.worker import main

    return main(words)


def _run(
    target: Callable[..., int],
    arguments: Sequence[Any],
    files: Sequence[Path],
    cwd: Path,
    environment: Mapping[str, str],
) -> None:
    """Become a process as `subprocess` would start it: streams, folder, variables, signals."""
    os.setsid()
    for number, path in enumerate(files, start=1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_APPEND), number)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        status = target(*arguments)
    except Exception:
        traceback.print_exc()
        status = 1
    finally:
        atexit._run_exitfuncs()  # not run by `multiprocessing` where it forks
    sys.exit(status)

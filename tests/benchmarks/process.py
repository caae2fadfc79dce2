"""One measurement in one fresh process: the command sent, and the JSON line that comes back."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
TIMEOUT_SECONDS = 1800.0
Result = dict[str, Any]


class MeasurementError(RuntimeError):
    """A measurement's process failed; the message is the last line it wrote."""


def measure(module: str, *arguments: str, threads: int) -> Result:
    """Run ``python -m tests.benchmarks.<module>`` and return the object on its last line of output.

    Raises:
        MeasurementError: the process failed or did not end in time.
    """
    # Threads that wait by spinning would take the core from whatever shares the machine.
    settings = {"OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "PASSIVE"}
    search_path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-m", f"tests.benchmarks.{module}", "--threads", str(threads)]
    # MuJoCo leaves a log in the working directory.
    with tempfile.TemporaryDirectory() as directory:
        try:
            finished = subprocess.run(
                [*command, *arguments],
                cwd=directory,
                env={**os.environ, **settings, "PYTHONPATH": search_path},
                capture_output=True,
                text=True,
                timeout=TIMEOUT_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise MeasurementError(f"took longer than {TIMEOUT_SECONDS:.0f} s") from error
    if finished.returncode != 0:
        raise MeasurementError((finished.stderr.strip().splitlines() or ["no output"])[-1])
    result: Result = json.loads(finished.stdout.strip().splitlines()[-1])
    return result


def run_child(run: Callable[[argparse.Namespace], Result], parser: argparse.ArgumentParser) -> None:
    """Parse the arguments in the child, set torch's threads, measure, and print one JSON line."""
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()

    import torch

    torch.set_num_threads(arguments.threads)
    print(json.dumps(run(arguments)), flush=True)

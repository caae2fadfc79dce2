"""Run directories read, and the command line as a process of its own that can be killed."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.processes import Process, command_line

REPOSITORY = Path(__file__).resolve().parents[2]
PATIENCE = 120.0
"""Seconds until a process that should have done something counts as stuck."""

_moments = random.Random(7)


def environment() -> dict[str, str]:
    """Return the variables for a process that imports this very checkout, tests included."""
    paths = [str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def execute_anew(*words: str | Path) -> subprocess.CompletedProcess[str]:
    """Run the command line to its end in a fresh interpreter."""
    command = [sys.executable, "-m", "rl_training", *map(str, words)]
    return subprocess.run(
        command, capture_output=True, text=True, env=environment(), timeout=3 * PATIENCE
    )


def execute(*words: str | Path) -> subprocess.CompletedProcess[str]:
    """Run the command line to its end in a process of its own."""
    with started(*words) as process:
        out, err = process.communicate(timeout=3 * PATIENCE)
        return subprocess.CompletedProcess(words, process.wait(), out, err)


def started(*words: str | Path) -> Process:
    """Start the command line in a process group of its own; the block leaves nothing of it."""
    return Process(command_line, *map(str, words), environment=environment())


def kill(output: Path, *words: str | Path, lines: int) -> None:
    """Start the command line and kill it soon after it logged ``lines`` more lines."""
    goal = count_lines(output) + lines
    with started(*words) as process:
        wait_for_lines(process, output, goal)
        # Anywhere in the iteration: collecting, updating, evaluating, writing a checkpoint.
        time.sleep(_moments.uniform(0.0, 0.03))
        process.kill()
        assert process.wait() == -signal.SIGKILL, "it finished before it could be killed"


def wait_for_lines(process: Process, output: Path, lines: int) -> None:
    """Return as soon as the one run below ``output`` has logged ``lines`` lines."""
    deadline = time.monotonic() + PATIENCE
    while count_lines(output) < lines:
        if process.poll() is not None:
            raise AssertionError(f"it ended before line {lines}:\n{process.communicate()[1]}")
        assert time.monotonic() < deadline, f"no line {lines} in {PATIENCE} s"
        time.sleep(0.005)  # a look costs a tenth of a millisecond, of a core the run may need


def count_lines(output: Path) -> int:
    return sum(path.read_bytes().count(b"\n") for path in output.glob("*/metrics.jsonl"))


def the_run(output: Path) -> Path:
    """Return the only run below ``output``."""
    [run] = output.iterdir()
    return run


def result(run: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((run / "result.json").read_text(encoding="utf-8"))
    return content


def status(run: Path) -> str:
    return str(json.loads((run / "metadata.json").read_text(encoding="utf-8"))["status"])


def digest(run: Path) -> str:
    return str(result(run)["digest"])


def json_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def metrics(run: Path) -> list[dict[str, Any]]:
    """Return the lines of ``metrics.jsonl`` without times."""
    return [
        {name: value for name, value in line.items() if "time" not in name}
        for line in json_lines(run / "metrics.jsonl")
    ]


def evaluations(run: Path) -> list[dict[str, Any]]:
    return json_lines(run / "evaluations.jsonl")


def checkpoints(run: Path) -> list[Path]:
    """Return the checkpoints, the oldest first."""
    return sorted((run / "checkpoints").glob("step_*"))


def content(directory: Path) -> dict[str, bytes]:
    """Return every file below a directory with its bytes."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def assert_same_training(run: Path, reference: Path) -> None:
    """Assert that two runs did the same: state, metrics line for line, evaluations."""
    assert metrics(run) == metrics(reference)
    assert evaluations(run) == evaluations(reference)
    assert result(run)["eval"] == result(reference)["eval"]
    assert digest(run) == digest(reference)
    assert status(run) == "finished"

"""What a run writes down of its start, and what it reads of its own, checked: it may be damaged, or
come from a stranger.
"""

from __future__ import annotations

import logging
import math
import os
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from rl_training.runtime.files import read_json
from rl_training.runtime.versions import git_commit, library_versions, machine

logger = logging.getLogger(__name__)


def start_record(command: list[str], *, threads: int | None) -> dict[str, Any]:
    """Return what ``metadata.json`` says of a start or a resume: by what, when, with what code,
    where.
    """
    return {
        "command": command,
        "started_at": time_text(),
        "git_commit": git_commit(),
        "versions": library_versions(),
        "machine": machine(),
        "threads": threads,
        "pid": os.getpid(),
    }


def time_text() -> str:
    """Return this moment, in UTC, to the second."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def require_log_state(state: Any) -> None:
    """Raise ``TypeError`` or ``ValueError`` unless ``state`` is a `Run.state_dict`.

    Before anything is cut: a log that is gone does not come back.
    """
    numbers = {"wall_time_s": state.get("wall_time_s", 0.0)}
    logs = {"evaluations": state.get("evaluations", {}), **state.get("loggers", {})}
    for log, content in logs.items():
        numbers |= {f"{log} {name}": value for name, value in content.items() if name != "run_id"}
    for name, value in numbers.items():
        whole = name != "wall_time_s"
        if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
            raise TypeError(f"{name} is {value!r}, which is no number")
        if not (-1 if name.endswith("last_step") else 0) <= value < math.inf:
            raise ValueError(f"{name} is {value!r}")


def read_metadata(path: Path) -> dict[str, Any]:
    """Return the content of ``metadata.json``; empty, with a warning, when it cannot be read."""
    content = read_json(path)
    if content is None or not isinstance(content.get("resumes", []), list):
        logger.warning("%s cannot be read; it is written anew when the run goes on.", path)
        return {}
    return content

"""How training ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl_training.runtime.checkpoint import read_link
from rl_training.runtime.run import Run


@dataclass
class LoopResult:
    """How training ended."""

    status: str
    """``finished``, ``interrupted``, or ``failed``: the final checkpoint could not be written."""
    exit_code: int
    global_step: int
    metrics: dict[str, float]
    evaluation: dict[str, Any] | None = None
    checkpoint: Path | None = None
    digest: str | None = None
    reason: str | None = None
    """Why it ended before its budget, or failed."""
    signal: int | None = None
    """The signal that interrupted it."""

    def to_json(self, run: Run) -> dict[str, Any]:
        """Return the content of ``result.json``."""
        seconds = run.wall_time_s
        checkpoint = self.checkpoint
        return {
            "global_step": self.global_step,
            "wall_time_s": round(seconds, 3),
            "steps_per_second": round(self.global_step / max(seconds, 1e-9), 1),
            "eval": None if self.evaluation is None else summary(self.evaluation),
            "checkpoint": None
            if checkpoint is None
            else str(checkpoint.relative_to(run.directory)),
            "digest": self.digest,
            "reason": self.reason,
        }


def summary(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of an evaluation that ``result.json`` keeps."""
    return {key: record[key] for key in ("return_mean", "return_std", "return_iqm", "episodes")}


def what_is_left(run: Run) -> str:
    """Return a clause that names the newest checkpoint."""
    latest = read_link(run.checkpoints, "latest")
    if latest is None:
        return f"{run.directory} has no checkpoint yet."
    return f"the latest checkpoint is still {latest}"

"""What a resume changes of the training it goes on with, kept until a checkpoint holds it.

A larger budget lets a run go on that a callback had stopped, or stretches its schedules. Killed
before its first checkpoint, such a resume leaves the old checkpoint and this file; the next resume
reads both. It is written before ``config.yaml``, so that no kill leaves a part of the change.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from rl_training.runtime.checks import fitting, require_counter
from rl_training.runtime.files import read_json, write_json

_FILE = "resume.json"


@dataclass(frozen=True, kw_only=True)
class ResumeChange:
    """Where a resume went on with something else than a checkpoint, or a config, says."""

    checkpoint: str | None
    """Name of the checkpoint that it goes on from; None: from the beginning."""
    total_timesteps: int
    """Environment steps at which the run is to end."""
    schedule_horizon: int | None
    """Environment steps over which schedules run; None: the checkpoint's."""
    go_on: bool
    """Although a callback had stopped the run."""

    def write(self, run: Path) -> None:
        """Put it into the directory ``run``, in place of an earlier one."""
        write_json(run / _FILE, dataclasses.asdict(self))


def forget_resume_change(run: Path) -> None:
    """Take the one in the directory ``run`` away, if there is one."""
    (run / _FILE).unlink(missing_ok=True)


def read_resume_change(run: Path, checkpoint: str | None) -> ResumeChange | None:
    """Return what a resume from ``checkpoint`` that was killed had changed; None: nothing.

    Raises:
        CheckpointError: the file is there, and is none.
    """
    path = run / _FILE
    if not path.exists():
        return None
    with fitting(f"{path} cannot be used; without it, the checkpoint is gone on from as it is"):
        content = read_json(path)
        if content is None:
            raise ValueError("it cannot be read")
        change = ResumeChange(**content)
        if not isinstance(change.checkpoint, str | None):
            raise TypeError(f"checkpoint is {change.checkpoint!r}")
        _require_steps("total_timesteps", change.total_timesteps)
        if change.schedule_horizon is not None:
            _require_steps("schedule_horizon", change.schedule_horizon)
        if not isinstance(change.go_on, bool):
            raise TypeError(f"go_on is {change.go_on!r}")
    return change if change.checkpoint == checkpoint else None


def _require_steps(name: str, value: object) -> None:
    """Raise ``ValueError`` unless ``value`` is a number of steps that a config takes."""
    if not 0 < require_counter(name, value) < 2**63:
        raise ValueError(f"{name} is {value}")

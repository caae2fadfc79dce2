"""Runs and checkpoints that a command is given, looked for before anything heavy is imported."""

from __future__ import annotations

from pathlib import Path

from rl_training.errors import UserError


def require_run_or_checkpoint(path: str) -> None:
    """Raise `UserError` when nothing is there."""
    if not _exists(path):
        raise UserError(
            f"there is no run or checkpoint {path}: give a run directory or one of its checkpoints."
        )


def require_runs(*paths: str) -> None:
    """Raise `UserError` when one of them is not the directory of a run."""
    for path in paths:
        if not _exists(path):
            raise UserError(f"there is no run {path}: give a run directory.")
        if not (Path(path) / "config.yaml").is_file():
            raise UserError(f"{path} is not a run directory: it has no config.yaml.")


def _exists(path: str) -> bool:
    """Whether a user's words name something; no words, or too long ones, name nothing."""
    try:
        return path != "" and Path(path).exists()
    except OSError:
        return False

"""Which loggers a run has, and what is theirs beside metrics: videos, and how the run ended."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl_training.runtime.loggers import JsonlLogger, Logger, TensorBoardLogger, WandbLogger
from rl_training.runtime.versions import git_commit, library_versions, machine

if TYPE_CHECKING:
    from rl_training.config import TrainConfig


def configured_loggers(config: TrainConfig, directory: Path) -> dict[str, Logger]:
    """Return the loggers that a config asks for, by name; ``metrics`` is always there.

    Raises:
        UserError: a package is missing.
    """
    from rl_training.config import config_to_dict

    tracking = config.tracking
    loggers: dict[str, Logger] = {"metrics": JsonlLogger(directory / "metrics.jsonl")}
    if tracking.tensorboard:
        loggers["tensorboard"] = TensorBoardLogger(directory / "tensorboard")
    if tracking.wandb != "off":
        facts = {"commit": git_commit(), "machine": machine(), "versions": library_versions()}
        loggers["wandb"] = WandbLogger(
            mode=tracking.wandb,
            directory=directory,
            project=tracking.wandb_project,
            group=tracking.wandb_group,
            tags=list(config.tags),
            config={**config_to_dict(config), **facts},
        )
    return loggers


def log_video(loggers: Mapping[str, Logger], step: int, path: Path) -> None:
    """Send a video to the loggers that take one."""
    for each in loggers.values():
        if isinstance(each, WandbLogger):
            each.log_video(step, path)


def log_end(loggers: Mapping[str, Logger], status: str, result: Mapping[str, Any] | None) -> None:
    """Tell the loggers that take it how the run ended: status, digest, final score."""
    ended = {"status": status}
    for name, value in (result or {}).items():
        parts = value.items() if isinstance(value, Mapping) else [("", value)]
        ended |= {f"{name}/{part}".rstrip("/"): each for part, each in parts if each is not None}
    for each in loggers.values():
        if isinstance(each, WandbLogger):
            each.summarize({f"final/{name}": value for name, value in ended.items()})

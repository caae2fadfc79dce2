"""A run's logs: which loggers it has, and what goes to which of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

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


class RunLogs:
    """``metrics.jsonl`` and the other loggers of a config, and ``evaluations.jsonl``.

    Logging never stops a run.

    Args:
        config: says which loggers.
        directory: of the run.

    Raises:
        UserError: a package is missing.
    """

    def __init__(self, config: TrainConfig, directory: Path) -> None:
        self._loggers = configured_loggers(config, directory)
        self._evaluations = JsonlLogger(directory / "evaluations.jsonl")

    def log(self, step: int, metrics: Mapping[str, Any], *, wall_time_s: float) -> None:
        """Record the metrics of one moment in every logger.

        Values are numbers or 0-dimensional tensors.
        """
        values = {name: float(value) for name, value in metrics.items()}
        for name, each in self._loggers.items():
            extra = {"wall_time_s": round(wall_time_s, 3)} if name == "metrics" else {}
            each.log(step, {**extra, **values})

    def log_evaluation(self, step: int, record: Mapping[str, Any]) -> None:
        """Append ``record`` to ``evaluations.jsonl``.

        Its numbers go to the other loggers as ``eval/<name>``.
        """
        self._evaluations.log(step, record)
        numbers = {
            f"eval/{name}": float(value)
            for name, value in record.items()
            if isinstance(value, int | float | np.number) and not isinstance(value, bool)
        }
        for name, each in self._loggers.items():
            if name != "metrics":
                each.log(step, numbers)

    def log_video(self, step: int, path: Path) -> None:
        """Send a video to the loggers that take one."""
        for each in self._loggers.values():
            if isinstance(each, WandbLogger):
                each.log_video(step, path)

    def close(self, status: str, result: Mapping[str, Any] | None) -> None:
        """Tell the loggers that take it how the run ended, and close them all."""
        ended = {"status": status}
        for name, value in (result or {}).items():
            parts = value.items() if isinstance(value, Mapping) else [("", value)]
            ended |= {f"{name}/{key}".rstrip("/"): each for key, each in parts if each is not None}
        for each in self._loggers.values():
            if isinstance(each, WandbLogger):
                each.summarize({f"final/{name}": value for name, value in ended.items()})
        for each in [*self._loggers.values(), self._evaluations]:
            each.close()

    def state_dict(self) -> dict[str, Any]:
        """Flush the logs to the disk and return their lengths."""
        return {
            "evaluations": self._evaluations.state_dict(),
            "loggers": {name: each.state_dict() for name, each in self._loggers.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Cut the logs back to where they were; with an empty ``state`` nothing of them stays."""
        self._evaluations.load_state_dict(state.get("evaluations", {}))
        saved = state.get("loggers", {})
        for name, each in self._loggers.items():
            each.load_state_dict(saved.get(name, {}))

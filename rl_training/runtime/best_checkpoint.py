"""The checkpoint that ``best`` names: set right when a run goes on, and asked for."""

from __future__ import annotations

import logging
from pathlib import Path

from rl_training.runtime.checkpoint_directory import (
    CHECKPOINTS,
    list_checkpoints,
    problem_of,
    read_link,
    set_link,
    step_of,
)
from rl_training.runtime.files import writing_to

logger = logging.getLogger(__name__)


def restore_best(checkpoints: Path, step: int, best_step: int | None) -> None:
    """Let ``best`` name the checkpoint of ``best_step``, the best until ``step``, at which the run
    goes on; None: there was none. Where that checkpoint is gone or damaged, it names nothing of
    what an earlier training did after ``step``.

    Raises:
        UserError: the disk refuses.
    """
    best = read_link(checkpoints, "best")
    if best is not None and step_of(best) == best_step:
        return
    with writing_to(checkpoints / "best"):
        intact = None if best_step is None else _intact(checkpoints, best_step)
        if intact is not None:
            set_link(checkpoints, "best", intact)
        elif best is not None and step_of(best) > step:
            (checkpoints / "best").unlink()
            if best_step is not None:
                logger.warning(
                    "checkpoints/best is gone: the best evaluation until step %d was at step %d, "
                    "of which no intact checkpoint was kept.",
                    step,
                    best_step,
                )


def _intact(checkpoints: Path, step: int) -> Path | None:
    """Return the newest checkpoint of ``step`` whose files are as written; None without one."""
    for path in reversed(list_checkpoints(checkpoints)):
        if step_of(path) == step:
            problem = problem_of(path)
            if problem is None:
                return path
            logger.warning("checkpoints/best does not name a damaged checkpoint: %s", problem)
    return None


def best_step(run: Path) -> int | None:
    """Return the step of a run's best checkpoint; None when there is none."""
    best = read_link(run / CHECKPOINTS, "best")
    return None if best is None else step_of(best)

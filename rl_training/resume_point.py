"""Where a run that was begun before goes on: its checkpoint, config and budget, and whether
anything is left to do.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from rl_training.algorithm import Algorithm
from rl_training.algorithm_core import Networks
from rl_training.config import TrainConfig, config_from_dict, load_config, replace_config
from rl_training.errors import UserError
from rl_training.registry import algorithm_class
from rl_training.runtime import checkpoint as checkpoints
from rl_training.runtime.checks import fitting, require_counter, whole_number
from rl_training.runtime.files import read_json
from rl_training.runtime.resume_change import ResumeChange
from rl_training.runtime.run import Run

logger = logging.getLogger(__name__)


def newest_checkpoint(directory: Path, path: Path) -> checkpoints.LoadedCheckpoint | None:
    """Return the checkpoint to go on from: ``path`` or the newest intact one of the run
    ``directory``; None without any.

    Raises:
        UserError: it is damaged, or holds no training state.
    """
    if path != directory:
        found = checkpoints.resolve_checkpoint(path)
    else:
        try:
            found = checkpoints.latest_intact(directory)
        except checkpoints.NoCheckpointError as error:
            logger.warning("%s", error)
            return None
    loaded = checkpoints.load_checkpoint(found)
    with fitting(f"{found} holds no training state"):
        step = loaded.state["training"]["algorithm"]["counters"]["global_step"]
        if require_counter("step", loaded.manifest["step"]) != step:
            raise ValueError(f"step {loaded.manifest['step']} by its manifest, {step} by its state")
    return loaded


def budget_of(
    asked: int | None, config: TrainConfig, loaded: checkpoints.LoadedCheckpoint | None
) -> int:
    """Return the environment steps at which the run is to end: those ``asked`` for, or its own.

    Raises:
        UserError: more are done already.
    """
    if asked is None:
        return config.total_timesteps
    budget = whole_number("total_timesteps", asked)
    done = 0 if loaded is None else loaded.manifest["step"]
    if budget < min(done, config.total_timesteps):
        raise UserError(f"total_timesteps is {budget}, and {done} steps are done already.")
    return budget


def config_of(
    directory: Path,
    loaded: checkpoints.LoadedCheckpoint | None,
    begun: ResumeChange | None,
    *,
    device: str | None = None,
) -> TrainConfig:
    """Return the checkpoint's config, with the run's budget and device: both may be others since,
    by a resume that had ``begun``, or that was killed before its first checkpoint.

    Args:
        directory: the run.
        loaded: the checkpoint.
        begun: what an earlier resume from there had changed.
        device: another one; None: the run's.
    """
    path = directory / "config.yaml"
    if loaded is None:
        config = load_config(path)
    else:
        config = config_from_dict(loaded.config, source=str(loaded.path / "config.json"))
        try:
            now = load_config(path)
            config = replace_config(config, total_timesteps=now.total_timesteps, device=now.device)
        except UserError as error:
            logger.warning("%s The config of %s is used instead.", error, loaded.path)
    if begun is not None:
        config = replace_config(config, total_timesteps=begun.total_timesteps)
    return config if device is None else replace_config(config, device=device)


def change_of(
    loaded: checkpoints.LoadedCheckpoint | None,
    config: TrainConfig,
    begun: ResumeChange | None,
    *,
    budget: int,
    reschedule: bool,
) -> ResumeChange | None:
    """Return what does not follow from the checkpoint, or without one from the config, when the run
    goes on to ``budget`` steps; None: all does.

    Args:
        loaded: the checkpoint.
        config: the run's, before it gets that budget.
        begun: what an earlier resume from there had changed.
        budget: environment steps.
        reschedule: let schedules run to it.
    """
    horizon = begun.schedule_horizon if begun is not None else None
    if reschedule:
        horizon = budget
    elif loaded is None and horizon is None and budget != config.total_timesteps:
        horizon = config.total_timesteps
    larger = budget > config.total_timesteps or (begun is not None and begun.go_on)
    go_on = larger and loaded is not None and loaded.state.get("stopped") is not None
    if horizon is None and not go_on:
        return None
    return ResumeChange(
        checkpoint=None if loaded is None else loaded.path.name,
        total_timesteps=budget,
        schedule_horizon=horizon,
        go_on=go_on,
    )


def restored_algorithm(
    run: Run,
    config: TrainConfig,
    loaded: checkpoints.LoadedCheckpoint | None,
    env: Any,
    networks: Networks | None,
) -> Algorithm:
    """Return the algorithm with a checkpoint's policy, or at its beginning.

    Raises:
        UserError: the run began with the steps of another object, and saved none of its own.
    """
    cls = algorithm_class(config.algo)
    if loaded is not None:
        policy = checkpoints.load_policy(loaded.path)
        return cls.restore(config, policy.state, env=env, networks=networks)
    if run.first_step:
        raise UserError(
            f"{run.directory} began at step {run.first_step} and was killed before its first "
            "checkpoint: there is nothing to go on from."
        )
    return cls(env, config=config, networks=networks)


def is_at_its_end(run: Run, loaded: checkpoints.LoadedCheckpoint, budget: int) -> bool:
    """Whether a run has nothing left to do: it was closed as finished, at this very checkpoint.

    A run that a callback stopped is finished too, before its budget. One that was killed between
    its last checkpoint and its result is not.
    """
    step = loaded.manifest["step"]
    result = read_json(run.directory / "result.json") or {}
    if run.status != "finished" or step != result.get("global_step"):
        return False
    return bool(step >= budget or budget <= run.config.total_timesteps)


def set_schedule_horizon(
    algorithm: Algorithm, loaded: checkpoints.LoadedCheckpoint | None, horizon: int
) -> None:
    """Let schedules run over ``horizon`` steps, whatever the checkpoint says that is still to be
    taken over.
    """
    algorithm.schedule_horizon = horizon
    if loaded is not None:
        loaded.state["training"]["algorithm"]["counters"]["schedule_horizon"] = horizon

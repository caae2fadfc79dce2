"""Train, evaluate, resume, predict: what the command line, the Python API and experiments have in
common.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl_training.algorithm import Algorithm
from rl_training.algorithm_core import Networks
from rl_training.config import TrainConfig, config_from_dict, load_config, replace_config, validate
from rl_training.envs.video import VideoRequest
from rl_training.errors import UserError
from rl_training.evaluation import evaluate, require_recordable
from rl_training.loop import TrainingLoop, require_evaluable
from rl_training.registry import algorithm_class
from rl_training.runtime import checkpoint as checkpoints
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.run import Run

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainResult:
    """How a run ended and where it is."""

    run_dir: Path
    checkpoint_path: Path | None
    """The last checkpoint; None when none could be written."""
    metrics: dict[str, float]
    """The last iteration's, ``global_step`` among them."""
    status: str
    """``finished`` or ``interrupted``."""
    exit_code: int
    """0, or 128 plus the signal's number."""
    evaluation: dict[str, Any] | None
    """The last evaluation."""
    digest: str | None
    """SHA-256 of the training state: equal for equal runs."""
    reason: str | None = None
    """Why training ended before its budget, or did not start."""


def train(
    config: TrainConfig,
    *,
    command: Sequence[str] | None = None,
    callbacks: Sequence[Callback] = (),
    progress: bool = False,
) -> TrainResult:
    """Train as ``config`` says, in a new run directory.

    Raises:
        UserError: the config cannot be trained; nothing is left behind.
    """
    validate(config)
    algorithm = algorithm_class(config.algo).from_config(config)
    if config.init_from is not None:
        algorithm.load_policy_state(_warm_start(config).state)
    require_evaluable(algorithm, run=True)
    if config.tracking.video_interval is not None:
        require_recordable(algorithm)
    run = Run.create(config, command)
    return _train_in(run, algorithm, command, callbacks=callbacks, progress=progress)


def train_with_overrides(algo: str, config: Any, overrides: Mapping[str, Any]) -> TrainResult:
    """Train ``algo`` with a `TrainConfig`, or a preset's path, whose fields ``overrides`` replace.

    Raises:
        UserError: the config is of another algorithm, or a field is unknown.
    """
    loaded = config if isinstance(config, TrainConfig) else load_config(config)
    if loaded.algo != algo:
        raise UserError(f"the config is for {loaded.algo!r}, not for {algo!r}.")
    return train(replace_config(loaded, **overrides) if overrides else loaded)


def _warm_start(config: TrainConfig) -> checkpoints.LoadedPolicy:
    assert config.init_from is not None
    policy = checkpoints.load_policy(checkpoints.resolve_checkpoint(config.init_from))
    algo = policy.config.get("algo")
    if algo != config.algo:
        raise UserError(
            f"init_from: {config.init_from} holds a {algo!r} policy, not a {config.algo!r} one."
        )
    return policy


def _train_in(
    run: Run,
    algorithm: Algorithm,
    command: Sequence[str] | None,
    *,
    state: Mapping[str, Any] | None = None,
    approximate: bool = False,
    callbacks: Sequence[Callback] = (),
    progress: bool = False,
) -> TrainResult:
    """Train in ``run``, from ``state`` or from the beginning; it is closed whatever happens."""
    loop = TrainingLoop(
        algorithm,
        run=run,
        total_timesteps=run.config.total_timesteps,
        callbacks=callbacks,
        progress=progress,
    )
    try:
        if state is not None:
            loop.load_training(state, approximate=approximate)
        run.start(command)
        run.load_state_dict({} if state is None else state["run"] or {})
        result = loop.train()
    except BaseException:
        run.close("failed")  # does nothing when the loop did
        raise
    finally:
        algorithm.close()
    return TrainResult(
        run_dir=run.directory,
        checkpoint_path=result.checkpoint,
        metrics={"global_step": result.global_step, **result.metrics},
        status=result.status,
        exit_code=result.exit_code,
        evaluation=result.evaluation,
        digest=result.digest,
        reason=result.reason,
    )


def resume_checkpoint(
    path: str | Path,
    *,
    total_timesteps: int | None = None,
    reschedule: bool = False,
    approximate: bool = False,
    callbacks: Sequence[Callback] = (),
    env: Any = None,
    networks: Networks | None = None,
    command: Sequence[str] | None = None,
    progress: bool = False,
) -> TrainResult:
    """Go on with a run as if it had never stopped.

    Args:
        path: a run (its newest intact checkpoint) or one checkpoint in a run.
        total_timesteps: a larger budget; None: the run's own.
        reschedule: let schedules run to the new budget instead of keeping their final values.
        approximate: where an environment does not reproduce, go on with fresh episodes.
        callbacks: as they were given when the run started.
        env: the environment, where it was given in Python when the run started.
        networks: likewise the networks.
        command: what is noted as having resumed the run.
        progress: show a progress line.

    Raises:
        UserError: no run is there, its checkpoints are damaged, or its environment does not
        reproduce.
    """
    directory, checkpoint = _locate(Path(path))
    loaded = None if checkpoint is None else checkpoints.load_checkpoint(checkpoint)
    config = _config_of(directory, loaded)
    run = Run.open(directory, config)
    budget = config.total_timesteps if total_timesteps is None else total_timesteps
    if budget != config.total_timesteps:
        config = replace_config(config, total_timesteps=budget)
        validate(config)
    if loaded is not None and _is_end(run, loaded, budget):
        return _nothing_to_do(run, loaded)
    algorithm, state = _restore(config, loaded, env, networks)
    if state is not None and reschedule:
        state["training"]["algorithm"]["counters"]["schedule_horizon"] = budget
    run.config = config
    return _train_in(
        run,
        algorithm,
        command,
        state=state,
        approximate=approximate,
        callbacks=callbacks,
        progress=progress,
    )


def _locate(path: Path) -> tuple[Path, Path | None]:
    """Return the run directory of a run or of one of its checkpoints, and the checkpoint to go on
    from.
    """
    if (path / "config.yaml").is_file():
        try:
            return path, checkpoints.latest_intact(path)
        except checkpoints.NoCheckpointError:
            return path, None
    checkpoint = checkpoints.resolve_checkpoint(path)
    run = checkpoint.parent.parent
    if not (run / "config.yaml").is_file():
        raise UserError(
            f"{checkpoint} belongs to no run directory; load it with the algorithm's load()."
        )
    return run, checkpoint


def _config_of(directory: Path, loaded: checkpoints.LoadedCheckpoint | None) -> TrainConfig:
    """Return the checkpoint's config, with the run's budget: it may have been raised since."""
    path = directory / "config.yaml"
    if loaded is None:
        return load_config(path)
    config = config_from_dict(loaded.config, source=str(loaded.path / "config.json"))
    try:
        return replace_config(config, total_timesteps=load_config(path).total_timesteps)
    except UserError as error:
        logger.warning("%s The config of %s is used instead.", error, loaded.path)
        return config


def _restore(
    config: TrainConfig,
    loaded: checkpoints.LoadedCheckpoint | None,
    env: Any,
    networks: Networks | None,
) -> tuple[Algorithm, Any]:
    """Return the algorithm at the checkpoint or at its beginning, and the state to load into it."""
    cls = algorithm_class(config.algo)
    if loaded is None:
        return cls(env, config=config, networks=networks), None
    policy = checkpoints.load_policy(loaded.path)
    return cls.restore(config, policy.state, env=env, networks=networks), loaded.state


def _is_end(run: Run, loaded: checkpoints.LoadedCheckpoint, budget: int) -> bool:
    """Whether a run has nothing left to do: it was closed as finished, at this very checkpoint.

    A run that a callback stopped is finished too, before its budget. One that was killed between
    its last checkpoint and its result is not.
    """
    step = loaded.manifest["step"]
    if run.status != "finished" or step != _last_step(run):
        return False
    return bool(step >= budget or budget <= run.config.total_timesteps)


def _last_step(run: Run) -> Any:
    try:
        return json.loads((run.directory / "result.json").read_bytes())["global_step"]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _nothing_to_do(run: Run, loaded: checkpoints.LoadedCheckpoint) -> TrainResult:
    step = loaded.manifest["step"]
    return TrainResult(
        run_dir=run.directory,
        checkpoint_path=loaded.path,
        metrics={"global_step": step},
        status="finished",
        exit_code=0,
        evaluation=None,
        digest=checkpoints.digest(loaded.state["training"]),
        reason="the run is done, nothing was changed; give a larger total_timesteps to go on",
    )


def load_algorithm(
    path: str | Path, *, best: bool = False, env: Any = None
) -> tuple[Algorithm, Path]:
    """Return the algorithm whose policy a run, a checkpoint or a policy directory holds, and where
    it was found.

    Raises:
        UserError: none is there, or it is damaged.
    """
    directory = checkpoints.resolve_checkpoint(path, best=best)
    policy = checkpoints.load_policy(directory)
    config = config_from_dict(policy.config, source=str(directory))
    return algorithm_class(config.algo).restore(config, policy.state, env=env), directory


def evaluate_checkpoint(
    path: str | Path,
    *,
    best: bool = False,
    episodes: int | None = 20,
    seed: int | None = None,
    deterministic: bool = True,
    render: bool = False,
    video: int = 0,
    env: Any = None,
) -> dict[str, Any]:
    """Play episodes with a saved policy; see `rl_training.evaluation.evaluate` for the keys.

    Args:
        path: a run (its latest checkpoint), a checkpoint or a policy directory.
        best: of a run, the checkpoint with the best evaluation.
        episodes: how many.
        seed: of the episodes; None: derived from the run's seed and step.
        deterministic: the most likely actions instead of samples.
        render: show them on the screen.
        video: write this many of them as MP4 files, into the run's ``videos/`` (of a checkpoint
            outside a run: into a directory beside it).
        env: another environment than the one trained on.

    Raises:
        UserError: no policy is there, it is damaged, or the environment cannot be drawn.
    """
    algorithm, directory = load_algorithm(path, best=best, env=env)
    request = VideoRequest(_video_directory(directory), video) if video else None
    record = evaluate(
        algorithm,
        episodes=max(episodes or 1, video),
        seed=seed,
        deterministic=deterministic,
        render=render,
        video=request,
    )
    videos = None if request is None else str(request.directory)
    return {**record, "checkpoint": str(directory), **({"videos": videos} if videos else {})}


def _video_directory(checkpoint: Path) -> Path:
    run = checkpoint.parent.parent
    if (run / "config.yaml").is_file():
        return run / "videos"
    # Beside it: a checkpoint with a file that its manifest does not list is refused.
    return checkpoint.with_name(f"{checkpoint.name}_videos")


def predict_checkpoint(
    path: str | Path, observation: Any, *, best: bool = False, deterministic: bool = True
) -> Any:
    """Return a saved policy's actions for raw observations; see `Algorithm.predict`."""
    algorithm, _ = load_algorithm(path, best=best)
    action, _ = algorithm.predict(observation, deterministic=deterministic)
    return action

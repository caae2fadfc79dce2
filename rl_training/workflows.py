"""Train, evaluate, resume, predict: what the command line, the Python API and experiments have in
common.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl_training.algorithm import Algorithm
from rl_training.algorithm_core import Networks
from rl_training.arguments import names_keywords, require_trusted_modules
from rl_training.config import TrainConfig, config_from_dict, load_config, replace_config, validate
from rl_training.envs.video import VideoRequest
from rl_training.errors import UserError
from rl_training.evaluation import evaluate, require_evaluable, require_recordable
from rl_training.loop import TrainingLoop
from rl_training.registry import algorithm_class
from rl_training.resume_point import (
    budget_of,
    change_of,
    config_of,
    is_at_its_end,
    newest_checkpoint,
    restored_algorithm,
    set_schedule_horizon,
)
from rl_training.runtime import checkpoint as checkpoints
from rl_training.runtime.callback_states import require_callbacks
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.checkpoint_directory import run_of
from rl_training.runtime.devices import device_here, resolve_device
from rl_training.runtime.progress import EvaluationProgress
from rl_training.runtime.resume_change import ResumeChange, read_resume_change
from rl_training.runtime.run import Run
from rl_training.runtime.run_lock import RunLock


@dataclass(frozen=True)
class TrainResult:
    """How a run ended and where it is."""

    run_dir: Path
    checkpoint_path: Path | None
    """The last checkpoint; None when none could be written."""
    metrics: dict[str, float]
    """The last iteration's, ``global_step`` among them."""
    status: str
    """``finished``, ``interrupted``, or ``failed``: the final checkpoint could not be written."""
    exit_code: int
    """0; 128 plus the signal's number; 1 when the final checkpoint could not be written."""
    evaluation: dict[str, Any] | None
    """The last evaluation."""
    digest: str | None
    """SHA-256 of the training state: equal for equal runs."""
    reason: str | None = None
    """Why training ended before its budget, failed, or did not start."""


@names_keywords
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
    require_callbacks(callbacks)
    parent = Path(config.output_dir).absolute()  # an environment may change where that is
    algorithm = algorithm_class(config.algo).from_config(config)
    require_evaluable(algorithm, run=True)
    if config.tracking.video_interval is not None:
        require_recordable(algorithm)
    run = Run.create(config, command, parent=parent)
    return _train_in(
        run,
        algorithm,
        command,
        callbacks=callbacks,
        progress=progress,
        save_first=config.init_from is not None,
    )


def train_with_overrides(algo: str, config: Any, overrides: Mapping[str, Any]) -> TrainResult:
    """Train ``algo`` with a `TrainConfig`, or a preset's path, whose fields ``overrides`` replace.

    Raises:
        UserError: the config is of another algorithm, or a field is unknown.
    """
    loaded = config if isinstance(config, TrainConfig) else load_config(config)
    if loaded.algo != algo:
        raise UserError(f"the config is for {loaded.algo!r}, not for {algo!r}.")
    return train(replace_config(loaded, **overrides) if overrides else loaded)


def _train_in(
    run: Run,
    algorithm: Algorithm,
    command: Sequence[str] | None,
    *,
    loaded: checkpoints.LoadedCheckpoint | None = None,
    approximate: bool = False,
    callbacks: Sequence[Callback] = (),
    progress: bool = False,
    save_first: bool = False,
    change: ResumeChange | None = None,
) -> TrainResult:
    """Train in ``run``, from a checkpoint or from the beginning; it is closed whatever happens.

    Args:
        run: created, or opened.
        algorithm: at the checkpoint, or at its beginning.
        command: what is noted as having started it.
        loaded: the checkpoint.
        approximate: begin fresh episodes.
        callbacks: the user's.
        progress: show a progress line.
        save_first: write a checkpoint before the first iteration.
        change: what follows from neither the checkpoint nor the config.
    """
    loop = TrainingLoop(
        algorithm,
        run=run,
        total_timesteps=run.config.total_timesteps,
        callbacks=callbacks,
        progress=progress,
        save_first=save_first,
    )
    try:
        if loaded is not None:
            loop.load_training(loaded.state, approximate=approximate)
        if change is not None and change.go_on:
            loop.go_on()
        run.start(command, change)
        if loaded is None:
            run.load_state_dict({})
        else:
            run.resume_at(loaded.path, loaded.state["run"] or {})
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


@names_keywords
def resume_checkpoint(
    path: str | Path,
    *,
    total_timesteps: int | None = None,
    reschedule: bool = False,
    approximate: bool = False,
    callbacks: Sequence[Callback] = (),
    env: Any = None,
    networks: Networks | None = None,
    trust_modules: bool = False,
    device: str | None = None,
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
        trust_modules: import the code that the run's config names ("module:Class"), without its
            having been imported before.
        device: where networks compute from now on; None: where they did. All draws are on the CPU:
            what differs is how that device rounds.
        command: what is noted as having resumed the run.
        progress: show a progress line.

    Raises:
        UserError: no run is there, its checkpoints are damaged, its environment does not reproduce,
            or there is no such device.
    """
    require_callbacks(callbacks)
    if device is not None:
        resolve_device(device)
    path = Path(path).absolute()  # an environment may change where that is
    directory = run_of(path)
    # Before anything is read: what another training writes meanwhile would be lost.
    with RunLock(directory) as lock:
        loaded = newest_checkpoint(directory, path)
        begun = read_resume_change(directory, None if loaded is None else loaded.path.name)
        config = config_of(directory, loaded, begun, device=device)
        require_trusted_modules(config, trust=trust_modules, env=env)
        run = Run.open(directory, config, lock=lock)
        budget = budget_of(total_timesteps, config, loaded)
        if loaded is not None and begun is None and is_at_its_end(run, loaded, budget):
            return _nothing_to_do(run, loaded)
        change = change_of(loaded, config, begun, budget=budget, reschedule=reschedule)
        if budget != config.total_timesteps:
            config = replace_config(config, total_timesteps=budget)
            validate(config)
        algorithm = restored_algorithm(run, config, loaded, env, networks)
        if change is not None and change.schedule_horizon is not None:
            set_schedule_horizon(algorithm, loaded, change.schedule_horizon)
        run.config = config
        return _train_in(
            run,
            algorithm,
            command,
            loaded=loaded,
            approximate=approximate,
            callbacks=callbacks,
            progress=progress,
            save_first=change is not None or (loaded is None and config.init_from is not None),
            change=change,
        )


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


@names_keywords
def load_algorithm(
    path: str | Path,
    *,
    best: bool = False,
    env: Any = None,
    trust_modules: bool = False,
    device: str | None = None,
) -> tuple[Algorithm, Path]:
    """Return the algorithm whose policy a run, a checkpoint or a policy directory holds, and where
    it was found.

    Args:
        path: a run (its latest checkpoint), a checkpoint or a policy directory.
        best: of a run, the checkpoint with the best evaluation.
        env: another environment than the one trained on.
        trust_modules: import the code that its config names ("module:Class"), without its having
            been imported before.
        device: of its networks; None: the one trained on, or the CPU where there is no such one.

    Raises:
        UserError: none is there, or it is damaged.
    """
    directory = checkpoints.resolve_checkpoint(path, best=best)
    policy = checkpoints.load_policy(directory)
    config = config_from_dict(policy.config, source=str(directory))
    require_trusted_modules(config, trust=trust_modules, env=env)
    device = device_here(config.device) if device is None else device
    algorithm = algorithm_class(config.algo).restore(config, policy.state, env=env, device=device)
    return algorithm, directory


@names_keywords
def evaluate_checkpoint(
    path: str | Path,
    *,
    best: bool = False,
    episodes: int | None = 20,
    seed: int | None = None,
    deterministic: bool = True,
    max_episode_steps: int | None = None,
    render: bool = False,
    video: int = 0,
    env: Any = None,
    trust_modules: bool = False,
    device: str | None = None,
    progress: bool = False,
) -> dict[str, Any]:
    """Play episodes with a saved policy; see `rl_training.evaluation.evaluate` for the keys.

    Args:
        path: a run (its latest checkpoint), a checkpoint or a policy directory.
        best: of a run, the checkpoint with the best evaluation.
        episodes: how many.
        seed: of the episodes; None: derived from the run's seed and step, and other than those of
            the evaluations in training, which chose the best checkpoint.
        deterministic: the most likely actions instead of samples.
        max_episode_steps: after which an episode counts as truncated; None: the run's.
        render: show them on the screen.
        video: write this many of them as MP4 files, into the run's ``videos/`` (of a checkpoint
            outside a run: into a directory beside it).
        env: another environment than the one trained on.
        trust_modules: import the code that its config names ("module:Class"), without its having
            been imported before.
        device: as for `load_algorithm`.
        progress: show how far it is.

    Raises:
        UserError: no policy is there, it is damaged, or the environment cannot be drawn.
    """
    algorithm, directory = load_algorithm(
        path, best=best, env=env, trust_modules=trust_modules, device=device
    )
    videos = _video_directory(directory)
    # Absolute: an environment may change the working directory.
    request = VideoRequest(videos.absolute(), video) if video else None
    with EvaluationProgress() if progress else contextlib.nullcontext() as tell:
        record = evaluate(
            algorithm,
            episodes=max(episodes or 1, video),
            seed=seed,
            deterministic=deterministic,
            max_episode_steps=max_episode_steps,
            render=render,
            video=request,
            stream="evaluation of a checkpoint",
            tell=tell,
        )
    recorded = {"videos": str(videos)} if video else {}
    return {**record, "checkpoint": str(directory), **recorded}


def _video_directory(checkpoint: Path) -> Path:
    run = checkpoint.parent.parent
    if (run / "config.yaml").is_file():
        return run / "videos"
    # Beside it: a checkpoint with a file that its manifest does not list is refused.
    return checkpoint.with_name(f"{checkpoint.name}_videos")


@names_keywords
def predict_checkpoint(
    path: str | Path,
    observation: Any,
    *,
    best: bool = False,
    deterministic: bool = True,
    trust_modules: bool = False,
    action_masks: Any = None,
    device: str | None = None,
) -> Any:
    """Return a saved policy's actions for raw observations, of a policy with memory the first."""
    algorithm, _ = load_algorithm(path, best=best, trust_modules=trust_modules, device=device)
    given = {"action_masks": action_masks, "deterministic": deterministic}
    return algorithm.predict(observation, **given)[0]

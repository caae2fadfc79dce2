"""Evaluation: whole episodes in fresh environments, counted fairly, with intervals. It leaves
training untouched.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_training.data.return_statistics import statistics
from rl_training.envs import VectorEnv
from rl_training.envs.layout import Layout
from rl_training.envs.video import VideoRequest
from rl_training.errors import VideoError
from rl_training.finite import FiniteSteps
from rl_training.runtime.callbacks import (
    Callback,
    CheckpointCallback,
    EvaluationCallback,
    StepInterval,
    StopOnNoImprovement,
    StopOnReturn,
    TrainContext,
)
from rl_training.runtime.checks import whole_number
from rl_training.runtime.seeding import derive_seed, generator, preserve_global_rng
from rl_training.runtime.signals import stop_requested

if TYPE_CHECKING:
    from rl_training.config import TrainConfig

logger = logging.getLogger(__name__)

LONG_EPISODE = 100_000
"""Steps of one episode after which an evaluation says that it may never end."""
_LIMIT = "evaluation.max_episode_steps"
_CHECK_EVERY = 1000


class EvaluationInterruptedError(RuntimeError):
    """A signal asked training to stop while it was evaluating."""


class Evaluable(Protocol):
    """What evaluation needs of an algorithm."""

    config: TrainConfig
    device: torch.device
    global_step: int
    observation_layout: Layout

    def require_fresh_environments(self) -> None:
        """Raise `UserError` when environments like the training ones cannot be made anew."""

    def evaluation_environment(
        self,
        *,
        num_envs: int,
        seed: int,
        env: Any = None,
        render_mode: str | None = None,
        video: VideoRequest | None = None,
    ) -> VectorEnv:
        """Return fresh environments with frozen normalisation."""

    def act(
        self, root: TensorDictBase, *, deterministic: bool, generator: torch.Generator | None
    ) -> None:
        """Write the policy's actions into a root of the environments, and what it remembers into
        ``next``.
        """


@torch.no_grad()
def evaluate(
    algorithm: Evaluable,
    *,
    episodes: int | None = None,
    seed: int | None = None,
    deterministic: bool | None = None,
    max_episode_steps: int | None = None,
    env: Any = None,
    render: bool = False,
    video: VideoRequest | None = None,
    stream: str = "evaluation",
    tell: Callable[[int, int, int], None] | None = None,
) -> dict[str, Any]:
    """Play ``episodes`` whole episodes and return their statistics.

    Every environment gets its quota of episodes. Counting the first that finish, as is often done,
    favours short ones. Rewards are raw, observation statistics frozen, seeds apart from training's.

    An episode that has not ended after ``max_episode_steps`` counts as it is then, as truncated,
    and a warning says how many did. Where agents share an environment, an episode is their game,
    and its return the mean over the agents: the returns of one game's agents are no independent
    sample, so that an interval over them would be too narrow.

    Args:
        algorithm: gives environments and actions.
        episodes: None: the config's.
        seed: of the episodes; None: the config's, or one derived from the run's seed and step.
        deterministic: the most likely action instead of a sample; None: the config's.
        max_episode_steps: of an episode; None: the config's.
        env: evaluate on another environment than the one trained on.
        render: show the first environment on the screen.
        video: write the first episodes as MP4 files.
        stream: another name draws other episodes, when no seed is given anywhere.
        tell: gets, with every step, how many episodes were played, how many will be, and the
            environment steps so far.

    Returns:
        ``return_mean, return_std`` (over episodes), ``return_iqm`` (interquartile mean),
        ``return_ci95`` (bootstrap interval of the mean), ``length_mean``, ``returns, lengths,
        episodes, seed, deterministic``; ``episodes_cut``, how many of them did not end by
        themselves; ``agents``, how many play a game together (1: each plays alone).

    Raises:
        UserError: a number of episodes or steps that is not positive, or an environment that cannot
            be drawn.
        NonFiniteError: an observation or a reward is NaN or infinite: no policy knows what to do
            then, and no mean counts.
        EvaluationInterruptedError: during training, a signal asked it to stop.
    """
    settings = algorithm.config.evaluation
    count = settings.episodes if episodes is None else whole_number("episodes", episodes)
    greedy = settings.deterministic if deterministic is None else deterministic
    chosen = _episode_seed(algorithm, stream) if seed is None else seed
    limit = settings.max_episode_steps
    if max_episode_steps is not None:
        limit = whole_number("max_episode_steps", max_episode_steps)
    with preserve_global_rng():
        environment = algorithm.evaluation_environment(
            num_envs=1 if render or video else min(settings.num_envs, count),
            seed=chosen,
            env=env,
            render_mode="human" if render else "rgb_array" if video else None,
            video=video,
        )
        try:
            draws = generator(chosen, "evaluation")
            if limit is not None:
                environment.limit_episodes(limit)
            watch = _EpisodeWatch(environment.name, limit, tell)
            played = _play(algorithm, environment, count, greedy, draws, watch)
        finally:
            environment.close(raise_if_closed=False)
    _tell_of_cuts(environment.name, played, limit)
    return {
        **statistics([each.score for each in played], [each.length for each in played]),
        "episodes_cut": sum(each.cut for each in played),
        "agents": environment.agents,
        "seed": chosen,
        "deterministic": greedy,
    }


class _Episode(NamedTuple):
    """One that was counted."""

    score: float
    """Its return; of a game, the mean over its agents."""
    length: int
    cut: bool
    """Whether it did not end by itself."""


def _tell_of_cuts(name: str, played: Sequence[_Episode], limit: int | None) -> None:
    cut = sum(each.cut for each in played)
    if cut:
        logger.warning(
            "%s: %d of %d evaluation episodes did not end within %s (%s) and count as "
            "truncated there.",
            name,
            cut,
            len(played),
            _steps(limit or 0),
            _LIMIT,
        )


def _steps(count: int) -> str:
    return f"{count:,} step{'' if count == 1 else 's'}"


def _episode_seed(algorithm: Evaluable, stream: str) -> int:
    config = algorithm.config
    if config.evaluation.seed is not None:
        return config.evaluation.seed
    return derive_seed(config.seed, f"{stream}/{algorithm.global_step}")


def _play(
    algorithm: Evaluable,
    environment: VectorEnv,
    episodes: int,
    deterministic: bool,
    draws: torch.Generator,
    watch: _EpisodeWatch,
) -> list[_Episode]:
    """Return each environment's first episodes, environment after environment; the rows of a game
    are one.
    """
    together = environment.agents
    count = environment.num_envs // together
    missing = [episodes // count + (game < episodes % count) for game in range(count)]
    played: list[list[_Episode]] = [[] for _ in range(count)]
    root = environment.reset()
    check = FiniteSteps(environment.name, algorithm.observation_layout)
    while any(missing):
        if stop_requested():
            raise EvaluationInterruptedError("stopped by a signal while evaluating")
        check.observation(root.get("observation"))
        algorithm.act(root, deterministic=deterministic, generator=draws)
        taken, root = environment.step_and_maybe_reset(root)
        following = taken.get("next")
        check.returns(following.get("episode_return"))
        watch.step(following.get("episode_length")[::together], missing)
        for game in following.get("done")[::together].view(-1).nonzero().view(-1).tolist():
            if missing[game]:
                missing[game] -= 1
                first = game * together
                scores = following.get("episode_return")[first : first + together].view(-1).tolist()
                length = int(following.get("episode_length")[first].item())
                cut = environment.cut[first]
                played[game].append(_Episode(sum(scores) / together, length, cut))
    return [each for game in played for each in game]


class _EpisodeWatch:
    """Says how far an evaluation is, and once when an episode that is waited for seems to have no
    end.
    """

    def __init__(
        self, name: str, limit: int | None, tell: Callable[[int, int, int], None] | None
    ) -> None:
        self._name = name
        self._limit = limit
        self._tell = tell
        self._episodes = 0
        self._steps = 0
        self._warned = False

    def step(self, lengths: Tensor, missing: Sequence[int]) -> None:
        self._steps += 1
        if self._tell is not None:
            left = sum(missing)
            self._episodes = self._episodes or left
            self._tell(self._episodes - left, self._episodes, self._steps * len(missing))
        if self._warned or self._steps < LONG_EPISODE or self._steps % _CHECK_EVERY:
            return
        waited_for = lengths.view(-1)[torch.tensor(missing) > 0]
        if int(waited_for.max()) >= LONG_EPISODE:
            self._warned = True
            end = "never" if self._limit is None else f"after {_steps(self._limit)}"
            logger.warning(
                "%s: an evaluation's episode has not ended after %s. Is a time limit missing "
                "(max_episode_steps)? The evaluation cuts it %s (%s).",
                self._name,
                _steps(LONG_EPISODE),
                end,
                _LIMIT,
            )


class VideoCallback(Callback):
    """Records an episode of the policy every ``interval`` environment steps, as
    ``videos/step_<12 digits>_0001.mp4`` of the run.

    Training is untouched. A step that was recorded before the run was killed is not recorded again.
    """

    def __init__(self, *, interval: int) -> None:
        self._interval = StepInterval(interval)

    def on_train_start(self, context: TrainContext) -> None:
        """Find out before the first iteration whether the environment can be drawn."""
        if context.run is not None:
            require_recordable(context.algorithm)

    def on_iteration(self, context: TrainContext, metrics: Mapping[str, float]) -> None:
        """Record when it is time."""
        due = self._interval.due(context.global_step)
        if not due or context.run is None:
            return
        name = f"step_{context.global_step:012d}"
        directory = context.run.directory / "videos"
        if any(directory.glob(f"{name}_*.mp4")):
            return
        try:
            evaluate(context.algorithm, episodes=1, video=VideoRequest(directory, 1, name))
        except EvaluationInterruptedError:
            raise
        except (
            OSError,
            RuntimeError,
            VideoError,
        ) as error:  # a full disk, a graphics driver that gave up
            logger.warning("no video at step %d: %s. Training goes on.", context.global_step, error)
        for path in directory.glob(f"{name}_*.mp4"):
            context.run.log_video(context.global_step, path)

    def state_dict(self) -> dict[str, Any]:
        """Return the last step seen."""
        return self._interval.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from ``state``."""
        self._interval.load_state_dict(state)


def configured_callbacks(config: TrainConfig, *, keeps_runs: bool) -> list[Callback]:
    """Return the callbacks that a config asks for, in the order in which they are called."""
    settings = config.evaluation
    callbacks: list[Callback] = [
        EvaluationCallback(
            interval=settings.interval, keep_best=config.checkpoint.keep_best and keeps_runs
        )
    ]
    if settings.stop_on_return is not None:
        callbacks.append(StopOnReturn(threshold=settings.stop_on_return))
    if settings.patience is not None:
        callbacks.append(StopOnNoImprovement(patience=settings.patience))
    callbacks.append(CheckpointCallback(interval=config.checkpoint.interval))
    if config.tracking.video_interval is not None:
        callbacks.append(VideoCallback(interval=config.tracking.video_interval))
    return callbacks


def require_recordable(algorithm: Evaluable) -> None:
    """Raise unless the algorithm's environment can be recorded.

    Raises:
        UserError: it cannot draw itself, or the video extra is missing.
    """
    request = VideoRequest(Path(), 0)
    with preserve_global_rng():
        algorithm.evaluation_environment(
            num_envs=1, seed=0, render_mode="rgb_array", video=request
        ).close(raise_if_closed=False)


def require_evaluable(algorithm: Evaluable, *, run: bool) -> None:
    """Raise when training would find out only later that the policy cannot be evaluated.

    Args:
        algorithm: about to be trained.
        run: whether a run directory is written, which ends with an evaluation.

    Raises:
        UserError: the environment does not say how to make another one like it.
    """
    settings = algorithm.config.evaluation
    if settings.interval is not None or (run and settings.final):
        algorithm.require_fresh_environments()

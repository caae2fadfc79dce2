"""What ``rl-training eval`` and ``rl-training resume`` take, for `rl_training.cli.flags`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import tyro

from rl_training.errors import UserError

RunOrCheckpoint = Annotated[str, tyro.conf.arg(metavar="RUN_OR_CHECKPOINT")]


@dataclass(kw_only=True)
class EvaluateArguments:
    """Play episodes with a trained policy: fresh seeds, raw rewards."""

    run_or_checkpoint: RunOrCheckpoint
    """A run's directory (its latest checkpoint) or a checkpoint's."""
    best: bool = False
    """The run's best checkpoint instead of the latest."""
    episodes: int = 20
    """How many episodes."""
    seed: int | None = None
    """Seed of the episodes; by default derived from the run's."""
    stochastic: bool = False
    """Sample actions instead of taking the most likely one."""
    max_episode_steps: int | None = None
    """Steps after which an episode counts as truncated; by default the run's."""
    render: bool = False
    """Show the environment in a window."""
    video: int = 0
    """Record this many episodes as MP4."""
    device: str | None = None
    """Of the networks: cpu, cuda; by default the run's, or the CPU where there is no such one."""
    json: bool = False
    """Print one JSON object and nothing else."""
    trust_modules: bool = False
    """Import the code that the checkpoint's config names ("module:Class")."""

    def validate(self) -> None:
        """Refuse values that cannot be."""
        _at_least("--episodes", self.episodes, 1)
        _at_least("--seed", self.seed, 0)
        _at_least("--max-episode-steps", self.max_episode_steps, 1)
        _at_least("--video", self.video, 0)


@dataclass(kw_only=True)
class ResumeArguments:
    """Continue a run exactly where its last checkpoint stands."""

    run_or_checkpoint: RunOrCheckpoint
    """A run's directory (its latest intact checkpoint) or a checkpoint's."""
    total_timesteps: int | None = None
    """A new budget for the whole run, in environment steps."""
    reschedule: bool = False
    """Stretch the schedules over the new budget, instead of keeping their final values."""
    resume: Literal["exact", "approximate"] = "exact"
    """Running episodes: restored, or replaced by fresh ones where an environment cannot restore."""
    device: str | None = None
    """Of the networks from now on: cpu, cuda, cuda:1; by default the run's."""
    trust_modules: bool = False
    """Import the code that the run's config names ("module:Class")."""

    def validate(self) -> None:
        """Refuse values that cannot be."""
        _at_least("--total-timesteps", self.total_timesteps, 1)


def _at_least(flag: str, value: int | None, minimum: int) -> None:
    if value is not None and value < minimum:
        raise UserError(f"{flag} must be at least {minimum}, not {value}.")

"""Algorithms without torch, for tests of configs and of the command line."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from rl_training.config import TrainConfig
from rl_training.errors import UserError

ALGORITHMS = {"ppo": "tests.stand_in:PPO", "ppg": "tests.stand_in:PPG"}


@dataclass(kw_only=True)
class PPOConfig:
    """A group with every kind of field."""

    learning_rate: float = 3e-4
    """Step size."""
    num_steps: int = 32
    """Steps per environment."""
    minibatch_size: int = 64
    """Samples per gradient step."""
    num_epochs: int = 4
    """Passes."""
    schedule: Literal["constant", "linear"] = "constant"
    """Over the run."""
    target_kl: float | None = None
    """None: never."""
    temperature: float | Literal["auto"] = "auto"
    """A number or a word."""
    betas: tuple[float, float] = (0.9, 0.999)
    """A pair."""
    weights: dict[str, float] = field(default_factory=dict)
    """Numbers by name."""

    def validate(self, config: TrainConfig) -> None:
        """Refuse a minibatch that does not fit."""
        batch = self.num_steps * config.num_envs
        if self.minibatch_size > batch:
            raise UserError(f"minibatch_size {self.minibatch_size} is above the batch of {batch}.")


@dataclass(kw_only=True)
class PPGConfig:
    """A group without a ``validate``."""

    learning_rate: float = 5e-4
    """Step size."""
    policy_iterations: int = 32
    """N_pi."""


class PPO:
    Config: type[Any] = PPOConfig


class PPG:
    Config: type[Any] = PPGConfig

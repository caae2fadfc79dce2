"""The hyperparameters that algorithms with replay have in common."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from rl_training.config import Hyperparameters, TrainConfig, require, require_directory

# Far above what is of use: beyond them a run would only end in NaN, or in want of memory or years.
_AT_MOST: dict[str, float] = {
    "adam_epsilon": 1.0,
    "train_every": 10_000_000,
    "gradient_steps_per_step": 10_000,
    "n_steps": 100_000,
    "num_atoms": 1_000,
    "value_min": 1e30,
    "value_max": 1e30,
    "noisy_std": 1e6,
    "entropy_coefficient": 1e6,
    "initial_entropy_coefficient": 1e6,
    "target_entropy": 1e6,
    "log_std_init": 40.0,
    "target_policy_noise": 1e6,
    "target_noise_clip": 1e6,
    "exploration_deviation": 1e6,
}
LEAST_RATIO = 1e-6
"""The least ratio of gradient steps to environment steps: ratios are fractions of a million."""


@dataclass(kw_only=True)
class OffPolicyConfig(Hyperparameters):
    """What DQN, SAC and TD3 have in common. Every count is in environment steps, over all
    environments together, whatever ``num_envs`` is.
    """

    model_defaults: ClassVar[Mapping[str, Any]] = {
        "hidden_sizes": [256, 256],
        "activation": "relu",
        "orthogonal_init": False,
    }

    learning_rate: float = 3e-4
    """Adam's step size."""
    learning_rate_schedule: Literal["constant", "linear"] = "constant"
    """``linear``: down to zero over the run's total steps."""
    minibatch_size: int = 256
    """Transitions per gradient step."""
    replay_capacity: int = 1_000_000
    """Transitions that are remembered."""
    replay_storage: Literal["ram", "disk"] = "ram"
    """Where they are: in memory, or in files mapped into it."""
    replay_directory: str | None = None
    """Directory of those files; None: the system's temporary one."""
    warm_up: int = 10_000
    """Steps with random actions, and without updates, at the beginning."""
    train_every: int = 1
    """Steps between two updates; rounded up to whole steps of all environments."""
    gradient_steps_per_step: float = 1.0
    """Gradient steps per environment step after the warm-up (the update-to-data ratio)."""
    discount: float = 0.99
    """Gamma."""
    n_steps: int = 1
    """Rewards summed before the bootstrapped value."""
    max_gradient_norm: float | None = None
    """Gradient norm above which gradients are scaled down; None: never."""
    adam_epsilon: float = 1e-8
    """Adam's epsilon."""

    def validate(self, config: TrainConfig) -> None:
        """Refuse values that cannot be trained with, naming key and value."""
        self._require_positive("learning_rate", "adam_epsilon", "gradient_steps_per_step")
        self._require_at_most(_AT_MOST)
        key = "gradient_steps_per_step"
        self._require(getattr(self, key) >= LEAST_RATIO, key, f"be at least {LEAST_RATIO}")
        self._require_at_least_one("minibatch_size", "train_every", "n_steps")
        require_directory("algorithm.replay_directory", self.replay_directory)
        self._require_not_negative("warm_up")
        self._require_share("discount")
        self._require_positive_or_null("max_gradient_norm")
        least = max(config.num_envs * (self.n_steps + 1), self.minibatch_size)
        self._require(
            self.replay_capacity >= least,
            "replay_capacity",
            f"be at least {least} (minibatch_size {self.minibatch_size}, num_envs "
            f"{config.num_envs}, n_steps {self.n_steps})",
        )
        for key in ("normalize_observation", "normalize_reward"):
            require(
                not getattr(config.env, key),
                f"env.{key}",
                f"must be off for {config.algo}: running statistics would make what is replayed "
                "another thing than what was seen; a wrapper with fixed numbers can scale instead",
            )

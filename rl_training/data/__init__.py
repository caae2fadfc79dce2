"""Storage of experience, and what is computed of it."""

from rl_training.data.advantages import generalized_advantage_estimate
from rl_training.data.rollout_buffer import RolloutBuffer, shuffled_indices

__all__ = ["RolloutBuffer", "generalized_advantage_estimate", "shuffled_indices"]

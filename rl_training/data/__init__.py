"""Storage of experience, and what is computed of it."""

from rl_training.data.advantages import generalized_advantage_estimate
from rl_training.data.recurrent_rollout_buffer import RecurrentRolloutBuffer
from rl_training.data.replay_buffer import ReplayBuffer, replay_size_in_bytes
from rl_training.data.rollout_buffer import RolloutBuffer, shuffled_indices

__all__ = [
    "RecurrentRolloutBuffer",
    "ReplayBuffer",
    "RolloutBuffer",
    "generalized_advantage_estimate",
    "replay_size_in_bytes",
    "shuffled_indices",
]

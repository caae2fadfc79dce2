"""Environments: factories, the batched TorchRL environment over them, spaces, normalisation, exact
resume by replay.
"""

from rl_training.envs.factory import (
    as_vector,
    make_batched_env,
    make_env,
    make_normalizer,
    make_vector_env,
)
from rl_training.envs.memory import HiddenVelocity, RepeatPrevious, TMaze
from rl_training.envs.normalize import (
    Normalizer,
    ObservationNormalizer,
    RewardNormalizer,
    RunningMeanStd,
)
from rl_training.envs.observations import observed_dtype
from rl_training.envs.replay import ResumeError
from rl_training.envs.seeding import episode_seed
from rl_training.envs.spaces import (
    ActionMap,
    observation_dtype,
    require_supported,
    space_from_dict,
    space_to_dict,
)
from rl_training.envs.vector import VectorEnv

__all__ = [
    "ActionMap",
    "HiddenVelocity",
    "Normalizer",
    "ObservationNormalizer",
    "RepeatPrevious",
    "ResumeError",
    "RewardNormalizer",
    "RunningMeanStd",
    "TMaze",
    "VectorEnv",
    "as_vector",
    "episode_seed",
    "make_batched_env",
    "make_env",
    "make_normalizer",
    "make_vector_env",
    "observation_dtype",
    "observed_dtype",
    "require_supported",
    "space_from_dict",
    "space_to_dict",
]

"""A small algorithm, and what tests read of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rl_training.registry import algorithm_class
from tests.recipes.runs import PHASES

SMALL: dict[str, Any] = {
    "num_envs": 2,
    "num_steps": 32,
    "minibatch_size": 32,
    "seed": 3,
    "hidden_sizes": [16],
}
CHECKPOINTS: dict[str, Any] = {"final": False, "tensorboard": False}


def make(name: str = "ppo", *, env: Any = "CartPole-v1", **changes: Any) -> Any:
    return algorithm_class(name)(env, **{**SMALL, **PHASES[name], **changes})


def parameters(algorithm: Any) -> Tensor:
    return torch.cat([p.detach().flatten() for p in algorithm.modules["model"].parameters()])


def observations(count: int = 5, size: int = 4) -> NDArray[np.float32]:
    return np.random.default_rng(0).normal(size=(count, size)).astype(np.float32)

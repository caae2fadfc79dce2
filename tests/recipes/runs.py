"""Small configurations, and runs by hand through the low-level interface."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_training.recipes.ppg import PPG
from rl_training.recipes.ppo import PPO
from rl_training.registry import algorithm_class
from tests.recipes.environments import Identity, Tracking

ENVIRONMENTS: dict[str, Callable[[], Any]] = {"discrete": Identity, "box": Tracking}

ON_POLICY = ("ppo", "ppg", "recurrent_ppo", "recurrent_ppg")

_COMMON: dict[str, Any] = {
    "num_envs": 4,
    "minibatch_size": 32,
    "learning_rate": 3e-3,
    "discount": 0.9,
}
_REPLAY: dict[str, Any] = {
    **_COMMON,
    "train_every": 128,
    "gradient_steps_per_step": 0.125,
    "warm_up": 96,
    "replay_capacity": 4096,
    "hidden_sizes": [32],
}
SMALL: dict[str, dict[str, Any]] = {
    **{name: {**_COMMON, "num_steps": 32} for name in ON_POLICY},
    # Learning twice has another schedule than learning once: epsilon has none here.
    "dqn": {**_REPLAY, "exploration_fraction": 0.0, "exploration_final": 0.2},
    "sac": _REPLAY,
    "td3": _REPLAY,
}
"""An iteration is 128 steps everywhere."""

_CYCLE: dict[str, Any] = {
    "policy_iterations": 2,
    "policy_epochs": 3,
    "value_epochs": 3,
    "auxiliary_epochs": 2,
    "auxiliary_minibatches": 8,
}
# Two sequences a minibatch; one lasts as long as an episode of the small environments.
_SEQUENCES: dict[str, Any] = {"sequence_length": 16, "memory_size": 16}
PHASES: dict[str, dict[str, Any]] = {
    "ppo": {"num_epochs": 3},
    "recurrent_ppo": {"num_epochs": 3, **_SEQUENCES},
    "recurrent_ppg": {**_CYCLE, **_SEQUENCES},
    "dqn": {"target_update_interval": 100},
    "sac": {},
    "td3": {},
    "ppg": _CYCLE,
}

_BRIEF: dict[str, Any] = {"num_envs": 2, "hidden_sizes": [16], "minibatch_size": 16}
_BRIEF_REPLAY: dict[str, Any] = {**_BRIEF, "train_every": 32, "warm_up": 16}
_BRIEF_ROLLOUT: dict[str, Any] = {**_BRIEF, "num_steps": 16}
_BRIEF_CYCLE: dict[str, Any] = {
    **_BRIEF_ROLLOUT,
    "policy_epochs": 2,
    "value_epochs": 2,
    "auxiliary_minibatches": 2,
}
_BRIEF_SEQUENCES: dict[str, Any] = {"sequence_length": 8, "memory_size": 8}
BRIEF: dict[str, dict[str, Any]] = {
    "ppo": {**_BRIEF_ROLLOUT, "num_epochs": 2},
    "recurrent_ppo": {**_BRIEF_ROLLOUT, "num_epochs": 2, **_BRIEF_SEQUENCES},
    "ppg": _BRIEF_CYCLE,
    "recurrent_ppg": {**_BRIEF_CYCLE, **_BRIEF_SEQUENCES},
    "dqn": {**_BRIEF_REPLAY, "target_update_interval": 24},
    "sac": _BRIEF_REPLAY,
    "td3": _BRIEF_REPLAY,
}
"""For what is tried with every algorithm in many ways: an iteration is 32 steps of two minibatches
or more, and two of them have every phase."""

_CELL_REPLAY: dict[str, Any] = {
    "minibatch_size": 8,
    "train_every": 16,
    "warm_up": 8,
    "gradient_steps_per_step": 0.25,
}
_CELL_ROLLOUT: dict[str, Any] = {"minibatch_size": 8, "num_steps": 8}
_CELL_CYCLE: dict[str, Any] = {
    **_CELL_ROLLOUT,
    "policy_epochs": 1,
    "value_epochs": 1,
    "auxiliary_epochs": 1,
}
CELL: dict[str, dict[str, Any]] = {
    "ppo": {**BRIEF["ppo"], **_CELL_ROLLOUT, "num_epochs": 1},
    "recurrent_ppo": {
        **BRIEF["recurrent_ppo"],
        **_CELL_ROLLOUT,
        "num_epochs": 1,
        "sequence_length": 4,
    },
    "ppg": {**BRIEF["ppg"], **_CELL_CYCLE},
    "recurrent_ppg": {**BRIEF["recurrent_ppg"], **_CELL_CYCLE, "sequence_length": 4},
    "dqn": {**BRIEF["dqn"], **_CELL_REPLAY, "target_update_interval": 12},
    "sac": {**BRIEF["sac"], **_CELL_REPLAY},
    "td3": {**BRIEF["td3"], **_CELL_REPLAY},
}
"""For every cell of a table, where episodes are of few steps: an iteration is 16 steps of two
minibatches, once over, and two of them have every phase."""


def make(name: str, env: Any = Identity, **changes: Any) -> Any:
    """Return a small algorithm."""
    return algorithm_class(name)(env, **{**SMALL[name], **PHASES[name], **changes})


def make_ppg(env: Any = Identity, **changes: Any) -> PPG:
    algorithm = make("ppg", env, **changes)
    assert isinstance(algorithm, PPG)
    return algorithm


def make_ppo(env: Any = Identity, **changes: Any) -> PPO:
    algorithm = make("ppo", env, **changes)
    assert isinstance(algorithm, PPO)
    return algorithm


def iterate(
    algorithm: Any, iterations: int, *, update: bool = True
) -> tuple[list[TensorDictBase], list[dict[str, Tensor]]]:
    """Collect and learn; return copies of the batches as updates left them, and the metrics."""
    batches, metrics = [], []
    collector = iter(algorithm.collector())
    for _ in range(iterations):
        batch = next(collector)
        if update:
            metrics.append(algorithm.update(batch))
        batches.append(batch.clone())
    return batches, metrics


def parameters(algorithm: PPO) -> dict[str, Tensor]:
    """Return a copy of every parameter by name."""
    return {name: p.detach().clone() for name, p in algorithm.model.named_parameters()}


def changed(before: dict[str, Tensor], after: dict[str, Tensor]) -> set[str]:
    """Return the names of what is no longer the same."""
    return {name for name, value in before.items() if not torch.equal(value, after[name])}

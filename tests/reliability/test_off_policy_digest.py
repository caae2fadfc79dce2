"""Off-policy runs: the digest depends on config and seed alone, not on what happens beside training
nor on where the replay buffer lies.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rl_training.config import config_from_dict
from rl_training.workflows import TrainResult, train
from tests.reliability.settings import FRAMES, setting

NAMES = ["dqn_cartpole_prioritized", "sac_pendulum_gsde", "td3_pendulum"]
BESIDE: dict[str, Any] = {
    "evaluation": {"interval": FRAMES, "deterministic": False, "seed": 5, "episodes": 1},
    "checkpoint": {"interval": FRAMES, "keep_last": 1, "keep_best": False},
    "tracking": {"tensorboard": True, "log_interval": 10_000},
    "tags": ["a"],
}


def trained(directory: Path, name: str, **changes: Any) -> TrainResult:
    quiet = {"evaluation": {"interval": None, "final": False}, "checkpoint": {"interval": None}}
    every = {"output_dir": str(directory / "runs"), "total_timesteps": 5 * FRAMES}
    content = setting(name, **{**quiet, **every, **changes})
    return train(config_from_dict(content, source=name))


@pytest.mark.parametrize("name", NAMES)
def test_the_digest_depends_on_config_and_seed_alone(tmp_path: Path, name: str) -> None:
    plain = trained(tmp_path, name).digest
    storage = {"replay_storage": "disk", "replay_directory": str(tmp_path / "replay")}
    other = {**BESIDE, "env": {"vectorization": "async"}, "algorithm": storage}
    assert trained(tmp_path, name, **other).digest == plain
    assert trained(tmp_path, name, seed=4).digest != plain

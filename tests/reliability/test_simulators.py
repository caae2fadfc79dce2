"""Physics simulators resume exactly: BipedalWalker by a new world for every episode, the others as
they are.
"""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from rl_training.config import TrainConfig, config_from_dict
from rl_training.envs import ResumeError, as_vector
from rl_training.envs.vector import VectorEnv
from rl_training.workflows import resume_checkpoint, train
from tests.envs.scripted import collect, generator
from tests.reliability.runs import assert_same_training, checkpoints
from tests.reliability.settings import FRAMES, setting

ITERATIONS = 6
BOX2D = ["BipedalWalker-v3", "BipedalWalkerHardcore-v3", "LunarLanderContinuous-v3"]
MUJOCO = ["HalfCheetah-v5", "Ant-v5"]
needs_box2d = pytest.mark.skipif(
    importlib.util.find_spec("Box2D") is None, reason="needs the extra 'box2d'"
)
needs_mujoco = pytest.mark.skipif(
    importlib.util.find_spec("mujoco") is None, reason="needs the extra 'mujoco'"
)
ENVIRONMENTS = [
    *(pytest.param(name, marks=needs_box2d) for name in BOX2D),
    *(pytest.param(name, marks=needs_mujoco) for name in MUJOCO),
]


def assert_resumes_exactly(tmp_path: Path, algo: str, name: str) -> None:
    content = setting(
        "ppo_cartpole" if algo == "ppo" else "sac_pendulum",
        env_id=name,
        # Episodes end several times between two checkpoints, and many steps before them.
        env_kwargs={"max_episode_steps": 45},
        total_timesteps=ITERATIONS * FRAMES,
        output_dir=str(tmp_path / "runs"),
        checkpoint={"interval": FRAMES, "keep_last": ITERATIONS, "keep_best": False},
        evaluation={"interval": None, "episodes": 1, "num_envs": 1},
    )
    whole = train(config_from_dict(content, source="test"))
    saved = checkpoints(whole.run_dir)
    for checkpoint in saved[1:-1]:
        copy = shutil.copytree(whole.run_dir, tmp_path / "copies" / checkpoint.name)
        again = resume_checkpoint(copy / "checkpoints" / checkpoint.name)
        assert again.digest == whole.digest, f"resumed from {checkpoint.name}"
        assert_same_training(copy, whole.run_dir)


@pytest.mark.parametrize("name", ENVIRONMENTS)
@pytest.mark.parametrize("algo", ["ppo", "sac"])
@pytest.mark.slow
def test_a_run_resumed_from_any_checkpoint_ends_the_same(
    tmp_path: Path, algo: str, name: str
) -> None:
    assert_resumes_exactly(tmp_path, algo, name)


@pytest.mark.parametrize(
    ("algo", "name"),
    [
        pytest.param("ppo", "BipedalWalker-v3", marks=needs_box2d),
        pytest.param("sac", "BipedalWalker-v3", marks=needs_box2d),
        pytest.param("sac", "LunarLanderContinuous-v3", marks=needs_box2d),
        pytest.param("sac", "HalfCheetah-v5", marks=needs_mujoco),
    ],
)
def test_a_short_run_resumed_from_any_checkpoint_ends_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, algo: str, name: str
) -> None:
    monkeypatch.setattr(f"{__name__}.ITERATIONS", 3)
    assert_resumes_exactly(tmp_path, algo, name)


def walker() -> Any:
    return gymnasium.make("BipedalWalker-v3")


def play(env: Any, seed: int) -> bytes:
    """Return all that an episode of random actions gives."""
    draws = np.random.default_rng(seed)
    seen = [np.asarray(env.reset(seed=seed)[0]).tobytes()]
    for _ in range(200):
        action = draws.uniform(-1, 1, 4).astype(np.float32)
        observation, reward, terminated, truncated, _ = env.step(action)
        seen.append(np.asarray(observation).tobytes() + np.float64(reward).tobytes())
        if terminated or truncated:
            break
    return b"".join(seen)


@needs_box2d
@pytest.mark.parametrize("source", ["id", "callable", "instance"])
def test_a_used_walker_plays_an_episode_as_a_new_one(source: str) -> None:
    config = TrainConfig(algo="ppo", env_id="BipedalWalker-v3", num_envs=1)
    given: dict[str, Callable[[], Any]] = {
        "id": lambda: None,
        "callable": lambda: walker,
        "instance": walker,
    }
    used: Any = as_vector(given[source](), config)
    for seed in range(8):
        new: Any = as_vector(given[source](), config)
        assert play(used.envs[0], seed) == play(new.envs[0], seed)
        new.close()
    used.close()


@needs_box2d
def test_walkers_in_a_vector_of_a_user_s_own_are_refused_by_name() -> None:
    """Their worlds are left as they are, and nothing is resumed wrongly."""

    def make() -> VectorEnv:
        vector = SyncVectorEnv([walker] * 2, autoreset_mode=AutoresetMode.DISABLED)
        return VectorEnv(vector, seed=3, name="walkers")

    environment = make()
    collect(environment, 400, generator())
    with pytest.raises(ResumeError, match=r"walkers: environment \d .*--resume approximate"):
        make().load_state_dict(environment.state_dict())

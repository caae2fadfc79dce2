"""A NaN or an infinity stops the run, is named, and leaves the checkpoints as they were."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from rl_training import PPO, cli
from rl_training.errors import NonFiniteError, UserError
from rl_training.registry import algorithm_class, algorithm_names
from rl_training.runtime.checkpoint import verify
from tests.reliability import environments
from tests.reliability.runs import checkpoints, execute, metrics, status, the_run
from tests.reliability.settings import FRAMES, NUM_ENVS, NUM_STEPS, setting, write_setting

ROW, AT = 2, 3 * NUM_STEPS + 20
STEP = (AT - 1) * NUM_ENVS + ROW
"""Steps that all environments have done when number ROW does its AT-th."""


def poisoned(directory: Path, what: str, name: str = "ppo_cartpole", **changes: Any) -> Path:
    continuous = "pendulum" in name
    content = setting(
        name,
        env_id=environments.environment_id("PoisonedContinuous" if continuous else "Poisoned"),
        env_kwargs={"row": ROW, "at": AT, "what": what},
        output_dir=str(directory / "runs"),
        checkpoint={"interval": FRAMES},
        evaluation={"interval": None},
        tracking={"log_interval": None, "tensorboard": False},
        **changes,
    )
    return write_setting(directory / "config.yaml", content)


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize(
    ("name", "what", "key", "normalized"),
    [
        ("ppo_cartpole", "observation", "next.observation", False),
        ("ppo_cartpole", "reward", "next.reward", False),
        ("ppo_cartpole", "reward", "next.reward", True),
        ("dqn_cartpole_rainbow", "observation", "next.observation", False),
        ("dqn_cartpole_prioritized", "reward", "next.reward", False),
        ("sac_pendulum", "observation", "next.observation", False),
        ("sac_cartpole", "reward", "next.reward", False),
        ("td3_pendulum", "observation", "next.observation", False),
        ("td3_pendulum", "reward", "next.reward", False),
    ],
)
def test_the_run_stops_and_names_step_environment_and_key(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    name: str,
    what: str,
    key: str,
    normalized: bool,
) -> None:
    config = poisoned(tmp_path, what, name, env={"normalize_reward": normalized})
    environments.restart_counting()
    assert cli.main(["train", "--config", str(config)]) == 1
    said = capsys.readouterr().err.strip().splitlines()[-1]
    run = the_run(tmp_path / "runs")
    latest = checkpoints(run)[-1]
    assert f"{key!r} of environment {ROW} at step {STEP} " in said
    assert str(latest) in said
    assert latest.name == f"step_{3 * FRAMES:012d}"
    assert (run / "checkpoints" / "latest").read_text().strip() == latest.name
    verify(latest)
    assert status(run) == "failed"
    assert not (run / "result.json").exists()
    assert [line["step"] for line in metrics(run)] == [FRAMES, 2 * FRAMES, 3 * FRAMES]


def test_one_row_leaves_the_statistics_of_all_others_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = poisoned(tmp_path, "observation", env={"normalize_observation": True})
    environments.restart_counting()
    assert cli.main(["train", "--config", str(config)]) == 1
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert f"'next.observation' of environment {ROW} at step {STEP} " in said
    assert f"(vector step {(AT - 1) % NUM_STEPS} of the rollout)" in said
    assert len(metrics(the_run(tmp_path / "runs"))) == 3


def test_in_a_process_of_its_own(tmp_path: Path) -> None:
    done = execute("train", "--config", poisoned(tmp_path, "observation"))
    assert done.returncode == 1
    assert f"'next.observation' of environment {ROW} at step {STEP} " in done.stderr
    assert status(the_run(tmp_path / "runs")) == "failed"


def test_a_failed_run_can_be_resumed_where_the_environment_behaves_again(tmp_path: Path) -> None:
    config = poisoned(tmp_path, "reward", total_timesteps=6 * FRAMES)
    environments.restart_counting()
    assert cli.main(["train", "--config", str(config)]) == 1
    # Numbers go on, so that no environment is number ROW any more.
    assert cli.main(["resume", str(the_run(tmp_path / "runs"))]) == 0
    assert status(the_run(tmp_path / "runs")) == "finished"


DIVERGING: dict[str, dict[str, Any]] = {
    "ppo_pendulum_gsde_normalized": {"gsde": False, "max_gradient_norm": None},
    "ppg_pendulum_shared": {"max_gradient_norm": None},
    "dqn_cartpole_prioritized": {"max_gradient_norm": None, "warm_up": 0},
    "dqn_cartpole_rainbow": {"max_gradient_norm": None, "warm_up": 0},
    "sac_pendulum": {"warm_up": 0},
    "sac_pendulum_gsde": {"warm_up": 0},
    "sac_cartpole": {"warm_up": 0},
    "td3_pendulum": {"warm_up": 0},
}


@pytest.mark.parametrize("name", DIVERGING)
def test_an_update_that_diverges_stops_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    content = setting(name, output_dir=str(tmp_path / "runs"))
    content["algorithm"].update(learning_rate=1e30, **DIVERGING[name])
    config = write_setting(tmp_path / "config.yaml", content)
    assert cli.main(["train", "--config", str(config)]) == 1
    run = the_run(tmp_path / "runs")
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert "NaN or infinity" in said
    assert f"{run} has no checkpoint yet" in said
    assert status(run) == "failed"
    assert checkpoints(run) == []


def small(name: str) -> Any:
    """Return an algorithm of short iterations."""
    every: dict[str, Any] = {"num_envs": 2, "minibatch_size": 8}
    if name not in ("dqn", "sac", "td3"):
        phase: dict[str, Any] = {"auxiliary_minibatches": 8} if name == "recurrent_ppg" else {}
        return algorithm_class(name)("CartPole-v1", num_steps=8, **phase, **every)
    env = "CartPole-v1" if name == "dqn" else "Pendulum-v1"
    # One gradient step per update.
    replay: dict[str, Any] = {
        "train_every": 2,
        "gradient_steps_per_step": 0.5,
        "replay_capacity": 64,
    }
    return algorithm_class(name)(env, warm_up=8, **replay, **every)


@pytest.mark.parametrize("name", algorithm_names())
def test_a_parameter_that_becomes_nan_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm = small(name)
    update = algorithm.update

    def spoil(batch: Any) -> Any:
        result = update(batch)
        with torch.no_grad():
            next(iter(algorithm.modules["model"].parameters())).view(-1)[0] = math.nan
        return result

    monkeypatch.setattr(algorithm, "update", spoil)
    first, _ = next(iter(algorithm.modules["model"].named_parameters()))
    with pytest.raises(NonFiniteError, match=f"'model.{first}'"):
        algorithm.learn(64)


@pytest.mark.parametrize("name", ["dqn", "sac", "td3"])
def test_a_gradient_that_becomes_nan_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm = small(name)
    taken = 0

    def spoil(gradient: torch.Tensor) -> torch.Tensor:
        nonlocal taken
        taken += 1
        return gradient * math.nan if taken == 12 else gradient

    parameter = next(each for each in algorithm.modules["model"].parameters() if each.ndim)
    monkeypatch.setattr(algorithm, "_learn", algorithm._gradient_step)
    parameter.register_hook(spoil)
    with pytest.raises(NonFiniteError, match=r"'train/(actor_|critic_)?gradient_norm'"):
        algorithm.learn(640)
    assert taken == 12
    with pytest.raises(UserError, match="failed in the middle of an iteration"):
        algorithm.learn(8)


def test_learn_with_a_run_directory_closes_it_as_failed(tmp_path: Path) -> None:
    environments.restart_counting()
    algorithm = PPO(
        environments.environment_id("Poisoned"),
        env_kwargs={"row": 1, "at": 5, "what": "reward"},
        output_dir=str(tmp_path),
        num_envs=2,
        num_steps=8,
        minibatch_size=8,
    )
    with pytest.raises(NonFiniteError, match=r"'next\.reward' of environment 1 at step 9 "):
        algorithm.learn(64)
    assert status(the_run(tmp_path)) == "failed"


class Spoilt(gymnasium.Env[Any, Any]):
    """Gives a NaN or an infinity in its 4th step, where it is told to."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space: Any = gymnasium.spaces.Discrete(2)

    def __init__(self, what: str | None = None) -> None:
        self._what, self._steps = what, 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        spoilt = self._what if self._steps == 4 else None
        observation = np.array([0.0, math.nan if spoilt == "observation" else 0.0], np.float32)
        return observation, math.inf if spoilt == "reward" else 1.0, self._steps == 8, False, {}


gymnasium.register("Spoilt-v0", entry_point=f"{__name__}:Spoilt")


@pytest.mark.parametrize("what", ["observation", "reward"])
def test_an_evaluation_is_not_of_what_is_not_finite(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], what: str
) -> None:
    config = write_setting(
        tmp_path / "config.yaml",
        setting(
            "ppo_cartpole",
            env_id="Spoilt-v0",
            output_dir=str(tmp_path / "runs"),
            checkpoint={"interval": FRAMES},
            evaluation={"interval": 2 * FRAMES, "env_kwargs": {"what": what}, "num_envs": 2},
        ),
    )
    assert cli.main(["train", "--config", str(config)]) == 1
    run = the_run(tmp_path / "runs")
    said = capsys.readouterr().err.strip().splitlines()[-1]
    complaint = f"{what} of environment 0 is NaN or infinite in the evaluation, after 4 vector"
    assert complaint in said
    assert str(checkpoints(run)[-1]) in said
    assert not (run / "checkpoints" / "best").exists()
    assert cli.main(["eval", str(run)]) == 1
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert said.startswith("rl-training: evaluation failed: ")
    assert complaint in said


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, 1e300])
def test_predict_refuses_what_is_not_finite(number: float) -> None:
    algorithm = PPO("CartPole-v1", num_envs=2, num_steps=32, minibatch_size=32)
    with pytest.raises(UserError, match="NaN or infinite"):
        algorithm.predict([0.0, number, 0.0, 0.0])
    algorithm.predict([0.0, 1e30, 0.0, 0.0])

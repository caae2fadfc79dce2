"""A NaN or an infinity stops the run, is named, and leaves the checkpoints as they were."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from rl_training import PPG, PPO, cli
from rl_training.errors import NonFiniteError
from rl_training.runtime.checkpoint import verify
from tests.reliability import environments
from tests.reliability.runs import checkpoints, execute, metrics, status, the_run
from tests.reliability.settings import FRAMES, NUM_ENVS, NUM_STEPS, setting, write_setting

ROW, AT = 2, 3 * NUM_STEPS + 20
STEP = (AT - 1) * NUM_ENVS + ROW
"""Steps that all environments have done when number ROW does its AT-th."""


def poisoned(directory: Path, what: str, **changes: Any) -> Path:
    content = setting(
        "ppo_cartpole",
        env_id=environments.environment_id("Poisoned"),
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
    ("what", "key", "normalized"),
    [
        ("observation", "next.observation", False),
        ("reward", "next.reward", False),
        ("reward", "next.reward", True),
    ],
)
def test_the_run_stops_and_names_step_environment_and_key(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    what: str,
    key: str,
    normalized: bool,
) -> None:
    config = poisoned(tmp_path, what, env={"normalize_reward": normalized})
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


@pytest.mark.parametrize("algo", ["ppo", "ppg"])
def test_an_update_that_diverges_stops_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], algo: str
) -> None:
    content = setting(
        "ppo_pendulum_gsde_normalized" if algo == "ppo" else "ppg_pendulum_shared",
        output_dir=str(tmp_path / "runs"),
    )
    content["algorithm"].update(learning_rate=1e30, gsde=False, max_gradient_norm=None)
    config = write_setting(tmp_path / "config.yaml", content)
    assert cli.main(["train", "--config", str(config)]) == 1
    run = the_run(tmp_path / "runs")
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert "NaN or infinity" in said
    assert f"{run} has no checkpoint yet" in said
    assert status(run) == "failed"
    assert checkpoints(run) == []


@pytest.mark.parametrize("cls", [PPO, PPG])
def test_a_parameter_that_becomes_nan_is_named(cls: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm = cls("CartPole-v1", num_envs=2, num_steps=8, minibatch_size=8)
    update = algorithm.update

    def spoil(batch: Any) -> Any:
        result = update(batch)
        with torch.no_grad():
            next(iter(algorithm.modules["model"].parameters())).view(-1)[0] = math.nan
        return result

    monkeypatch.setattr(algorithm, "update", spoil)
    name, _ = next(iter(algorithm.modules["model"].named_parameters()))
    with pytest.raises(NonFiniteError, match=f"'model.{name}'"):
        algorithm.learn(64)


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

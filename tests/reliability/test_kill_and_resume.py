"""A run that is killed, by SIGKILL and more than once, ends as the run that was left alone."""

from __future__ import annotations

import importlib.util
import random
from pathlib import Path

import pytest

from tests.reliability.conftest import Reference
from tests.reliability.runs import (
    assert_same_training,
    checkpoints,
    count_lines,
    digest,
    execute,
    kill,
    metrics,
    the_run,
)
from tests.reliability.settings import setting, write_setting

moments = random.Random(11)


def some(lines: int, kills: int, *, at_least: int = 1) -> int:
    """Return how many lines to wait for where ``lines`` are left to come, and ``kills`` too."""
    most = max(1, lines // (kills + 1))
    return moments.randint(min(at_least, most), most)


def kill_and_resume(tmp_path: Path, reference: Path, name: str, *, kills: int) -> None:
    total = len(metrics(reference))
    output = tmp_path / "runs"
    config = write_setting(tmp_path / "config.yaml", setting(name, output_dir=str(output)))
    # A quarter of the run: where it is killed once, it goes on from a checkpoint.
    first = some(total, kills, at_least=total // 4)
    kill(output, "train", "--config", config, lines=first)
    run = the_run(output)
    for kills_left in range(kills - 1, 0, -1):
        left = total - count_lines(output)
        if left < 6:
            break  # it could finish before it is killed
        kill(output, "resume", run, lines=some(left, kills_left))
    done = execute("resume", run)
    assert done.returncode == 0, done.stderr
    assert_same_training(run, reference)


@pytest.mark.parametrize(
    ("name", "kills"),
    [
        ("ppo_cartpole", 1),
        ("ppo_pendulum_gsde_normalized", 2),
        ("ppg_cartpole_normalized", 1),
        ("ppg_pendulum_shared", 1),
        ("ppo_lunarlander", 1),
        ("ppg_cartpole_async", 1),
        ("recurrent_ppo_cartpole", 2),
        ("dqn_cartpole_prioritized", 2),
        ("sac_pendulum", 1),
        ("td3_pendulum", 1),
    ],
)
def test_a_killed_run_ends_as_the_one_left_alone(
    tmp_path: Path, reference: Reference, name: str, kills: int
) -> None:
    if "lunarlander" in name and importlib.util.find_spec("Box2D") is None:
        pytest.skip("needs the box2d extra")
    kill_and_resume(tmp_path, reference(name), name, kills=kills)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["ppo_cartpole", "ppo_pendulum_gsde_normalized", "ppg_cartpole_normalized"]
)
def test_a_run_killed_many_times_ends_as_the_one_left_alone(
    tmp_path: Path, reference: Reference, name: str
) -> None:
    kill_and_resume(tmp_path, reference(name), name, kills=6)


@pytest.mark.slow
def test_a_killed_compiled_run_ends_as_the_one_left_alone(
    tmp_path: Path, reference: Reference
) -> None:
    name = "ppg_pendulum_compiled"
    kill_and_resume(tmp_path, reference(name), name, kills=2)


def test_a_run_killed_before_its_first_checkpoint_starts_again_from_its_config(
    tmp_path: Path, reference: Reference
) -> None:
    output = tmp_path / "runs"
    content = setting("ppo_cartpole", output_dir=str(output), checkpoint={"interval": None})
    content["evaluation"]["interval"] = None  # the best one would be a checkpoint too
    config = write_setting(tmp_path / "config.yaml", content)
    kill(output, "train", "--config", config, lines=5)
    run = the_run(output)
    assert checkpoints(run) == []
    done = execute("resume", run)
    assert done.returncode == 0, done.stderr
    assert metrics(run) == metrics(reference("ppo_cartpole"))
    assert digest(run) == digest(reference("ppo_cartpole"))

"""A resume that changes what follows (a larger budget, new schedules), killed wherever it renames a
file: the next one goes on with all of the change, or with none.
"""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from rl_training import TrainConfig, UserError, replace_config, resume_checkpoint, train
from rl_training.runtime.resume_change import ResumeChange, read_resume_change
from tests.api.runs import SMALL, make
from tests.processes import Process
from tests.reliability.runs import checkpoints, metrics, result

LINEAR = {"learning_rate_schedule": "linear"}
STOPPED = {"evaluation": {"interval": 128, "stop_on_return": 1.0, "episodes": 2, "final": False}}
BUDGET = 256
LARGER = 384


def config(output: Path, **changes: Any) -> TrainConfig:
    base = TrainConfig(algo="ppo", env_id="CartPole-v1", output_dir=str(output))
    quiet = {"tensorboard": False, "final": False, **SMALL}
    return replace_config(base, **{**quiet, "total_timesteps": BUDGET, **changes})


def resume_and_die(run: str, options: dict[str, Any], renames: int) -> None:
    """Resume ``run``, to be killed there."""
    kill_after(renames)
    resume_checkpoint(run, **options)


def kill_after(renames: int) -> None:
    """SIGKILL this process at the moment of one more rename than ``renames``."""
    left = renames

    def counted(rename: Any) -> Any:
        def perhaps(*arguments: Any, **keywords: Any) -> None:
            nonlocal left
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left -= 1
            rename(*arguments, **keywords)

        return perhaps

    os.replace, os.rename = counted(os.replace), counted(os.rename)


CHANGES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "a callback's stop": (STOPPED, {"total_timesteps": LARGER}),
    "new schedules": (LINEAR, {"total_timesteps": LARGER, "reschedule": True}),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_whole_wherever_the_resume_is_killed(tmp_path: Path, name: str) -> None:
    settings, options = CHANGES[name]
    run = train(config(tmp_path / "runs", **settings)).run_dir
    begun, whole = shutil.copytree(run, tmp_path / "begun"), shutil.copytree(run, tmp_path / "all")
    expected = resume_checkpoint(whole, **options).digest
    unchanged = result(run)["digest"]
    assert expected != unchanged
    ends = []
    for renames in range(30):
        shutil.rmtree(begun)
        shutil.copytree(run, begun)
        process = Process(resume_and_die, str(begun), options, renames)
        if process.wait() == 0:
            break
        assert process.returncode == -signal.SIGKILL
        ends.append(resume_checkpoint(begun).digest)
        if renames:
            assert metrics(begun) == metrics(whole), f"killed after {renames} renames"
    # The change's own file is the first to be renamed into place.
    assert ends == [unchanged, *[expected] * (len(ends) - 1)]
    # That one, the metadata, the config, a checkpoint and `latest`, and again at the end.
    assert len(ends) >= 8


def test_schedules_end_with_the_first_budget_without_a_checkpoint_too(tmp_path: Path) -> None:
    run = train(config(tmp_path / "runs", **LINEAR, checkpoint={"interval": 64})).run_dir
    bare = shutil.copytree(run, tmp_path / "bare")
    shutil.rmtree(bare / "checkpoints")
    options: dict[str, Any] = {"total_timesteps": LARGER}
    again = shutil.copytree(bare, tmp_path / "again")
    whole = resume_checkpoint(run, **options)
    assert resume_checkpoint(bare, **options).digest == whole.digest
    assert checkpoints(bare)
    # After the change's own file, the metadata and the config: before the first checkpoint.
    assert Process(resume_and_die, str(again), options, 3).wait() == -signal.SIGKILL
    assert not checkpoints(again)
    assert resume_checkpoint(again).digest == whole.digest
    assert metrics(again) == metrics(run)


def go_on_and_die(output: str, renames: int) -> None:
    """Learn in a run of its own, then in a second one, to be killed there."""
    algorithm = make(output_dir=output, final=False, tensorboard=False).learn(64)
    kill_after(renames)
    algorithm.learn(64)


@pytest.mark.parametrize("renames", [1, 2])
def test_a_second_run_killed_at_once_does_not_begin_from_nothing(
    tmp_path: Path, renames: int
) -> None:
    assert Process(go_on_and_die, str(tmp_path), renames).wait() == -signal.SIGKILL
    first, second = sorted(tmp_path.iterdir(), key=lambda path: path.stat().st_ctime_ns)
    assert result(first)["global_step"] == 64
    with pytest.raises(
        UserError, match="began at step 64" if renames == 2 else "no checkpoint yet"
    ):
        resume_checkpoint(second)


def test_a_change_counts_for_the_checkpoint_it_began_from_alone(tmp_path: Path) -> None:
    change = ResumeChange(checkpoint="a", total_timesteps=9, schedule_horizon=None, go_on=True)
    change.write(tmp_path)
    assert read_resume_change(tmp_path, "a") == change
    assert read_resume_change(tmp_path, "b") is None
    assert read_resume_change(tmp_path, None) is None


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[1]",
        "{}",
        '{"checkpoint": "a", "total_timesteps": "9", "schedule_horizon": null, "go_on": true}',
        '{"checkpoint": "a", "total_timesteps": 1e9, "schedule_horizon": null, "go_on": true}',
        f'{{"checkpoint": "a", "total_timesteps": {2**63}, "schedule_horizon": 9, "go_on": true}}',
        '{"checkpoint": "a", "total_timesteps": 0, "schedule_horizon": null, "go_on": true}',
        '{"checkpoint": "a", "total_timesteps": 9, "schedule_horizon": 0, "go_on": true}',
        '{"checkpoint": "a", "total_timesteps": 9, "schedule_horizon": false, "go_on": true}',
        '{"checkpoint": 3, "total_timesteps": 9, "schedule_horizon": null, "go_on": true}',
        '{"checkpoint": "a", "total_timesteps": 9, "schedule_horizon": -1, "go_on": true}',
        '{"checkpoint": "a", "total_timesteps": 9, "schedule_horizon": null, "go_on": 1}',
    ],
)
def test_a_strange_change_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "resume.json").write_text(text)
    with pytest.raises(UserError, match=r"resume\.json cannot be used"):
        read_resume_change(tmp_path, "a")

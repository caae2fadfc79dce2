"""A run directory: what is in it, what a crash and a resume leave, and what refuses to start."""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from rl_training.config import TrainConfig, config_from_dict, config_to_dict, load_config
from rl_training.errors import UserError
from rl_training.runtime.checkpoint import load_checkpoint, read_link, resolve_checkpoint
from rl_training.runtime.run import (
    Run,
    create_training_run,
    make_run_dir,
    save_training_checkpoint,
    serialize_train_config,
)
from rl_training.runtime.versions import git_commit
from tests.processes import Process, run_source


def make_config(output_dir: Path, **changes: Any) -> TrainConfig:
    data = {"algo": "ppo", "env_id": "CartPole-v1", "seed": 3, "output_dir": str(output_dir)}
    return config_from_dict(
        {**data, "tracking": {"tensorboard": False}, **changes}, source="the test"
    )


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def steps(run: Run, name: str = "metrics.jsonl") -> list[int]:
    return [line["step"] for line in lines(run.directory / name)]


def metadata(run: Run) -> dict[str, Any]:
    return json.loads((run.directory / "metadata.json").read_text())


def test_the_name_has_algorithm_environment_seed_and_time(tmp_path: Path) -> None:
    path = make_run_dir(make_config(tmp_path / "a" / "b"))
    assert path.is_dir()
    assert path.parent == tmp_path / "a" / "b"
    assert re.fullmatch(r"ppo__CartPole-v1__seed3__\d{8}-\d{6}", path.name)


def test_unsafe_characters_of_the_environment_are_replaced(tmp_path: Path) -> None:
    path = make_run_dir(make_config(tmp_path, env_id="my_package:envs/My Env-v0"))
    assert path.parent == tmp_path
    assert path.name.startswith("ppo__my_package-envs-My-Env-v0__seed3__")


def test_runs_of_the_same_second_get_names_of_their_own(tmp_path: Path) -> None:
    config = make_config(tmp_path)
    assert len({make_run_dir(config) for _ in range(20)}) == 20
    assert any(path.name.endswith("-2") for path in tmp_path.iterdir())


@pytest.mark.parametrize("place", ["file", "file/below", "/proc/nowhere"])
def test_a_place_that_cannot_be_written_is_the_users_mistake(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"output_dir .* cannot be written") as caught:
        Run.create(make_config(tmp_path / place))
    assert "\n" not in str(caught.value)


def test_a_new_run_records_config_command_versions_and_machine(tmp_path: Path) -> None:
    config = make_config(tmp_path)
    run = create_training_run(config, ["rl-training", "train", "--seed", "3"])
    facts = metadata(run)
    assert facts["status"] == run.status == "running"
    assert facts["command"] == ["rl-training", "train", "--seed", "3"]
    assert facts["threads"] == config.torch_threads
    assert facts["pid"] == os.getpid()
    assert {"torch", "torchrl", "tensordict", "gymnasium", "numpy", "python"} <= set(
        facts["versions"]
    )
    assert {"host", "platform", "processor", "cpus"} <= set(facts["machine"])
    assert load_config(run.directory / "config.yaml") == config
    run.close("finished")


def test_the_commit_of_the_working_directory_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert git_commit() is None
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", "init", "-q"], check=True)
    (tmp_path / "file").write_text("1")
    subprocess.run(["git", "add", "file"], check=True)
    subprocess.run(["git", *identity, "commit", "-qm", "first"], check=True)
    clean = git_commit()
    assert clean is not None
    assert re.fullmatch("[0-9a-f]{40}", clean)
    (tmp_path / "file").write_text("2")
    assert git_commit() == f"{clean}-dirty"


def test_metrics_and_evaluations_are_lines_with_their_step(tmp_path: Path) -> None:
    run = Run.create(make_config(tmp_path))
    run.log(128, {"loss/policy": torch.tensor(0.5), "train/return_mean": float("nan")})
    run.log_evaluation(128, {"return_mean": 9.5, "returns": [9.0, 10.0], "deterministic": True})
    run.close("finished", {"global_step": 128})
    (line,) = lines(run.directory / "metrics.jsonl")
    assert line.pop("wall_time_s") >= 0
    assert line == {"step": 128, "loss/policy": 0.5, "train/return_mean": None}
    assert lines(run.directory / "evaluations.jsonl") == [
        {"step": 128, "return_mean": 9.5, "returns": [9.0, 10.0], "deterministic": True}
    ]
    result = json.loads((run.directory / "result.json").read_text())
    assert result == {"status": "finished", "global_step": 128}
    assert metadata(run)["status"] == "finished"


def test_a_run_without_result_still_records_how_it_ended(tmp_path: Path) -> None:
    run = Run.create(make_config(tmp_path))
    with pytest.raises(ValueError, match="status"):
        run.close("done")
    run.close("failed")
    run.close("failed")
    assert metadata(run)["status"] == "failed"
    assert not (run.directory / "result.json").exists()


def killed(run: Run) -> None:
    """Lift the lock, as the system does when a process dies."""
    run._lock.release()


def test_a_crash_after_metrics_were_logged_duplicates_no_line_on_resume(tmp_path: Path) -> None:
    config = make_config(tmp_path)
    run = Run.create(config)
    run.log(10, {"x": 1.0})
    run.log_evaluation(10, {"return_mean": 1.0})
    path = run.save_checkpoint(10, {"run": run.state_dict()}, {})
    run.log(20, {"x": 2.0})
    run.log_evaluation(20, {"return_mean": 2.0})
    with (run.directory / "metrics.jsonl").open("ab") as file:
        file.write(b'{"step": 30, "x"')
    assert path is not None
    killed(run)

    resumed = Run.open(run.directory)
    resumed.load_state_dict(load_checkpoint(path).state["run"])
    for step in (20, 30):
        resumed.log(step, {"x": step / 10})
        resumed.log_evaluation(step, {"return_mean": step / 10})
    resumed.close("finished")
    assert steps(run) == [10, 20, 30]
    assert steps(run, "evaluations.jsonl") == [10, 20, 30]


def test_a_run_killed_before_its_first_checkpoint_begins_its_logs_anew(tmp_path: Path) -> None:
    run = Run.create(make_config(tmp_path))
    run.log(10, {"x": 1.0})
    killed(run)
    resumed = Run.open(run.directory)
    resumed.load_state_dict({})
    resumed.log(10, {"x": 1.0})
    assert steps(run) == [10]


def test_wall_time_counts_what_was_before_the_resume(tmp_path: Path) -> None:
    run = Run.create(make_config(tmp_path))
    state = run.state_dict()
    assert 0 <= state["wall_time_s"] < 60
    killed(run)
    resumed = Run.open(run.directory)
    resumed.load_state_dict({**state, "wall_time_s": 1000.0})
    assert 1000 <= resumed.wall_time_s < 1060


def test_opening_a_run_changes_nothing_until_something_is_written(tmp_path: Path) -> None:
    run = Run.create(make_config(tmp_path))
    run.close("finished", {"global_step": 1})
    before = {path.name: path.read_bytes() for path in run.directory.iterdir()}
    opened = Run.open(run.directory)
    assert opened.status == "finished"
    assert opened.config == run.config
    opened.close("failed")
    assert {path.name: path.read_bytes() for path in run.directory.iterdir()} == before


def test_a_resume_is_recorded_with_its_command(tmp_path: Path) -> None:
    run = Run.create(make_config(tmp_path), ["first"])
    run.close("interrupted")
    resumed = Run.open(run.directory)
    resumed.start(["second"])
    facts = metadata(run)
    assert facts["status"] == "running"
    assert facts["command"] == ["first"]
    assert [each["command"] for each in facts["resumes"]] == [["second"]]


def test_a_larger_budget_is_written_to_the_config(tmp_path: Path) -> None:
    run = Run.create(make_config(tmp_path))
    run.update_config(make_config(tmp_path, total_timesteps=777))
    assert load_config(run.directory / "config.yaml").total_timesteps == 777


def test_lost_metadata_is_no_obstacle(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = Run.create(make_config(tmp_path))
    run.close("interrupted")
    (run.directory / "metadata.json").write_text("{")
    resumed = Run.open(run.directory)
    assert resumed.status == "unknown"
    assert "metadata.json" in caplog.text
    resumed.start()
    assert metadata(run)["status"] == "running"


def test_what_is_no_run_directory_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not a run directory"):
        Run.open(tmp_path)


def test_checkpoints_follow_the_config_and_hold_it(tmp_path: Path) -> None:
    config = make_config(tmp_path, checkpoint={"keep_last": 1})
    run = Run.create(config)
    first = run.save_checkpoint(10, {"step": 10}, {}, best=True)
    run.save_checkpoint(20, {"step": 20}, {})
    last = save_training_checkpoint(run, step=30, state={"step": 30}, policy={})
    assert first is not None
    assert last is not None
    assert sorted(path.name for path in run.checkpoints.iterdir()) == [
        "best",
        "latest",
        "step_000000000010",
        "step_000000000030",
    ]
    assert load_checkpoint(last).config == config_to_dict(config) == serialize_train_config(config)
    assert read_link(run.checkpoints, "best") == first


def test_the_best_is_not_kept_when_the_config_says_so(tmp_path: Path) -> None:
    run = Run.create(make_config(tmp_path, checkpoint={"keep_best": False}))
    run.save_checkpoint(10, {}, {}, best=True)
    assert read_link(run.checkpoints, "best") is None


def test_a_full_disk_at_a_checkpoint_is_a_warning_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = Run.create(make_config(tmp_path))
    first = run.save_checkpoint(10, {"x": 1}, {})

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr("rl_training.runtime.manifest.write_durable", full)
        assert run.save_checkpoint(20, {"x": 2}, {}) is None
    assert "No space left on device" in caplog.text
    assert read_link(run.checkpoints, "latest") == first
    run.log(20, {"x": 2.0})
    assert run.save_checkpoint(30, {"x": 3}, {}) is not None


def test_a_missing_tracking_package_stops_at_the_start_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(UserError, match=r'pip install "rl_training\[wandb\]"'):
        Run.create(make_config(tmp_path, tracking={"tensorboard": False, "wandb": "offline"}))
    assert list(tmp_path.iterdir()) == []


HOLDER = """
import os, sys, time
from rl_training.runtime.run import Run
run = Run.open(sys.argv[1])
run.start()
if os.fork() == 0:
    time.sleep(60)
print("holding", os.getpid(), flush=True)
time.sleep(60)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_run_that_another_process_trains_is_refused_until_that_process_is_dead(
    tmp_path: Path,
) -> None:
    run = Run.create(make_config(tmp_path))
    run.close("interrupted")
    with Process(run_source, HOLDER, str(run.directory)) as holder:
        assert holder.wait_for_output().startswith("holding")
        with pytest.raises(UserError, match="another process is training"):
            Run.open(run.directory).start()
        holder.send_signal(signal.SIGKILL)  # not to its group
        holder.wait()
        # Its orphaned child is still there, and does not matter.
        time.sleep(0.05)
        os.killpg(holder.pid, 0)
        Run.open(run.directory).start()


def test_a_run_that_has_saved_nothing_yet_is_named(tmp_path: Path) -> None:
    run = Run.create(make_config(tmp_path))
    with pytest.raises(UserError, match="has written no checkpoint yet"):
        resolve_checkpoint(run.directory)
